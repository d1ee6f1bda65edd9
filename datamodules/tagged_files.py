"""Sentences and tags from a user's own files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from datamodules.base import Split
from datamodules.errors import DataMismatch, quoted, refuse_twice
from datamodules.readers.conll import Sentences, read_sentences
from datamodules.readers.span_tags import TAG
from datamodules.readers.vocabulary import Ids
from datamodules.sources.files import shown, unpack
from datamodules.sources.registry import DataSet, data_set
from datamodules.splits import PARTS
from datamodules.tagged import GLOVE, TaggedSentences, parted


class TaggedFiles(TaggedSentences):
    """Words x (N, T, 1) as ids, tags y (N, T, S) one-hot, a mask (N, T), from files of your own.

    See TaggedSentences. A token is a line: its word, perhaps other columns, which are not read, and its tag.
    An empty line ends a sentence. Words are looked up in lower case.

    Sizes or tags that are left out are told by the error. Tags are then in alphabetical order.

    Args:
        train: the sentences to learn from; .gz and .xz too.
        validation: likewise; left out, a share of the training sentences.
        test: likewise; left out, a share of the training sentences.
        num_columns: of a token.
        vectors: word vectors in GloVe's text format (.gz too); left out, 100-d GloVe 6B.
        share: how much of the training sentences is for validation, and for testing, where no file is given.
        split_seed: draws that share. It is not the run's seed: runs are compared on one split.
        sentences: see TaggedSentences.

    Raises:
        DataMismatch: a size, or the tags, are not those of the files; the message has the options to give.
    """

    def __init__(
        self,
        *,
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        num_columns: int = 2,
        vectors: str | None = None,
        num_dims: int = 100,
        share: float = 0.2,
        split_seed: int = 0,
        tags: Sequence[str] = (),
        num_tags: int = 0,
        num_words: int = 0,
        num_vectors: int = 0,
        num_characters: int = 0,
        longest_word: int = 30,
        **sentences: Any,
    ) -> None:
        refuse_twice("tags", tags)
        super().__init__(
            DataSet(train or "own", "tagging", {}, "", ""),
            {},
            {"train": train, "validation": validation, "test": test, "vectors": vectors},
            tags=tags,
            num_tags=num_tags,
            num_words=num_words,
            num_vectors=num_vectors,
            num_characters=num_characters,
            longest_word=longest_word,
            num_dims=num_dims,
            **sentences,
        )
        if num_columns < 2:
            raise DataMismatch(f"num_columns is {num_columns}: a token has 2 or more, its word and its tag.")
        self.check_glove(100)
        self.num_columns, self.share, self.split_seed = num_columns, share, split_seed
        if not tags or min(num_tags, num_words, num_vectors, num_characters) < 1:
            self.load()  # raises an error that names all

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        if "train" not in self.own:
            return "No sentences are given. Add --data.train FILE."
        return super().missing()

    def registered(self) -> list[DataSet]:
        """See TaggedSentences.registered."""
        return [] if "vectors" in self.own else [data_set(GLOVE)]

    def read(self) -> dict[str, Sentences]:
        """See TaggedSentences.read."""
        parts = {part: self._part(part) for part in PARTS if part in self.own}
        if not self.names:
            self.names = sorted({tag for part in parts.values() for tag in part.columns[-1]})
            told = ", ".join(f'"{tag}"' for tag in self.names)
            self.wanted = f"--data.tags '[{told}]' "
            if other := [tag for tag in self.names if not TAG.fullmatch(tag)]:
                self.remark = (
                    f"Tags such as {quoted(other[0])} are no spans, as B-NP is: conf/data/own_spans.yaml "
                    "does not take them. "
                )
        return parts

    @property
    def may_lack(self) -> int:
        """All columns but the word: the others are not read."""
        return self.num_columns - 1

    def read_new(self, path: Path) -> Sentences:
        """See TaggedSentences.read_new."""
        return _first_and_last(super().read_new(path))

    def _part(self, part: str) -> Sentences:
        path = self.own[part]
        content = self.record_checksum(shown(path), unpack(path))
        return _first_and_last(
            read_sentences(content, where=shown(path), num_columns=self.num_columns, tags=self.names)
        )

    def look_up(self, words: Ids, characters: Ids) -> dict[str, Tensor]:
        """See TaggedSentences.look_up: words are looked up in lower case."""
        return self.lower_case_tables(words, characters)

    def arrange(self, parts: dict[str, Split]) -> dict[str, Split]:
        """Part the training sentences where a file is left out."""
        return parted(parts, self.share, self.split_seed)


def _first_and_last(read: Sentences) -> Sentences:
    return Sentences((read.columns[0], read.columns[-1]), read.lengths)
