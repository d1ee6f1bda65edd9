"""A callback that reports a trial's score after each epoch, and ends the run if its sweep says so."""

import math

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint

from experiments.errors import Pruned, SweepError
from experiments.run.epochs import why_ended
from experiments.sweep.file import Sweep
from experiments.sweep.study import Study
from experiments.sweep.trials import not_logged


class Report(Checkpoint):
    """Reports to the study; it is a Lightning `Checkpoint`, so that it comes after the one that saves.

    It is added to a run as it starts, and is no part of its config, checkpoints or identity.
    """

    def __init__(self, sweep: Sweep, number: int, study: Study | None) -> None:
        self.sweep, self.number, self.study = sweep, number, study
        self.best: float | None = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise an error if validation does not log the metric."""
        if self.sweep.metric not in trainer.callback_metrics:
            raise SweepError(not_logged(self.sweep, trainer.callback_metrics))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report, and raise Pruned if the trial is to end."""
        score = float(trainer.callback_metrics.get(self.sweep.metric, math.nan))
        if self.study is None or not math.isfinite(score):
            return
        if self.best is None or self.sweep.better(score, self.best):
            self.best = score
        stop = trainer.is_global_zero and self.study.report(self.number, trainer.current_epoch, score)
        if trainer.strategy.broadcast(stop) and not why_ended(trainer):
            raise Pruned(trainer.current_epoch + 1, self.best)
