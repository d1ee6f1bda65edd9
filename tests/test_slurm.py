"""Runs in a real SLURM of this one machine: put back into the queue, they end where unbroken ones do."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import toy_world
from scripts.robustness.one_machine import absent, ask, one_machine, states
from toy_world import World, until

pytestmark = pytest.mark.skipif(bool(absent()), reason=f"SLURM is not installed: no {', '.join(absent())}")

world = toy_world.world  # the fixture

SCRIPT = """#!/bin/bash
#SBATCH --requeue --open-mode=append --output=job.txt
export PYTHONPATH={path} MASTER_ADDR=127.0.0.1
{by} {python} -m scripts.train --config conf/data/toy.yaml --config conf/scheme/toy.yaml {arguments}
"""
SLOW = "--model.init_args.pause=0.5 --trainer.max_epochs=30"

Submit = Callable[..., str]


@pytest.fixture
def submit(world: World) -> Iterator[Submit]:
    """A running cluster; gives a job to it and returns its number."""

    def give(*options: str, arguments: str, by: str = "srun") -> str:
        path = os.pathsep.join(map(str, (toy_world.HERE.parent, toy_world.HERE)))
        told = {"path": path, "python": sys.executable, "arguments": arguments}
        Path("job.sh").write_text(SCRIPT.format(**told, by=by))
        return ask("sbatch", "--parsable", *options, "job.sh")

    with one_machine(world.folder / "slurm"):
        yield give


def state(job: str) -> str:
    """PENDING, RUNNING, COMPLETED, ..."""
    (found,) = states(job).values()
    return found


def go_on(job: str) -> None:
    """Start a job that was put back now, not two minutes later, and wait for its end."""
    until(lambda: state(job) == "PENDING")
    ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    until(lambda: state(job) == "COMPLETED")


def epoch(folder: str) -> int:
    try:
        return len((Path(folder) / "metrics.csv").read_text().splitlines()) - 1
    except OSError:
        return 0


def weights(folder: str) -> dict[str, torch.Tensor]:
    return torch.load(Path(folder) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def same_weights(one: str, other: str) -> bool:
    return all(torch.equal(value, weights(other)[name]) for name, value in weights(one).items())


def whole(folder: str, *more: str) -> str:
    """An unbroken run outside of SLURM."""
    from experiments.run.by_hand import train

    options = ["--config=conf/data/toy.yaml", "--config=conf/scheme/toy.yaml", "--trainer.max_epochs=30"]
    train([*options, *more, f"--run_dir={folder}"], lambda progress: None)
    return folder


@pytest.mark.parametrize(("by", "epochs"), [("srun", 0), ("srun", 3), ("exec", 3)])
def test_a_job_whose_time_is_nearly_up_is_requeued_and_goes_on(submit: Submit, by: str, epochs: int) -> None:
    job = submit(arguments=f"{SLOW} --run_dir=runs/mine", by=by)
    until(lambda: Path("runs/mine/progress.json").exists() and epoch("runs/mine") >= epochs)
    ask(
        "scancel", "--signal=USR1", *(["--batch"] if by == "exec" else []), job
    )  # as --signal=[B:]USR1@90 does
    go_on(job)
    said = Path("job.txt").read_text()
    assert "Stopped" in said and "30 epochs" in said and "Traceback" not in said
    assert not list(Path().rglob("hpc_ckpt*"))
    assert same_weights("runs/mine", whole("runs/whole"))


def test_a_preempted_job_goes_on_and_another_of_the_same_folder_is_untouched(submit: Submit) -> None:
    whole_node = ("--nodelist=n1", "--exclusive")
    # Slow: SLURM may notice the end of the grace time half a minute late. The job names no folder: when it is
    # requeued, it finds its folder by the job's number.
    job = submit(*whole_node, arguments=SLOW.replace("0.5", "1.3"))
    until(lambda: list(Path("runs/by_hand").glob(f"toy-{job}-*")))
    (folder,) = map(str, Path("runs/by_hand").iterdir())
    until(lambda: epoch(folder) >= 2)
    other = submit(
        *whole_node,
        "--partition=high",
        arguments="--trainer.max_epochs=30 --seed_everything=4 --run_dir=runs/other",
    )
    until(lambda: state(job) == "PENDING")
    until(lambda: state(other) == "COMPLETED")
    go_on(job)
    assert [str(path) for path in Path("runs/by_hand").iterdir()] == [folder]
    assert same_weights(folder, whole("runs/whole"))
    assert same_weights("runs/other", whole("runs/whole-other", "--seed_everything=4"))
