"""Costs, how wrong an answer is, and qualities, how good.

The truth is binary and a guess lies in [0, 1], so min(guess, y) = guess * y and |guess - y| = guess + y - 2
guess y. The products have useful derivatives at 0 and 1 too, where searches spend much of their time; min,
max and abs have subgradients or 0 there.

Costs are 0 for the truth, qualities 1. `guess` may be relaxed and may carry leading sample dimensions; the
truth `y` is binary. Sums are over the last dimension; images are flattened by their space.

Shapes: guess (..., B, L), y (B, L) -> (..., B).
"""

from jaxtyping import Float
from torch import Tensor


def l1(guess: Float[Tensor, "... L"], y: Float[Tensor, "... L"]) -> Float[Tensor, "..."]:
    """Mean absolute difference: the Hamming cost of a relaxed answer.   [SEAL eq. 6, Delta]"""
    return (guess + y - 2 * guess * y).mean(-1)


def squared_l2(guess: Float[Tensor, "... L"], y: Float[Tensor, "... L"]) -> Float[Tensor, "..."]:
    """Squared Euclidean distance, a sum over labels.   [InfNet code, multi-label classification]"""
    return (guess - y).square().sum(-1)


def soft_f1(guess: Float[Tensor, "... L"], y: Float[Tensor, "... L"]) -> Float[Tensor, "..."]:
    """2 sum min(guess, y) / (sum guess + sum y); the F1 score when both are binary.   [DVN eq. 4; SEAL eq. 7]

    min + max = guess + y, so this is 2 sum min / (sum min + sum max), and 1 where both are empty.
    """
    return _ratio(2 * (guess * y).sum(-1), guess.sum(-1) + y.sum(-1))


def soft_iou(guess: Float[Tensor, "... L"], y: Float[Tensor, "... L"]) -> Float[Tensor, "..."]:
    """Sum min / sum max: intersection over union of relaxed masks, 1 where both are empty.   [DVN eq. 5]"""
    both = (guess * y).sum(-1)
    return _ratio(both, guess.sum(-1) + y.sum(-1) - both)


def f1_cost(guess: Float[Tensor, "... L"], y: Float[Tensor, "... L"]) -> Float[Tensor, "..."]:
    """1 - soft_f1."""
    return 1 - soft_f1(guess, y)


def iou_cost(guess: Float[Tensor, "... L"], y: Float[Tensor, "... L"]) -> Float[Tensor, "..."]:
    """1 - soft_iou."""
    return 1 - soft_iou(guess, y)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Part / whole; 0 / 0 is 1, with gradient 0."""
    nothing = whole == 0
    return part / (whole + nothing) + nothing
