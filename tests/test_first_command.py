"""What a newcomer does first: clone, and train the quickstart. Every other table says where it comes from."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

import toy_world
from datamodules.sources.files import Sources
from lightning_modules.metrics.multilabel import GRID
from toy_world import World

world = toy_world.world  # the fixture


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh clone of what is committed."""
    root = Path(__file__).resolve().parent.parent
    if not shutil.which("git") or not (root / ".git").exists():
        pytest.skip("this is no git checkout")
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(root), str(folder)], check=True)
    return folder


def make(folder: Path, target: str, *variables: str) -> str:
    """Make a target with the packages of these tests, where a newcomer waits for .venv; what it said."""
    where = Sources()
    done = subprocess.run(
        ["make", "-o", "setup", f"RUN={sys.executable}", target, *variables],
        cwd=folder,
        env=os.environ
        | {"DATA_DIR": str(where.folder), "DATA_MIRROR": str(where.mirror or ""), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_bytecode_is_kept_whatever_the_environment_says(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    asked = f"""{sys.executable} -c "import sys; print('forbidden:', sys.flags.dont_write_bytecode)\""""
    assert "forbidden: 0" in make(clone, "table", "TABLE=quickstart", f"RUN={asked}")


def test_the_first_command_trains_in_a_fresh_clone(clone: Path) -> None:
    places = (Sources().folder, Sources().mirror)
    column = "yeast" if any(place and (place / "yeast").is_dir() for place in places) else "generated"
    began = datetime.now(UTC).replace(microsecond=0)
    choice = ("TABLE=quickstart", "ROWS=ce", f"COLUMNS={column}", "SEEDS=0")
    said = make(clone, "reproduce", *choice)
    assert f"start   ce / {column} / seed 0" in said and f"done    ce / {column} / seed 0" in said
    (record,) = map(json.loads, (clone / "results/quickstart.jsonl").read_text().splitlines())
    assert began <= datetime.fromisoformat(record["finished"])
    assert record["starts"][0]["commit"] == git(clone, "rev-parse", "HEAD") and record["epochs"] > 1
    for stage in ("val", "test"):  # of the best epoch, at every threshold
        at_half = record["findings"][f"{stage}/f1_by_threshold"][GRID.index(0.5)]
        assert at_half == pytest.approx(record["metrics"][f"{stage}/example_f1"])
    weights = torch.load(clone / f"runs/{record['id']}/checkpoints/best.ckpt", weights_only=True)[
        "state_dict"
    ]
    assert any(weight.is_floating_point() and weight.abs().sum() > 0 for weight in weights.values())
    assert f"{100 * record['metrics']['test/example_f1']:.2f} (1/2)" in said
    assert "committed records" not in said
    assert not git(clone, "status", "--porcelain"), "what it trains is this machine's own"
    assert "start   " not in make(clone, "reproduce", *choice), "and is trained once"


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_other_table_says_how_much_of_it_was_made_elsewhere_and_on_what(clone: Path) -> None:
    tables = sorted((clone / "results").glob("*.jsonl"))
    assert len(tables) > 20
    name = "seal_mlc_speed"
    records = [json.loads(line) for line in (clone / f"results/{name}.jsonl").read_text().splitlines()]
    cells = {(record["row"], record["column"]) for record in records}
    (line,) = (line for line in make(clone, "table", f"TABLE={name}").splitlines() if "committed" in line)
    assert line.startswith(f"{len(cells)} of {len(cells)} cells come from committed records")
    assert all(record["cpu"] in line for record in records)
    assert f"make reproduce TABLE={name} " in line and "VERIFY=1" in line


def test_what_was_made_here_is_not_said_to_come_from_elsewhere(world: World) -> None:
    world.table(plain={}, other={"set": {"model.init_args.noise": 0.2}})
    assert "committed records" not in world.reproduce("--seeds", "0")[1]
    (world.run_of("other") / "record.json").unlink()
    for options in (["--collect"], ["--dry-run"]):
        assert "1 of 2 cells come from committed records (results/toy.jsonl)" in world.reproduce(*options)[1]
