"""Language models of tags as an energy: low for likely sequences of tags.   [InfNet+ §5]

Padding is at the end. The LSTM of cuDNN has no second derivative: to get one on a GPU, run the forward pass
inside `torch.backends.cudnn.flags(enabled=False)`.

Shapes: B sentences, T positions, S tags, D features of a word; "..." stands for leading sample dimensions.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from energies.base import ConditionedEnergy, MaskedEnergy
from losses.amounts import below_one, not_negative
from networks.inputs import Inputs, reversal
from networks.layers import Dropout, Features
from networks.sizes import at_least, match_answers

EPSILON = 1e-7  # inside the logarithm   [InfNet code]
START_RANGE = 0.02


class TagLM(nn.Module):
    """An LSTM that predicts each tag, and then the end, from the tags before.

    -log P(y) = - sum_{t=1..T+1} log(y_t . lstm(y_0 .. y_t-1))   [InfNet+ eq. 8]

    A relaxed tag is a mixture of tags, as an input and as a target. The last of the S + 1 symbols is the end,
    y_T+1; y_0 is learned. With `num_features` the LSTM reads each tag together with its word's features, and
    y_0 together with zeros. `dropout` is of the LSTM's states.
    """

    def __init__(self, num_tags: int, *, width: int, num_features: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.empty(num_tags + 1).uniform_(-START_RANGE, START_RANGE))  # y_0
        self.lstm = nn.LSTM(num_features + num_tags + 1, width, batch_first=True)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(width, num_tags + 1)

    def draw(self, y: Shaped[Tensor, "... B T S"]) -> Float[Tensor, "B T1 H"] | None:
        """What dropout leaves of the states: one draw for all answers. None where it leaves everything."""
        if not self.training or not self.dropout.p:
            return None
        *_, rows, length, _ = y.shape
        return self.dropout(self.start.new_ones(rows, length + 1, self.lstm.hidden_size))

    def forward(
        self,
        y: Shaped[Tensor, "... B T S"],
        real: Bool[Tensor, "B T"],
        words: Float[Tensor, "B T D"] | None = None,
        left: Float[Tensor, "B T1 H"] | None = None,
    ) -> Float[Tensor, "... B"]:
        y = y.to(self.start.dtype)
        states = self.lstm(self._read(y, words))[0].unflatten(0, y.shape[:-2])
        predicted = self.output(states if left is None else states * left).softmax(-1)
        counts = F.pad(real, (1, 0), value=True)  # (B, T+1)
        end = counts & ~F.pad(real, (0, 1))
        of_tags = (predicted[..., :-1, :-1] * y).sum(-1) * real
        right = F.pad(of_tags, (0, 1)) + predicted[..., -1] * end
        return -((right + EPSILON).log() * counts).sum(-1)

    def _read(self, y: Tensor, words: Tensor | None) -> Tensor:
        """The input of the LSTM: y_0 .. y_T, all samples in one batch, (K B, T+1, D+S+1)."""
        tags = F.pad(y.flatten(0, -3), (0, 1))
        symbols = torch.cat([self.start.expand(len(tags), 1, -1), tags], 1)
        if words is None:
            return symbols
        beside = F.pad(words, (0, 0, 1, 0))
        return torch.cat([beside.repeat(len(symbols) // len(words), 1, 1), symbols], -1)


class TagLMEnergy(MaskedEnergy):
    """How unlikely a sequence of tags is under language models.

    E(x, y) = weight (forward(y) + backward(y) + words_weight (forward'(x, y) + backward'(x, y)))
                                                                                       [InfNet+ eq. 9]

    Each term is -log P(y): under a forward model, under a backward model, which reads each sentence from its
    end, and under two more that read the words too. All are trained with the energy. GE(a) of the paper has
    the forward model, GE(b) adds `backward`, GE(c) adds `words`.

    `words` maps inputs (B, T, ...) to features (B, T, D). `dropout` is of the states of each model. All
    answers of one `given` share a mask, so truth and guess differ by their tags alone.

    Raises:
        ValueError: a weight below 0 or not finite, a dropout outside [0, 1).

    Shapes:
        x: (B, T, ...), not used without `words`.   y: (..., B, T, S), relaxed or one-hot.
        returns: (..., B).
    """

    def __init__(
        self,
        num_tags: int,
        *,
        width: int = 128,
        backward: bool = True,
        words: Features | None = None,
        words_weight: float = 0.5,
        weight: float = 1.0,
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        below_one(dropout=dropout or 0.0)
        not_negative(weight=weight, words_weight=words_weight)
        at_least(1, num_tags=num_tags, width=width)
        self.num_tags = num_tags
        ways = 2 if backward else 1
        model = partial(TagLM, num_tags, width=width, dropout=dropout or 0.0)
        self.of_tags = nn.ModuleList(model() for _ in range(ways))  # forward, backward
        self.words = words
        self.of_words = nn.ModuleList(model(num_features=words.size) for _ in range(ways) if words)
        self.words_weight, self.weight = words_weight, weight  # gamma, tau

    def check_answers(self, y: Tensor) -> None:
        """Raise ValueError if the data have another number of tags."""
        match_answers(y, num_tags=self.num_tags)

    def given(self, x: Inputs, mask: Tensor | None = None) -> ConditionedEnergy:
        """The features of the words are computed once, and each model's dropout is drawn once."""
        words = None if self.words is None else self.words(x)
        drawn: dict[nn.Module, Tensor | None] = {}

        def of(lm: Any, y: Tensor, real: Tensor, words: Tensor | None = None) -> Tensor:  # noqa: ANN401
            if lm not in drawn:
                drawn[lm] = lm.draw(y)
            return lm(y, real, words, drawn[lm])

        def one_direction(way: int, y: Tensor, real: Tensor, words: Tensor | None) -> Tensor:
            total = of(self.of_tags[way], y, real)
            if words is not None:
                total = total + self.words_weight * of(self.of_words[way], y, real, words)
            return total

        def energy(y: Tensor) -> Tensor:
            real = y.new_ones(y.shape[-3:-1], dtype=torch.bool) if mask is None else mask
            total = one_direction(0, y, real, words)
            if len(self.of_tags) > 1:
                backwards = None if words is None else reversed_sentences(words, real)
                total = total + one_direction(1, reversed_sentences(y, real), real, backwards)
            return self.weight * total

        return ConditionedEnergy(energy)


def reversed_sentences(
    rows: Shaped[Tensor, "... B T D"], real: Bool[Tensor, "B T"]
) -> Shaped[Tensor, "... B T D"]:
    """Each sentence from its last position to its first; its padding stays at the end."""
    sentences = torch.arange(len(real), device=real.device).unsqueeze(1)
    return rows[..., sentences, reversal(real), :]
