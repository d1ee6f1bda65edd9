"""Scores of the energy's own answer beside those of the scheme that predicts."""

from abc import abstractmethod
from typing import Any

from pytorch_lightning import Callback, Trainer
from torchmetrics import Metric

from datamodules.batches import Batch
from inference.exact import lowest
from lightning_modules.engine.bookkeeping import judge, scores_of


class EnergyCallback(Callback):
    """Measures something of a scheme's energy on each batch of validation and test.

    It draws no random number and changes nothing of a run, so ids of runs leave it out.

    Raises:
        ValueError: the scheme has no energy.
    """

    @abstractmethod
    def begin(self, scheme: Any) -> None:  # noqa: ANN401  (a Scheme with an energy)
        """Forget all batches."""

    @abstractmethod
    def add(self, scheme: Any, batch: Batch) -> None:  # noqa: ANN401
        """Add a batch."""

    @abstractmethod
    def found(self, stage: str) -> dict[str, Any]:
        """What to log, by name."""

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:  # noqa: ANN401
        """Check that there is an energy."""
        if pl_module.model_energy() is None:
            raise ValueError(
                f"{type(pl_module).__name__} has no energy whose answer could be scored: leave "
                f"{type(self).__name__} out of trainer.callbacks."
            )

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:  # noqa: ANN401
        """Begin."""
        self.begin(pl_module)

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
        self.add(pl_module, batch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:  # noqa: ANN401
        """Log what was found."""
        pl_module.log_dict(self.found("val"))

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:  # noqa: ANN401
        """Log what was found."""
        pl_module.log_dict(self.found("test"))

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end


class EnergyScores(EnergyCallback):
    """Judges argmin_y E(x, y), found exactly, by a copy of the scheme's metric: is the energy a good model?

    Logged as `val/energy_...` and `test/energy_...`. The score that selects the model is a training curve:
    `energy_accuracy`, where `val/accuracy` selects, has a value for each validation.

    Raises:
        ValueError: the scheme has no energy; on validation, if its energy is not a chain.
    """

    metric: Metric

    def begin(self, scheme: Any) -> None:  # noqa: ANN401
        self.metric = scheme.metric.clone()

    def add(self, scheme: Any, batch: Batch) -> None:  # noqa: ANN401
        judge(self.metric, batch, lowest(scheme.model_energy().over(batch.mask).given(batch.inputs)))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:  # noqa: ANN401
        """Log what was found, and append to the curve."""
        found = self.found("val")
        pl_module.log_dict(found)
        name = str(getattr(trainer.checkpoint_callback, "monitor", "")).removeprefix("val/")
        if f"val/energy_{name}" in found:
            pl_module.append_to_curve(f"energy_{name}", float(found[f"val/energy_{name}"]))

    def found(self, stage: str) -> dict[str, Any]:
        scores = scores_of(self.metric, choose=stage == "val")
        return {f"{stage}/energy_{name}": value for name, value in scores.items() if not value.dim()}
