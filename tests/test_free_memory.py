"""What control groups leave of the memory."""

from pathlib import Path

import pytest
import torch

from energies import free_memory
from energies.potentials import ChainPotentials
from inference import chain


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


VERSION_2 = {
    "own": "0::/job_7/step_0\n",
    "groups/job_7/step_0/memory.max": "max\n",
    "groups/job_7/step_0/memory.current": "300\n",
    "groups/job_7/memory.max": "1000\n",
    "groups/job_7/memory.current": "400\n",
    "groups/job_7/memory.stat": "anon 250\ninactive_file 150\n",
}
VERSION_1 = {
    "own": "9:name=systemd:/\n4:memory:/slurm/job_7\n3:cpu,cpuacct:/x\n",
    "groups/memory/slurm/job_7/memory.limit_in_bytes": "1000\n",
    "groups/memory/slurm/job_7/memory.usage_in_bytes": "400\n",
    "groups/memory/slurm/job_7/memory.stat": "inactive_file 1\ntotal_inactive_file 150\n",
    "groups/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "groups/memory/memory.usage_in_bytes": "5000\n",
}
CONTAINER = {  # the path is the host's, the files are those of the container
    "own": "0::/kubepods/pod_1\n",
    "groups/memory.max": "1000\n",
    "groups/memory.current": "250\n",
}


@pytest.mark.parametrize(
    ("files", "left"),
    [(VERSION_2, 750), (VERSION_1, 750), (CONTAINER, 750), ({"own": "0::/\n"}, None), ({}, None)],
)
def test_the_tightest_group_says_what_is_left(
    files: dict[str, str], left: int | None, tmp_path: Path
) -> None:
    write(tmp_path, files)
    found = free_memory.left_in_groups(tmp_path / "own", tmp_path / "groups")
    assert min(found, default=None) == left


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, {**CONTAINER, "groups/memory.current": "1200\n"})
    assert list(free_memory.left_in_groups(tmp_path / "own", tmp_path / "groups")) == [0]


def test_a_job_too_small_for_an_answer_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p = ChainPotentials(torch.zeros(2, 50, 20), torch.zeros(20, 20))
    assert chain.pairwise_marginals(p).shape == (2, 49, 20, 20)
    write(tmp_path, CONTAINER)
    monkeypatch.setattr(free_memory, "OWN", tmp_path / "own")
    monkeypatch.setattr(free_memory, "GROUPS", tmp_path / "groups")
    with pytest.raises(ValueError, match=r"0\.0 GiB are free"):
        chain.pairwise_marginals(p)


def test_this_machine_has_memory_left() -> None:
    left = free_memory.free_bytes(torch.device("cpu"))
    assert left is not None and left > 2**20
