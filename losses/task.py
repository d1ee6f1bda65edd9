"""What a task-net minimises beside an energy: SEAL's task loss and the inner loss of implicit training."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from losses.objectives import Answers, EnergyFn

Map = Callable[[Tensor], Tensor]
Curve = Callable[[Tensor], tuple[Tensor, Map]]


class Bends(NamedTuple):
    """A relaxed answer whose entries have a logit each, and derivatives by these, all of one shape."""

    answer: Tensor
    first: Tensor  # of the answer
    second: Tensor
    slope: Tensor  # first derivative of the supervised loss
    curvature: Tensor  # second


class TaskLoss(ABC):
    """The loss of a task-net that learns from supervision and from an energy."""

    @abstractmethod
    def __call__(self, energy: EnergyFn, space: Answers, x: Tensor, y: Tensor, logits: Tensor) -> Tensor:
        """One number for a batch; `energy` is what the task-net is to lower, as its scheme reads it."""


@dataclass(frozen=True)
class EnergyAndSupervision(TaskLoss):
    """Mean over the batch of lambda_1 E(x, relaxed prediction) + lambda_2 supervision.   [SEAL eqs. 1, 5]"""

    energy_weight: float  # lambda_1
    supervision_weight: float = 1.0  # lambda_2

    def __call__(self, energy: EnergyFn, space: Answers, x: Tensor, y: Tensor, logits: Tensor) -> Tensor:
        supervision = space.supervise(logits, y)
        return (
            self.energy_weight * energy(x, space.relax(logits)) + self.supervision_weight * supervision
        ).mean()

    def curve(self, energy: Curve, bends: Bends) -> tuple[Tensor, Map]:
        """The gradient g in the logits, through which gradients reach the energy, and u -> (dg/dlogits) u.

        With y the relaxed answer and y', y'' its derivatives, entry by entry, the second is
        lambda_1 (y'' E_y u + y' E_yy (y' u)) + lambda_2 supervision'' u, over B.
        """
        of_answer, product = energy(bends.answer)
        weight, own = self.energy_weight / len(of_answer), self.supervision_weight / len(of_answer)
        toward = weight * bends.first
        diagonal = torch.addcmul(own * bends.curvature, bends.second, of_answer.detach(), value=weight)

        def along(u: Tensor) -> Tensor:
            return torch.addcmul(diagonal * u, toward, product(bends.first * u))

        return torch.addcmul(own * bends.slope, toward, of_answer), along
