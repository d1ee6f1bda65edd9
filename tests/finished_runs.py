"""Runs by config files of conf, and their answers in files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from scripts import train

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[..., Path]


def runner(folder: Path) -> Run:
    """Trains shortly by config files of conf in a folder; gives the folder of the run."""

    def run(*layers: str, **options: object) -> Path:
        given = {"trainer.max_epochs": 1, "trainer.limit_train_batches": 3} | options
        files = [f"--config={ROOT}/conf/{layer}.yaml" for layer in layers]
        assert train.main([*files, f"--run_dir={folder}/run", *(f"--{k}={v}" for k, v in given.items())]) == 0
        return folder / "run"

    return run


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def scores(run: Path) -> dict[str, float]:
    return json.loads((run / "record.json").read_text())["metrics"]


def file_of_test(name: str) -> bytes:
    """The test part of a set of the registry."""
    data = data_set(name)
    return Sources().read(data, data.files["test"])
