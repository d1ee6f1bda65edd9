"""Networks that score the tags of each token of a sentence.

Shapes: B sentences, T tokens, S tags, D features of a token, N real tokens of a batch.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from networks.char_bilstm import CharBiLSTM


class WordFeatures(nn.Module):
    """A token's word vector, part of speech and letters side by side: D = 50 + 10 + 100.   [Scaling §6]

    Vectors are learned from where others left them; one vector stands for all words nobody trained one for.
    The letters of each distinct word of a batch are read once. Sizes are those of the vocabulary.

    Shapes:
        tokens: (N, 2) ids of word and part of speech.   returns: (N, D).
    """

    rows: Tensor
    characters: Tensor
    ready: Tensor

    def __init__(
        self,
        num_words: int,
        num_vectors: int,
        num_pos: int,
        num_characters: int,
        longest_word: int,
        *,
        num_dims: int = 50,
        pos_size: int = 10,
        char_size: int = 10,
        char_width: int = 50,
    ) -> None:
        super().__init__()
        self.vectors = nn.Embedding(num_vectors, num_dims)
        self.pos = nn.Embedding(num_pos, pos_size)
        self.letters = CharBiLSTM(num_characters, size=char_size, width=char_width)
        self.size = num_dims + pos_size + 2 * char_width
        self.register_buffer("rows", torch.ones(num_words, dtype=torch.long))
        self.register_buffer("characters", torch.ones(num_words, longest_word, dtype=torch.int32))
        self.register_buffer("ready", torch.tensor(False))

    @torch.no_grad()
    def initialise(self, tables: dict[str, Tensor]) -> None:
        """Take over vectors, rows and characters of the words; later calls change nothing.

        So a network that has learned, here or in the run its checkpoint comes from, keeps its vectors.
        """
        if bool(self.ready):
            return
        self.vectors.weight.copy_(tables["vectors"])
        self.rows.copy_(tables["rows"])
        self.characters.copy_(tables["characters"])
        self.ready.fill_(True)

    def forward(self, tokens: Int[Tensor, "N 2"]) -> Float[Tensor, "N D"]:
        words, place = tokens[:, 0].unique(return_inverse=True)
        of_words = torch.cat([self.vectors(self.rows[words]), self.letters(self.characters[words])], dim=-1)
        return torch.cat([of_words[place], self.pos(tokens[:, 1])], dim=-1)


class LinearTagger(nn.Module):
    """Two linear layers with ReLU between: each token for itself.                [Scaling §6, Table 2]

    Shapes:
        x: (B, T, 2) ids of word and part of speech, 0 where padded.   returns: (B, T, S), 0 where padded.
    """

    def __init__(self, features: WordFeatures, num_tags: int, *, width: int = 300) -> None:
        super().__init__()
        self.features = features
        self.layers = nn.Sequential(nn.Linear(features.size, width), nn.ReLU(), nn.Linear(width, num_tags))

    def forward(self, x: Int[Tensor, "B T 2"]) -> Float[Tensor, "B T S"]:
        real = x[..., 0] != 0
        scores = self.layers(self.features(x[real]))
        return scores.new_zeros(*real.shape, scores.shape[-1]).index_put((real,), scores)


class BiLSTMTagger(nn.Module):
    """A BiLSTM of two layers of 300 states over the tokens, then one linear layer.   [Scaling §6]

    It is given the sentences from the longest to the shortest, so that neither direction reads padding.

    Shapes:
        x: (B, T, 2) ids of word and part of speech, 0 where padded.   returns: (B, T, S), 0 where padded.
    """

    def __init__(
        self, features: WordFeatures, num_tags: int, *, width: int = 300, num_layers: int = 2
    ) -> None:
        super().__init__()
        self.features = features
        self.lstm = nn.LSTM(features.size, width, num_layers, bidirectional=True)
        self.output = nn.Linear(2 * width, num_tags)

    def forward(self, x: Int[Tensor, "B T 2"]) -> Float[Tensor, "B T S"]:
        order = (x[..., 0] != 0).sum(1).argsort(descending=True)
        steps = x[order].transpose(0, 1)
        real = steps[..., 0] != 0  # (T, B)
        sizes = real.sum(1).cpu()
        hidden, _ = self.lstm(PackedSequence(self.features(steps[real]), sizes[sizes > 0]))
        scores = self.output(hidden.data)
        spread = scores.new_zeros(*real.shape, scores.shape[-1]).index_put((real,), scores)
        return spread.transpose(0, 1)[order.argsort()]
