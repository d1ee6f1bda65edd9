"""Scores beside each other; of label sets F1 at threshold 0.5, F1 at a threshold chosen on validation, MAP.

F1 is the mean over examples, micro F1 that of all decisions, macro F1 the mean over labels. A chosen
threshold is the one with the best such F1 on validation. Records since 23 November 2026, 20:00 UTC, keep F1
at each threshold of one grid, on validation and test; since 25 November micro and macro F1 too.
"""

from collections.abc import Mapping
from typing import Any

from experiments.fields import is_number

GRID = (0.01, 0.02, 0.03, 0.04, *(step / 20 for step in range(1, 20)))  # thresholds of f1_by_threshold
KINDS = {"example_f1": "f1", "micro_f1": "micro_f1", "macro_f1": "macro_f1"}  # and what records call them
LABELS = {
    "example_f1_at_half": "F1 at 0.5",
    "example_f1_chosen": "F1 at the chosen threshold",
    "micro_f1_at_half": "micro F1 at 0.5",
    "micro_f1_chosen": "micro F1 at its chosen threshold",
    "macro_f1_at_half": "macro F1 at 0.5",
    "macro_f1_chosen": "macro F1 at its chosen threshold",
    "map": "MAP",
    "accuracy": "accuracy over all tokens",
}


def label(metric: str) -> str:
    """What a score is called on a page."""
    return LABELS.get(metric.partition("/")[2], metric)


def derived(record: Mapping[str, Any], name: str) -> float | None:
    """A score that a record has under no name of its own, if it is one and the record can tell it."""
    stage, _, score = name.partition("/")
    candidates = _candidates(record)
    kind = score.removesuffix("_at_half").removesuffix("_chosen")
    if kind not in KINDS or kind == score:
        return None
    own = record["metrics"].get(f"{stage}/{kind}")
    if score.endswith("_at_half"):
        at_half = own if candidates == [0.5] else None
        return at_half if is_number(at_half) else _by_threshold(record, stage, kind, GRID.index(0.5))
    validation = record.get("findings", {}).get(f"val/{KINDS[kind]}_by_threshold")
    if validation and len(validation) == len(GRID):
        return _by_threshold(record, stage, kind, max(range(len(GRID)), key=validation.__getitem__))
    chosen = own if kind == "example_f1" and len(candidates) > 1 else None
    return chosen if is_number(chosen) else None


def _by_threshold(record: Mapping[str, Any], stage: str, kind: str, index: int) -> float | None:
    values = record.get("findings", {}).get(f"{stage}/{KINDS[kind]}_by_threshold", [])
    return values[index] if len(values) == len(GRID) else None


def _candidates(record: Mapping[str, Any]) -> list[float]:
    """The thresholds among which the run itself chose."""
    model = (record.get("config") or {}).get("model", {})
    return model.get("init_args", {}).get("metric", {}).get("init_args", {}).get("thresholds") or []
