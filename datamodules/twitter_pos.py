"""Parts of speech of tweets: ARK's Twitter data, release 0.3 (Gimpel et al. 2011, Owoputi et al. 2013).

Shapes: N tweets, T tokens of the longest, S tags.
"""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from datamodules.errors import DataMismatch
from datamodules.readers.conll import Sentences, joined
from datamodules.readers.vocabulary import Ids, Vectors, word_tables
from datamodules.sources.registry import DataSet, data_set
from datamodules.sources.stand_ins import side_by_side
from datamodules.tagged import GLOVE, TaggedSentences

TWEETS = "glove_twitter_25d"
NO_WORD = "UUUNKKK"  # the entry for unknown words in vectors of tweets
FILES = {"train": ("train", "train_more"), "validation": ("validation",), "test": ("test",)}
SHAPES = {
    "name": re.compile(r"@\w+"),
    "address": re.compile(r"(?:https?:|www\.).*|\S+\.(?:com|org|net|ly|co)\b.*", re.IGNORECASE),
    "tag": re.compile(r"#\w+"),
    "number": re.compile(r".*\d.*"),
    "signs": re.compile(r"\W+"),
}


class TwitterPOS(TaggedSentences):
    """Words x (N, T, 1) as ids, parts of speech y (N, T, S) one-hot, a mask (N, T).

    See TaggedSentences. Trained on oct27.train and oct27.dev together, validated on oct27.test, tested on
    daily547, as by Tu and Gimpel.                                                  [InfNet+ §6]

    A word is looked up as it is written; in the published vectors, which have lower case alone, else in lower
    case. Each spelling has a row of its own. Row 1 is for words without a vector: that of UUUNKKK in a user's
    file, or 0. Without a user's file, names, addresses, #tags, numbers and signs without a vector share one
    random vector for each of these shapes.

    Args:
        longest_word: characters of a word that are read at most.
        vectors: a file of word vectors in GloVe's text format (.gz too); left out, 25-d GloVe Twitter and
            100-d GloVe 6B concatenated, 0 where one of them lacks the word.
        num_dims: numbers of a word's vector.
        batch_size: tweets of a training batch.
        sentences: see TaggedSentences.
    """

    def __init__(
        self,
        *,
        longest_word: int = 30,
        vectors: str | None = None,
        num_dims: int = 125,
        batch_size: int = 10,
        **sentences: Any,
    ) -> None:
        super().__init__(
            "twitter_pos",
            {},
            {"vectors": vectors},
            longest_word=longest_word,
            num_dims=num_dims,
            batch_size=batch_size,
            **sentences,
        )
        if not vectors and num_dims != 125:
            raise DataMismatch(
                f"The default vectors have 125 dimensions, not {num_dims}. Set --data.num_dims 125, or "
                "give a file of your own:  --data.vectors FILE"
            )

    def registered(self) -> list[DataSet]:
        """See TaggedSentences.registered."""
        return [self.text] if self.own else [self.text, data_set(TWEETS), data_set(GLOVE)]

    def read(self) -> dict[str, Sentences]:
        """See TaggedSentences.read."""
        return {
            part: joined([self.sentences(file, num_columns=2, tags=self.names) for file in files])
            for part, files in FILES.items()
        }

    def look_up(self, words: Ids, characters: Ids) -> dict[str, Tensor]:
        """See TaggedSentences.look_up."""
        vectors = self._vectors({*words, *map(str.lower, words), NO_WORD})
        written = {word: word if self.own or word in vectors else word.lower() for word in words}
        found = {word: vectors[form] for word, form in written.items() if form in vectors}
        unknown = vectors.get(NO_WORD) if self.own else None
        if not self.own:
            like = [vector for word, vector in found.items() if words[word] < self.num_known]
            found |= by_shape(words.keys() - found.keys(), like=np.stack(like))
        return word_tables(
            words, characters, found, self.num_dims, form=str, unknown=unknown, longest=self.longest_word
        )

    def _vectors(self, wanted: set[str]) -> Vectors:
        if self.own:
            return self.own_vectors(wanted)
        return side_by_side(self.published_vectors(TWEETS, wanted, 25), self.glove_100d(), (25, 100))


def by_shape(words: Iterable[str], *, like: np.ndarray) -> Vectors:
    """One random vector for all names, one for all addresses, and so on, with a fixed seed.

    They replace vectors of such words trained on tweets. Words of no such shape are left out.

    Args:
        words: words without a trained vector.
        like: vectors (W, D) whose mean and standard deviation the random ones get.
    """
    draw = np.random.default_rng(0).normal(like.mean(), like.std(), (len(SHAPES), like.shape[1]))
    drawn = dict(zip(SHAPES, draw.astype(np.float32), strict=True))
    shapes = {word: [s for s, pattern in SHAPES.items() if pattern.fullmatch(word)] for word in words}
    return {word: drawn[fitting[0]] for word, fitting in shapes.items() if fitting}
