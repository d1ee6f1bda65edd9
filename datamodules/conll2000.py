"""Text chunking: the shared task of CoNLL-2000 (Tjong Kim Sang and Buchholz).

Shapes: N sentences, T tokens of the longest, S tags.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from datamodules.base import Split
from datamodules.errors import DataMismatch
from datamodules.readers.conll import Sentences
from datamodules.registry import DataSet, data_set
from datamodules.sources import unpack
from datamodules.splits import PARTS, by_files
from datamodules.tagged import GLOVE, TaggedSentences
from datamodules.vocabulary import (
    SENNA_FILES,
    Ids,
    Vectors,
    normalised,
    read_senna,
    senna_file,
    word_tables,
)


class CoNLL2000(TaggedSentences):
    """Word and part of speech x (N, T, 2) as ids, chunk tags y (N, T, S) one-hot, a mask (N, T).

    See TaggedSentences. A share of the training sentences is for validation.       [Scaling §6: 20 %]

    Args:
        tags: the S tags of the scheme, in the order of their numbers. The training file lacks I-LST.
        num_tags: S.
        num_words: word ids, checked.
        num_vectors: rows of word vectors, checked: words that differ in capitals or digits only share one.
        num_pos: ids of parts of speech, checked.
        num_characters: ids of characters, checked.
        longest_word: characters of the longest word, checked.
        vectors: a file of word vectors in GloVe's text format (.gz too); left out, 50-d GloVe 6B.
        senna: a folder with SENNA's words.lst and embeddings.txt instead.            [Scaling §6.1]
        num_dims: numbers of a word's vector.
        share: how much of the training sentences is for validation.
        split_seed: draws that share. It is not the run's seed: runs are compared on one split.
        batch_size: sentences of a training batch.
        eval_batch_size: sentences of a validation or test batch.
        seed: draws the order of the training sentences, with the epoch.
        pool: how many batches at a time are sorted by length; left out, 1: none are. See Batches.
        folder: where data is kept; left out, DATA_DIR or data/.
        mirror: a folder to read data from; left out, DATA_MIRROR or ../shared/data. Empty: none.
    """

    def __init__(
        self,
        tags: Sequence[str],
        num_tags: int,
        num_words: int,
        num_vectors: int,
        num_pos: int,
        num_characters: int,
        longest_word: int,
        *,
        vectors: str | None = None,
        senna: str | None = None,
        num_dims: int = 50,
        share: float = 0.2,
        split_seed: int = 0,
        batch_size: int = 32,
        eval_batch_size: int = 256,
        seed: int = 0,
        pool: int | None = None,
        folder: str | None = None,
        mirror: str | None = None,
    ) -> None:
        if vectors and senna:
            raise DataMismatch("Word vectors come from one place: give --data.vectors or --data.senna.")
        sizes = {
            "num_tags": num_tags,
            "num_words": num_words,
            "num_vectors": num_vectors,
            "num_pos": num_pos,
            "num_characters": num_characters,
            "longest_word": longest_word,
        }
        super().__init__(
            "conll2000",
            tags,
            sizes,
            own={"vectors": vectors, "senna": senna},
            num_dims=num_dims,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            pool=1 if pool is None else pool,
            folder=folder,
            mirror=mirror,
        )
        self.num_pos, self.share, self.split_seed = num_pos, share, split_seed

    def registered(self) -> list[DataSet]:
        """See TaggedSentences.registered."""
        return [self.text] if self.own else [self.text, data_set(GLOVE).only("vectors")]

    def read(self) -> dict[str, Sentences]:
        """See TaggedSentences.read."""
        return {part: self.sentences(part, num_columns=3, tags=self.tags) for part in ("train", "test")}

    def look_up(self, words: Ids, characters: Ids) -> dict[str, Tensor]:
        """See TaggedSentences.look_up: words are looked up in lower case, with each digit a 0."""
        vectors = self._vectors(set(map(normalised, words)))
        return word_tables(words, characters, vectors, self.num_dims, form=normalised)

    def arrange(self, parts: dict[str, Split]) -> dict[str, Split]:
        """Part the training sentences."""
        lengths = {part: len(split.x) for part, split in parts.items()}
        rows = by_files(lengths, share=self.share, seed=self.split_seed)
        x, y, mask = (
            torch.cat(tensors) for tensors in zip(*((s.x, s.y, s.mask) for s in parts.values()), strict=True)
        )
        indices = {part: torch.from_numpy(rows[part]) for part in PARTS}
        return {part: Split(x[index], y[index], mask[index]) for part, index in indices.items()}

    def _vectors(self, wanted: Collection[str]) -> Vectors:
        if "senna" in self.own:
            paths = [senna_file(self.own["senna"], name) for name in SENNA_FILES]
            words, numbers = (self.noted(path.name, unpack(path)) for path in paths)
            return read_senna(words, numbers, wanted, self.num_dims)
        if self.own:
            return self.own_vectors(wanted)
        return self.published_vectors(GLOVE, wanted, self.num_dims)
