"""Losses where SEAL's released code departs from its paper; used by the table `seal_mlc_released` only."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from losses.amounts import not_negative
from losses.objectives import Answers, EnergyFn, Guesses, Inputs, Objective
from losses.observed import over_observed
from losses.task import TaskLoss


@dataclass(frozen=True)
class ReleasedMargin(Objective):
    """The loss-net's side of dynamic margin as released: the guess's energy is missing in the hinge.

    [cost(guess) + E(true)]_+ + w [E(true) - E(guess)]_+, means over the batch   [SEAL code, dynamic margin]
    """

    perceptron_weight: float  # w

    def __post_init__(self) -> None:
        not_negative(perceptron_weight=self.perceptron_weight)

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        true_energy, guess_energy = energy(x, y), energy(x, guesses.y)
        hinge = (space.cost(guesses.y, y) + true_energy).clamp_min(0)
        return torch.stack([hinge, (true_energy - guess_energy).clamp_min(0)])

    def reduce(self, rows: Tensor, observed: Tensor | None) -> Tensor:
        """The mean of the hinge plus w times that of the perceptron loss."""
        hinge, perceptron = (over_observed(part, observed).mean() for part in rows)
        return hinge + self.perceptron_weight * perceptron


class CostAugmentedTask(nn.Module, TaskLoss):
    """The task-net's side of dynamic margin as released, with a cost-augmented head on the truth.

    Mean over the batch of -cost(head) + E(head) + w E(prediction) + lambda_2 supervision; gradients flow
    through the cost and both answers.   [SEAL code, dynamic margin]

    `head` maps (prediction, y) to logits; it is trained with the task-net.
    """

    def __init__(self, head: nn.Module, *, energy_weight: float, supervision_weight: float = 1.0) -> None:
        super().__init__()
        not_negative(energy_weight=energy_weight, supervision_weight=supervision_weight)
        self.head, self.energy_weight, self.supervision_weight = head, energy_weight, supervision_weight

    def forward(
        self,
        energy: EnergyFn,
        space: Answers,
        x: Inputs,
        y: Tensor,
        logits: Tensor,
        observed: Tensor | None = None,
    ) -> Tensor:
        prediction = space.relax(logits)
        augmented = space.relax(self.head(prediction, y))
        violation = over_observed(space.cost(augmented, y) - energy(x, augmented), observed)
        supervision = over_observed(space.supervise(logits, y), observed)
        weighted = self.energy_weight * energy(x, prediction) + self.supervision_weight * supervision
        return (weighted - violation).mean()
