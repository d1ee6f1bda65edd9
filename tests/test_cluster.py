"""Jobs for a cluster as text: cluster files, arrays, dependencies; one sentence for each mistake."""

import io
import re
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console

import scripts.train
import toy_world
from experiments.cluster import queue
from experiments.cluster.file import read_cluster
from experiments.cluster.queue import Queued
from experiments.cluster.script import job_text, sweep_array
from experiments.cluster.table import hopeless
from experiments.errors import ClusterError
from experiments.run.reproduce import Selection, plan_of
from scripts import reproduce
from toy_world import World

world = toy_world.world  # the fixture

CONF = toy_world.HERE.parent / "conf/cluster"
LAYERS = ["--config", "conf/data/toy.yaml", "--config", "conf/scheme/toy.yaml"]
OUTPUT = Path("runs/jobs/toy/%a.txt")
TEXTS = {
    "cpu": """#!/bin/bash
#SBATCH --job-name=toy
#SBATCH --array=0-11%50
#SBATCH --output=runs/jobs/toy/%a.txt
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=8G
#SBATCH --time=04:00:00
#SBATCH --requeue --signal=USR1@90 --open-mode=append

srun --cpus-per-task=1 PYTHON -m some.module 'two words'
""",
    "gpu": """#!/bin/bash
#SBATCH --job-name=toy
#SBATCH --array=0-11%16
#SBATCH --output=runs/jobs/toy/%a.txt
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=1
#SBATCH --mem=32G
#SBATCH --time=12:00:00
#SBATCH --requeue --signal=USR1@90 --open-mode=append

module load cuda/12.4
srun --cpus-per-task=4 PYTHON -m some.module 'two words'
""",
    "node_of_eight": """#!/bin/bash
#SBATCH --job-name=toy
#SBATCH --output=runs/jobs/toy/%a.txt
#SBATCH --partition=gpu
#SBATCH --account=my_project
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=8
#SBATCH --mem=400G
#SBATCH --time=24:00:00
#SBATCH --requeue --signal=USR1@90 --open-mode=append
#SBATCH --exclusive
#SBATCH --constraint=a100

srun --cpus-per-task=8 apptainer exec --nv suite.sif python -m some.module 'two words'
code=$?
if [ $code -eq 130 ]; then
    scontrol requeue ${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
fi
exit $code
""",
    "two_nodes": """#!/bin/bash
#SBATCH --job-name=toy
#SBATCH --output=runs/jobs/toy/%a.txt
#SBATCH --partition=gpu
#SBATCH --account=my_project
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=4
#SBATCH --mem=200G
#SBATCH --time=24:00:00
#SBATCH --requeue --signal=USR1@90 --open-mode=append
#SBATCH --switches=1

export NCCL_SOCKET_IFNAME=ib0
srun --cpus-per-task=8 PYTHON -m some.module 'two words'
""",
}


def job_of(name: str) -> str:
    """The job of an example file; an array if its throttle is set."""
    cluster = read_cluster(name)
    tasks = 12 if cluster.throttle else 0
    return job_text(cluster, "toy", ["-m", "some.module", "two words"], output=OUTPUT, tasks=tasks)


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands are looked for where there are none."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def clusters(world: World) -> Path:
    """The project's cluster files, in the world."""
    return Path(shutil.copytree(CONF, world.folder / "conf/cluster"))


def test_every_example_has_its_text() -> None:
    assert TEXTS.keys() == {path.stem for path in CONF.glob("*.yaml")}


@pytest.mark.parametrize("name", TEXTS)
def test_the_job_of_an_example_file(world: World, clusters: Path, name: str) -> None:
    assert job_of(name) == TEXTS[name].replace("PYTHON", sys.executable)


def test_an_interpreter_inside_the_project_is_named_by_its_relative_path(
    world: World, clusters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(world.folder / ".venv/bin/python"))
    assert "\nsrun --cpus-per-task=1 .venv/bin/python -m some.module" in job_of("cpu")


FAULTS = {
    "memry: 8G": "line 3: memry is not a key of a cluster file. Did you mean memory?",
    "hours: 0": "hours is 0; it has to be a number from 0.05",
    "hours: .nan": "hours is nan; it has to be a number",
    "memory: 8": "memory is 8; it has to be a size in K, M, G or T, such as 16G",
    "memory: much": "memory is 'much'; it has to be a size",
    "throttle: 0": "throttle is 0; it has to be a whole number from 1",
    "nodes: 0": "nodes is 0; it has to be a whole number from 1",
    "cpus: two": "cpus is 'two'; it has to be a whole number from 1",
    "gpus: -1": "gpus is -1; it has to be a whole number from 0",
    "{gpus: 8, tasks: 3}": "tasks is 3, and gpus is 8: each process has one GPU. Leave tasks out.",
    "partition: a b": "partition is 'a b'; it has to be one word",
    "modules: cuda": "modules is 'cuda'; it has to be a list",
    "environment: {A-B: 1}": "environment.A-B is 'A-B'; it has to be a variable's name",
    "sbatch: [--nodes=4]": "sbatch[0] is --nodes=4: the key `nodes` sets this.",
    "sbatch: [--time 5]": "sbatch[0] is --time 5: the key `hours` sets this.",
    "sbatch: [--signal=TERM]": "every job has its own --signal already. Leave it out.",
    "sbatch: [-N4]": "sbatch[0] is '-N4'; it has to be an option such as --constraint=a100",
    "[1]": "the file is [1]; it has to hold `name: value` pairs.",
    "a: b: c": "line 1 is not YAML",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_a_cluster_file_is_one_sentence(world: World, fault: str) -> None:
    sound = {"hours": "hours: 1", "memory": "memory: 8G"}
    changes = fault.strip("{}").split(", ") if fault.startswith("{") else [fault]
    kept = [
        line for key, line in sound.items() if not any(change.startswith(f"{key}:") for change in changes)
    ]
    alone = fault.startswith("[") or "b: c" in fault
    Path("mine.yaml").write_text("\n".join(changes if alone else [*kept, *changes]))
    code, said = world.reproduce("--on", "slurm", "--cluster", "mine.yaml")
    assert code == 2 and said.startswith("mine.yaml, line") and FAULTS[fault] in said
    assert len(said.splitlines()) == 1 and not Path("runs").exists()


@pytest.mark.parametrize("key", ["hours", "memory"])
def test_what_is_needed_is_missed(world: World, key: str) -> None:
    Path("mine.yaml").write_text("hours: 1\nmemory: 8G\n".replace(key, f"# {key}"))
    _, said = world.reproduce("--on", "slurm", "--cluster", "mine.yaml")
    assert f"{key} is missing" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--on slurm --cluster gqu",
            "There is no cluster file conf/cluster/gqu.yaml. Did you mean conf/cluster/gpu",
        ),
        (f"--on slurm --cluster {'x' * 5000}", "There is no cluster file"),
        ("--on slurm --cluster node_of_eight", "starts 8 processes for a run, but a run of a table has one"),
        ("--on slurm --fresh", "--fresh works on this machine: leave --on slurm out."),
        ("--on slurm --verify", "--verify works on this machine"),
        ("--on slurm --collect", "--collect works on this machine"),
        ("--on slurm --status", "--status works on this machine"),
        ("--cluster gpu", "--cluster gpu is for jobs: add --on slurm."),
        ("--on slurm --jobs -1", "--jobs -1: take 1 or more"),
        ("--on slurm --rows plane", "There is no row 'plane' in this table. Did you mean plain?"),
        ("--on slurm", "There is no SLURM here: the command squeue was not found."),
    ],
)
def test_a_mistake_of_the_command_line_is_one_sentence(
    world: World, clusters: Path, no_slurm: None, options: str, message: str
) -> None:
    code, said = world.reproduce(*options.split(), *(["--dry-run"] if "rows" in options else []))
    assert code == 2 and message in said and len(said.splitlines()) == 1


def test_without_slurm_the_states_are_shown_alone(world: World, no_slurm: None) -> None:
    code, said = world.reproduce("--status", "--rows", "plain", "--seeds", "0")
    assert code == 0 and said.startswith("planned") and said.splitlines()[-1].startswith("1 planned")


def test_where_slurm_does_not_answer_the_states_are_shown_and_then_why(
    world: World, no_slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\necho Unable to contact slurm controller >&2; exit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    code, said = world.reproduce("--status", "--rows", "plain", "--seeds", "0")
    *shown, why = said.splitlines()
    assert code == 2 and shown[0].startswith("planned") and why.startswith("No SLURM answers `squeue`.")


def test_another_scheduler_is_not_known(world: World) -> None:
    assert world.reproduce("--on", "pbs") == (2, "--on pbs: take slurm.\n")


@pytest.mark.parametrize(
    ("setting", "cluster", "message"),
    [
        (
            {"trainer.devices": 2},
            "cpu",
            "plain / easy / seed 0 has trainer.devices 2, but a run of a table is one",
        ),
        ({"trainer.num_nodes": 2}, "cpu", "has trainer.num_nodes 2"),
        ({"trainer.accelerator": "gpu"}, "cpu", "accelerator gpu, but conf/cluster/cpu.yaml gives no GPU"),
        (
            {"trainer.accelerator": "cpu"},
            "gpu",
            "accelerator cpu, but conf/cluster/gpu.yaml asks for gpus: 1",
        ),
    ],
)
def test_a_row_that_contradicts_the_cluster_file_is_one_sentence(
    world: World, clusters: Path, no_slurm: None, setting: dict[str, object], cluster: str, message: str
) -> None:
    world.table(plain={"set": setting})
    code, said = world.reproduce("--on", "slurm", "--cluster", cluster, "--dry-run")
    assert code == 2 and message in said and len(said.splitlines()) == 1


def test_the_runs_of_a_table_are_tasks_that_wait_for_what_they_need(
    world: World, clusters: Path, no_slurm: None
) -> None:
    code, said = world.reproduce("--on", "slurm", "--dry-run", "--jobs", "3")
    assert code == 0 and not Path("runs/jobs").exists()
    assert "#SBATCH --array=0-7%3\n" in said and "#SBATCH --hold --kill-on-invalid-dep=yes\n" in said
    tasks = dict(re.findall(r"^(JOB1_\d)\s+\w{16}  (.*)$", said, re.MULTILINE))
    names = {text.partition("  after ")[0]: job for job, text in tasks.items()}
    assert len(names) == 8 and not any("lost" in name for name in names)
    waits = {text.partition("  after ")[0]: text.partition("  after ")[2] for text in tasks.values()}
    for seed in (0, 1):
        assert waits[f"taught / easy / seed {seed}"] == names[f"plain / easy / seed {seed}"]
        assert waits[f"after / easy / seed {seed}"] == names[f"wild / easy / seed {seed}"]
        assert not waits[f"plain / easy / seed {seed}"]


def test_a_run_whose_need_is_done_waits_for_nothing(world: World, clusters: Path, no_slurm: None) -> None:
    world.reproduce("--rows", "plain", "--seeds", "0")
    _, said = world.reproduce("--on", "slurm", "--dry-run", "--rows", "taught", "--seeds", "0")
    assert "--array=0-0%50" in said and "--hold" not in said and "after" not in said
    world.reproduce("--rows", "taught", "--seeds", "0")
    _, said = world.reproduce("--on", "slurm", "--dry-run", "--rows", "taught", "--seeds", "0")
    assert said.endswith("Nothing to submit: 1 done, 2 without data\n")


def test_more_runs_than_an_array_may_have_are_several_arrays(
    world: World, clusters: Path, no_slurm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "LONGEST", 3)
    _, said = world.reproduce("--on", "slurm", "--dry-run", "--seeds", "0")
    assert "--array=0-2%50" in said and "--array=0-0%50" in said
    tasks = {name: job for job, name in re.findall(r"^(JOB\d_\d)\s+\w{16}  (\w+) ", said, re.MULTILINE)}
    needs = {
        name: job for name, job in re.findall(r"  (\w+) / easy / seed 0  after (\S+)$", said, re.MULTILINE)
    }
    assert needs == {"taught": tasks["plain"], "after": tasks["wild"]}
    assert tasks["taught"].startswith("JOB2") or tasks["after"].startswith("JOB2")


def test_a_waiting_run_whose_need_failed_is_no_longer_in_the_queue(world: World) -> None:
    """SLURM takes a moment to cancel it: a submission in this moment submits both again."""
    plan = plan_of(Selection("toy", columns="easy", seeds="0"), Console(file=io.StringIO()), fetch=False)
    ids = {run.places[0][0]: run.id for run in plan.runs}
    waits = {
        ids[row]: Queued(f"7_{i}", str(i), "PENDING", "(Dependency)", "toy")
        for i, row in enumerate(["taught", "after"])
    }
    needed = {ids["plain"]: Queued("7_8", "8", "RUNNING", "n1", "toy")}
    assert [run.id for run in hopeless(plan, waits | needed)] == [ids["after"]]
    running = {ids["after"]: Queued("7_1", "1", "RUNNING", "n1", "toy")}
    assert not hopeless(plan, waits | needed | running)


def test_a_real_table_with_needs_is_planned(no_slurm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The static rows of seal_mlc each wait for the energy network they take; finished ones are left out."""
    monkeypatch.chdir(toy_world.HERE.parent)
    said = io.StringIO()
    options = ["seal_mlc", "--on", "slurm", "--dry-run", "--columns", "genbase", "--seeds", "77"]
    assert reproduce.main(options, Console(file=said, width=200)) == 0
    tasks = re.findall(
        r"^(JOB1_\d+)\s+\w{16}  (\w+) / genbase / seed 77(?:  after (JOB1_\d+))?$",
        said.getvalue(),
        re.MULTILINE,
    )
    if not tasks:
        pytest.skip("the data of genbase is not here")
    rows = {job: row for job, row, _ in tasks}
    needs = {row: rows.get(after) for _, row, after in tasks if row.startswith("static_")}
    assert needs and all(needs.values())


def by_hand(*options: str) -> int:
    """Submit or print one run."""
    return scripts.train.main([*LAYERS, *options])


@pytest.mark.parametrize(
    ("name", "added", "strategy"),
    [
        ("cpu", "", ""),
        ("gpu", "", ""),
        ("node_of_eight", " --trainer.devices=8", "--config=conf/trainer/ddp.yaml "),
        ("two_nodes", " --trainer.devices=4 --trainer.num_nodes=2", "--config=conf/trainer/ddp.yaml "),
    ],
)
def test_devices_nodes_and_strategy_follow_from_the_cluster_file(
    world: World, clusters: Path, capsys: pytest.CaptureFixture[str], name: str, added: str, strategy: str
) -> None:
    options = ["--trainer.max_epochs", "4", "--run_dir", "runs/mine"]
    assert by_hand(*options, "--cluster", name, "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"-m scripts.train {strategy}{' '.join([*LAYERS, *options])}{added}\n" in said
    assert (
        re.search(r"^#SBATCH --output=runs/mine/job.txt$", said, re.MULTILINE)
        and not Path("runs/mine").exists()
    )


def test_a_run_without_a_folder_gets_one(
    world: World, clusters: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert by_hand("--cluster=conf/cluster/cpu.yaml", "--dry-run") == 0
    assert re.search(r" --run_dir=runs/by_hand/toy-\d{8}-\d{6}-\w{8}\n$", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--cluster two_nodes --trainer.devices 3",
            "trainer.devices is 3, but conf/cluster/two_nodes.yaml gives",
        ),
        ("--cluster two_nodes --trainer.devices 1", "nodes: 2 and tasks: 4. Leave it out"),
        (
            "--cluster cpu --trainer.devices 2",
            "trainer.devices is 2, but conf/cluster/cpu.yaml gives nodes: 1",
        ),
        ("--cluster cpu --trainer.num_nodes=2", "trainer.num_nodes is 2"),
        ("--cluster cpu --config conf/trainer/four.yaml", "trainer.devices is 4"),
        ("--cluster two_nodes --trainer.strategy single_device", "trainer.strategy is single_device"),
        ("--cluster gpu --trainer.accelerator cpu", "this run has trainer.accelerator cpu"),
        ("--cluster cpu --trainer.accelerator cuda", "gives no GPU"),
        ("--cluster gpu --trainer.acelerator cpu", "Did you mean --trainer.accelerator"),
        ("--cluster nowhere.yaml", "There is no cluster file nowhere.yaml"),
        ("--cluster=", "There is no cluster file conf/cluster/.yaml"),
        ("--dry-run", "--dry-run prints a job: name its resources"),
        ("--cluster cpu", "There is no SLURM here: the command squeue was not found."),
    ],
)
def test_a_trainer_that_contradicts_the_cluster_file_is_one_sentence(
    world: World,
    clusters: Path,
    no_slurm: None,
    capsys: pytest.CaptureFixture[str],
    options: str,
    message: str,
) -> None:
    Path("conf/trainer/four.yaml").write_text("trainer: {devices: 4}\n")
    assert by_hand(*options.split(), "--run_dir", "runs/mine") == 2
    said = capsys.readouterr()
    assert message in said.err and len(said.err.splitlines()) == 1 and not said.out


def test_the_tasks_of_a_sweep_all_run_one_command(world: World, clusters: Path) -> None:
    text = sweep_array(["-m", "scripts.sweep", "conf/sweeps/x.yaml"], read_cluster("gpu"), 6, name="x y")
    assert "#SBATCH --job-name=x_y\n#SBATCH --array=0-5%16\n" in text
    assert "#SBATCH --output=runs/jobs/x_y-%A_%a.txt\n" in text
    assert text.endswith(" -m scripts.sweep conf/sweeps/x.yaml\n")
    with pytest.raises(ClusterError, match="starts 8 processes for a run, but a task of a sweep"):
        sweep_array(["-m", "scripts.sweep"], read_cluster("node_of_eight"), 6)
