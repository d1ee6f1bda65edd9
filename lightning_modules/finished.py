"""A finished network that is judged once more."""

from typing import Any

from torch import nn

from datamodules.batches import Batch
from lightning_modules.base import Part, TaskNetScheme, still


class Finished(TaskNetScheme):
    """A finished task-net with another metric, for example one that decodes in another way; nothing learns.

    The steps of its epoch move nothing; they make it a run like any other.
    """

    def __init__(self, task_net: nn.Module, **scheme: Any) -> None:
        super().__init__(**scheme)
        self.save_hyperparameters()
        self.task_net = task_net.requires_grad_()  # several processes want one that does

    def training_step(self, batch: Batch, index: int) -> None:
        self.move("task", batch)

    def parts(self) -> dict[str, Part]:
        return {"task": still(self.task_net)}
