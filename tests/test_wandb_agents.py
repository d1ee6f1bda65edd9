"""W&B's own processes: several agents at once, Ctrl-C on them, `wandb sync`; several processes of one run."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import scripts.train
from test_sweep_server import LAYERS, SWEEP_FILE, local_id, login, toys
from toy_world import World, until, world
from wandb_files import Logged
from wandb_server import SWEEP, Server

pytest.importorskip("wandb", reason="the optional package wandb is not installed")
__all__ = ["toys", "world"]  # fixtures

NOISE, PAUSE, EPOCHS = "model.init_args.noise", "model.init_args.pause", "trainer.max_epochs"
AGENTS = ("agents", "--engine", "wandb", "--jobs", "2")
# What W&B suggests as a command, with the program of this project and its files.
COMMAND = ["${env}", "${interpreter}", "${program}", *(f"--config={file}" for file in LAYERS), "${args}"]


def write(root: Path) -> None:
    """A sweep file of that form, in a folder that has the program."""
    tree = SWEEP_FILE | {"program": "scripts/train.py", "command": COMMAND}
    Path("conf/sweeps/agents.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    Path("scripts").symlink_to(root / "scripts")


def records() -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in Path("runs/by_hand").glob("*/record.json")]


def test_several_agents_share_the_trials_of_a_sweep(
    toys: World,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(root)
    trials = [{NOISE: noise, EPOCHS: 2} for noise in (0.1, 0.2, 0.3, 0.4)]
    with Server(trials) as there:
        login(monkeypatch, there)
        process = toys.start(*AGENTS, module="scripts.sweep", alone=True)
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and f"agent --forward-signals me/toys/{SWEEP}" in said, said
    assert there.agents == 2 and len(there.started) == 4
    assert {record["id"] for record in records()} == {local_id(trial) for trial in trials}
    logged = {call["name"] for call in there.of("UpsertBucket") if call.get("config")}
    assert logged == set(there.started)
    assert {path.name for path in Path("runs/by_hand").iterdir()} == {f"toy-{run}" for run in there.started}


def test_ctrl_c_ends_agents_with_one_sentence_and_loses_nothing(
    toys: World,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(root)
    trials = [{NOISE: noise, PAUSE: 1.0, EPOCHS: 60} for noise in (0.1, 0.2, 0.3)]
    with Server(trials) as there:
        login(monkeypatch, there)
        process = toys.start(*AGENTS, module="scripts.sweep", alone=True)
        until(lambda: len([*Path("runs/by_hand").glob("*/checkpoints/last.ckpt")]) == 2)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in said, said
    assert said.count("Stopped. The sweep waits on the server; to go on:") == 1, said
    runs = sorted(Path("runs/by_hand").iterdir())
    assert len(runs) == 2 and not records()
    done = [len(list(csv.DictReader((run / "metrics.csv").open()))) for run in runs]
    assert (
        scripts.train.main(
            [
                "--config",
                f"{runs[0]}/config.yaml",
                "--run_dir",
                str(runs[0]),
                f"--trainer.max_epochs={done[0] + 2}",
                "--trainer.logger=false",
            ]
        )
        == 0
    )
    (record,) = records()
    assert record["epochs"] == done[0] + 2 and len(record["starts"]) == 2


def test_an_offline_run_is_uploaded_later(toys: World, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [word for file in (*LAYERS, "conf/logger/wandb.yaml") for word in ("--config", file)]
    assert scripts.train.main([*files, "--run_dir", "runs/mine", "--trainer.max_epochs=3"]) == 0
    record = json.loads(Path("runs/mine/record.json").read_text())
    (offline,) = Path("runs/mine/wandb").glob("offline-run-*")
    command = [sys.executable, "-m", "wandb", "sync", "--yes", str(offline)]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert alone.returncode and "Traceback" not in alone.stdout + alone.stderr
    with Server() as there:
        login(monkeypatch, there)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {call["name"] for call in there.of("UpsertBucket")} == {Path("runs/mine/wandb/id").read_text()}
    rows = [row for row in there.lines("wandb-history.jsonl") if "val/example_f1" in row]
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    summary = there.lines("wandb-summary.json")[-1]
    assert summary["test/example_f1"] == pytest.approx(record["metrics"]["test/example_f1"])


def test_several_processes_of_one_run_are_one_run_of_wandb(toys: World) -> None:
    layers = (*LAYERS, "conf/logger/wandb.yaml", "conf/trainer/ddp.yaml")
    files = [word for file in layers for word in ("--config", file)]
    two = [
        "--trainer.devices=2",
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=2",
        "--run_dir=runs/mine",
    ]
    process = toys.start(*files, *two, module="scripts.train", alone=True)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    found = Logged(Path("runs/mine"))
    record = json.loads(Path("runs/mine/record.json").read_text())
    assert len(found.files) == 1 and found.ids == {Path("runs/mine/wandb/id").read_text()}
    assert list(found.rows("val/example_f1")) == [0, 1]
    assert found.summary["test/example_f1"] == pytest.approx(record["metrics"]["test/example_f1"])
    assert not [*Path().glob("wandb*")] and int(record["config"]["trainer"]["devices"]) == 2
