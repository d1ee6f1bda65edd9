"""The fork server imports this first: what it imports is there to stay, and no fork looks through it.

A look for garbage would copy the pages of all these objects to each fork, 120 MB a run. Nothing else may
import this: it switches the collector off.
"""

import gc
import os

from experiments.lean import import_torchmetrics

SERVER = os.getpid()


def _pass_over() -> None:
    """Put what there is out of the collector's sight, before a fork of the server."""
    if os.getpid() == SERVER:
        gc.freeze()


os.register_at_fork(before=_pass_over, after_in_child=gc.enable)
gc.disable()
import_torchmetrics()
