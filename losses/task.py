"""Losses of a task-net with an energy: SEAL's task loss, the inner loss of implicit training."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from losses.amounts import not_negative
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

    def __post_init__(self) -> None:
        not_negative(energy_weight=self.energy_weight, supervision_weight=self.supervision_weight)

    def __call__(
        self,
        energy: EnergyFn,
        space: Answers,
        x: Inputs,
        y: Tensor,
        logits: Tensor,
        observed: Tensor | None = None,
    ) -> Tensor:
        of_energy, of_supervision = self.terms(energy, space, x, y, logits, observed)
        return (of_energy + of_supervision).mean()

    def terms(
        self,
        energy: EnergyFn,
        space: Answers,
        x: Inputs,
        y: Tensor,
        logits: Tensor,
        observed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The two weighed terms of each example (B,), the energy's first."""
        supervision = over_observed(space.supervise(logits, y), observed)
        weighed = self.energy_weight * self.energy_term(energy, space, x, logits)
        return weighed, self.supervision_weight * supervision

    def energy_term(self, energy: EnergyFn, space: Answers, x: Inputs, logits: Tensor) -> Tensor:
        """What lambda_1 weighs, for each example."""
        return energy(x, space.relax(logits))


@dataclass(frozen=True)
class FreeEnergyAndSupervision(EnergyAndSupervision):
    """Mean of lambda_1 [E(x, q) - tau H(q)] + lambda_2 supervision, q the relaxed prediction.

    With tau = 1 the bracket is KL(q || p) - log Z for p(y) = exp(-E(x, y)) / Z: mean field's free energy, for
    a network. Without H(q) its minimum over relaxed answers of a chain is a one-hot answer.
    """

    temperature: float = 1.0  # tau

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(temperature=self.temperature)

    def energy_term(self, energy: EnergyFn, space: Answers, x: Inputs, logits: Tensor) -> Tensor:
        """log_prob is linear in the answer; with its logits as constants it is -H(q), its gradient too."""
        q = space.relax(logits)
        return energy(x, q) + self.temperature * space.log_prob(logits.detach(), q)
