"""The record of a finished run: its numbers and how they were made."""

import os
import platform
import resource
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "pytorch-lightning", "torchmetrics", "jsonargparse", "numpy")


def versions() -> dict[str, str]:
    """Versions of the packages that can change a number."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def source() -> dict[str, Any]:
    """The commit, and whether files other than results differ from it, new code and configs included."""
    commit = _git("rev-parse", "HEAD")
    changed = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    added = ("ls-files", "--others", "--exclude-standard", "--", "*.py", "conf")
    found = [_git(*command) for command in (changed, added)] if commit else [None]
    return {"commit": commit, "dirty": None if None in found else any(found)}


def device(name: str) -> dict[str, Any]:
    """What the run ran on; `name` is the device torch used."""
    found: dict[str, Any] = {"device": name}
    if name.startswith("cuda"):
        import torch

        found["device"] = torch.cuda.get_device_name(name)
    return found | {"cpu": _cpu(), "cores": os.cpu_count()}


def peak_memory() -> dict[str, float]:
    """The peak memory of this process, and of its GPU, in MiB."""
    found = {"peak_memory_mib": round(_peak_kib() / 1024, 1)}
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["peak_gpu_memory_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return found


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _peak_kib() -> int:
    """From the kernel's status of the process: `ru_maxrss` begins at the memory of its parent."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@cache
def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
