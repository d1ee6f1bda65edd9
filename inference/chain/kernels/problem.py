"""The interface of the fast recursions over chains: a problem, its solution, and when that is safe.

Shapes: B examples, T positions, S tags.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from energies.answers.relaxed import FORBIDDEN
from energies.potentials import ChainPotentials


class Limits(NamedTuple):
    """Ranges, as logarithms, that a float type can hold; why these keep a sequence safe is said below.

    Write gap for how far a score lies under the greatest at its position, or of the matrix. Probabilities
    are sums of positive products; nothing cancels, so a result is as exact as its type unless a
    product that is not zero leaves the type's range. Three arguments exclude that; the
    Triton sweep, which judges by its own sums too, uses the first two:

    - no score is -inf and the widest gap of a position plus that of the matrix is under `whole`: then every
      tag keeps at least exp(-whole) of what its position has, whatever came before;
    - or, with gaps beyond `cut` taken for -inf: the smallest probability met, with the widest kept gaps,
      spans less than `room`, so that no kept product was lost; and the n positions weigh exp(weight) when
      each greatest score counts 1, where all the at most S^n answers that use a gap beyond `cut` weigh at
      most S^n exp(-that gap): weight > -gap + n log S + MARGIN leaves them nothing;
    - or, with gaps of positions beyond `cut` taken for -inf: the matrix is finite and its widest gap, R, so
      small that 2 R + log(n S) + MARGIN <= `cut`. An answer through such a tag weighs at most exp(2 R - cut)
      of the one with the best tag of the position there instead, whose at most two pairs cost no more than R
      each; so all n S such tags together take less than exp(-MARGIN) from log Z and from the marginal of any
      other tag, also when a tag elsewhere is given, as in second derivatives. Their own marginals, under
      exp(-MARGIN) / (n S), become 0: so these, pairs that only they have, and a loss near 0, are right
      absolutely. With R + cut < `room` no probability that is kept leaves the range of the type.
    """

    cut: float
    whole: float
    room: float


LIMITS = {torch.float32: Limits(60.0, 70.0, 85.0), torch.float64: Limits(500.0, 640.0, 700.0)}
MARGIN = 16.0
LARGE = 64.0  # where the greatest sum is beyond this, scores of the ends are added in float64


def largest_safe_size(table_gap: float, limits: Limits) -> float:
    """The most tags, n S, for which the third argument holds if a matrix has the widest gap `table_gap`."""
    if not table_gap + limits.cut < limits.room:
        return 0.0
    return math.exp(limits.cut - MARGIN - 2 * table_gap)


class Problem(NamedTuple):
    """Scores of chains, and gold tags if their score is subtracted from log Z."""

    unary: Tensor  # (B, T, S)
    pairwise: Tensor  # (S, S)
    start: Tensor | None  # (S,)
    end: Tensor | None  # (S,)
    mask: Tensor | None  # (B, T) bool, any positions
    tags: Tensor | None  # (B, T) int64

    def potentials(self) -> ChainPotentials:
        """The scores as a chain's."""
        return ChainPotentials(self.unary, self.pairwise, self.mask, self.start, self.end)

    def with_scores(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The problem with a function applied to all its scores."""
        unary, pairwise, start, end = (None if x is None else change(x) for x in self[:4])
        assert unary is not None and pairwise is not None
        return self._replace(unary=unary, pairwise=pairwise, start=start, end=end)


class ScoreGradient(NamedTuple):
    """One number for each score of a problem: a gradient, or a direction. None: no such score, or zeros."""

    unary: Tensor | None
    pairwise: Tensor | None
    start: Tensor | None
    end: Tensor | None


class Solved(Protocol):
    """A problem after its forward sweep."""

    rows: Tensor  # (B,) log Z, minus the score of the gold tags
    safe: Tensor  # (B,) bool: whether the row and its derivatives are accurate
    is_safe: bool  # whether all are

    def gradient(self, weight: Tensor, *, pairs: bool = True) -> ScoreGradient:
        """The gradient of sum_b weight_b rows_b; without `pairs` that of the pairwise scores is left out."""
        ...

    def tangent(
        self, weight: Tensor, direction: ScoreGradient, *, pairs: bool = True
    ) -> tuple[Tensor, ScoreGradient]:
        """The directional derivatives of rows (B,), and how the gradient changes along the direction.

        The Hessian of log Z is symmetric: the second is also what a gradient's backward pass needs.
        """
        ...


def fits(
    gaps: Tensor,
    table_gaps: Tensor,
    messages: tuple[Tensor, Tensor],
    weight: Tensor,
    owner: Tensor,
    steps: Tensor,
) -> Tensor:
    """Which sequences are safe (B,) by the second argument of `Limits`, where the first one does not decide.

    N are the real positions of the batch.

    Args:
        gaps: (N, S), scores less the greatest of their position.
        table_gaps: (S, S), pairwise scores less the greatest.
        messages: normalised, of both directions, (N, S) each.
        weight: (B,), log Z when each greatest score counts 0.
        owner: (N,), the sequence of each position.
        steps: (B,), the number of real positions.
    """
    cut, whole, room = LIMITS[gaps.dtype]
    low, table_low = gaps < -cut, table_gaps < -cut

    def least(rows: Tensor, which: str = "amin") -> Tensor:
        blank = rows.new_zeros(len(steps))
        return blank.scatter_reduce(0, owner, rows, which, include_self=False)

    deepest = least(gaps.amin(1)).minimum(table_gaps.amin())
    kept = least(gaps.masked_fill(low, 0).amin(1)) + table_gaps.masked_fill(table_low, 0).amin()
    dropped = least(gaps.masked_fill(~low, FORBIDDEN).amax(1), "amax")
    dropped = dropped.maximum(table_gaps.masked_fill(~table_low, FORBIDDEN).amax())
    smallest = torch.minimum(*(message.masked_fill(message == 0, 1) for message in messages))
    heavy = weight > dropped + steps * math.log(gaps.shape[1]) + MARGIN
    narrow = -kept - least(smallest.amin(1)).log() < room
    return (narrow & heavy) | ((deepest >= -cut) & (-kept < whole)) | (steps == 0)
