"""Text chunking: the shared task of CoNLL-2000 (Tjong Kim Sang and Buchholz).

Shapes: N sentences, T tokens of the longest, S tags.
"""

from collections.abc import Collection
from typing import Any

from torch import Tensor

from datamodules.base import Split
from datamodules.errors import DataMismatch
from datamodules.readers.conll import Sentences
from datamodules.readers.vocabulary import (
    SENNA_FILES,
    Ids,
    Vectors,
    normalised,
    read_senna,
    senna_file,
    word_tables,
)
from datamodules.sources.files import unpack
from datamodules.sources.registry import DataSet, data_set
from datamodules.tagged import GLOVE, TaggedSentences, parted


class CoNLL2000(TaggedSentences):
    """Word and part of speech x (N, T, 2) as ids, chunk tags y (N, T, S) one-hot, a mask (N, T).

    See TaggedSentences. A share of the training sentences is for validation.       [Scaling §6: 20 %]

    Args:
        num_pos: ids of parts of speech, checked.
        vectors: a file of word vectors in GloVe's text format (.gz too); left out, 50-d GloVe 6B.
        senna: a folder with SENNA's words.lst and embeddings.txt instead.            [Scaling §6.1]
        num_dims: numbers of a word's vector.
        share: how much of the training sentences is for validation.
        split_seed: draws that share. It is not the run's seed: runs are compared on one split.
        sentences: see TaggedSentences. The training file lacks the tag I-LST.
    """

    num_columns = 3

    def __init__(
        self,
        num_pos: int,
        *,
        vectors: str | None = None,
        senna: str | None = None,
        num_dims: int = 50,
        share: float = 0.2,
        split_seed: int = 0,
        **sentences: Any,
    ) -> None:
        if vectors and senna:
            raise DataMismatch("Word vectors come from one place: give --data.vectors or --data.senna.")
        super().__init__(
            "conll2000",
            {"num_pos": num_pos},
            {"vectors": vectors, "senna": senna},
            num_dims=num_dims,
            **sentences,
        )
        self.num_pos, self.share, self.split_seed = num_pos, share, split_seed

    def registered(self) -> list[DataSet]:
        """See TaggedSentences.registered."""
        return [self.text] if self.own else [self.text, data_set(GLOVE).only("vectors")]

    def read(self) -> dict[str, Sentences]:
        """See TaggedSentences.read."""
        return {
            part: self.sentences(part, num_columns=self.num_columns, tags=self.names)
            for part in ("train", "test")
        }

    def look_up(self, words: Ids, characters: Ids) -> dict[str, Tensor]:
        """See TaggedSentences.look_up: words are looked up in lower case, with each digit a 0."""
        vectors = self._vectors(set(map(normalised, words)))
        return word_tables(words, characters, vectors, self.num_dims, form=normalised)

    def arrange(self, parts: dict[str, Split]) -> dict[str, Split]:
        """Part the training sentences."""
        return parted(parts, self.share, self.split_seed)

    def _vectors(self, wanted: Collection[str]) -> Vectors:
        if "senna" in self.own:
            paths = [senna_file(self.own["senna"], name) for name in SENNA_FILES]
            words, numbers = (self.record_checksum(path.name, unpack(path)) for path in paths)
            return read_senna(words, numbers, wanted, self.num_dims)
        if self.own:
            return self.own_vectors(wanted)
        return self.published_vectors(GLOVE, wanted, self.num_dims)
