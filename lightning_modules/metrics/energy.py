"""Scores of the energy's own answer beside those of the scheme that predicts."""

from functools import partialmethod
from typing import Any

from pytorch_lightning import Callback, Trainer
from torchmetrics import Metric

from datamodules.batches import Batch
from inference.exact import lowest
from lightning_modules.bookkeeping import judge, scores_of


class EnergyScores(Callback):
    """Judges argmin_y E(x, y), found exactly, by a copy of the scheme's metric: is the energy a good model?

    Logged as `val/energy_...` and `test/energy_...`. It draws no random number and changes none of the run,
    so ids of runs leave it out.

    Raises:
        ValueError: the scheme has no energy; on validation, if its energy is not a chain.
    """

    metric: Metric

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:  # noqa: ANN401  (a Scheme)
        """Check that there is an energy."""
        if not hasattr(pl_module, "energy"):
            raise ValueError(
                f"{type(pl_module).__name__} has no energy whose answer could be scored: leave EnergyScores "
                "out of trainer.callbacks."
            )

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:  # noqa: ANN401
        """Begin with an empty metric."""
        self.metric = pl_module.metric.clone()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,  # noqa: ANN401
        outputs: object,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add a batch."""
        energy = pl_module.energy.over(batch.mask).given(batch.inputs)
        judge(self.metric, batch, lowest(energy))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any, stage: str = "val") -> None:  # noqa: ANN401
        """Log the scores."""
        scores = scores_of(self.metric, choose=stage == "val")
        found = {f"{stage}/energy_{name}": value for name, value in scores.items() if not value.dim()}
        pl_module.log_dict(found)

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end
    on_test_epoch_end = partialmethod(on_validation_epoch_end, stage="test")
