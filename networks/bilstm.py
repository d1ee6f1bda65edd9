"""Bidirectional LSTMs over sentences.

Shapes: B sentences, T tokens, C columns of ids, D features of a token, S tags, H states per direction.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from networks.inputs import Sequences
from networks.layers import Dropout, Features
from networks.sizes import at_least


class BiLSTM(Features):
    """For each token the forward and the backward LSTM state, concatenated.

    Each direction is a separate LSTM over the padded batch; the second reads each sentence reversed within
    its length. So padding comes after the last real token in both, and the result equals that of packed
    sequences. On the CPU small batches of sentences take half to three quarters of the time of packed ones,
    large batches about the same.

    Dropout is applied to the last output, and to the input of each layer, features of words included: the
    paper says "on all LSTM cells" and no more.   [InfNet+ §6: keep 0.7]
    Weights have torch's initialisation: uniform in +-1/sqrt(H).

    On the CPU second derivatives are exact, and faster in `torch.backends.mkldnn.flags(enabled=False)`. The
    LSTM of cuDNN has none: run the forward pass in `torch.backends.cudnn.flags(enabled=False)`.

    Shapes:
        x: ids (B, T, C), padding at the end.
        returns: (B, T, 2H), 0 where padded.
    """

    def __init__(self, features: Features, width: int, *, num_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        at_least(1, width=width, num_layers=num_layers)
        self.features = features
        sizes = [features.size] + [2 * width] * (num_layers - 1)
        self.rightwards = nn.ModuleList(nn.LSTM(size, width) for size in sizes)
        self.leftwards = nn.ModuleList(nn.LSTM(size, width) for size in sizes)
        self.dropout = Dropout(dropout)
        self.size = 2 * width

    def forward(self, x: Sequences) -> Float[Tensor, "B T two_H"]:
        real = x.mask.T
        order = x.mirrored
        states = self.dropout(self.features(Sequences(x.values.transpose(0, 1), real)))
        for rightwards, leftwards in zip(self.rightwards, self.leftwards, strict=True):
            from_left, _ = rightwards(states)
            from_right, _ = leftwards(rearranged(states, order))
            states = self.dropout(torch.cat([from_left, rearranged(from_right, order)], dim=-1))
        return (states * real.unsqueeze(-1)).transpose(0, 1)


class Tagger(nn.Module):
    """One linear layer over the features of each token.        [Scaling §6.1; InfNet+ §6]

    An inference network has a bias; an energy's local scores U . b(x, t) have none.       [InfNet+ eq. 7]

    Shapes:
        x: ids (B, T, C).   returns: (B, T, S), 0 where padded.
    """

    def __init__(self, features: Features, num_tags: int, *, bias: bool = True) -> None:
        super().__init__()
        at_least(1, num_tags=num_tags)
        self.features = features
        self.output = nn.Linear(features.size, num_tags, bias=bias)

    def forward(self, x: Sequences) -> Float[Tensor, "B T S"]:
        return self.output(self.features(x)) * x.mask.unsqueeze(-1)


def rearranged(states: Float[Tensor, "T B D"], order: Int[Tensor, " T_times_B"]) -> Float[Tensor, "T B D"]:
    """The states of a batch in another order; `Sequences.mirrored` twice restores the batch."""
    return states.flatten(0, 1).index_select(0, order).view_as(states)
