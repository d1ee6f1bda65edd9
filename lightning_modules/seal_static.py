"""SEAL-static: first the energy, then the task-net."""

from typing import Any

from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import Energy
from lightning_modules.base import Part, TaskNetScheme
from losses.objectives import Objective
from losses.task import TaskLoss
from networks.sizes import at_least


class SealStatic(TaskNetScheme):
    """A task-net learns from supervision and from the loss-net of a finished run.

    [SEAL §2.1, eq. 1]

    `energy` is frozen. `objective` is the one it was trained with; its `inference_energy` enters the loss.
    """

    def __init__(
        self,
        task_net: nn.Module,
        energy: Energy,
        objective: Objective,
        task_loss: TaskLoss,
        task_optimizer: OptimizerCallable,
        *,
        task_steps: int = 1,
        **scheme: Any,
    ) -> None:
        super().__init__(**scheme)
        at_least(1, task_steps=task_steps)
        self.save_hyperparameters()
        self.task_net, self.energy, self.objective = task_net, energy.requires_grad_(False), objective
        self.task_terms, self.task_optimizer, self.task_steps = task_loss, task_optimizer, task_steps

    def training_step(self, batch: Batch, index: int) -> None:
        for _ in range(self.task_steps):
            self.move("task", batch)

    def task_loss(self, batch: Batch) -> Tensor:
        """Mean of lambda_1 E(x, A(x)) + lambda_2 supervision of A(x), with E frozen.   [SEAL eq. 1]"""
        energy = self.energy.over(batch.mask)
        return self.task_terms(
            lambda x, y: self.objective.inference_energy(energy(x, y)),
            self.space.over(batch.mask),
            batch.inputs,
            batch.y,
            self.task_net(batch.inputs),
            batch.observed,
        )

    def parts(self) -> dict[str, Part]:
        of_task = [*self.task_net.parameters(), *self.task_terms.parameters()]
        return {"task": Part(of_task, self.task_optimizer, self.task_loss, **self.main_options)}
