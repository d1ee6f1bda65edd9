"""A CNN over the characters of a word, with max-pooling.

Shapes: W words, C characters of the longest word, F filters.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from networks.layers import Dropout, Features
from networks.sizes import at_least


class CharCNN(Features):
    """Embed the characters, convolve, tanh, and keep each filter's maximum over the word.   [InfNet+ §6]

    Embeddings are initialised uniformly in +-sqrt(3/size), with dropout on them. The word is padded by
    `width` - 1 characters at both ends.   [code of the authors' tagger with characters] The convolution has
    torch's initialisation.

    Character ids start at 1, 0 is padding. Windows that lie wholly after the end of a word do not count, so
    its features do not depend on the other words of the batch.

    Shapes:
        characters: (W, C), 0 after the end of a word.   returns: (W, F).
    """

    def __init__(
        self, num_characters: int, *, size: int = 30, filters: int = 30, width: int = 3, dropout: float = 0.5
    ) -> None:
        super().__init__()
        at_least(1, num_characters=num_characters, size=size, filters=filters, width=width)
        self.embedding = nn.Embedding(num_characters, size, padding_idx=0)
        bound = (3 / size) ** 0.5
        with torch.no_grad():
            self.embedding.weight[1:].uniform_(-bound, bound)
        self.dropout = Dropout(dropout)
        self.convolution = nn.Conv1d(size, filters, width, padding=width - 1)
        self.size = filters

    def forward(self, characters: Int[Tensor, "W C"]) -> Float[Tensor, "W F"]:
        lengths = (characters != 0).sum(1, keepdim=True)
        embedded = self.dropout(self.embedding(characters[:, : int(lengths.max())]))
        traces = self.convolution(embedded.transpose(1, 2))
        last = lengths + self.convolution.kernel_size[0] - 1
        behind = torch.arange(traces.shape[-1], device=last.device) >= last
        return traces.masked_fill(behind.unsqueeze(1), -torch.inf).amax(-1).tanh()
