"""What a chain is taught by its gold tags, given what inference found; losses are rows, one an example.

Shapes: B examples, T positions, S tags. y is one-hot, (B, T, S), and all zero where a position is not real.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, " B"]
Tags = Float[Tensor, "B T S"]


def gold_probability(marginals: Tags, y: Tags) -> Float[Tensor, "B T"]:
    """p_t(gold_t), and 1 where a position is not real."""
    return (marginals * y).sum(-1) + (1 - y.sum(-1))


def cross_entropy(probability: Float[Tensor, "B T"], y: Tags) -> Rows:
    """Mean over the real positions of -log p_t(gold_t).   [Scaling eq. 5]

    `probability` is that of `gold_probability`. One too small for its type counts as the smallest that is
    not, with no gradient; who expects such answers takes `log_cross_entropy`.
    """
    tiny = torch.finfo(probability.dtype).tiny
    return -probability.clamp_min(tiny).log().sum(-1) / length(y)


def log_cross_entropy(scores: Tags, y: Tags) -> Rows:
    """Mean over the real positions of -log softmax(scores)_t(gold_t), however small that is.

    The scores are the logarithms of marginals, up to a constant a position.   [Scaling eqs. 5, 6]
    """
    logs = torch.where(y > 0, scores.log_softmax(-1), 0)
    return -(logs * y).sum((-2, -1)) / length(y)


def structured_hinge(lead: Rows, cost: Rows) -> Rows:
    """max_y [F(y) + Delta(y, gold)] - F(gold), never below 0.   [Scaling eq. 7]

    Of the answer that reaches the maximum `lead` is F(y) - F(gold) and `cost` is Delta; the answer itself is
    a constant to the gradient.
    """
    return (lead + cost).clamp_min(0)


def hamming(y: Tags) -> Tags:
    """Delta split over tags: 1 / length for a wrong tag at a real position, else 0.   [Scaling eq. 8]"""
    return (y.sum(-1, keepdim=True) - y) / length(y).view(-1, 1, 1)


def length(y: Tags) -> Rows:
    """Real positions of each example; 1 where there is none, to divide by."""
    return y.sum((-2, -1)).clamp_min(1)
