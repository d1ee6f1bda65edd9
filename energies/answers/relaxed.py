"""Relaxed answers of a linear chain: their score, and its gradient in closed form.

Shapes: B examples, T positions, S tags; "..." stands for leading sample dimensions of an answer.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

FORBIDDEN = float("-inf")
STEEPEST = 1e-3  # the slope of what is forbidden, in square roots of the largest number: its square is finite


@dataclass(frozen=True)
class RelaxedChain:
    """F(y) = sum_t u_t . y_t + sum_t y_t W y_t+1, made ready for many answers.   [InfNet+ eq. 7]

    A score of -inf counts as the lowest finite number, and `forbids` is True. Then an answer with a weight
    above 1e-6 on something forbidden scores -inf.

    Attributes:
        unary: (B, T, S), with the start and end scores in it, 0 where masked.
        pairwise: (S, S), (T-1, S, S) or (B, T-1, S, S).
        mask: (B, T) bool, None where every position is real; padding stands at the tail.
        order: (B, T), the position in the answer of each row of `unary`; None where they agree.
    """

    unary: Float[Tensor, "B T S"]
    pairwise: Float[Tensor, "..."]
    mask: Bool[Tensor, "B T"] | None
    order: Int[Tensor, "B T"] | None
    forbids: bool = True

    @cached_property
    def hidden(self) -> Bool[Tensor, "B T 1"] | None:
        """True where masked."""
        return None if self.mask is None else ~self.mask.unsqueeze(-1)

    def score(self, y: Shaped[Tensor, "..."]) -> Float[Tensor, "..."]:
        """F of each answer (..., B, T, S), as (..., B).

        Raises:
            ValueError: where the answers have another shape.
        """
        if y.shape[-3:] != self.unary.shape:
            raise ValueError(
                f"a relaxed answer of shape {tuple(y.shape)} does not fit unaries of shape "
                f"{tuple(self.unary.shape)}: it ends in (examples, positions, tags) too."
            )
        y = self._reordered(y)
        step = _times_pairwise(y[..., :-1, :], self.pairwise)
        return self._or_forbidden((self.unary * y).sum((-2, -1)) + (step * y[..., 1:, :]).sum((-2, -1)))

    @torch.no_grad()
    def value_and_gradient(self, y: Float[Tensor, "... B T S"]) -> tuple[Tensor, Tensor]:
        """F and dF/dy_t = u_t + W y_t+1 + W^T y_t-1, constants; 0 where masked.

        The slope of what is forbidden is `STEEPEST` downwards, so a search leaves it.

        Shapes:
            returns: (..., B) and (..., B, T, S).
        """
        y = self._reordered(y)
        gradient = self.unary.expand_as(y).clone()
        gradient[..., 1:, :] += _times_pairwise(y[..., :-1, :], self.pairwise)
        if self.forbids:
            gradient.clamp_(min=torch.finfo(gradient.dtype).min)  # two of the lowest numbers are -inf
        score = (gradient * y).sum((-2, -1))
        gradient[..., :-1, :] += _times_pairwise(y[..., 1:, :], self.pairwise.mT)
        if self.forbids:
            gradient.clamp_(min=-STEEPEST * torch.finfo(gradient.dtype).max ** 0.5)
        gradient = hide(gradient, self.hidden)
        if self.order is not None:
            gradient = torch.empty_like(gradient).scatter_(-2, _whole_positions(self.order, y), gradient)
        return self._or_forbidden(score), gradient

    def detached(self) -> Self:
        """The same scores as constants."""
        return replace(self, unary=self.unary.detach(), pairwise=self.pairwise.detach())

    def _reordered(self, y: Tensor) -> Tensor:
        y = y.to(self.unary.dtype)
        return hide(y if self.order is None else y.gather(-2, _whole_positions(self.order, y)), self.hidden)

    def _or_forbidden(self, score: Tensor) -> Tensor:
        """-inf for an answer that has a part in what is forbidden."""
        if not self.forbids:
            return score
        return score.masked_fill(score < torch.finfo(score.dtype).min * 1e-6, FORBIDDEN)


def hide(rows: Float[Tensor, "... B T S"], hidden: Tensor | None) -> Float[Tensor, "... B T S"]:
    """0 where hidden, also for NaN."""
    return rows if hidden is None else rows.masked_fill(hidden, 0)


def _whole_positions(order: Int[Tensor, "B T"], like: Tensor) -> Tensor:
    """An index of whole positions."""
    return order.unsqueeze(-1).expand_as(like)


def _times_pairwise(rows: Float[Tensor, "... T S"], pairwise: Tensor) -> Tensor:
    """Each row times its table, or the one table."""
    return (rows.unsqueeze(-2) @ pairwise).squeeze(-2) if pairwise.dim() > 2 else rows @ pairwise
