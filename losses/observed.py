"""Batches in which some answers are not observed.

Shapes: B examples; `observed` (B,) is True where the answer is observed, None if all are.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def over_entries(rows: Tensor, y: Tensor) -> Tensor:
    """One number an answer, (..., B), shaped to broadcast over the entries of answers y (..., B, *answer)."""
    return rows.reshape(*rows.shape, *[1] * (y.dim() - rows.dim()))


def blank(y: Tensor, observed: Bool[Tensor, " B"]) -> Tensor:
    """Answers y (B, ...), set to zero where they are not observed, also in place of NaN."""
    return y.masked_fill(~over_entries(observed, y), 0)


def zero_unobserved(
    rows: Float[Tensor, "... B"], observed: Bool[Tensor, " B"] | None
) -> Float[Tensor, "... B"]:
    """Losses of examples, 0 where not observed: their sum is that of the observed examples."""
    return rows if observed is None else torch.where(observed, rows, 0)


def over_observed(
    rows: Float[Tensor, "... B"], observed: Bool[Tensor, " B"] | None
) -> Float[Tensor, "... B"]:
    """Losses scaled so that the batch mean is the mean over observed examples; 0 if none is observed.

    Of several processes each counts its own: their mean weighs an example more where few are observed.
    """
    if observed is None:
        return rows
    return torch.where(observed, rows, 0) * (len(observed) / observed.sum().clamp_min(1))


def mean(rows: Float[Tensor, "... B"], observed: Bool[Tensor, " B"] | None) -> Float[Tensor, ""]:
    """The mean over observed examples; 0 if there is none."""
    return over_observed(rows, observed).mean()
