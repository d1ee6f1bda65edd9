"""What SLURM's queue says, and its commands where no controller answers."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from experiments.cluster import queue
from experiments.cluster.queue import Queued
from experiments.cluster.status import states_of
from experiments.errors import ClusterError
from experiments.run.reproduce import Selection, plan_of
from toy_world import World, world  # noqa: F401


def test_slurm_without_a_controller_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "squeue"
    command.write_text("#!/bin/sh\necho 'squeue: error: fetch_config: DNS SRV lookup failed' >&2\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ClusterError, match=r"No SLURM answers `squeue`\. Run this on a login node"):
        queue.queued()


def test_a_job_that_no_node_can_run_is_told_from_one_that_waits(world: World) -> None:  # noqa: F811
    plan = plan_of(Selection("toy", "plain", "easy", "0"), Console(file=io.StringIO()), fetch=False)
    (run,) = plan.runs
    for reason, says in (("(Resources)", "job 7_0 (Resources)"), ("(BadConstraints)", "no node has what")):
        state, detail = states_of(plan, {run.id: Queued("7_0", "0", "PENDING", reason, "toy")})[run.id]
        assert state == "queued" and says in detail
