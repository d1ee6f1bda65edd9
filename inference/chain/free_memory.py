"""How much memory there is to take, also where a control group, such as a cluster's job, sets a limit."""

from collections.abc import Iterator
from pathlib import Path

import torch

SYSTEM, GROUPS, OWN = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# What a group calls its limit, what it uses, and files it would drop, in both versions of control groups
VERSION_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
VERSION_2 = "memory.max", "memory.current", "inactive_file"


def free_bytes(device: torch.device) -> int | None:
    """Memory of the device that can still be taken, or None where that cannot be found out."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, to reuse
        return torch.cuda.mem_get_info(device)[0] + kept
    found = [_named(SYSTEM, "MemAvailable:", 1024), *left_in_groups(OWN, GROUPS)]
    return min((left for left in found if left is not None), default=None)


def left_in_groups(own: Path, root: Path) -> Iterator[int]:
    """What each group around this process still allows, if it sets a limit.

    `own` lists the groups of the process, `root` is where groups are mounted.
    """
    for line in (_text(own) or "").splitlines():
        number, kinds, path = line.split(":", 2)
        if number == "0":
            yield from _left(root, path, VERSION_2)
        elif "memory" in kinds.split(","):
            yield from _left(root / "memory", path, VERSION_1)


def _left(root: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    """Of the group and those around it; a container may show the last alone."""
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
    """The number behind a name in a file of names and numbers."""
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
