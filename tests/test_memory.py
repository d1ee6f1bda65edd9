"""Freed memory stays with the process."""

import platform
import subprocess
import sys

import pytest

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
