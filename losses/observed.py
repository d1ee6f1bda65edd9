"""Batches in which some answers are not known.

Shapes: B examples; `observed` (B,) is True where the answer is known, None where all are.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def over_entries(rows: Tensor, y: Tensor) -> Tensor:
    """One number an answer, (..., B), shaped to broadcast over the entries of answers y (..., B, *answer)."""
    return rows.reshape(*rows.shape, *[1] * (y.dim() - rows.dim()))


def blank(y: Tensor, observed: Bool[Tensor, " B"]) -> Tensor:
    """Answers y (B, ...), all zero where they are not known, whatever stood there."""
    return y.masked_fill(~over_entries(observed, y), 0)


def of_observed(rows: Float[Tensor, "... B"], observed: Bool[Tensor, " B"] | None) -> Float[Tensor, "... B"]:
    """Losses of examples, 0 where no answer is known, so that their sum is that of the known."""
    return rows if observed is None else torch.where(observed, rows, 0)


def shared_out(rows: Float[Tensor, "... B"], observed: Bool[Tensor, " B"] | None) -> Float[Tensor, "... B"]:
    """The same, scaled so that the mean over the batch is the mean over the known; 0 where none is known."""
    if observed is None:
        return rows
    return torch.where(observed, rows, 0) * (len(observed) / observed.sum().clamp_min(1))


def mean(rows: Float[Tensor, "... B"], observed: Bool[Tensor, " B"] | None) -> Float[Tensor, ""]:
    """The mean over the examples whose answers are known; 0 where none is."""
    return shared_out(rows, observed).mean()
