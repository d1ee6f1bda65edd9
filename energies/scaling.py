"""How loudly the unary scores of a chain speak beside the pairwise ones.   [Scaling §5]

A scaling maps potentials to potentials, and may add a penalty to the loss. It is applied in training and in
evaluation alike. norm(M) is the mean absolute value of the entries; that of the unaries is taken for each
example over its real positions. Start and end scores, where a chain has them, go with the pairwise ones.

Shapes: B examples, T positions, S tags, K values of alpha.
"""

from abc import abstractmethod
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from energies.potentials import ChainPotentials
from networks.sizes import at_least

EPSILON = 1e-8

Rows = Float[Tensor, " B"]


def unary_norm(p: ChainPotentials) -> Rows:
    """norm(U) of each example."""
    if p.mask is None:
        return p.unary.abs().mean((-2, -1))
    sizes = p.unary.abs().mean(-1).masked_fill(~p.mask, 0)
    return sizes.sum(-1) / p.mask.sum(-1).clamp_min(1)


def pairwise_norm(p: ChainPotentials) -> Float[Tensor, ""]:
    """norm(W)."""
    return p.pairwise.abs().mean()


class Scaling(nn.Module):
    """Potentials to potentials; what it chooses while a run lasts is kept with the weights."""

    @abstractmethod
    def forward(self, p: ChainPotentials) -> ChainPotentials:
        """The potentials that inference is to see."""

    def penalty(self, p: ChainPotentials) -> Rows:
        """What the loss of each example grows by, from the potentials before they are scaled."""
        return p.unary.new_zeros(len(p.unary))


class FixedAlpha(Scaling):
    """alpha U, W.   [Scaling §2, Fig. 1]"""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, p: ChainPotentials) -> ChainPotentials:
        return replace(p, unary=self.alpha * p.unary)


class Online(Scaling):
    """alpha U, W, where alpha is chosen anew after each epoch from 2^-reach .. 2^reach.

    [Scaling §5.1, algorithm 1] Training begins with alpha = 1. The scheme computes the mean loss of `subset`
    training examples under each alpha of the grid and lets this object choose.
    """

    alpha: Tensor
    grid: Tensor

    def __init__(self, subset: int = 2000, reach: int = 8) -> None:
        super().__init__()
        at_least(1, subset=subset)
        at_least(0, reach=reach)
        self.subset = subset
        self.register_buffer("alpha", torch.ones(()))
        self.register_buffer("grid", 2.0 ** torch.arange(-reach, reach + 1), persistent=False)

    def forward(self, p: ChainPotentials) -> ChainPotentials:
        return replace(p, unary=self.alpha * p.unary)

    def over_grid(self, p: ChainPotentials) -> ChainPotentials:
        """The potentials under each alpha of the grid: one batch of K B examples, alpha by alpha."""
        unary = (self.grid.view(-1, 1, 1, 1) * p.unary).flatten(0, 1)
        return replace(p, unary=unary, mask=None if p.mask is None else p.mask.repeat(len(self.grid), 1))

    def choose(self, losses: Float[Tensor, " K"]) -> None:
        """Take the alpha of the least loss; among equals the one nearest to the last, as a factor.

        A loss that is not finite is never the least; where all are such, alpha stays.
        """
        if not losses.isfinite().any():
            return
        losses = losses.nan_to_num(torch.inf, torch.inf, torch.inf)
        away = (self.grid / self.alpha).log2().abs()
        self.alpha.copy_(self.grid[away.masked_fill(losses > losses.min(), torch.inf).argmin()])


class Offline(Scaling):
    """alpha U / norm(U), W / norm(W).   [Scaling eq. 20]"""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, p: ChainPotentials) -> ChainPotentials:
        return _times(p, self.alpha / _per_example(p), 1 / (pairwise_norm(p) + EPSILON))


class Regularised(Scaling):
    """The potentials as they are, and a penalty weight (norm(U) / norm(W) - alpha)^2.   [Scaling eq. 21]"""

    def __init__(self, alpha: float, weight: float) -> None:
        super().__init__()
        self.alpha, self.weight = alpha, weight

    def forward(self, p: ChainPotentials) -> ChainPotentials:
        return p

    def penalty(self, p: ChainPotentials) -> Rows:
        ratio = unary_norm(p) / (pairwise_norm(p) + EPSILON)
        return self.weight * (ratio - self.alpha).square()


class Temperature(Scaling):
    """alpha U, alpha W: a control, which leaves their ratio as it is.   [Scaling A.2]"""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, p: ChainPotentials) -> ChainPotentials:
        return _times(p, self.alpha, self.alpha)


class HardTemperature(Scaling):
    """alpha U / norm(U), alpha W / norm(W): the control with both norms held.   [Scaling A.2]"""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, p: ChainPotentials) -> ChainPotentials:
        return _times(p, self.alpha / _per_example(p), self.alpha / (pairwise_norm(p) + EPSILON))


def _per_example(p: ChainPotentials) -> Float[Tensor, "B 1 1"]:
    return (unary_norm(p) + EPSILON).view(-1, 1, 1)


def _times(p: ChainPotentials, unary: Tensor | float, rest: Tensor | float) -> ChainPotentials:
    return replace(
        p,
        unary=unary * p.unary,
        pairwise=rest * p.pairwise,
        start=None if p.start is None else rest * p.start,
        end=None if p.end is None else rest * p.end,
    )
