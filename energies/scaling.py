"""Scalings: they keep the unary scores in proportion to the pairwise ones.   [Scaling §5]

A scaling maps potentials to potentials, and may add a penalty to the loss. It applies in training and in
evaluation. Norms are computed for each example.

Shapes: B examples, K values of alpha.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from energies.base import ConditionedEnergy, StructuredEnergy
from energies.potentials import Potentials
from losses.amounts import above_zero, not_negative
from networks.inputs import Inputs
from networks.sizes import at_least

EPSILON = 1e-8

P = TypeVar("P", bound=Potentials)
Rows = Float[Tensor, " B"]


class Scaling(nn.Module, ABC):
    """A map from potentials to potentials; an alpha chosen during training is stored with the weights.

    Attributes:
        subset: how many training examples alpha is chosen on after each epoch; 0 if alpha is fixed.
        grid: the values (K,) that alpha is chosen from, if it is.
    """

    subset: int = 0
    alpha: Tensor | float
    grid: Tensor

    @abstractmethod
    def forward(self, p: Potentials) -> Potentials:
        """The potentials that inference uses."""

    def penalty(self, p: Potentials) -> Rows:
        """The penalty added to the loss of each example, from the potentials before scaling."""
        return p.unary.new_zeros(len(p.unary))

    def choose(self, losses: Float[Tensor, " K"]) -> None:
        """Set alpha from the mean loss of the examples under each candidate."""
        raise NotImplementedError(f"{type(self).__name__} has no alpha to choose.")


class GivenAlpha(Scaling):
    """A scaling by an alpha that stays.

    Raises:
        ValueError: alpha is not above 0, or not finite.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        above_zero(alpha=alpha)
        self.alpha = alpha


class FixedAlpha(GivenAlpha):
    """alpha U, W.   [Scaling §2, Fig. 1]"""

    def forward(self, p: Potentials) -> Potentials:
        return p.times(self.alpha)


class Online(Scaling):
    """alpha U, W, where alpha is chosen after each epoch from 2^-reach .. 2^reach.

    [Scaling §5.1, algorithm 1] Training begins with alpha = 1. The scheme computes the mean loss of `subset`
    training examples under each alpha of the grid and lets this object choose.
    """

    alpha: Tensor

    def __init__(self, subset: int = 2000, reach: int = 8) -> None:
        super().__init__()
        at_least(1, subset=subset)
        at_least(0, reach=reach)
        self.subset = subset
        self.register_buffer("alpha", torch.ones(()))
        self.register_buffer("grid", 2.0 ** torch.arange(-reach, reach + 1), persistent=False)

    def forward(self, p: Potentials) -> Potentials:
        return p.times(self.alpha)

    def choose(self, losses: Float[Tensor, " K"]) -> None:
        """Take the alpha of the lowest loss; on a tie, the one whose ratio to the current alpha is nearest 1.

        Losses that are not finite are skipped. If none is finite, alpha is unchanged.
        """
        if not losses.isfinite().any():
            return
        losses = losses.nan_to_num(torch.inf, torch.inf, torch.inf)
        away = (self.grid / self.alpha).log2().abs()
        self.alpha.copy_(self.grid[away.masked_fill(losses > losses.min(), torch.inf).argmin()])


class Offline(GivenAlpha):
    """alpha U / norm(U), W / norm(W).   [Scaling eq. 20]"""

    def forward(self, p: Potentials) -> Potentials:
        return p.times(self.alpha / _unary_norm(p), 1 / _pairwise_norm(p))


class Regularised(GivenAlpha):
    """The potentials as they are, and a penalty weight (norm(U) / norm(W) - alpha)^2.   [Scaling eq. 21]

    norm(W) is divided by `Potentials.pairwise_unit`, as in eq. 20. Of a chain that is 1, and the equation is
    as printed.
    """

    def __init__(self, alpha: float, weight: float) -> None:
        super().__init__(alpha)
        not_negative(weight=weight)
        self.weight = weight

    def forward(self, p: Potentials) -> Potentials:
        return p

    def penalty(self, p: Potentials) -> Rows:
        """See Scaling. Of a Gaussian field it reads W as learnt, before a cap on lambda makes it definite."""
        ratio = p.unary_norm() / _pairwise_norm(p)
        return self.weight * (ratio - self.alpha).square()


class Temperature(GivenAlpha):
    """alpha U, alpha W: a control that does not change their ratio.   [Scaling A.2]"""

    def forward(self, p: Potentials) -> Potentials:
        return p.times(self.alpha, self.alpha)


class HardTemperature(GivenAlpha):
    """alpha U / norm(U), alpha W / norm(W): the control with both norms fixed.   [Scaling A.2]"""

    def forward(self, p: Potentials) -> Potentials:
        return p.times(self.alpha / _unary_norm(p), self.alpha / _pairwise_norm(p))


class ScaledEnergy(StructuredEnergy):
    """An energy whose potentials are those of another one, rescaled: the model that a scaled CRF is."""

    def __init__(self, energy: StructuredEnergy, scaling: Scaling) -> None:
        super().__init__()
        self.energy, self.scaling = energy, scaling

    def potentials(self, x: Inputs, mask: Tensor | None) -> Potentials:
        """The scores of a batch, rescaled."""
        return self.scaling(self.energy.potentials(x, mask))

    def minus_score(self, p: Potentials) -> ConditionedEnergy:
        """See StructuredEnergy."""
        return self.energy.minus_score(p)

    def unary_parameters(self) -> Iterator[nn.Parameter]:
        """Those of the energy."""
        return self.energy.unary_parameters()

    def pairwise_parameters(self) -> Iterator[nn.Parameter]:
        """Those of the energy."""
        return self.energy.pairwise_parameters()


def under_each(p: P, alphas: Float[Tensor, " K"]) -> P:
    """The potentials with U times each alpha: one batch of K B examples, ordered by alpha."""
    return p.repeat(len(alphas)).times(alphas.repeat_interleave(len(p.unary)))


def _unary_norm(p: Potentials) -> Rows:
    """norm(U) as a divisor."""
    return p.unary_norm() + EPSILON


def _pairwise_norm(p: Potentials) -> Tensor:
    """norm(W) as a divisor, in the unit of its kind of potentials."""
    return p.pairwise_norm() / p.pairwise_unit + EPSILON
