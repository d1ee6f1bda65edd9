"""A BiLSTM over the characters of a word.

Shapes: W words, C characters of the longest word, H hidden units per direction.
"""

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from networks.layers import Features
from networks.sizes import at_least


class CharBiLSTM(Features):
    """The last states of both directions of a BiLSTM over the characters of a word.

    Two layers of 50 states over embeddings of 10.                                [Scaling §6]

    Character ids start at 1, 0 is padding; a word has at least one. Words are packed in order of length, so
    padding costs nothing.

    Shapes:
        characters: (W, C), 0 after the end of a word.   returns: (W, 2H).
    """

    def __init__(self, num_characters: int, *, size: int = 10, width: int = 50, num_layers: int = 2) -> None:
        super().__init__()
        at_least(1, num_characters=num_characters, size=size, width=width, num_layers=num_layers)
        self.embedding = nn.Embedding(num_characters, size)
        self.lstm = nn.LSTM(size, width, num_layers, bidirectional=True)
        self.size = 2 * width

    def forward(self, characters: Int[Tensor, "W C"]) -> Float[Tensor, "W two_H"]:
        order = (characters != 0).sum(1).argsort(descending=True)
        steps = characters[order].T
        real = steps != 0
        sizes = real.sum(1).cpu()
        _, (last, _) = self.lstm(PackedSequence(self.embedding(steps[real]), sizes[sizes > 0]))
        return last[-2:].transpose(0, 1).flatten(1)[order.argsort()]
