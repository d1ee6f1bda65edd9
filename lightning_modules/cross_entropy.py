"""Supervision alone."""

from typing import Any

from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn

from datamodules.batches import Batch
from lightning_modules.base import Part, TaskNetScheme
from losses.observed import mean
from networks.sizes import at_least


class CrossEntropy(TaskNetScheme):
    """A task-net learns from supervision only, `task_steps` steps a batch.   [all four papers' baseline]

    More than one step makes the control for schemes that take as many.
    """

    def __init__(
        self, task_net: nn.Module, task_optimizer: OptimizerCallable, *, task_steps: int = 1, **scheme: Any
    ) -> None:
        super().__init__(**scheme)
        at_least(1, task_steps=task_steps)
        self.save_hyperparameters()
        self.task_net, self.task_optimizer, self.task_steps = task_net, task_optimizer, task_steps

    def training_step(self, batch: Batch, index: int) -> None:
        for _ in range(self.task_steps):
            self.move("task", batch)

    def task_loss(self, batch: Batch) -> Tensor:
        """Mean over the batch of the supervised loss."""
        rows = self.space.over(batch.mask).supervise(self.task_net(batch.inputs), batch.y)
        return mean(rows, batch.observed)

    def parts(self) -> dict[str, Part]:
        learned = self.task_net.parameters()
        return {"task": Part(learned, self.task_optimizer, self.task_loss, **self.main_options)}
