"""Tables and single runs as jobs in a real SLURM of this one machine."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

import scripts.sweep
import scripts.train
import toy_world
from experiments.cluster import queue
from experiments.cluster.file import read_cluster
from experiments.cluster.script import job_text
from scripts.robustness.one_machine import SCRIPT, absent, ask, one_machine, states
from toy_world import World, until

pytestmark = pytest.mark.skipif(bool(absent()), reason=f"SLURM is not installed: no {', '.join(absent())}")

world = toy_world.world  # the fixture

PATH = os.pathsep.join(map(str, (toy_world.HERE.parent, toy_world.HERE)))
HERE = f"hours: 0.2\nmemory: 1G\nenvironment: {{PYTHONPATH: '{PATH}', MASTER_ADDR: 127.0.0.1}}\n"
EXAMPLES = toy_world.HERE.parent / "conf/cluster"
JOB = ("--on", "slurm", "--cluster", "here.yaml")
SLOW = {"model.init_args.pause": 0.3, "trainer.max_epochs": 12}
MEASURED = (  # differs from run to run
    "seconds", "inference_seconds", "train_examples_per_second", "peak_memory_mib", "finished", "starts",
)  # fmt: skip


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A running cluster."""
    with one_machine(tmp_path_factory.mktemp("slurm")):
        yield


@pytest.fixture
def here(world: World, slurm: None) -> Iterator[World]:
    """A world with a cluster file, whose jobs end with it."""
    Path("here.yaml").write_text(HERE)
    yield world
    subprocess.run(["scancel", "--me", "--signal=KILL", "--full"], capture_output=True)
    subprocess.run(["scancel", "--me"], capture_output=True)


def emptied() -> bool:
    return not queue.queued()


def states_of(said: str) -> dict[str, str]:
    """The state of each run, from what --status prints."""
    lines = [line.split(maxsplit=2) for line in said.splitlines() if " / seed " in line]
    return {line[2].split(" ")[0]: line[0] for line in lines}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two records have the same content."""
    return all(one.get(key) == other.get(key) for key in (one.keys() | other.keys()) - set(MEASURED))


def local(tmp_path_factory: pytest.TempPathFactory, table: str, *options: str) -> list[dict[str, Any]]:
    """The records of the same table, made without SLURM."""
    other, here = World(tmp_path_factory.mktemp("local")), Path.cwd()
    (other.folder / "conf/tables/toy.yaml").write_text(table)
    os.chdir(other.folder)
    try:
        other.reproduce(*options)
    finally:
        os.chdir(here)
    return other.records()


def test_a_table_with_needs_runs_to_its_end(here: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    chosen = ("--columns", "easy", "--seeds", "0")
    code, said = here.reproduce(*JOB, *chosen)
    assert code == 0 and "4 runs submitted." in said
    waits = states_of(here.reproduce("--status", *chosen)[1])
    assert waits["taught"] == "waiting" and waits["plain"] in ("queued", "running")
    _, said = here.reproduce(*JOB, *chosen)
    assert "taught / easy / seed 0: in the queue as" in said and "taught" in said
    until(emptied)
    ended = {"plain": "done", "taught": "done", "wild": "failed", "after": "blocked"}
    said = here.reproduce("--status", *chosen)[1]
    assert states_of(said) == ended
    assert "needs wild / easy / seed 0: the loss is NaN in epoch 2" in said
    assert not here.records()
    assert here.reproduce("--collect")[0] == 0
    made = {record["row"]: record for record in here.records()}
    table = Path("conf/tables/toy.yaml").read_text()
    wanted = {record["row"]: record for record in local(tmp_path_factory, table, *chosen)}
    assert made.keys() == wanted.keys() == {"plain", "taught"}
    assert all(same(record, wanted[row]) for row, record in made.items())
    _, said = here.reproduce(*JOB, *chosen)
    assert "2 runs submitted." in said  # what failed, and what waits for it


def processes(folder: Path, task: int) -> list[int]:
    """The processes of a task of an array."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or is another user's
            command, setting = (place / "cmdline").read_bytes(), (place / "environ").read_bytes().split(b"\0")
            ours = (place / "cwd").resolve() == folder and b"experiments.cluster.task" in command
            if ours and f"SLURM_ARRAY_TASK_ID={task}".encode() in setting:
                found.append(int(place.name))
    return found


def job_of(said: str) -> str:
    """The array that was submitted."""
    return said.split("job ")[1].split(":")[0]


def put_back(job: str) -> None:
    """Give a task the notice before its time limit, and start it again now, not two minutes later."""
    ask("scancel", "--signal=USR1", job)
    until(lambda: set(states(job).values()) == {"PENDING"})
    time.sleep(2)  # SLURM would refuse a start in the second of the requeue: "Job credential revoked"
    ask("scontrol", "update", f"JobId={job}", "StartTime=now")


def test_a_requeued_task_and_a_killed_one_resume_and_end_as_without_slurm(
    here: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here.table(plain={"set": SLOW}, other={"set": SLOW | {"model.init_args.optimizer.init_args.lr": 0.02}})
    _, said = here.reproduce(*JOB, "--seeds", "0")
    until(lambda: min(here.progress(row).get("epoch", 0) for row in ("plain", "other")) >= 2)
    for pid in processes(here.folder, 1):
        with suppress(ProcessLookupError):  # ended with one killed before it
            os.kill(pid, signal.SIGKILL)
    put_back(f"{job_of(said)}_0")
    until(emptied)
    said = here.reproduce("--status", "--seeds", "0")[1]
    assert states_of(said) == {"plain": "done", "other": "planned"} and "resumes after epoch" in said
    _, said = here.reproduce(*JOB, "--seeds", "0")
    assert "1 runs submitted" in said and "plain / easy / seed 0: taken over" in said
    until(emptied)
    here.reproduce("--collect")
    made = {record["row"]: record for record in here.records()}
    table = Path("conf/tables/toy.yaml").read_text()
    wanted = {record["row"]: record for record in local(tmp_path_factory, table, "--seeds", "0")}
    assert made.keys() == wanted.keys() and all(same(record, wanted[row]) for row, record in made.items())
    assert [len(record["starts"]) for record in made.values()] == [2, 2]


def test_a_container_without_scontrol_is_requeued_from_outside(here: World) -> None:
    Path("here.yaml").write_text(f"{HERE}container: env PATH=/nowhere\npython: {sys.executable}\n")
    here.table(plain={"set": SLOW})
    _, said = here.reproduce(*JOB, "--seeds", "0")
    until(lambda: here.progress("plain").get("epoch", 0) >= 2)
    put_back(f"{job_of(said)}_0")
    until(emptied)
    here.reproduce("--collect")
    (made,) = here.records()
    assert made["epochs"] == 12 and [start["epoch"] > 0 for start in made["starts"]] == [False, True]


@pytest.mark.skipif(not Path("/dev/tty7").exists(), reason="no eight devices that could pass as GPUs")
def test_sbatch_takes_the_example_files(world: World) -> None:
    """On two nodes that are said to have 64 processors and eight GPUs each."""
    root = world.folder / "slurm"
    with one_machine(root):
        ask("bash", str(SCRIPT), "stop", str(root))
        conf = root / "slurm.conf"
        nodes = re.sub(
            r"CPUs=2 RealMemory=\d+", "CPUs=64 RealMemory=500000 Gres=gpu:8 Feature=a100", conf.read_text()
        )
        conf.write_text(f"{nodes}GresTypes=gpu\nPartitionName=gpu Nodes=ALL\n")
        (root / "gres.conf").write_text("NodeName=n[1-2] Name=gpu File=/dev/tty[0-7]\n")
        for command in ("slurmctld", "slurmd -N n1", "slurmd -N n2"):
            subprocess.run([*command.split(), "-f", str(conf)], check=True, capture_output=True)
        until(lambda: ask("sinfo", "--noheader", "--partition=gpu", "--states=idle", "--format=%D") == "2")
        for path in sorted(EXAMPLES.glob("*.yaml")):
            cluster = read_cluster(str(path))
            tasks = 12 if cluster.throttle else 0
            arguments = ["-m", "some.module"]
            text = job_text(cluster, "toy", arguments, output=Path("a.txt"), tasks=tasks, hold=bool(tasks))
            done = subprocess.run(["sbatch", "--test-only"], input=text, text=True, capture_output=True)
            processors = cluster.processes * cluster.cpus
            assert f"using {processors} processors" in done.stderr, (path, done.stderr)


def test_the_tasks_of_an_array_share_the_trials_of_a_sweep(here: World) -> None:
    layers = ["--config=conf/data/toy.yaml", "--config=conf/scheme/toy.yaml", "--trainer.max_epochs=3"]
    file = {
        "method": "grid",
        "metric": {"name": "val/example_f1", "goal": "maximize"},
        "parameters": {"model.init_args.optimizer.init_args.lr": {"values": [0.1, 0.03, 0.01, 0.001]}},
        "command": ["python", "-m", "scripts.train", *layers, "${args}"],
    }
    Path("conf/sweeps").mkdir(exist_ok=True)
    Path("conf/sweeps/shared.yaml").write_text(yaml.safe_dump(file))
    assert scripts.sweep.main(["shared", "--on", "slurm", "--cluster", "here.yaml", "--jobs", "2"]) == 0
    until(emptied, 300)
    records = here.records("shared")
    assert sorted(record["row"] for record in records) == [f"trial_{i}" for i in range(4)]
    assert len(list(Path("runs/jobs").glob("shared-*_[01].txt"))) == 2
    assert scripts.sweep.main(["shared", "--on", "slurm", "--adopt", "conf/tuned/toy/easy.yaml:best"]) == 2


def test_what_slurm_refuses_is_one_sentence(here: World) -> None:
    Path("here.yaml").write_text(f"{HERE}partition: nowhere\n")
    code, said = here.reproduce(*JOB)
    assert code == 2 and "SLURM did not take `sbatch --parsable`" in said and "partition" in said
    assert len(said.strip().splitlines()) == 1 and emptied()


def test_a_run_by_hand_is_submitted_once(here: World, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--config=conf/data/toy.yaml", "--config=conf/scheme/toy.yaml", "--run_dir=runs/mine"]
    for wanted in ("it prints to runs/mine/job.txt", "runs/mine is in the queue already: job"):
        assert scripts.train.main([*options, "--cluster", "here.yaml"]) == 0
        assert wanted in capsys.readouterr().out
    until(emptied)
    assert json.loads(Path("runs/mine/record.json").read_text())["epochs"] == 5
    assert scripts.train.main([*options, "--cluster", "here.yaml"]) == 0
    assert "runs/mine is done: there is nothing to submit." in capsys.readouterr().out
