"""Which epochs the stop rule and the keepers of checkpoints judge."""

import math

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.callbacks.early_stopping import EarlyStoppingReason


def restart(rule: EarlyStopping) -> None:
    """Let the stop rule judge the epochs from here on, by its full patience."""
    worst = math.inf if rule.mode == "min" else -math.inf
    rule.wait_count, rule.stopped_epoch, rule.best_score = 0, 0, torch.tensor(worst)
    rule.stopping_reason, rule.stopping_reason_message = EarlyStoppingReason.NOT_STOPPED, None


def forget_best(trainer: Trainer) -> None:
    """Restart every stop rule; every keeper of checkpoints replaces its best by the next epoch's."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, EarlyStopping):
            restart(callback)
        elif isinstance(callback, ModelCheckpoint) and callback.monitor:
            callback.best_k_models.clear()
            callback.best_model_score, callback.best_model_path, callback.kth_best_model_path = None, "", ""
