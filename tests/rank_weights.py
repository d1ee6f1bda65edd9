"""A callback that keeps the weights of each process of a run."""

from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningModule, Trainer


class RankWeights(Callback):
    """Writes rank-<number>.pt into the run's folder when training ends."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the weights of this process."""
        torch.save(pl_module.state_dict(), Path(trainer.default_root_dir) / f"rank-{trainer.global_rank}.pt")
