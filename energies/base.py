"""What every energy is and offers."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from energies.potentials import Potentials
from losses.objectives import Slope
from networks.inputs import Inputs


class ConditionedEnergy:
    """An energy with its input fixed: a function from y to E, with its derivative.

    `slope` is y to (E, dE/dy), for procedures that search y; no gradient reaches the parameters. Without a
    closed form it is differentiated.
    """

    def __init__(self, energy: Callable[[Tensor], Tensor], slope: Slope | None = None) -> None:
        self._energy = energy
        self.slope = slope or partial(differentiated, energy)

    def __call__(self, y: Tensor) -> Tensor:
        """The energy of each answer."""
        return self._energy(y)


def differentiated(energy: Callable[[Tensor], Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    """E and dE/dy by autograd."""
    with torch.enable_grad():
        y = y.detach().requires_grad_()
        rows = energy(y)
        (gradient,) = torch.autograd.grad(rows.sum(), y)
    return rows.detach(), gradient


class Energy(nn.Module):
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
        """The energy with its input fixed: `forward` in halves, for many answers one by one.

        What depends on x alone is computed here, once, by an energy that overrides this: one dropout mask for
        all answers and derivatives, where this one reads x anew each time. Gradients reach y, and the
        parameters that ask for them; what is computed here is a constant if this is called without gradients.
        """
        return ConditionedEnergy(lambda y: self(x, y))

    def slope(self, x: Inputs) -> Slope:
        """`given(x).slope`, for a search that needs nothing else: x is read without gradients."""
        with torch.no_grad():
            return self.given(x).slope

    def over(self, mask: Tensor | None) -> "Self | BatchEnergy":
        """This energy for one batch, told which positions are real; most energies have no such thing."""
        return self


class MaskedEnergy(Energy):
    """An energy of answers that have positions: a mask says which are real, and nothing else does.

    Whatever an answer holds at the others counts for nothing. Without a mask every position is real.

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
    """An energy that is minus the score of potentials, so that inference in it is exact.   [Scaling §2]

    Its parameters are those of the unary scores and those of the rest.
    """

    @abstractmethod
    def potentials(self, x: Inputs, mask: Tensor | None) -> Potentials:
        """The scores of a batch; `mask` says which positions are real, None that all are."""

    @abstractmethod
    def unary_parameters(self) -> Iterator[nn.Parameter]:
        """What the unary scores are computed with."""

    @abstractmethod
    def pairwise_parameters(self) -> Iterator[nn.Parameter]:
        """All other parameters."""


@dataclass(frozen=True)
class BatchEnergy:
    """An energy for one batch, told which positions are real; it has what an energy has."""

    energy: MaskedEnergy
    mask: Tensor

    def __call__(self, x: Inputs, y: Tensor) -> Tensor:
        """The energy of each answer."""
        return self.energy(x, y, self.mask)

    def given(self, x: Inputs) -> ConditionedEnergy:
        """See Energy."""
        return self.energy.given(x, self.mask)

    def slope(self, x: Inputs) -> Slope:
        """See Energy."""
        with torch.no_grad():
            return self.given(x).slope


class SumEnergy(MaskedEnergy):
    """A local energy, which sees the input, plus a joint one, which sees how the parts of an answer agree."""

    def __init__(self, local: Energy, joint: Energy) -> None:
        super().__init__()
        self.local, self.joint = local, joint

    def given(self, x: Inputs, mask: Tensor | None = None) -> ConditionedEnergy:
        """The terms' own, added."""
        local, joint = (term.over(mask).given(x) for term in (self.local, self.joint))

        def slope(y: Tensor) -> tuple[Tensor, Tensor]:
            (e1, g1), (e2, g2) = local.slope(y), joint.slope(y)
            return e1 + e2, g1 + g2

        return ConditionedEnergy(lambda y: local(y) + joint(y), slope)
