"""SLURM's commands where no controller answers."""

import os
from pathlib import Path

import pytest

from experiments.cluster import queue
from experiments.errors import ClusterError


def test_slurm_without_a_controller_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "squeue"
    command.write_text("#!/bin/sh\necho 'squeue: error: fetch_config: DNS SRV lookup failed' >&2\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ClusterError, match=r"No SLURM answers `squeue`\. Run this on a login node"):
        queue.queued()
