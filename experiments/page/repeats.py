"""Test examples that training has too, as `scripts.count_repeats` counted them."""

from pathlib import Path

from experiments import store
from experiments.plan.table import Column


def path() -> Path:
    """The committed counts."""
    return store.RESULTS / "repeats.json"


def note(column: Column) -> str:
    """A sentence about a column's data; empty if no test example is in training."""
    counts = (store.read_json(path()) or {}).get(Path(column.config[0]).stem) if column.config else None
    if not counts or not counts["inputs"]:
        return ""
    return (
        f"{counts['inputs']:,} of {counts['test']:,} test examples have the inputs of a training example, "
        f"{counts['inputs_and_answers']:,} its answer too."
    )
