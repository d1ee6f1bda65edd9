"""A project folder with the toy table in it, and ways to run it."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from experiments import store

HERE = Path(__file__).resolve().parent
NUMBERS = {"plain": [0.50, 0.52, 0.54], "taught": [0.61, 0.61, 0.64]}


def hear_ctrl_c() -> None:
    """A process started in the background of a shell ignores Ctrl-C, and so would all it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class World:
    """A folder to reproduce the toy table in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for kind, name in (("tables", "table"), ("data", "data"), ("scheme", "scheme")):
            (folder / "conf" / kind).mkdir(parents=True)
            shutil.copy(HERE / f"toy_{name}.yaml", folder / "conf" / kind / "toy.yaml")
        shutil.copytree(HERE.parent / "conf/trainer", folder / "conf/trainer")
        (folder / "conf/data/lost.yaml").write_text("data: {init_args: {absent: nowhere.arff}}\n")

    def change(self, file: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Edit a YAML file of the world."""
        path = self.folder / "conf" / file
        tree = yaml.safe_load(path.read_text().replace("on:", '"on":'))
        change(tree)
        path.write_text(yaml.safe_dump(tree, sort_keys=False))

    def table(self, **rows: dict[str, Any]) -> None:
        """Keep the easy column, and these rows only, made from the toy scheme."""

        def change(tree: dict[str, Any]) -> None:
            tree["columns"] = {"easy": tree["columns"]["easy"]}
            tree["rows"] = {n: {"config": ["conf/scheme/toy.yaml"], **row} for n, row in rows.items()}
            tree.pop("claims", None)
            tree.pop("reported", None)

        self.change("tables/toy.yaml", change)

    def reproduce(self, *options: str) -> tuple[int, str]:
        """Call the engine in this process; its exit code and what it said."""
        from scripts import reproduce

        said = io.StringIO()
        code = reproduce.main(["toy", *options], Console(file=said, width=200))
        return code, said.getvalue()

    def start(
        self, *options: str, module: str = "scripts.reproduce", alone: bool = False
    ) -> subprocess.Popen[str]:
        """Start a script in a process of its own, as a user would, and in a group of its own if `alone`."""
        path = os.pathsep.join([str(HERE.parent), str(HERE)])
        return subprocess.Popen(
            [sys.executable, "-m", module, *options],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=hear_ctrl_c,
            start_new_session=alone,
        )

    def records(self, table: str = "toy") -> list[dict[str, Any]]:
        """The lines of the results file."""
        path = self.folder / f"results/{table}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def run_of(self, row: str, seed: int = 0) -> Path:
        """The folder of a run, finished or not."""
        ids = json.loads((self.folder / "results/toy.cells.json").read_text())["ids"]
        return self.folder / "runs" / ids[f"{row}/easy/{seed}"]

    def progress(self, row: str, seed: int = 0) -> dict[str, Any]:
        """What a run last said of itself."""
        try:
            return json.loads((self.run_of(row, seed) / "progress.json").read_text())
        except (OSError, ValueError):
            return {}


def git(*arguments: str) -> str:
    """What git says, in the working directory."""
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    done = subprocess.run(["git", *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit() -> str:
    """Commit the configs of the working directory; the commit's name."""
    git("init", "--quiet")
    git("add", "conf")
    git("commit", "--quiet", "--allow-empty", "--message", "more")
    return git("rev-parse", "HEAD")


def until(true: Callable[[], object], seconds: float = 180.0) -> None:
    """Wait for something another process does; on a busy machine that takes a while."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.02)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A fresh world, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return World(tmp_path)


def fill(numbers: dict[str, list[float]] = NUMBERS, **more: Any) -> None:
    """Write records of the easy column."""
    for row, values in numbers.items():
        for seed, value in enumerate(values):
            metrics = {"test/example_f1": value}
            known = {"id": f"{row}{seed}", "row": row, "column": "easy", "seed": seed, "metrics": metrics}
            store.keep("toy", [known | {"seconds": 3600, "device": "cpu", "cpu": "a core"} | more])
