"""Runs in a real SLURM on this one machine: put back into the queue, they end where unbroken ones do."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import toy_world
from toy_world import World, until

COMMANDS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
ABSENT = [name for name in COMMANDS if shutil.which(name) is None]

pytestmark = [
    pytest.mark.skipif(bool(ABSENT), reason=f"SLURM is not installed: there is no {', '.join(ABSENT)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may start SLURM's daemons without munge"),
]

world = toy_world.world  # the fixture

CONF = """
ClusterName=toy
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=20
ReturnToService=2
MpiDefault=none
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdSpoolDir={root}/spool-%n
SlurmdPidFile={root}/slurmd-%n.pid
SlurmdLogFile={root}/slurmd-%n.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=1 RealMemory=1000
PartitionName=low Nodes=n1 Default=YES PriorityTier=1 GraceTime=4
PartitionName=high Nodes=n1 PriorityTier=2 PreemptMode=OFF
"""
SCRIPT = """#!/bin/bash
#SBATCH --requeue --open-mode=append --output=job.txt
export PYTHONPATH={path} MASTER_ADDR=127.0.0.1
{by} {python} -m scripts.train --config conf/data/toy.yaml --config conf/scheme/toy.yaml {arguments}
"""
SLOW = "--model.init_args.pause=0.5 --trainer.max_epochs=30"

Submit = Callable[..., str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def submit(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Submit]:
    """A running cluster; gives a job to it and returns its number."""
    root = world.folder / "slurm"
    (root / "state").mkdir(parents=True)
    places = {"host": socket.gethostname(), "port": free_port(), "node_port": free_port(), "root": root}
    (root / "slurm.conf").write_text(CONF.format(**places))
    monkeypatch.setenv("SLURM_CONF", str(root / "slurm.conf"))
    daemons = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"])
    ]
    until(lambda: "idle" in subprocess.run(["sinfo"], capture_output=True, text=True).stdout, seconds=60)

    def give(*options: str, arguments: str, by: str = "srun") -> str:
        path = os.pathsep.join(map(str, (toy_world.HERE.parent, toy_world.HERE)))
        told = {"path": path, "python": sys.executable, "arguments": arguments}
        Path("job.sh").write_text(SCRIPT.format(**told, by=by))
        return ask("sbatch", "--parsable", *options, "job.sh")

    yield give
    subprocess.run(["scancel", "--user=root", "--signal=KILL"])
    for daemon in reversed(daemons):
        daemon.terminate()
    for daemon in daemons:
        daemon.wait(timeout=60)


def state(job: str) -> str:
    """PENDING, RUNNING, COMPLETED, ..."""
    facts = dict(fact.split("=", 1) for fact in ask("scontrol", "show", "job", job).split() if "=" in fact)
    return facts["JobState"]


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
    job = submit(arguments=SLOW)  # names no folder: a job that is requeued finds it by its number
    until(lambda: list(Path("runs/by_hand").glob(f"toy-{job}-*")))
    (folder,) = map(str, Path("runs/by_hand").iterdir())
    until(lambda: epoch(folder) >= 2)
    other = submit("--partition=high", arguments=f"{SLOW} --seed_everything=4 --run_dir=runs/other")
    until(lambda: state(job) == "PENDING")
    until(lambda: state(other) == "COMPLETED")
    go_on(job)
    assert [str(path) for path in Path("runs/by_hand").iterdir()] == [folder]
    assert same_weights(folder, whole("runs/whole"))
    assert same_weights("runs/other", whole("runs/whole-other", "--seed_everything=4"))
