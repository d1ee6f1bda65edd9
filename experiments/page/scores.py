"""The three scores of label sets: F1 at threshold 0.5, F1 at a threshold chosen on validation, MAP.

Records since 23 November 2026, 20:00 UTC, keep F1 at each threshold of one grid, on validation and test.
"""

from collections.abc import Mapping
from typing import Any

from experiments.fields import is_number

GRID = (0.01, 0.02, 0.03, 0.04, *(step / 20 for step in range(1, 20)))  # thresholds of f1_by_threshold
LABELS = {
    "example_f1_at_half": "F1 at 0.5",
    "example_f1_chosen": "F1 at the chosen threshold",
    "map": "MAP",
}


def label(metric: str) -> str:
    """What a score is called on a page."""
    return LABELS.get(metric.partition("/")[2], metric)


def derived(record: Mapping[str, Any], name: str) -> float | None:
    """A score that a record has under no name of its own, if it is one and the record can tell it."""
    stage, _, score = name.partition("/")
    candidates = _candidates(record)
    if score == "example_f1_at_half":
        at_half = record["metrics"].get(f"{stage}/example_f1") if candidates == [0.5] else None
        return at_half if is_number(at_half) else _by_threshold(record, stage, GRID.index(0.5))
    if score == "example_f1_chosen":
        validation = record.get("findings", {}).get("val/f1_by_threshold")
        if validation and len(validation) == len(GRID):
            return _by_threshold(record, stage, max(range(len(GRID)), key=validation.__getitem__))
        chosen = record["metrics"].get(f"{stage}/example_f1") if len(candidates) > 1 else None
        return chosen if is_number(chosen) else None
    return None


def _by_threshold(record: Mapping[str, Any], stage: str, index: int) -> float | None:
    values = record.get("findings", {}).get(f"{stage}/f1_by_threshold", [])
    return values[index] if len(values) == len(GRID) else None


def _candidates(record: Mapping[str, Any]) -> list[float]:
    """The thresholds among which the run itself chose."""
    model = (record.get("config") or {}).get("model", {})
    return model.get("init_args", {}).get("metric", {}).get("init_args", {}).get("thresholds") or []
