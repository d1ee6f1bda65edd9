"""Text chunking: the shared task of CoNLL-2000 (Tjong Kim Sang and Buchholz).

Shapes: N sentences, T tokens of the longest, S tags.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datamodules.base import DeviceData, Split
from datamodules.errors import DataMismatch, DataNotFound
from datamodules.readers.conll import Sentences, read_sentences
from datamodules.registry import data_set
from datamodules.sources import Sources, unpack
from datamodules.splits import PARTS, by_files
from datamodules.vocabulary import (
    SENNA_FILES,
    UNKNOWN,
    Ids,
    Vectors,
    normalised,
    numbered,
    read_senna,
    read_vectors,
    senna_file,
    word_tables,
)

TEXT, VECTORS = "conll2000", "glove_6b"


class CoNLL2000(DeviceData):
    """Word and part of speech x (N, T, 2) as ids, chunk tags y (N, T, S) one-hot, a mask (N, T).

    Id 0 is padding, 1 unknown. Each spelling of either file has a word id, for one can see what letters it
    has and whether somebody trained a vector for it; parts of speech and characters have ids where they occur
    in the training file. `tables` says the letters and vectors of each word id: see `vocabulary.word_tables`.

    A share of the training sentences is for validation.                           [Scaling §6: 20 %]

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
        folder: str | None = None,
        mirror: str | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, seed=seed)
        self.tags, self.num_tags = list(tags), num_tags
        self.num_words, self.num_vectors, self.num_pos = num_words, num_vectors, num_pos
        self.num_characters, self.longest_word, self.num_dims = num_characters, longest_word, num_dims
        self.vectors, self.senna = (Path(path) if path else None for path in (vectors, senna))
        self.share, self.split_seed = share, split_seed
        self.sources = Sources(folder, mirror)
        if vectors and senna:
            raise DataMismatch("Word vectors come from one place: give --data.vectors or --data.senna.")

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        for own, option in ((self.vectors, "vectors"), (self.senna, "senna")):
            if own and not own.exists():
                return f"There is no {own} (--data.{option}). Correct the path."
        absent = [self.sources.missing(data_set(name)) for name in self._registered()]
        return " ".join(reason for reason in absent if reason) or None

    def prepare_data(self) -> None:
        """Download what is not here."""
        for name in self._registered():
            self.sources.fetch(data_set(name))

    def load(self) -> dict[str, Split]:
        """Read the sentences and the vectors, number everything, compare sizes with the configuration."""
        if reason := self.missing():
            raise DataNotFound(reason)
        files = {part: self._read(part) for part in ("train", "test")}
        words = numbered(word for file in files.values() for word in file.columns[0])
        parts_of_speech = numbered(files["train"].columns[1])
        characters = numbered("".join(set(files["train"].columns[0])))
        vectors = self._vectors({normalised(word) for word in words})
        self.tables = word_tables(words, characters, vectors, self.num_dims)
        self._check_sizes(len(parts_of_speech) + 2, len(characters) + 2)
        encoded = [encode(file, words, parts_of_speech, self.tags) for file in files.values()]
        x, y, mask = (_together(tensors) for tensors in zip(*encoded, strict=True))
        lengths = {part: len(file.lengths) for part, file in files.items()}
        rows = by_files(lengths, share=self.share, seed=self.split_seed)
        indices = {part: torch.from_numpy(rows[part]) for part in PARTS}
        return {part: Split(x[index], y[index], mask[index]) for part, index in indices.items()}

    def _registered(self) -> list[str]:
        return [TEXT] if self.vectors or self.senna else [TEXT, VECTORS]

    def _read(self, part: str) -> Sentences:
        data = data_set(TEXT)
        file = data.files[part]
        content = self.noted(file.name, self.sources.read(data, file))
        return read_sentences(content, where=file.name, tags=self.tags)

    def _vectors(self, wanted: Collection[str]) -> Vectors:
        if self.senna:
            paths = [senna_file(self.senna, name) for name in SENNA_FILES]
            words, numbers = (self.noted(path.name, unpack(path)) for path in paths)
            return read_senna(words, numbers, wanted, self.num_dims)
        data = data_set(VECTORS)
        file = data.files["vectors"]
        content = unpack(self.vectors) if self.vectors else self.sources.read(data, file)
        name = self.vectors.name if self.vectors else file.name
        return read_vectors(self.noted(name, content), wanted, self.num_dims, where=name)

    def _check_sizes(self, num_pos: int, num_characters: int) -> None:
        found = {
            "num_tags": len(self.tags),
            "num_words": len(self.tables["rows"]),
            "num_vectors": len(self.tables["vectors"]),
            "num_pos": num_pos,
            "num_characters": num_characters,
            "longest_word": self.tables["characters"].shape[1],
        }
        wrong = {name: size for name, size in found.items() if size != getattr(self, name)}
        if wrong:
            told = ", ".join(f"{name} is {size}, not {getattr(self, name)}" for name, size in wrong.items())
            advice = " ".join(f"--data.{name} {size}" for name, size in wrong.items())
            raise DataMismatch(f"{TEXT} does not fit the configuration: {told}. Set {advice}.")


def encode(
    file: Sentences, words: Ids, parts_of_speech: Ids, tags: Sequence[str]
) -> tuple[Tensor, Tensor, Tensor]:
    """Of columns word, part of speech and tag: x (N, T, 2) ids, y (N, T, S) bool, mask (N, T)."""
    number = {tag: index for index, tag in enumerate(tags)}
    lengths = torch.from_numpy(file.lengths)
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    x = torch.zeros(*mask.shape, 2, dtype=torch.long)
    for column, ids in enumerate((words, parts_of_speech)):
        x[..., column][mask] = torch.tensor([ids.get(name, UNKNOWN) for name in file.columns[column]])
    y = torch.zeros(*mask.shape, len(tags), dtype=torch.bool)
    y[mask] = torch.from_numpy(np.eye(len(tags), dtype=bool)[[number[tag] for tag in file.columns[2]]])
    return x, y, mask


def _together(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors (N, T, ...) one after the other, filled up to the longest T."""
    longest = max(tensor.shape[1] for tensor in tensors)
    filled = [tensor.new_zeros(len(tensor), longest, *tensor.shape[2:]) for tensor in tensors]
    for room, tensor in zip(filled, tensors, strict=True):
        room[:, : tensor.shape[1]] = tensor
    return torch.cat(filled)
