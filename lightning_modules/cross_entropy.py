"""Supervision alone."""

from typing import Any

from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import Optimizer

from datamodules.batches import Batch
from lightning_modules.base import Scheme
from networks.sizes import at_least


class CrossEntropy(Scheme):
    """A task-net learns from supervision only, `task_steps` steps a batch.   [all four papers' baseline]

    More than one step makes the control for schemes that take as many.
    """

    main = "task"

    def __init__(
        self, task_net: nn.Module, task_optimizer: OptimizerCallable, *, task_steps: int = 1, **scheme: Any
    ) -> None:
        super().__init__(**scheme)
        at_least(1, task_steps=task_steps)
        self.save_hyperparameters()
        self.task_net, self.task_optimizer, self.task_steps = task_net, task_optimizer, task_steps

    def parts(self) -> dict[str, Optimizer]:
        return {"task": self.task_optimizer(self.task_net.parameters())}

    def training_step(self, batch: Batch, index: int) -> None:
        for _ in range(self.task_steps):
            self.step("task", batch)

    def loss(self, part: str, batch: Batch) -> Tensor:
        return self.space.over(batch.mask).supervise(self.task_net(batch.inputs), batch.y).mean()

    def predictors(self) -> list[nn.Module]:
        return [self.task_net]

    def predict(self, batch: Batch) -> Tensor:
        return self.space.over(batch.mask).relax(self.task_net(batch.inputs))
