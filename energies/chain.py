"""The linear chain: a network scores each position, a transition matrix scores neighbours.

[Scaling eq. 1, §4; InfNet+ eq. 7]
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from energies.base import ConditionedEnergy, StructuredEnergy
from energies.potentials import ChainPotentials, Potentials
from losses.amounts import not_negative
from networks.inputs import Inputs
from networks.sizes import at_least, match_answers


class ChainEnergy(StructuredEnergy):
    """E(x, y) = - sum_t net(x)_t . y_t - sum_t y_t W y_t+1.

    `net` maps inputs (B, T, ...) to scores (B, T, S). The transition matrix W is drawn from a normal
    distribution with standard deviation `pairwise_std`, or uniformly from +-`pairwise_range` if that is
    given. With `ends` the first and the last tag of a sentence have scores of their own, drawn like W: the
    start row and the end column of the released matrix.   [InfNet code]

    Shapes:
        x: (B, T, ...).   y: (..., B, T, S), relaxed or one-hot.   returns: (..., B).
    """

    def __init__(
        self,
        net: nn.Module,
        num_tags: int,
        pairwise_std: float = 1.0,
        ends: bool = False,
        *,
        pairwise_range: float | None = None,
    ) -> None:
        super().__init__()
        at_least(1, num_tags=num_tags)
        not_negative(pairwise_std=pairwise_std, pairwise_range=pairwise_range or 0.0)

        def draw(*shape: int) -> nn.Parameter:
            if pairwise_range is None:
                return nn.Parameter(pairwise_std * torch.randn(shape))
            return nn.Parameter(torch.empty(shape).uniform_(-pairwise_range, pairwise_range))

        self.net = net
        self.pairwise = draw(num_tags, num_tags)  # W
        self.start = draw(num_tags) if ends else None
        self.end = draw(num_tags) if ends else None

    def minus_score(self, p: Potentials) -> ConditionedEnergy:
        """See StructuredEnergy."""
        assert isinstance(p, ChainPotentials)
        relaxed = p.relaxed()
        constant = relaxed.detached()

        def value_and_gradient(y: Tensor) -> tuple[Tensor, Tensor]:
            score, gradient = constant.value_and_gradient(y)
            return -score, -gradient

        return ConditionedEnergy(
            lambda y: -relaxed.score(y), value_and_gradient, lambda y: -constant.score(y), chain=p
        )

    def check_answers(self, y: Tensor) -> None:
        """Raise ValueError if the data have another number of tags."""
        match_answers(y, num_tags=len(self.pairwise))

    def potentials(self, x: Inputs, mask: Tensor | None) -> ChainPotentials:
        """The scores of a batch.

        Shapes:
            x: (B, T, ...).   mask: (B, T) bool, or None where every position is real.
        """
        return ChainPotentials(self.net(x), self.pairwise, mask, self.start, self.end)

    def unary_parameters(self) -> Iterator[nn.Parameter]:
        """Those of the network."""
        return self.net.parameters()

    def pairwise_parameters(self) -> Iterator[nn.Parameter]:
        """W, and the scores of the ends where there are any."""
        return self.parameters(recurse=False)
