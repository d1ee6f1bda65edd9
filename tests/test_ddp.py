"""Several processes: gradients are shared at every step of every part, so the replicas stay one."""

import subprocess
import sys
from pathlib import Path

import torch

NAMES = ["cross_entropy", "static", "dynamic_nce", "dynamic_margin", "dvn", "infnet", "implicit"]


def test_two_processes_end_with_the_same_weights(tmp_path: Path) -> None:
    script = Path(__file__).with_name("ddp_run.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), *NAMES], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in NAMES:
        first, second = (torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in (0, 1))
        assert name != "implicit" or first["mean"] == 1.5  # of 1 and 2
        learned = [key for key in first if "metric" not in key]
        assert all(torch.equal(first[key], second[key]) for key in learned), name
