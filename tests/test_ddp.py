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
        for key in first:
            torch.testing.assert_close(first[key], second[key], rtol=0, atol=0, msg=f"{name}: {key}")
        # 0.2 is right for two of three examples, 0.5 for one
        assert first["threshold"] == torch.tensor(0.2)
        torch.testing.assert_close(first["example_f1"], torch.tensor((2 / 3 + 1 + 1) / 3))
        torch.testing.assert_close(first["example_f1_at_half"], torch.tensor(1 / 3))
