"""The linear chain: a network scores each position, a table scores neighbours.   [Scaling eq. 1, §4]"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from energies.base import Energy
from energies.potentials import ChainPotentials


class ChainEnergy(Energy):
    """E(x, y) = - sum_t net(x)_t(y_t) - sum_t W(y_t, y_t+1).

    `net` maps inputs (B, T, ...) to scores (B, T, S). W is normal with deviation `pairwise_std`; with `ends`
    the first and the last tag have scores of their own, which begin at 0.

    Shapes:
        x: (B, T, ...).   y: (..., B, T, S), relaxed or one-hot, zero where padded.   returns: (..., B).
    """

    def __init__(self, net: nn.Module, num_tags: int, pairwise_std: float = 1.0, ends: bool = False) -> None:
        super().__init__()
        self.net = net
        self.pairwise = nn.Parameter(pairwise_std * torch.randn(num_tags, num_tags))  # W
        self.start = nn.Parameter(torch.zeros(num_tags)) if ends else None
        self.end = nn.Parameter(torch.zeros(num_tags)) if ends else None

    def forward(self, x: Shaped[Tensor, "B *_"], y: Shaped[Tensor, "... B T S"]) -> Float[Tensor, "... B"]:
        mask = None
        if self.end is not None:  # the answer shows where the chain ends: it is zero where padded
            mask = (y != 0).any(-1).reshape(-1, *y.shape[-3:-1]).any(0)
        return -self.potentials(x, mask).score(y)

    def potentials(self, x: Shaped[Tensor, "B *_"], mask: Tensor | None) -> ChainPotentials:
        """The scores of a batch.

        Shapes:
            x: (B, T, ...).   mask: (B, T) bool, or None where every position is real.
        """
        return ChainPotentials(self.net(x), self.pairwise, mask, self.start, self.end)
