"""Named entities of Reuters news: the English part of the shared task of CoNLL-2003.

Shapes: N sentences, T tokens of the longest, S tags.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from datamodules.errors import DataMismatch
from datamodules.readers.conll import Sentences, read_sentences
from datamodules.readers.span_tags import bio_from_iob1, bioes_from_bio, kinds_of
from datamodules.readers.vocabulary import Ids, numbered
from datamodules.sources.files import shown, unpack
from datamodules.sources.registry import DataSet, data_set
from datamodules.splits import PARTS
from datamodules.tagged import GLOVE, TaggedSentences

ARTICLE = "-DOCSTART-"
CASES = {"capital": 2, "other": 3}


class CoNLL2003(TaggedSentences):
    """Ids x (N, T, 4): word, case of its first letter, part of speech, chunk; BIOES tags y (N, T, S) one-hot.

    See TaggedSentences. Case is 2 where the word begins with a capital letter, 3 where it does not. Words are
    looked up in lower case, with their digits. A word without a trained vector has row 1, which is
    initialised with 0 and is not the row of padding.                                           [InfNet+ §6]

    The files may have their entities in IOB1, as published, or in IOB2.

    Args:
        num_cases: ids of cases, checked: 4.
        num_pos: ids of parts of speech, checked.
        num_chunks: ids of chunk tags, checked.
        longest_word: a word's characters are read up to this one.
        vectors: a file of word vectors in GloVe's text format (.gz too); left out, GloVe 6B (100-d with
            gaps).
        num_dims: numbers of a word's vector. Of GloVe 6B: 50, or 100. The 100-d file lacks some words; their
            vectors are a linear map of the 50-d ones.
        sentences: see TaggedSentences; tags are O, and B-, I-, E- and S- of each kind.
    """

    def __init__(
        self,
        num_cases: int,
        num_pos: int,
        num_chunks: int,
        *,
        longest_word: int = 30,
        vectors: str | None = None,
        num_dims: int = 100,
        **sentences: Any,
    ) -> None:
        super().__init__(
            "conll2003_en",
            {"num_cases": num_cases, "num_pos": num_pos, "num_chunks": num_chunks},
            {"vectors": vectors},
            longest_word=longest_word,
            num_dims=num_dims,
            **sentences,
        )
        self.num_cases, self.num_pos, self.num_chunks = num_cases, num_pos, num_chunks
        self.kinds = kinds_of(self.names)
        if set(self.names) != {"O"} | {f"{mark}-{kind}" for mark in "BIES" for kind in self.kinds}:
            raise DataMismatch("The tags are not O and B-, I-, E- and S- of each kind. Correct --data.tags.")
        self.check_glove(50, 100)

    def registered(self) -> list[DataSet]:
        """See TaggedSentences.registered."""
        if self.own:
            return [self.text]
        glove = data_set(GLOVE)
        return [self.text, glove if self.num_dims == 100 else glove.only("vectors")]

    def read(self) -> dict[str, Sentences]:
        """See TaggedSentences.read; warns if these are not the files that results were made with."""
        parts = {
            part: adapted(self.sentences(part, num_columns=4, tags=self._published_tags())) for part in PARTS
        }
        files = self.text.files
        others = [files[part].name for part in PARTS if parts[part].digest() != files[part].reads_as]
        if others:
            rank_zero_warn(
                f"{', '.join(others)} of {self.text.name}: not the sentences that the committed results were "
                "made with, numbers may differ."
            )
        return parts

    def read_new(self, path: Path) -> Sentences:
        """See TaggedSentences.read_new; each token has its tag."""
        content = self.record_checksum(shown(path), unpack(path))
        tags = self._published_tags()
        return adapted(read_sentences(content, where=shown(path), num_columns=4, tags=tags))

    def _published_tags(self) -> list[str]:
        return ["O", *(f"{mark}-{kind}" for mark in "BI" for kind in self.kinds)]

    def number(self, train: Sentences) -> list[Ids]:
        """See TaggedSentences.number; ids of cases are fixed."""
        return [CASES, *(numbered(column) for column in train.columns[2:-1])]

    def look_up(self, words: Ids, characters: Ids) -> dict[str, Tensor]:
        """See TaggedSentences.look_up."""
        return self.lower_case_tables(words, characters)


def adapted(file: Sentences) -> Sentences:
    """Columns word, case, part of speech, chunk and BIOES tag, from a file as published."""
    file = file.without(ARTICLE)
    words, parts_of_speech, chunks, entities = file.columns
    ends = [0, *np.cumsum(file.lengths).tolist()]
    sentences = [entities[start:end] for start, end in pairwise(ends)]
    tags = tuple(tag for sentence in sentences for tag in bioes_from_bio(bio_from_iob1(sentence)))
    cases = tuple("capital" if word[0].isupper() else "other" for word in words)
    return Sentences((words, cases, parts_of_speech, chunks, tags), file.lengths)
