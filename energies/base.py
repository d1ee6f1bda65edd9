"""What every energy is and offers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from energies.potentials import ChainPotentials, Potentials
from losses.objectives import ValueAndGradient
from networks.inputs import Inputs
from networks.layers import at_rest, batch_norms


class ConditionedEnergy:
    """An energy with its input fixed: a function from y to E, with its derivative.

    `value_and_gradient` maps y to (E, dE/dy), for procedures that search y. No gradient reaches the
    parameters. An energy without a closed form (`has_closed_form`) is differentiated by autograd.

    `detached` maps y to E, for a step in which the parameters do not learn. What was computed of the input is
    a constant there, so a backward pass to y does not walk through its graph.

    `chain` are the potentials of an energy that is a linear chain: its minimum can be found exactly.
    """

    def __init__(
        self,
        energy: Callable[[Tensor], Tensor],
        value_and_gradient: ValueAndGradient | None = None,
        detached: Callable[[Tensor], Tensor] | None = None,
        *,
        chain: ChainPotentials | None = None,
    ) -> None:
        self._energy = energy
        self.has_closed_form = value_and_gradient is not None
        self.value_and_gradient = value_and_gradient or partial(differentiated, energy)
        self.detached = detached or energy
        self.chain = chain

    def __call__(self, y: Tensor) -> Tensor:
        """The energy of each answer."""
        return self._energy(y)


def linear(scores: Tensor, total: Callable[[Tensor, Tensor], Tensor]) -> ConditionedEnergy:
    """E(x, y) = - sum_i y_i scores_i, of scores (B, ...) that are computed once; so dE/dy = -scores.

    `total(scores, y)` is the sum, (..., B).
    """
    fixed = scores.detach()
    return ConditionedEnergy(
        lambda y: -total(scores, y),
        lambda y: (-total(fixed, y), (-fixed).expand_as(y)),
        lambda y: -total(fixed, y),
    )


def differentiated(energy: Callable[[Tensor], Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    """E and dE/dy by autograd."""
    with torch.enable_grad():
        y = y.detach().requires_grad_()
        rows = energy(y)
        (gradient,) = torch.autograd.grad(rows.sum(), y)
    return rows.detach(), gradient


def searched(energy: "Energy", given: Callable[[], ConditionedEnergy]) -> ValueAndGradient:
    """E and dE/dy for a search, with batch norm in evaluation mode."""
    norms = batch_norms(energy)
    with torch.no_grad(), at_rest(norms):
        found = given().value_and_gradient

    def resting(y: Tensor) -> tuple[Tensor, Tensor]:
        with at_rest(norms):
            return found(y)

    return resting if norms else found


class Energy(nn.Module, ABC):
    """E(x, y): low where the answer fits the input.

    `y` may be relaxed, must receive gradients, and may carry leading sample dimensions: one input, many
    answers.

    Shapes:
        x: (B, ...).   y: (..., B, *answer).   returns: (..., B).
    """

    @abstractmethod
    def forward(self, x: Inputs, y: Shaped[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The energy of each answer."""

    def given(self, x: Inputs) -> ConditionedEnergy:
        """The energy with its input fixed, for many answers one by one.

        An energy that overrides this computes here, once, what depends on x alone: all answers and
        derivatives then share one dropout mask. This default computes it again for each answer. Gradients
        reach y, and the parameters that require them. Under `torch.no_grad` what is computed here is a
        constant.
        """
        return ConditionedEnergy(lambda y: self(x, y))

    def value_and_gradient(self, x: Inputs) -> ValueAndGradient:
        """`given(x).value_and_gradient`; what depends on x alone is computed without gradients.

        Batch norm is in evaluation mode here: the gradient of one answer does not depend on other examples.
        """
        return searched(self, lambda: self.given(x))

    def over(self, mask: Tensor | None) -> "Self | BatchEnergy":
        """This energy with the mask of one batch; the energy itself where answers have no positions."""
        return self


class MaskedEnergy(Energy):
    """An energy of answers that have positions; only the mask says which of them are real.

    Values of an answer at masked positions do not count. Without a mask every position is real.

    Shapes:
        x: (B, T, ...).   y: (..., B, T, S).   mask: (B, T) bool.   returns: (..., B).
    """

    @abstractmethod
    def given(self, x: Inputs, mask: Tensor | None = None) -> ConditionedEnergy:
        """See Energy."""

    def forward(
        self, x: Inputs, y: Shaped[Tensor, "..."], mask: Tensor | None = None
    ) -> Float[Tensor, "..."]:
        return self.given(x, mask)(y)

    def over(self, mask: Tensor | None) -> "Self | BatchEnergy":
        """See Energy."""
        return self if mask is None else BatchEnergy(self, mask)


class StructuredEnergy(MaskedEnergy):
    """An energy that is minus the score of potentials, for which exact inference exists.   [Scaling §2]

    Each of its parameters belongs either to the unary scores or to the pairwise ones.
    """

    def given(self, x: Inputs, mask: Tensor | None = None) -> ConditionedEnergy:
        """The potentials are computed once."""
        return self.minus_score(self.potentials(x, mask))

    @abstractmethod
    def potentials(self, x: Inputs, mask: Tensor | None) -> Potentials:
        """The scores of a batch; `mask` says which positions are real, None that all are."""

    @abstractmethod
    def minus_score(self, p: Potentials) -> ConditionedEnergy:
        """E(y) = - F(y), of potentials of this energy's kind."""

    @abstractmethod
    def unary_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the unary scores."""

    @abstractmethod
    def pairwise_parameters(self) -> Iterator[nn.Parameter]:
        """All other parameters."""


@dataclass(frozen=True)
class BatchEnergy:
    """An energy bound to the mask of one batch, with the methods of an energy."""

    energy: MaskedEnergy
    mask: Tensor

    def __call__(self, x: Inputs, y: Tensor) -> Tensor:
        """The energy of each answer."""
        return self.energy(x, y, self.mask)

    def given(self, x: Inputs) -> ConditionedEnergy:
        """See Energy."""
        return self.energy.given(x, self.mask)

    def value_and_gradient(self, x: Inputs) -> ValueAndGradient:
        """See Energy."""
        return searched(self.energy, lambda: self.given(x))


class SumEnergy(MaskedEnergy):
    """A local energy of the input and each part of the answer, plus a joint energy between the parts."""

    def __init__(self, local: Energy, joint: Energy) -> None:
        super().__init__()
        self.local, self.joint = local, joint

    def given(self, x: Inputs, mask: Tensor | None = None) -> ConditionedEnergy:
        """The sum of the two conditioned energies."""
        local, joint = (term.over(mask).given(x) for term in (self.local, self.joint))

        def value_and_gradient(y: Tensor) -> tuple[Tensor, Tensor]:
            (e1, g1), (e2, g2) = local.value_and_gradient(y), joint.value_and_gradient(y)
            return e1 + e2, g1 + g2

        return ConditionedEnergy(
            lambda y: local(y) + joint(y), value_and_gradient, lambda y: local.detached(y) + joint.detached(y)
        )
