"""The local energy of tag sequences."""

from jaxtyping import Shaped
from torch import Tensor, nn

from energies.base import ConditionedEnergy, MaskedEnergy
from networks.inputs import Inputs


class LocalTagEnergy(MaskedEnergy):
    """How well each tag fits its position: E(x, y) = - sum_t l_t(x) . y_t.   [SEAL D]

    `net` maps inputs to the scores l, (B, T, S).

    Shapes:
        x: (B, T, ...).   y: (..., B, T, S), relaxed or one-hot.   returns: (..., B).
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def given(self, x: Inputs, mask: Tensor | None = None) -> ConditionedEnergy:
        """The network's scores are computed once."""
        scores = self.net(x)
        if mask is not None:
            scores = scores * mask.unsqueeze(-1)
        resting = scores.detach()

        def summed(of: Tensor, y: Shaped[Tensor, "... B T S"]) -> Tensor:
            return -(y.flatten(-2) * of.flatten(1)).sum(-1)

        return ConditionedEnergy(
            lambda y: summed(scores, y),
            lambda y: (summed(resting, y), (-resting).expand_as(y)),
            lambda y: summed(resting, y),
        )
