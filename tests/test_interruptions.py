"""Runs that are stopped or killed lose nothing, leave nothing behind, touch nothing outside their folder."""

import csv
import os
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

import toy_world
from experiments.errors import ConfigError
from experiments.run.by_hand import train
from experiments.run.cli import TrainCLI, by_hand_folder
from toy_world import World, until

world = toy_world.world  # the fixture

LAYERS = ["--config", "conf/data/toy.yaml", "--config", "conf/scheme/toy.yaml"]
JOB = {"JOB_ID": "7", "JOB_NAME": "toy", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}


def by_hand(folder: str, *options: str) -> dict[str, Any]:
    """Train into a folder; the record."""
    return train([*LAYERS, *options, "--run_dir", folder], lambda progress: None)[0]


def weights(run: str) -> dict[str, torch.Tensor]:
    return torch.load(f"{run}/checkpoints/last.ckpt", weights_only=True)["state_dict"]


def same_weights(one: str, other: str) -> bool:
    return all(torch.equal(value, weights(other)[name]) for name, value in weights(one).items())


class Death(BaseException):
    """What no code may catch."""


def test_rows_of_finished_epochs_outlive_a_death_while_they_are_written_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand("runs/mine", "--trainer.max_epochs", "3")
    rows = Path("runs/mine/metrics.csv").read_text()

    def die(writer: object, rows: object) -> None:
        raise Death

    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(csv.DictWriter, "writerows", die)
        by_hand("runs/mine", "--trainer.max_epochs", "5")
    assert Path("runs/mine/metrics.csv").read_text() == rows
    assert by_hand("runs/mine", "--trainer.max_epochs", "5")["epochs"] == 5
    assert Path("runs/mine/metrics.csv").read_text().startswith(rows)


def test_a_run_writes_no_temporary_file_outside_its_folder(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("a temporary file")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    by_hand("runs/mine")
    assert {path.name for path in Path().iterdir()} == {"conf", "runs"}
    assert {path.name for path in Path("runs/mine/checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}


def leave(*names: str, ago: float = 0.0) -> list[Path]:
    """Files as a killed process leaves them."""
    paths = [Path(name) for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
        os.utime(path, (time.time() - ago,) * 2)
    return paths


def test_a_patience_that_is_over_ends_nothing_before_the_fewest_epochs(world: World) -> None:
    long = ["--stop.patience=1", "--stop.min_delta=1.0", "--trainer.min_epochs=6"]
    assert by_hand("runs/whole", *long, "--trainer.max_epochs=20")["epochs"] == 6
    stopped = by_hand("runs/mine", *long, "--trainer.max_epochs=4")
    assert stopped["stopped"] == "max_epochs 4 reached"
    assert by_hand("runs/mine", *long, "--trainer.max_epochs=20")["epochs"] == 6
    assert same_weights("runs/mine", "runs/whole")
    by_hand("runs/few", *long[:2], "--trainer.min_steps=15", "--trainer.max_epochs=20")
    steps = torch.load("runs/few/checkpoints/last.ckpt", weights_only=True)["global_step"]
    assert steps >= 15


@pytest.mark.parametrize("option", [["--run_dir=runs/mine"], ["--run_dir", "runs/mine"]])
def test_the_folder_of_a_run_alone_resumes_it(world: World, option: list[str]) -> None:
    began = by_hand("runs/mine", "--trainer.max_epochs=2")
    found, folder = train([*option, "--trainer.max_epochs=5"], lambda progress: None)
    whole = by_hand("runs/whole", "--trainer.max_epochs=5")
    assert (found["epochs"], folder) == (5, Path("runs/mine"))
    assert found["id"] == whole["id"] != began["id"] and same_weights("runs/mine", "runs/whole")


def test_a_limit_of_time_is_no_loss_of_patience(world: World) -> None:
    record = by_hand(
        "runs/mine", "--trainer.max_epochs=100000", "--trainer.max_time=00:00:00:02", "--stop.patience=99999"
    )
    assert record["stopped"] == "asked to stop"


def test_what_a_killed_run_left_half_written_is_gone_after_the_next_start(world: World) -> None:
    half = (".config.yaml.99.part", "checkpoints/.last.ckpt.99.part")
    leave("runs/mine/lock")
    left = leave(*(f"runs/mine/{name}" for name in half))
    by_hand("runs/mine")
    assert not any(path.exists() for path in left)


def test_what_a_killed_launcher_left_is_gone_after_the_next_start(world: World) -> None:
    world.table(plain={})
    world.reproduce("--seeds", "0")
    checkpoints = world.run_of("plain") / "checkpoints"
    left = leave(f"{checkpoints}/last.ckpt", f"{checkpoints}/.best.ckpt.99.part")
    left += leave("results/.toy.md.99.part", ago=3600)
    (anothers,) = leave("results/.other.md.98.part")  # who writes it may be alive
    best = (checkpoints / "best.ckpt").read_bytes()
    _, said = world.reproduce("--seeds", "0")
    assert "start" not in said and not any(path.exists() for path in left)
    assert anothers.exists() and (checkpoints / "best.ckpt").read_bytes() == best


def group(leader: int) -> list[str]:
    """The living processes of a process group."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, its_group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == leader and state != "Z":
            found.append(process.name)
    return found


@pytest.fixture
def temporary(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the temporary files of processes."""
    folder = Path(tempfile.mkdtemp(prefix="tmp"))  # a socket's path must be short
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_ctrl_c_for_the_launcher_alone_ends_all_its_processes_at_once(world: World) -> None:
    launcher = world.start("toy", "--seeds", "0", alone=True)
    until(lambda: len(group(launcher.pid)) > 2)  # the fork server has begun to import torch
    launcher.send_signal(signal.SIGINT)
    launcher.communicate()
    end = time.monotonic() + 5
    while (left := group(launcher.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    assert launcher.returncode == 130 and not left


def test_the_temporary_folder_of_a_killed_launcher_goes_with_the_next_start(
    world: World, temporary: Path
) -> None:
    def folders() -> list[Path]:
        return [*temporary.glob("pymp-*"), *temporary.glob("reproduce-*")]

    world.table(plain={})
    launcher = world.start("toy", "--seeds", "0", alone=True)
    until(folders)
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    assert folders()
    again = world.start("toy", "--seeds", "0")
    again.communicate(timeout=180)
    assert again.returncode == 0 and not folders()


@pytest.fixture
def job(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The variables of a job of SLURM, and a scontrol that notes what it is told."""
    for name, value in JOB.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    told, command = Path("told").resolve(), Path("bin/scontrol").resolve()
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    return told


@pytest.mark.parametrize("epochs", [0, 3], ids=["before_its_first_epoch_ends", "later"])
def test_a_notice_of_slurm_requeues_the_job_which_goes_on_from_its_own_epochs_alone(
    world: World, job: Path, epochs: int
) -> None:
    slow = ["--model.init_args.pause=0.5", "--trainer.max_epochs=8"]
    process = world.start(*LAYERS, *slow, "--run_dir=runs/mine", module="scripts.train")
    progress = Path("runs/mine/progress.json")
    until(lambda: progress.exists() and f'"epoch": {epochs},' in progress.read_text())
    process.send_signal(signal.SIGUSR1)
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 130 and "--run_dir runs/mine" in said and "Traceback" not in said
    assert job.read_text() == "requeue 7\n"
    assert not list(Path().rglob("hpc_ckpt*")), "Lightning's checkpoint of a job"

    torch.save({"state_dict": {"another's": torch.zeros(1)}}, "hpc_ckpt_1.ckpt")
    by_hand("runs/another", "--trainer.max_epochs=8", "--seed_everything=5")
    record = by_hand("runs/mine", *slow)
    Path("hpc_ckpt_1.ckpt").unlink()
    assert record["epochs"] == 8
    by_hand("runs/unbroken", "--trainer.max_epochs=8")
    assert same_weights("runs/mine", "runs/unbroken") and not same_weights("runs/mine", "runs/another")


def test_a_batch_job_trains_on_until_slurm_kills_it(
    world: World, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVIRONMENT", "BATCH")
    slow = ["--model.init_args.pause=0.3", "--trainer.max_epochs=5", "--run_dir=runs/mine"]
    process = world.start(*LAYERS, *slow, module="scripts.train")
    until(Path("runs/mine/metrics.csv").exists)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0 and "5 epochs" in said


def test_a_notice_of_slurm_stops_a_table_as_ctrl_c_does(world: World, job: Path) -> None:
    world.table(slow={"set": {"model.init_args.pause": 0.4, "trainer.max_epochs": 200}})
    launcher = world.start("toy", "--seeds", "0")
    until(lambda: world.progress("slow").get("epoch", 0) >= 1)
    launcher.send_signal(signal.SIGUSR1)
    said, _ = launcher.communicate(timeout=180)
    assert launcher.returncode == 130 and "the same command resumes" in said
    assert job.read_text() == "requeue 7\n"


def test_a_requeued_batch_job_finds_the_folder_of_its_run(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["--config", "conf/scheme/energy_net.yaml", "--config", "conf/objective/dvn.yaml"]
    assert by_hand_folder(command).startswith(f"runs/by_hand/energy_net-dvn-{time.strftime('%Y')}")
    monkeypatch.setenv("ENVIRONMENT", "BATCH")
    folder = by_hand_folder(command)
    assert folder.startswith("runs/by_hand/energy_net-dvn-7-") and by_hand_folder(command) == folder
    assert by_hand_folder([*command, "--seed_everything=1"]) != folder
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "6")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    assert by_hand_folder(command).startswith("runs/by_hand/energy_net-dvn-6_2-")


def test_another_folder_for_the_files_of_a_run_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match=r"Leave --trainer\.default_root_dir out.*--run_dir"):
        TrainCLI([*LAYERS, "--trainer.default_root_dir=elsewhere", "--run_dir=runs/mine"])


class Middle(pl.Callback):
    """Keeps a checkpoint of the middle of an epoch."""

    def on_train_batch_end(self, trainer: pl.Trainer, *given: object) -> None:
        if trainer.global_step == 2:
            trainer.save_checkpoint("middle.ckpt")


def test_training_goes_on_within_an_epoch_where_lightning_is_asked_to(world: World, root: Path) -> None:
    files = [f"--config={root}/conf/{name}.yaml" for name in ("data/generated", "scheme/cross_entropy")]
    for start, epochs in ((None, 1), ("middle.ckpt", 2)):
        cli = TrainCLI([*files, "--data.num_rows=200", f"--trainer.max_epochs={epochs}", "--run_dir=mine"])
        cli.trainer.callbacks.append(Middle())
        cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=start, weights_only=True)
    assert cli.trainer.callback_metrics["train/examples_per_second"] > 0
