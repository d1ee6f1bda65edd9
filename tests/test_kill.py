"""The kill test: it covers every scheme, its runs survive kills, and it sees where runs differ."""

import io
import json
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

from datamodules.horses import Horses32
from experiments.run.epochs import read_rows
from scripts.robustness.kill_test import CELLS, KillTest, Trial, differences, main

OF_A_PHASE = {"train/unary_loss": 0, "train/pairwise_loss": 1, "train/joint_loss": 2}


@pytest.fixture(autouse=True)
def at_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)


def classes(*files: str | Path) -> set[str]:
    """The schemes of some files."""
    trees = [yaml.safe_load(Path(name).read_text()) for name in files if "conf/scheme" in str(name)]
    return {tree["model"]["class_path"] for tree in trees if "class_path" in tree["model"]}


def test_every_scheme_is_killed() -> None:
    killed = classes(*(word for words in CELLS.values() for word in words if word.endswith(".yaml")))
    still = {"lightning_modules.finished.Finished"}  # it judges what another run has trained
    assert killed | still == classes(*Path("conf/scheme").rglob("*.yaml")) and len(killed) == 11


def test_runs_that_are_killed_end_like_a_whole_one(tmp_path: Path) -> None:
    assert main(["--kills=3", "--cells=cross_entropy,crf_stage", f"--folder={tmp_path}"]) == 0
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events].count("kill") == 3 and {e["event"] for e in events} == {
        "kill",
        "same",
    }
    rows = read_rows(tmp_path / "crf_stage" / "whole")
    for name, phase in OF_A_PHASE.items():  # a loss is told where its part has moved, and nowhere else
        assert all((row.get(name, "") != "") == (float(row["train/phase"]) == phase) for row in rows)

    ours, whole = (tmp_path / "cross_entropy" / name for name in ("killed-0-same", "whole"))
    assert not differences(ours, whole)
    kept = torch.load(ours / "checkpoints/last.ckpt", weights_only=True)
    next(iter(kept["state_dict"].values())).view(-1)[0] += 1e-6
    torch.save(kept, ours / "checkpoints/last.ckpt")
    (ours / "metrics.csv").write_text((ours / "metrics.csv").read_text().replace("\n4,", "\n5,"))
    (ours / ".metrics.csv.1.part").touch()
    found = " ".join(differences(ours, whole))
    assert all(word in found for word in ("last.ckpt: state_dict", "metrics.csv: 4: epoch", "files"))


@pytest.mark.skipif(Horses32().missing() is not None, reason=str(Horses32().missing()))
def test_runs_on_random_crops_of_horses_that_are_killed_end_like_a_whole_one(tmp_path: Path) -> None:
    assert main(["--kills=2", "--cells=horses", f"--folder={tmp_path}"]) == 0
    crops = yaml.safe_load((tmp_path / "horses/whole/config.yaml").read_text())["data"]["init_args"][
        "transform"
    ]
    assert crops["init_args"] == {"height": 24, "width": 24}
    events = [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert events.count("kill") == 2 and {*events} == {"kill", "same"}


def test_a_run_that_ends_otherwise_is_a_fault(tmp_path: Path) -> None:
    test = KillTest(tmp_path, seed=0, console=Console(file=io.StringIO()))
    (tmp_path / "tags" / "killed-0").mkdir(parents=True)
    test._judge(Trial("tags", tmp_path / "tags" / "killed-0"), 2)
    assert "ended with 2" in test.of("fault")[0]["what"] and (tmp_path / "tags" / "killed-0-wrong").exists()
