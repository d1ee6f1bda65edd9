"""What all tests share: one thread a process, draws that repeat, and shape checks on the science.

The shapes written in the annotations of energies, inference and losses are checked at the first calls of each
function in a test: jaxtyping's import hook has beartype look at each argument and result.
"""

import gc
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # LightningCLI's, not ours to mend

import hypothesis
import pytest
import torch

import shape_checks
from experiments.lean import import_torchmetrics

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # counts only before anything imports triton

ROOT = Path(__file__).resolve().parent.parent
# Files that take a minute or more. They go first: at the end one worker would be left with them.
LONG = (
    "conf",
    "adding",
    "ddp",
    "experiments_cli",
    "experiments_engine",
    "sweep_local",
    "interruptions",
    "text",
)

LARGE = 10_000_000  # bytes of a file of word vectors

gc.disable()  # until all tests are imported: see pytest_runtestloop
import_torchmetrics()  # as the commands do
shape_checks.install()
torch.set_num_threads(1)
# Sizes are drawn the same way each time, and a slow machine is no failure.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: workers often wait for processes that their tests start."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; a worker takes whole files, so that what a file's tests share is made once."""
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONG)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is imported stays: to look through it for garbage again and again takes a tenth of the time."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(scope="session", autouse=True)
def published_vectors() -> Iterator[None]:
    """Files of vectors as large as GloVe's are parsed once for each set of words: it takes seconds a time."""
    from datamodules import tagged

    once = lru_cache(maxsize=4)(tagged.read_vectors)

    def read(content: bytes, wanted: set[str] | None, num_dims: int, *, where: str) -> dict[str, Any]:
        parse = once if len(content) > LARGE else once.__wrapped__
        return {**parse(content, None if wanted is None else frozenset(wanted), num_dims, where=where)}

    with patch.object(tagged, "read_vectors", read):
        yield


@pytest.fixture
def root() -> Path:
    """The repository's own folder."""
    return ROOT


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws and checks does not depend on the tests before it."""
    torch.manual_seed(0)
    shape_checks.begin()


@pytest.fixture(autouse=True)
def subnormal_numbers() -> Iterator[None]:
    """A run flushes subnormal numbers to zero for its whole process; the tests after it want them back."""
    yield
    torch.set_flush_denormal(False)
