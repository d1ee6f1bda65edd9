"""The starts of a run: from which epoch on, which code and which processor. Needs no torch.

A stopped run resumes in another process, maybe with other code on another machine. Its record lists each
start whose epochs are in the result, in order:

    "starts": [{"epoch": 0, "commit": "1b5...", "dirty": false, "device": "cpu", "cpu": "AMD EPYC"}, ...]

The fields beside the list (`commit`, `cpu`, `versions`, ...) are of the last start, which tested. An older
record has no list and counts as one start.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Start = dict[str, Any]

UNKNOWN: Start = {"epoch": 0, "commit": None, "dirty": None, "device": None, "cpu": None}


def of(record: Mapping[str, Any]) -> list[Start]:
    """The starts of a recorded run; only this function handles the older form."""
    return record.get("starts") or [{"epoch": 0} | last(record)]


def last(record: Mapping[str, Any]) -> Start:
    """The code and processor that a record names, which are those of its last start."""
    return {key: record.get(key) for key in UNKNOWN if key != "epoch"}


def processors(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """The kinds of processor that runs were made on, as far as they are recorded."""
    made = (start for record in records for start in of(record))
    return {str(s["cpu"] if s["device"] == "cpu" else s["device"]) for s in made if s["device"]}


def changed_code(record: Mapping[str, Any]) -> bool:
    """Whether a run resumed with other code, or possibly did: uncommitted changes cannot be compared."""
    made = of(record)
    return len({s["commit"] for s in made}) > 1 or (len(made) > 1 and any(s["dirty"] for s in made))


def processors_of(records: Iterable[Mapping[str, Any]]) -> str:
    """The kinds of processor by name."""
    return ", ".join(sorted(processors(records))) or "an unknown processor"


def commits_of(records: Iterable[Mapping[str, Any]]) -> str:
    """The commits that runs were made with; a plus marks uncommitted changes."""
    named = (start for record in records for start in of(record) if start["commit"])
    return ", ".join(sorted({f"{s['commit'][:9]}{'+' * bool(s['dirty'])}" for s in named})) or "unknown"
