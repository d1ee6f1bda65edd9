"""The task-net of a finished run, judged once more."""

from functools import partial
from typing import Any

import torch
from torch import nn

from datamodules.batches import Batch
from lightning_modules.base import Part, TaskNetScheme


class Finished(TaskNetScheme):
    """A finished task-net with another metric, for example one that decodes in another way; nothing learns.

    The steps of its epoch move nothing; they make it a run like any other.
    """

    def __init__(self, task_net: nn.Module, **scheme: Any) -> None:
        super().__init__(**scheme)
        self.save_hyperparameters()
        self.task_net = task_net.requires_grad_(False)

    def training_step(self, batch: Batch, index: int) -> None:
        self.move("task", batch)

    def parts(self) -> dict[str, Part]:
        steps = partial(torch.optim.SGD, lr=0.0)
        return {"task": Part(self.task_net.parameters(), steps, gradient=lambda batch: batch.y.new_zeros(()))}
