"""Fields of citations, few of them labelled: the references of Cora (Seymore, McCallum and Rosenfeld 1999).

Shapes: N citations, T tokens of the longest, S tags.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.base import Split
from datamodules.errors import DataMismatch
from datamodules.readers.conll import Sentences, read_sentences
from datamodules.readers.references import read_references
from datamodules.readers.vocabulary import Ids
from datamodules.sources.files import shown, unpack
from datamodules.sources.registry import DataSet, data_set
from datamodules.splits import PARTS
from datamodules.tagged import GLOVE, TaggedSentences
from energies.citation.cues import cue_table
from networks.inputs import Sequences


class Citations(TaggedSentences):
    """Words x (N, T, 1) as ids, fields y (N, T, S) one-hot, a mask (N, T); few answers are observed.

    See TaggedSentences. The training split has `num_labelled` of the tagged citations and `num_unlabelled` of
    those without tags, both drawn with the seed; fewer are among more. The tags of all other training
    citations are not used. Answers that are not observed are 0.   [Implicit §5, citations: 5, 10, 50; 1,000]

    `tables` has the cues of each word id too: see `energies.citation`.

    Args:
        num_labelled: tagged citations to learn from.
        num_unlabelled: citations without tags; 0: all answers are observed.
        repeats: how often an epoch has each labelled citation, so that batches are not without any.
        longest: references without tags that have more tokens are left out.
        train: a file of your own instead: a token, a blank or tab and its tag a line, an empty line between
            citations.
        validation: likewise.
        test: likewise.
        unlabelled: a file of your own instead: a source, a tab and a reference a line.
        vectors: a file of word vectors in GloVe's text format (.gz too); left out, 100-d GloVe 6B, of words
            in lower case.
        num_dims: numbers of a word's vector.
        sentences: see TaggedSentences.
    """

    def __init__(
        self,
        *,
        num_labelled: int,
        num_unlabelled: int = 1000,
        repeats: int = 1,
        longest: int = 118,
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        unlabelled: str | None = None,
        vectors: str | None = None,
        num_dims: int = 100,
        **sentences: Any,
    ) -> None:
        files = {"train": train, "validation": validation, "test": test, "unlabelled": unlabelled}
        super().__init__(
            "cora_citations",
            {},
            files | {"vectors": vectors},
            num_dims=num_dims,
            num_train=None,
            **sentences,
        )
        self.check_glove(100)
        for name, count, least in (("num_unlabelled", num_unlabelled, 0), ("repeats", repeats, 1)):
            if count < least:
                raise DataMismatch(f"{name} is {count}: take {least} or more.")
        self.num_labelled, self.num_unlabelled = num_labelled, num_unlabelled
        self.repeats, self.longest = repeats, longest

    def registered(self) -> list[DataSet]:
        """See TaggedSentences.registered."""
        parts = [part for part in self.text.files if part not in self.own]
        needed = [self.text.only(*parts)] if parts else []
        return needed if "vectors" in self.own else [*needed, data_set(GLOVE)]

    def read(self) -> dict[str, Sentences]:
        """See TaggedSentences.read; references without labels have the first tag at each token."""
        parts = {
            part: read_sentences(self._content(part), where=self._name(part), num_columns=2, tags=self.names)
            for part in PARTS
        }
        references = read_references(self._content("unlabelled"), where=self._name("unlabelled"))
        kept = [tokens for tokens in references if len(tokens) <= self.longest]
        words = tuple(token for tokens in kept for token in tokens)
        lengths = np.array([*map(len, kept)], dtype=np.int64)
        return parts | {"unlabelled": Sentences((words, (self.names[0],) * len(words)), lengths)}

    def look_up(self, words: Ids, characters: Ids) -> dict[str, Tensor]:
        """See TaggedSentences.look_up: words are looked up in lower case. With the cues of each word."""
        return self.lower_case_tables(words, characters) | {"cues": cue_table(words)}

    def arrange(self, parts: dict[str, Split]) -> dict[str, Split]:
        """Draw the labelled and the unlabelled citations."""
        train, others = parts["train"], parts["unlabelled"]
        labelled = self._drawn("num_labelled", self.num_labelled, 1, len(train.y)).repeat(self.repeats)
        unlabelled = self._drawn("num_unlabelled", self.num_unlabelled, 0, len(others.y))
        drawn = [(train, labelled), (others, unlabelled)]
        values, mask = (
            torch.cat([getattr(part.inputs, name)[index] for part, index in drawn])
            for name in ("values", "mask")
        )
        y = torch.cat([train.y[labelled], torch.zeros_like(others.y[unlabelled])])
        observed = torch.arange(len(y)) < len(labelled) if len(unlabelled) else None
        split = Split(Sequences(values, mask), y, observed=observed)
        return {"train": split, "validation": parts["validation"], "test": parts["test"]}

    def _drawn(self, name: str, count: int, least: int, most: int) -> Tensor:
        """The first of a permutation that depends on the seed alone."""
        if not least <= count <= most:
            raise DataMismatch(f"{name} is {count}: take {least} to {most:,}, the citations there are.")
        return torch.randperm(most, generator=torch.Generator().manual_seed(self.seed))[:count]

    def _name(self, part: str) -> str:
        return shown(self.own[part]) if part in self.own else self.text.files[part].name

    def _content(self, part: str) -> bytes:
        if part in self.own:
            return self.record_checksum(self._name(part), unpack(self.own[part]))
        file = self.text.files[part]
        return self.record_checksum(file.name, self.sources.read(self.text, file))
