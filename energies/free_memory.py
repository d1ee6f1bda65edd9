"""Free memory, within the limits of control groups such as those of a cluster's jobs."""

from collections.abc import Iterator
from pathlib import Path

import torch

SYSTEM, GROUPS, OWN = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# File names of the limit, the usage, and the reclaimable file cache, in both versions of control groups
VERSION_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
VERSION_2 = "memory.max", "memory.current", "inactive_file"


def free_bytes(device: torch.device) -> int | None:
    """Free memory of the device in bytes, or None if it is unknown."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cached by torch
        return torch.cuda.mem_get_info(device)[0] + kept
    found = [_named(SYSTEM, "MemAvailable:", 1024), *left_in_groups(OWN, GROUPS)]
    return min((left for left in found if left is not None), default=None)


def left_in_groups(own: Path, root: Path) -> Iterator[int]:
    """What each control group of this process still allows, if it sets a limit.

    `own` lists the groups of the process, `root` is where groups are mounted.
    """
    for line in (_text(own) or "").splitlines():
        number, kinds, path = line.split(":", 2)
        if number == "0":
            yield from _left(root, path, VERSION_2)
        elif "memory" in kinds.split(","):
            yield from _left(root / "memory", path, VERSION_1)


def _left(root: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    """The free memory of a group and its parents; a container may show the root alone."""
    limit_name, used_name, droppable = names
    group = root / path.lstrip("/")
    for folder in [group, *group.parents]:
        limit, used = _text(folder / limit_name), _text(folder / used_name)
        if limit and used and limit.strip() != "max":
            files = _named(folder / "memory.stat", droppable, 1) or 0
            yield max(int(limit) - int(used) + files, 0)
        if folder == root:
            return


def _named(path: Path, name: str, unit: int) -> int | None:
    """The number after a name in a file of names and numbers."""
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1]) * unit
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return None
