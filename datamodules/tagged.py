"""What all data of tagged sentences shares: from files to ids, one-hot tags and vocabulary tables.

Shapes: N sentences of a part, T tokens of the longest of any part, C columns of ids, S tags.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.base import NEW, DeviceData, Split
from datamodules.errors import DataMismatch, DataNotFound, no_file
from datamodules.readers.conll import Sentences, read_sentences
from datamodules.readers.vocabulary import UNKNOWN, Ids, Vectors, numbered, read_vectors, word_tables
from datamodules.sources.files import Sources, shown, unpack
from datamodules.sources.needed import as_config, missing
from datamodules.sources.registry import DataSet, data_set
from datamodules.sources.stand_ins import gap_filled
from datamodules.splits import by_files
from networks.inputs import Sequences

GLOVE = "glove_6b"


class TaggedSentences(DeviceData):
    """Sentences as ids x (N, T, C) and one-hot tags y (N, T, S), with a mask (N, T).

    Column 0 of x is the word, the others are its features. Id 0 is padding, 1 unknown. Each spelling in any
    split has a word id, because its letters and a pretrained vector may be known. Features and characters
    have ids only if they occur in the training split. `tables` has the letters and vectors of each word id:
    see `vocabulary.word_tables`.

    A subclass defines what it reads (`registered`, `read`) and where its tables come from (`look_up`).

    Args:
        name: the registry's name of the sentences, or their entry.
        features: how many ids each feature has, by option name, in the order of the columns.
        own: a user's own files, by option name.
        tags: the S tags of the scheme, in the order of their numbers.
        num_tags: S.
        num_words: word ids.
        num_vectors: rows of word vectors: words may share one.
        num_characters: ids of characters.
        longest_word: characters of a word that are read at most.
        num_dims: numbers of a word's vector.
        batch_size: sentences of a training batch.
        eval_batch_size: sentences of a validation or test batch.
        seed: draws the order of the training sentences, with the epoch.
        pool: how many batches at a time are sorted by length; left out, 1: none are. See Batches.
        num_train: how many of the training sentences are used, drawn with the seed; left out, all. Ids are
            those of all sentences.
        folder: where data is kept; left out, DATA_DIR or data/.
        mirror: a folder to read data from; left out, DATA_MIRROR or ../shared/data. Empty: none.

    All counts of ids and rows, and the longest word, are checked against the data. The words of a file `new`
    have ids after those of all others, for networks that `renumber` theirs. Its tokens may lack their tag;
    their answers are 0.
    """

    wanted = ""  # options besides those of sizes that a user has to set
    remark = ""  # on the tags, where they are not given
    num_columns = 2  # of a token in a file

    def __init__(
        self,
        name: str | DataSet,
        features: Mapping[str, int],
        own: Mapping[str, str | None],
        *,
        tags: Sequence[str],
        num_tags: int,
        num_words: int,
        num_vectors: int,
        num_characters: int,
        longest_word: int,
        num_dims: int,
        batch_size: int = 32,
        eval_batch_size: int = 256,
        seed: int = 0,
        pool: int | None = None,
        num_train: int | None = None,
        folder: str | None = None,
        mirror: str | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            pool=1 if pool is None else pool,
            num_train=num_train,
        )
        self.text = name if isinstance(name, DataSet) else data_set(name)
        self.names, self.features, self.num_dims = list(tags), features, num_dims
        self.num_tags, self.num_words, self.num_vectors = num_tags, num_words, num_vectors
        self.num_characters, self.longest_word = num_characters, longest_word
        self.own = {option: Path(path) for option, path in own.items() if path}
        self.sources = Sources(folder, mirror)

    @abstractmethod
    def registered(self) -> list[DataSet]:
        """What is read from the registry."""

    @abstractmethod
    def read(self) -> dict[str, Sentences]:
        """The sentences of each part, the one for training first: words, features, and last the tags."""

    @abstractmethod
    def look_up(self, words: Ids, characters: Ids) -> dict[str, Tensor]:
        """The tables of the words: see `vocabulary.word_tables`."""

    def number(self, train: Sentences) -> list[Ids]:
        """Ids of the features, by column."""
        return [numbered(column) for column in train.columns[1:-1]]

    def arrange(self, parts: dict[str, Split]) -> dict[str, Split]:
        """The splits made from the parts."""
        return parts

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        for option, path in self.own.items():
            if not path.exists():
                return no_file(path, option)
        return missing(self.registered(), self.sources)

    def source_files(self) -> dict[str, Any] | None:
        """See DeviceData.source_files."""
        return None if self.own else as_config(self.registered(), self.sources)

    def prepare_data(self) -> None:
        """Download what is not here."""
        for data in self.registered():
            self.sources.fetch(data)

    def load(self) -> dict[str, Split]:
        """Read the sentences and the vectors, number everything, compare sizes with the configuration."""
        if reason := self.missing():
            raise DataNotFound(reason)
        parts = self.read()
        train = next(iter(parts.values()))
        words = numbered(word for part in parts.values() for word in part.columns[0])
        self.num_known = len(words) + 2
        if self.new:
            parts[NEW] = self.read_new(self.new)
            more = numbered(set(parts[NEW].columns[0]) - words.keys())
            words |= {word: number + len(words) for word, number in more.items()}
        features = self.number(train)
        characters = numbered("".join(set(train.columns[0])))
        self.tables = self.look_up(words, characters)
        if int(self.tables["rows"].max()) <= UNKNOWN:
            raise DataMismatch(
                f"None of the {len(words):,} words of {self.text.name} has a vector. Take vectors of the "
                "same language, as text: a word and its numbers in a line."
            )
        read = ", ".join(f"{len(part.lengths):,} to {name}" for name, part in parts.items())
        self._check_sizes([len(ids) + 2 for ids in features], len(characters) + 2, read)
        longest = max(int(part.lengths.max(initial=0)) for part in parts.values())
        encoded = {
            name: encode(part, [words, *features], self.names, longest) for name, part in parts.items()
        }
        new = {NEW: encoded.pop(NEW)} if self.new else {}
        return self.arrange(encoded) | new

    @property
    def may_lack(self) -> int:
        """How many of its last columns a token may lack that training never saw: its tag."""
        return 1

    def read_new(self, path: Path) -> Sentences:
        """The sentences of a file that training never saw."""
        content = self.record_checksum(shown(path), unpack(path))
        return read_sentences(
            content, where=shown(path), num_columns=self.num_columns, tags=self.names, may_lack=self.may_lack
        )

    def sentences(self, part: str, *, num_columns: int, tags: Collection[str]) -> Sentences:
        """The sentences of one file."""
        file = self.text.files[part]
        content = self.record_checksum(file.name, self.sources.read(self.text, file))
        return read_sentences(content, where=file.name, num_columns=num_columns, tags=tags)

    def own_vectors(self, wanted: Collection[str]) -> Vectors:
        """Vectors from the user's file (--data.vectors)."""
        path = self.own["vectors"]
        content = self.record_checksum(shown(path), unpack(path))
        return read_vectors(content, wanted, self.num_dims, where=shown(path))

    def published_vectors(
        self, name: str, wanted: Collection[str] | None, num_dims: int, *, part: str = "vectors"
    ) -> Vectors:
        """Vectors of a file of the registry."""
        data = data_set(name)
        file = data.files[part]
        content = self.record_checksum(file.name, self.sources.read(data, file))
        return read_vectors(content, wanted, num_dims, where=file.name)

    def check_glove(self, *sizes: int) -> None:
        """Raise DataMismatch if vectors are those of GloVe 6B, and not of one of these sizes."""
        if "vectors" not in self.own and self.num_dims not in sizes:
            known, only = " or ".join(map(str, sizes)), f" {sizes[0]}" if len(sizes) == 1 else ""
            raise DataMismatch(
                f"GloVe 6B is known here with {known} dimensions, not {self.num_dims}. Set "
                f"--data.num_dims{only}, or give a file of your own:  --data.vectors FILE"
            )

    def lower_case_tables(self, words: Ids, characters: Ids) -> dict[str, Tensor]:
        """The tables of words looked up in lower case, in the user's vectors or GloVe 6B."""
        wanted = {word.lower() for word in words}
        if "vectors" in self.own:
            vectors = self.own_vectors(wanted)
        else:
            vectors = self.glove_100d() if self.num_dims == 100 else self.published_vectors(GLOVE, wanted, 50)
        return word_tables(
            words, characters, vectors, self.num_dims, form=str.lower, longest=self.longest_word
        )

    def glove_100d(self) -> Vectors:
        """100-d GloVe 6B; words that the file lacks get a linear map of their 50-d vector."""
        large = self.published_vectors(GLOVE, None, 100, part="vectors_100d")
        return gap_filled(large, self.published_vectors(GLOVE, None, 50))

    def _check_sizes(self, of_features: Sequence[int], num_characters: int, read: str) -> None:
        found = {
            "num_tags": len(self.names),
            "num_words": len(self.tables["rows"]),
            "num_vectors": len(self.tables["vectors"]),
            "num_characters": num_characters,
            "longest_word": self.tables["characters"].shape[1],
        }
        given = {option: getattr(self, option) for option in found} | dict(self.features)
        found |= dict(zip(self.features, of_features, strict=True))
        free = {"num_words", "num_vectors", "longest_word"} if self.new else set()
        wrong = {
            option: size for option, size in found.items() if size != given[option] and option not in free
        }
        if wrong or self.wanted:
            apart = ", ".join(f"{name} is {size}, not {given[name]}" for name, size in wrong.items())
            apart = apart or "the tags are not given"
            advice = self.wanted + " ".join(f"--data.{name} {size}" for name, size in wrong.items())
            raise DataMismatch(
                f"{self.text.name} does not fit the configuration: {apart}. Sentences read: {read}. "
                f"{self.remark}If a file was cut off, get it again; otherwise set {advice}."
            )


def parted(parts: dict[str, Split], share: float, seed: int) -> dict[str, Split]:
    """The splits; a part that is not there is a share of the training sentences, drawn with the seed."""
    rows = by_files({part: len(split.inputs) for part, split in parts.items()}, share=share, seed=seed)
    x, mask, y = (
        torch.cat(tensors)
        for tensors in zip(*((s.inputs.values, s.inputs.mask, s.y) for s in parts.values()), strict=True)
    )
    indices = {part: torch.from_numpy(index) for part, index in rows.items()}
    return {part: Split(Sequences(x[index], mask[index]), y[index]) for part, index in indices.items()}


def encode(part: Sentences, columns: Sequence[Ids], tags: Sequence[str], longest: int) -> Split:
    """Of columns of names and, last, tags: x (N, T, C) ids, y (N, T, S) bool, mask (N, T), with T given."""
    number = {"": len(tags)} | {tag: index for index, tag in enumerate(tags)}
    mask = torch.arange(longest) < torch.from_numpy(part.lengths).unsqueeze(1)
    x = torch.zeros(*mask.shape, len(columns), dtype=torch.long)
    for place, (ids, names) in enumerate(zip(columns, part.columns[:-1], strict=True)):
        x[..., place][mask] = torch.tensor([ids.get(name, UNKNOWN) for name in names], dtype=torch.long)
    y = torch.zeros(*mask.shape, len(tags), dtype=torch.bool)
    y[mask] = torch.from_numpy(
        np.eye(len(tags) + 1, len(tags), dtype=bool)[[number[tag] for tag in part.columns[-1]]]
    )
    return Split(Sequences(x, mask), y)
