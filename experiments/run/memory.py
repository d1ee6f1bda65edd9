"""How glibc handles freed memory, and Python what is imported."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # constants of glibc's malloc.h
SETTINGS = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 512 << 20, TOP_PAD: 64 << 20}  # bytes


def keep_freed() -> bool:
    """Let glibc keep freed blocks of up to 32 MiB, and half a GiB of them, for the next step.

    By default it returns a few MiB to the system after every step, and gets them back zeroed, page by page,
    in the next. That takes a fifth of an NCE step with 80 samples of 500 labels. Returns False without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(key, value) for key, value in SETTINGS.items())


@contextmanager
def unswept() -> Iterator[None]:
    """Import without a look for garbage, now and later: what large libraries make is there to stay.

    A start takes a third less time. `experiments.forks` does the same in the fork server.
    """
    if "pytorch_lightning" in sys.modules or not gc.isenabled():
        yield  # what there is to pass over is known already
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
