"""SEAL-dynamic: the loss-net and the task-net learn in turns, batch by batch."""

from typing import Any, Literal

import torch
from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import Optimizer

from datamodules.batches import Batch
from energies.base import Energy
from inference.guesses import Guess, GuessContext
from lightning_modules.base import Scheme
from lightning_modules.processes import over_processes
from losses.objectives import Objective
from losses.task import TaskLoss
from networks.sizes import at_least


class SealDynamic(Scheme):
    """The loss-net learns from guesses of the task-net, the task-net from the loss-net.

    [SEAL algorithm 1, eqs. 4, 5]

    On each batch, `outer_steps` times: `inner_steps` steps of the `inner` part, then one of the other
    [SEAL code]
    """

    main = "task"

    def __init__(
        self,
        task_net: nn.Module,
        energy: Energy,
        objective: Objective,
        guess: Guess,
        task_loss: TaskLoss,
        energy_optimizer: OptimizerCallable,
        task_optimizer: OptimizerCallable,
        *,
        inner: Literal["energy", "task"] = "energy",
        inner_steps: int = 1,
        outer_steps: int = 1,
        **scheme: Any,
    ) -> None:
        super().__init__(**scheme)
        at_least(1, inner_steps=inner_steps, outer_steps=outer_steps)
        self.save_hyperparameters()
        self.task_net, self.energy, self.objective, self.guess = task_net, energy, objective, guess
        self.task_loss, self.energy_optimizer, self.task_optimizer = (
            task_loss,
            energy_optimizer,
            task_optimizer,
        )
        self.inner, self.outer = inner, "task" if inner == "energy" else "energy"
        self.inner_steps, self.outer_steps = inner_steps, outer_steps

    def parts(self) -> dict[str, Optimizer]:
        learned = [*self.task_net.parameters()]
        if isinstance(self.task_loss, nn.Module):  # it may bring a head of the task-net
            learned += self.task_loss.parameters()
        return {
            "task": self.task_optimizer(learned),
            "energy": self.energy_optimizer(self.energy.parameters()),
        }

    def training_step(self, batch: Batch, index: int) -> None:
        for _ in range(self.outer_steps):
            for _ in range(self.inner_steps):
                self.step(self.inner, batch)
            self.step(self.outer, batch)

    def loss(self, part: str, batch: Batch) -> Tensor:
        energy, space = self.energy.over(batch.mask), self.space.over(batch.mask)
        if part == "task":
            logits = self.task_net(batch.inputs)
            return self.task_loss(
                lambda x, y: self.objective.reading(energy(x, y)), space, batch.inputs, batch.y, logits
            )
        with torch.no_grad():
            logits = self.task_net(batch.inputs)
            guesses = self.guess(GuessContext(energy, self.objective, space, batch.inputs, batch.y, logits))
        loss = self.objective(energy, space, batch.inputs, batch.y, guesses)
        return over_processes(loss, summed=self.objective.summed)

    def predictors(self) -> list[nn.Module]:
        return [self.task_net]

    def predict(self, batch: Batch) -> Tensor:
        return self.space.over(batch.mask).relax(self.task_net(batch.inputs))
