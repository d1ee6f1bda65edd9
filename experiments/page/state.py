"""The state of a table from its last start, results/<table>.cells.json."""

from pathlib import Path

from experiments import store
from experiments.errors import StoreError
from experiments.fields import Fault


def state_file(table: str) -> Path:
    """The file of state from the last start of a table: the run of each cell, and missing columns."""
    return store.RESULTS / f"{table}.cells.json"


def read_state(table: str) -> dict[str, dict[str, str]]:
    """The content of the state file; empty if there is none.

    Raises:
        StoreError: the file is damaged; the message names the key.
    """
    path = state_file(table)
    if not path.exists():
        return {"ids": {}, "missing": {}}
    state = store.read_json(path)
    fault = Fault("it", "is cut off, or no JSON") if state is None else store.STATE("", state)
    if fault:
        raise StoreError(
            f"{path}: {fault}. Take the committed file again (git checkout {path}), or "
            f"delete it: `make reproduce TABLE={table}` writes it anew."
        )
    return {"ids": {}, "missing": {}} | (state or {})
