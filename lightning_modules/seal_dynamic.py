"""SEAL-dynamic: the loss-net and the task-net learn in turns, batch by batch."""

from typing import Any, Literal

import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import Energy
from inference.guesses import Guess, GuessContext
from lightning_modules.base import Part, TaskNetScheme, check_clip_norm
from lightning_modules.engine.processes import over_processes
from losses.objectives import Objective
from losses.task import TaskLoss
from networks.sizes import at_least


class SealDynamic(TaskNetScheme):
    """The loss-net learns from guesses of the task-net, the task-net from the loss-net.

    [SEAL algorithm 1, eqs. 4, 5]

    On each batch, `outer_steps` times: `inner_steps` steps of the `inner` part, then one of the other.
    On pictures the loss-net's gradient is clipped and its learning rate scheduled too.   [SEAL code]
    """

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
        energy_clip_norm: float | None = None,
        energy_lr_schedule: LRSchedulerCallable | None = None,
        **scheme: Any,
    ) -> None:
        super().__init__(**scheme)
        at_least(1, inner_steps=inner_steps, outer_steps=outer_steps)
        check_clip_norm("energy_clip_norm", energy_clip_norm)
        self.save_hyperparameters()
        self.task_net, self.energy, self.objective, self.guess = task_net, energy, objective, guess
        self.task_terms = task_loss
        self.energy_optimizer, self.task_optimizer = energy_optimizer, task_optimizer
        self.inner, self.outer = inner, "task" if inner == "energy" else "energy"
        self.inner_steps, self.outer_steps = inner_steps, outer_steps
        self.energy_options: dict[str, Any] = {"clip_norm": energy_clip_norm, "schedule": energy_lr_schedule}

    def training_step(self, batch: Batch, index: int) -> None:
        for _ in range(self.outer_steps):
            for _ in range(self.inner_steps):
                self.move(self.inner, batch)
            self.move(self.outer, batch)

    def energy_loss(self, batch: Batch) -> Tensor:
        """The objective of guesses made of the task-net's answer.   [SEAL eqs. 6-9]"""
        energy, space = self.energy.over(batch.mask), self.space.over(batch.mask)
        with torch.no_grad():
            logits = self.task_net(batch.inputs)
            guesses = self.guess(GuessContext(energy, self.objective, space, batch.inputs, batch.y, logits))
        loss = self.objective(energy, space, batch.inputs, batch.y, guesses, batch.observed)
        return over_processes(loss, summed=self.objective.summed)

    def task_loss(self, batch: Batch) -> Tensor:
        """Mean of lambda_1 E(x, A(x)) + lambda_2 supervision of A(x), E as its objective reads it.

        [SEAL eqs. 1, 5]
        """
        energy, space = self.energy.over(batch.mask), self.space.over(batch.mask)
        return self.task_terms(
            lambda x, y: self.objective.inference_energy(energy(x, y)),
            space,
            batch.inputs,
            batch.y,
            self.task_net(batch.inputs),
            batch.observed,
        )

    def parts(self) -> dict[str, Part]:
        of_task = [*self.task_net.parameters(), *self.task_terms.parameters()]
        return {
            "task": Part(of_task, self.task_optimizer, self.task_loss, **self.main_options),
            "energy": Part(
                self.energy.parameters(), self.energy_optimizer, self.energy_loss, **self.energy_options
            ),
        }
