"""What a task-net minimises beside an energy: SEAL's task loss and the inner loss of implicit training."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from losses.objectives import Answers, EnergyFn, Inputs
from losses.observed import shared_out


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
        """One number for a batch; `energy` is what the task-net is to lower, as its scheme reads it.

        The energy of the prediction is of all examples, what needs the truth of those that are observed.
        """

    def parameters(self) -> Iterator[nn.Parameter]:
        """What learns with the task-net: nothing, unless the loss brings a network of its own."""
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
        supervision = shared_out(space.supervise(logits, y), observed)
        return (
            self.energy_weight * energy(x, space.relax(logits)) + self.supervision_weight * supervision
        ).mean()
