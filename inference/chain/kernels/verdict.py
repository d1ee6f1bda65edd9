"""Which sequences a sweep did safely, by the second argument of `inference.chain.kernels.problem.Limits`.

Shapes: B sequences, N real positions of the batch, S tags.
"""

import math

import torch
from torch import Tensor

from inference.chain.kernels.problem import LIMITS, MARGIN

NEVER = float("-inf")


def fits(
    gaps: Tensor,
    table_gaps: Tensor,
    messages: tuple[Tensor, Tensor],
    weight: Tensor,
    owner: Tensor,
    steps: Tensor,
) -> Tensor:
    """The verdict (B,), asked when the first argument does not hold for the whole batch.

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
    dropped = least(gaps.masked_fill(~low, NEVER).amax(1), "amax")
    dropped = dropped.maximum(table_gaps.masked_fill(~table_low, NEVER).amax())
    smallest = torch.minimum(*(message.masked_fill(message == 0, 1) for message in messages))
    heavy = weight > dropped + steps * math.log(gaps.shape[1]) + MARGIN
    narrow = -kept - least(smallest.amin(1)).log() < room
    return (narrow & heavy) | ((deepest >= -cut) & (-kept < whole)) | (steps == 0)
