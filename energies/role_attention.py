"""The energies of role tags: scores of each tag at its place, and attention of every position to all others.

Shapes: B examples, T positions, S tags, W width of the attention; "..." stands for leading sample dimensions.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from energies.base import ConditionedEnergy, MaskedEnergy, linear
from networks.inputs import Inputs
from networks.layers import Dropout
from networks.sizes import at_least, match_answers

LONGEST_WAVE = 1e4


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
        return linear(scores, lambda of, y: (y.flatten(-2) * of.flatten(1)).sum(-1))


class RoleAttention(MaskedEnergy):
    """How well the tags of a sentence go together, whatever the sentence.   [SEAL D, SRL]

        E(y) = - sum_t max_c A(y)_tc,   A(y) = softmax(Q K^T / sqrt(S)) V U + u

    Q, K and V (T, W) are affine in y + code, with the `position_code`. One head; U and u map back to the S
    tags. Masked positions get no attention and are not summed. Dropout is of attention weights.

    Shapes:
        x: not used.   y: (..., B, T, S), relaxed or one-hot.   mask: (B, T).   returns: (..., B).
    """

    def __init__(self, num_tags: int, *, width: int = 256, dropout: float = 0.5) -> None:
        super().__init__()
        at_least(1, num_tags=num_tags, width=width)
        self.num_tags, self.width = num_tags, width
        self.project = nn.Linear(num_tags, 3 * width)  # to queries, keys and values
        self.output = nn.Linear(width, num_tags)  # U, u
        self.dropout = Dropout(dropout)  # of attention weights

    def check_answers(self, y: Tensor) -> None:
        """Raise ValueError if the data have another number of tags."""
        match_answers(y, num_tags=self.num_tags)

    def given(self, x: Inputs, mask: Tensor | None = None) -> ConditionedEnergy:
        """See Energy; the input is not used."""
        return ConditionedEnergy(lambda y: -self.score(y, mask))

    def score(
        self, y: Shaped[Tensor, "... B T S"], mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "... B"]:
        """Minus the energy."""
        y = y.to(self.output.weight.dtype)
        code = position_code(y.shape[-2], self.num_tags, like=y)
        projected = times(y, self.project.weight) + self.project(code)  # the code once for all samples
        queries, keys, values = projected.flatten(0, -3).chunk(3, -1)
        hidden = None
        if mask is not None:  # every query needs a key: those of an empty sentence are not counted below
            real = mask | ~mask.any(-1, keepdim=True)
            hidden = real.unsqueeze(-2).expand(*y.shape[:-3], *real.shape[:-1], 1, -1).flatten(0, -3)
        mixed = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=hidden,
            dropout_p=self.dropout.p if self.training else 0.0,
            scale=1 / math.sqrt(self.num_tags),
        )
        best = self.output(mixed).amax(-1).unflatten(0, y.shape[:-2])
        return (best if mask is None else best * mask).sum(-1)


def times(y: Shaped[Tensor, "... T S"], weight: Float[Tensor, "W S"]) -> Float[Tensor, "... T W"]:
    """Y W^T. Discrete answers on the CPU, which need no gradient, look their tags up: 0 where y is."""
    if y.requires_grad or y.device.type != "cpu":
        return F.linear(y, weight)
    highest, tags = y.max(-1)
    is_tag = highest == 1
    if not torch.equal(y.count_nonzero(-1), is_tag.long()):
        return F.linear(y, weight)
    return F.embedding(tags, weight.T) * is_tag.unsqueeze(-1)


def position_code(length: int, size: int, *, like: Tensor) -> Float[Tensor, "T S"]:
    """Sines of each position, then cosines; 0 in the last column where the size is odd.   [SEAL D]

    With n = size // 2 frequencies f_i = 10000^(-i / (n - 1)), the entries are sin(t f_i) and cos(t f_i).
    """
    half = size // 2
    steps = torch.arange(half, dtype=like.dtype, device=like.device)
    frequencies = torch.exp(-steps * (math.log(LONGEST_WAVE) / max(half - 1, 1)))
    angles = torch.arange(length, dtype=like.dtype, device=like.device).unsqueeze(-1) * frequencies
    return F.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, size - 2 * half))
