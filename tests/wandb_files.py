"""What stands in the files that W&B writes offline, as its own reader prints them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SET_BY_WANDB = {"WANDB_SERVICE", "WANDB_MODE", "WANDB_ENTITY", "WANDB_PROJECT", "WANDB_DATA_DIR"}


def forget(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """No account, no settings, and no W&B service of an earlier test; none for later tests either."""
    import wandb

    wandb.teardown()
    for name in {name for name in os.environ if name.startswith("WANDB_")} | SET_BY_WANDB:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))


class Logged:
    """The records of all W&B files of a folder, the oldest file first."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("wandb/*run-*/*.wandb"))
        self.records = [record for file in self.files for record in inspect(file)]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record[kind] for record in self.records if record["type"] == kind]

    @property
    def runs(self) -> list[dict[str, Any]]:
        return self.of("run")

    @property
    def ids(self) -> set[str]:
        return {run["run_id"] for run in self.runs}

    @property
    def config(self) -> dict[str, Any]:
        return self._updated("config")

    @property
    def summary(self) -> dict[str, Any]:
        return self._updated("summary")

    def _updated(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for update in self.of(kind):
            found |= update["update"]
        return found

    def rows(self, key: str) -> dict[int, float]:
        """The values of a metric by W&B's step; of repeated steps the first, as the server keeps it."""
        found: dict[int, float] = {}
        for row in self.of("history"):
            if key in row["item"]:
                found.setdefault(row["step"]["num"], row["item"][key])
        return found

    def artifact(self, kind: str) -> dict[str, Path]:
        """The files of the last artifact of a type, by name."""
        last = [artifact for artifact in self.of("artifact") if artifact["type"] == kind][-1]
        return {entry["path"]: Path(entry["local_path"]) for entry in last["manifest"]["contents"]}


def inspect(file: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]
