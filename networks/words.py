"""Features of tokens: word vectors, character features, embeddings of further columns.

Shapes: V word ids, R rows of vectors, C columns of ids, D features of a token, W distinct words of a batch.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from networks.inputs import Sequences
from networks.layers import Features
from networks.sizes import at_least


class WordFeatures(Features):
    """A token's word vector, character features and one embedding for each further column, concatenated.

    Word vectors are pretrained. With `tuned` they are parameters, and all words without a pretrained vector
    share one; otherwise they are fixed. `columns` has the number of ids and the embedding size of each column
    of x from 1 on; later columns are not used. `letters` is a network on character ids (W, `longest_word`),
    computed once for each distinct word of a batch. Sizes are those of the vocabulary.

    - Chunking: 50 tuned, 100 of characters, 10 for the part of speech.               [Scaling §6]
    - Twitter POS, NER: fixed vectors. NER+: tuned, three columns. NER++: also characters.   [InfNet+ §6]

    Shapes:
        x: ids (..., C).   returns: (..., D), 0 where padded.
    """

    rows: Tensor
    vectors: Tensor
    characters: Tensor
    ready: Tensor

    def __init__(
        self,
        num_words: int,
        num_vectors: int,
        *,
        num_dims: int = 50,
        tuned: bool = True,
        columns: Sequence[tuple[int, int]] = (),
        letters: Features | None = None,
        longest_word: int = 1,
    ) -> None:
        super().__init__()
        at_least(
            1, num_words=num_words, num_vectors=num_vectors, num_dims=num_dims, longest_word=longest_word
        )
        vectors = torch.randn(num_vectors, num_dims).index_fill(0, torch.tensor(0), 0)
        if tuned:
            self.vectors = nn.Parameter(vectors)
        else:
            self.register_buffer("vectors", vectors)
        self.register_buffer(
            "rows", torch.ones(num_words, dtype=torch.long).index_fill(0, torch.tensor(0), 0)
        )
        self.columns = nn.ModuleList(nn.Embedding(count, size, padding_idx=0) for count, size in columns)
        self.letters = letters
        if letters is not None:
            self.register_buffer("characters", torch.ones(num_words, longest_word, dtype=torch.int32))
        self.register_buffer("ready", torch.tensor(False))
        self.size = num_dims + (letters.size if letters else 0) + sum(size for _, size in columns)

    @torch.no_grad()
    def initialise(self, tables: dict[str, Tensor]) -> None:
        """Set vectors, rows and characters from the vocabulary; only the first call has an effect.

        So a network that was trained, in this run or in one whose checkpoint it was loaded from, keeps its
        vectors.

        Raises:
            ValueError: a vocabulary table has another size than the network.
        """
        if bool(self.ready):
            return
        for name in ("vectors", "rows", "characters") if self.letters is not None else ("vectors", "rows"):
            own = getattr(self, name)
            if own.shape != tables[name].shape:
                raise ValueError(
                    f"the vocabulary's '{name}' is {tuple(tables[name].shape)}, the network was built for "
                    f"{tuple(own.shape)}. Give WordFeatures the sizes in the config of the data."
                )
            own.copy_(tables[name])
        self.ready.fill_(True)

    @torch.no_grad()
    def renumber(self, tables: dict[str, Tensor], known: Tensor) -> None:
        """Read another vocabulary; `known` (V,) are the old ids of its words, 0 of new words.

        A word that both have keeps its vector; a new one has that of the tables.
        """
        vectors = tables["vectors"].clone()
        shared = known > 0
        vectors[tables["rows"][shared]] = self.vectors[self.rows[known[shared]]]
        self.vectors.data = vectors
        self.rows = tables["rows"]
        if self.letters is not None:
            missing = self.characters.shape[1] - tables["characters"].shape[1]
            self.characters = F.pad(tables["characters"], (0, missing)).to(self.characters)

    def forward(self, x: Sequences) -> Float[Tensor, "*N D"]:
        ids = x.values.masked_fill(~x.mask.unsqueeze(-1), 0)  # id 0 has a zero vector
        words = ids[..., 0]
        parts = [F.embedding(self.rows[words], self.vectors, padding_idx=0)]
        if self.letters is not None:
            parts.append(self._character_features(words, x.mask))
        parts += [column(ids[..., place]) for place, column in enumerate(self.columns, 1)]
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

    def _character_features(self, words: Tensor, real: Tensor) -> Tensor:
        """Character features of each word; 0 at padding, for which word 1 is read instead."""
        assert self.letters is not None
        distinct, place = words.clamp_min(1).unique(return_inverse=True)
        return F.embedding(place, self.letters(self.characters[distinct])) * real.unsqueeze(-1)
