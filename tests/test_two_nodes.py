"""One run on two nodes of two processes each, in a real SLURM of this machine: see scripts/slurm_here.sh."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import scripts.train
from scripts.robustness.kill_test import differences
from scripts.robustness.one_machine import absent, ask, one_machine, states
from toy_world import HERE, until

pytestmark = pytest.mark.skipif(bool(absent()), reason=f"SLURM is not installed: no {', '.join(absent())}")

RANKS = range(4)
CLUSTER = "{hours: 1, memory: 1G, nodes: 2, tasks: 2, environment: {MASTER_ADDR: 127.0.0.1}}\n"
LAYERS = [
    *("--config=conf/data/generated.yaml", "--config=conf/scheme/infnet.yaml"),
    *("--config=conf/objective/joint_stacked.yaml", "--config=conf/trainer/ddp.yaml"),
    *("--data.num_rows=300", "--data.num_features=12", "--data.num_labels=6", "--trainer.accelerator=cpu"),
    "--trainer.callbacks+=rank_weights.RankWeights",
]
# As in test_ddp.py, nothing but rounding tells four processes from one: equal shares of a step, float64, no
# division of small numbers by each other in Adam.
EXACT = [
    *("--trainer.limit_train_batches=4", "--trainer.max_epochs=3", "--trainer.precision=64-true"),
    *("--optimizer.init_args.eps=1", "--model.energy_optimizer.init_args.eps=1"),
]
LONG = ["--trainer.max_epochs=25", "--stop.patience=100"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the project's conf, and a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE.parent), str(HERE)]))
    Path("conf").symlink_to(HERE.parent / "conf")
    Path("two_nodes.yaml").write_text(CLUSTER)
    with one_machine(tmp_path / "slurm"):
        yield tmp_path


def submit(folder: str, *options: str) -> str:
    """The job of a run on all four processes, with 8 examples each."""
    given = ["--cluster=two_nodes.yaml", *LAYERS, *options, "--data.batch_size=8", f"--run_dir={folder}"]
    assert scripts.train.main(given) == 0
    (job,) = ask("squeue", "--noheader", "--format=%A").split()
    return job


def epochs(folder: str) -> int:
    file = Path(folder, "metrics.csv")
    return len(file.read_text().splitlines()) - 1 if file.exists() else 0


def weights(folder: str, rank: int) -> dict[str, torch.Tensor]:
    return torch.load(Path(folder, f"rank-{rank}.pt"), weights_only=True)


def end(job: str) -> None:
    """Wait until a job has ended well."""
    until(lambda: set(states(job).values()) == {"COMPLETED"})


def test_four_processes_on_two_nodes_equal_one_with_four_times_the_batch(project: Path) -> None:
    job = submit("runs/four", *EXACT)
    assert scripts.train.main([*LAYERS, *EXACT, "--data.batch_size=32", "--run_dir=runs/one"]) == 0
    end(job)
    for rank in RANKS:
        for name, value in weights("runs/one", 0).items():
            ours = weights("runs/four", rank)[name]
            assert torch.equal(ours, weights("runs/four", 0)[name]), (rank, name)
            torch.testing.assert_close(ours, value, rtol=0, atol=1e-12, msg=name)


def test_four_processes_that_are_requeued_end_like_a_whole_run(project: Path) -> None:
    job = submit("runs/requeued", *LONG)
    until(lambda: epochs("runs/requeued") >= 3)
    ask("scancel", "--signal=USR1", job)
    until(lambda: set(states(job).values()) == {"PENDING"})
    stopped = epochs("runs/requeued")
    ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    end(job)
    record = json.loads(Path("runs/requeued/record.json").read_text())
    assert stopped < 25 == record["epochs"] and len(record["starts"]) == 2
    end(submit("runs/whole", *LONG))
    assert not differences(Path("runs/requeued"), Path("runs/whole"))
    for rank in RANKS:
        for name, value in weights("runs/whole", 0).items():
            assert torch.equal(weights("runs/whole", rank)[name], value), (rank, name)
            assert torch.equal(weights("runs/requeued", rank)[name], value), (rank, name)
