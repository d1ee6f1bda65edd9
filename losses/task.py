"""Losses of a task-net with an energy: SEAL's task loss, the inner loss of implicit training."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from losses.objectives import Answers, EnergyFn, Inputs
from losses.observed import over_observed


class TaskLoss(ABC):
    """The loss of a task-net that learns from supervision and from an energy."""

    @abstractmethod
    def __call__(
        self,
        energy: EnergyFn,
        space: Answers,
        x: Inputs,
        y: Tensor,
        logits: Tensor,
        observed: Tensor | None = None,
    ) -> Tensor:
        """One number for a batch; `energy` is what the task-net minimises, see `Objective.inference_energy`.

        The energy of the prediction is averaged over all examples, terms with the truth over observed ones.
        """

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the loss itself, trained with the task-net; usually none."""
        return iter(())


@dataclass(frozen=True)
class EnergyAndSupervision(TaskLoss):
    """Mean over the batch of lambda_1 E(x, relaxed prediction) + lambda_2 supervision.   [SEAL eqs. 1, 5]"""

    energy_weight: float  # lambda_1
    supervision_weight: float = 1.0  # lambda_2

    def __call__(
        self,
        energy: EnergyFn,
        space: Answers,
        x: Inputs,
        y: Tensor,
        logits: Tensor,
        observed: Tensor | None = None,
    ) -> Tensor:
        supervision = over_observed(space.supervise(logits, y), observed)
        return (
            self.energy_weight * energy(x, space.relax(logits)) + self.supervision_weight * supervision
        ).mean()
