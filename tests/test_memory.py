"""Freed memory stays with the process; forks share what is imported; sparse features keep a run small."""

import gc
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from committed import ROOT
from experiments.run.memory import unswept
from test_mlc_data import configured

FAULTS = """
import resource, sys
import numpy as np
from experiments.run import memory
if sys.argv[1] == "kept":
    assert memory.keep_freed()
def step():
    blocks = [np.ones(4 << 17) for _ in range(8)]  # 4 MiB each, all there at once
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_steps_that_free_and_allocate_the_same_blocks_touch_no_new_pages() -> None:
    faults = {
        way: int(subprocess.run([sys.executable, "-c", FAULTS, way], capture_output=True, check=True).stdout)
        for way in ("kept", "returned")
    }
    assert faults["kept"] < 100 < faults["returned"], faults


SHARED = """
import gc
from concurrent.futures import ProcessPoolExecutor
from experiments.run import workers

def private() -> int:
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private"))

def copied(_: int) -> tuple[bool, int]:
    before = private()
    gc.collect()
    return gc.isenabled(), private() - before

if __name__ == "__main__":
    context = workers.server(["lightning_modules.cross_entropy"])
    with workers.pool_of(1, context) as pool:
        looks, kib = pool.submit(copied, 0).result()
    workers.stop_server()
    print(looks, kib)
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="asks the kernel of Linux")
def test_a_fork_that_looks_for_garbage_copies_nothing_of_what_the_server_imported(tmp_path: Path) -> None:
    script = tmp_path / "shared.py"
    script.write_text(SHARED)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    looks, kib = done.stdout.split()
    assert looks == "True"
    assert int(kib) < 20_000


UNSWEPT = """
import gc
from experiments.run.memory import unswept
try:
    with unswept():
        assert not gc.isenabled() and not gc.get_freeze_count()
        raise ImportError
except ImportError:
    assert gc.isenabled() and gc.get_freeze_count()
"""


def test_after_imports_the_collector_works_and_passes_over_what_there_is() -> None:
    subprocess.run([sys.executable, "-c", UNSWEPT], cwd=ROOT, check=True)


def test_where_all_is_imported_the_collector_is_left_as_it_is() -> None:
    before = gc.get_freeze_count()  # pytorch_lightning is there
    with unswept():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before


LARGE_PARENT = """
import subprocess, sys
held = b"x" * (1 << 30)
child = "from experiments.record import peak_memory; print(peak_memory()['peak_memory_mib'])"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="asks the kernel of Linux")
def test_the_peak_of_a_process_is_not_that_of_the_process_that_started_it() -> None:
    command = [sys.executable, "-c", LARGE_PARENT]
    peak = float(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert 5 < peak < 500


def test_47236_sparse_features_train_within_a_gib_and_a_half(tmp_path: Path) -> None:
    configured("rcv1")  # skips where it is missing
    layers = ("data/rcv1", "scheme/seal_dynamic", "objective/nce")
    few = ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", f"--run_dir={tmp_path}/run"]
    few += [f"--trainer.limit_{part}_batches=2" for part in ("train", "val", "test")]
    command = [
        sys.executable,
        "-m",
        "scripts.train",
        *(f"--config=conf/{layer}.yaml" for layer in layers),
        *few,
    ]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    peak = json.loads((tmp_path / "run/record.json").read_text())["peak_memory_mib"]
    assert 300 < peak < 1.5 * 1024
