"""Sweep files for tests: written into a folder, over the project's own config files."""

from pathlib import Path
from typing import Any

import yaml

from experiments.sweep.file import Sweep, read_sweep

COMMAND = ["${env}", "python", "-m", "scripts.train", "--config=conf/data/bibtex.yaml", "${args}"]
TREE: dict[str, Any] = {
    "program": "scripts/train.py",
    "method": "grid",
    "metric": {"name": "val/loss", "goal": "minimize"},
    "parameters": {"model.a": {"values": [1, 2, 3]}, "model.b": {"values": [0.1, 0.2]}},
    "command": COMMAND,
}


def sweep_file(folder: Path, changes: dict[str, Any] | None = None, *, name: str = "toy") -> Path:
    """Write a sweep file; `changes` replace keys, None removes one."""
    tree = {key: value for key, value in (TREE | (changes or {})).items() if value is not None}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def toy_sweep(folder: Path, **changes: object) -> Sweep:
    """A sweep of such a file."""
    return read_sweep(sweep_file(folder, changes))
