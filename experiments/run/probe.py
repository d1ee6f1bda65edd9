"""Which scores a run logs, asked before it is trained: one batch of training, one of validation."""

import os
import tempfile
from pathlib import Path
from typing import Any

from experiments.plan.compose import RUN_DIR, fill
from experiments.run import workers

SHORT = {
    "max_epochs": 1,
    "limit_train_batches": 1,
    "limit_val_batches": 1,
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
    "logger": False,
}


def logged(config: dict[str, Any]) -> list[str]:
    """The names that the first epoch of a run logs; none if it fails: the run itself says why."""
    with workers.pool_of(1, workers.server()) as pool:
        return pool.submit(_logged, config).result()


def _logged(config: dict[str, Any]) -> list[str]:
    """The same, in a process of its own."""
    from experiments.run.cli import TrainCLI, quiet_lightning

    with Path(os.devnull).open("w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    quiet_lightning()
    with tempfile.TemporaryDirectory() as folder:
        short = fill(config | {"trainer": config["trainer"] | SHORT}, {RUN_DIR: folder})
        try:
            cli = TrainCLI(short, run_dir=folder, base=None)
            cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        except Exception:
            return []
        return sorted(cli.trainer.callback_metrics)
