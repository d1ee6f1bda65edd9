"""The starts of a run: which code, on which processor, worked on it from which epoch on. Needs no torch.

A run that was stopped goes on in another process, perhaps of other code on another machine. Its record lists
each start whose epochs are in the result, the first one first:

    "starts": [{"epoch": 0, "commit": "1b5...", "dirty": false, "device": "cpu", "cpu": "AMD EPYC"}, ...]

What stands beside the list (`commit`, `cpu`, `versions`, ...) is of the last start, which tested. A record
older than the list has that alone and counts as one start, unless `scripts/tell_starts.py` found that there
were more.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Start = dict[str, Any]

NOT_TOLD: Start = {"epoch": 0, "commit": None, "dirty": None, "device": None, "cpu": None}


def of(record: Mapping[str, Any]) -> list[Start]:
    """The starts of a run on record; this is the one place that knows the older form."""
    return record.get("starts") or [{"epoch": 0} | last(record)]


def last(record: Mapping[str, Any]) -> Start:
    """The code and the processor that a record itself names, which are its last start's."""
    return {key: record.get(key) for key in NOT_TOLD if key != "epoch"}


def processors(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """The kinds of processor that runs were made on, as far as they are told."""
    made = (start for record in records for start in of(record))
    return {str(s["cpu"] if s["device"] == "cpu" else s["device"]) for s in made if s["device"]}


def changed_code(record: Mapping[str, Any]) -> bool:
    """Whether a run went on with other code than it began with, or perhaps did: changes have no name."""
    made = of(record)
    return len({s["commit"] for s in made}) > 1 or (len(made) > 1 and any(s["dirty"] for s in made))


def processors_of(records: Iterable[Mapping[str, Any]]) -> str:
    """The kinds of processor by name."""
    return ", ".join(sorted(processors(records))) or "an unknown processor"


def commits_of(records: Iterable[Mapping[str, Any]]) -> str:
    """The code that runs were made by; a plus where it had changes that are not committed."""
    named = (start for record in records for start in of(record) if start["commit"])
    return ", ".join(sorted({f"{s['commit'][:9]}{'+' * bool(s['dirty'])}" for s in named})) or "unknown"
