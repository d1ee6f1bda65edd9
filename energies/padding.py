"""Padding, as an answer to sentences of several lengths shows it: rows of zeros at the tail.

Shapes: B sentences, T positions, S tags a position; "..." stands for leading sample dimensions.
"""

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor


def real_positions(y: Shaped[Tensor, "... B T S"]) -> Bool[Tensor, "B T"]:
    """Which positions are real; the first sample tells, as all are answers to the same sentences."""
    return (y[(0,) * (y.dim() - 3)] != 0).any(-1)


def turned(rows: Shaped[Tensor, "... B T D"], real: Bool[Tensor, "B T"]) -> Shaped[Tensor, "... B T D"]:
    """Each sentence from its last position to its first; its padding stays at the tail."""
    sentences, places = (torch.arange(size, device=real.device) for size in real.shape)
    mirrored = torch.where(real, real.sum(1, keepdim=True) - 1 - places, places)
    return rows[..., sentences.unsqueeze(1), mirrored, :]
