"""Handwritten words, letter by letter: the benchmark of Taskar, Guestrin and Koller (2003).

Shapes: W words, T letters of the longest, 26 tags.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from datamodules.base import DeviceData, Split
from datamodules.errors import DataMismatch, no_file
from datamodules.readers.ocr import FOLDS, HEIGHT, LETTERS, WIDTH, Words, read_letters
from datamodules.sources.files import Sources, unpack
from datamodules.sources.needed import as_config
from datamodules.sources.registry import data_set
from networks.inputs import Sequences

NAME = "ocr_letters"


class OCRLetters(DeviceData):
    """Pictures x (W, T, 16, 8) uint8 of the letters of words, with y (W, T, 26) one-hot and a mask (W, T).

    A padded position is all zero; no letter of the file is. One fold is for testing, one for validation,
    eight are for training.                                                       [Scaling §6]

    Args:
        num_tags: 26.
        num_words: words of the file, checked; 6,877 as published.
        num_letters: letters of the file, checked; 52,152 as published.
        protocol: `folds`: as the file has them; each of the 55 distinct words is in all of them, so a model
            can memorise the words. `unseen_words`: ten groups of distinct words take the place of the folds,
            so that a word of one part is in no other part.
        test_fold: 0 to 9; left out, seed 0 takes the fold after `validation_fold`, seed 1 the next, and
            so on modulo 10: nine seeds are the nine folds.
        validation_fold: 0 to 9.
        split_seed: draws the groups of `unseen_words`. It is not the run's seed.
        batch_size: words of a training batch.
        eval_batch_size: words of a validation or test batch.
        seed: draws the order of the training words, with the epoch; and may choose the test fold.
        folder: where data is kept; left out, DATA_DIR or data/.
        mirror: a folder to read data from; left out, DATA_MIRROR or ../shared/data. Empty: none.
        file: letters of your own in the layout of letter.data, in place of the published ones.
    """

    def __init__(
        self,
        num_tags: int = 26,
        num_words: int = 6877,
        num_letters: int = 52152,
        *,
        protocol: Literal["folds", "unseen_words"] = "folds",
        test_fold: int | None = None,
        validation_fold: int = 8,
        split_seed: int = 0,
        batch_size: int = 32,
        eval_batch_size: int = 256,
        seed: int = 0,
        folder: str | None = None,
        mirror: str | None = None,
        file: str | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, seed=seed)
        self.names = tuple(LETTERS)
        self.num_tags, self.num_words, self.num_letters = num_tags, num_words, num_letters
        self.protocol, self.split_seed, self.validation_fold = protocol, split_seed, validation_fold
        self.test_fold = fold_of_seed(seed, validation_fold) if test_fold is None else test_fold
        if not {self.test_fold, validation_fold} <= set(range(FOLDS)) or self.test_fold == validation_fold:
            raise DataMismatch(
                f"test_fold is {self.test_fold} and validation_fold {validation_fold}: "
                f"give two different folds of 0 to {FOLDS - 1}."
            )
        self.own = Path(file) if file else None
        self.sources = Sources(folder, mirror)

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        if self.own is None:
            return self.sources.missing(data_set(NAME))
        return None if self.own.is_file() else no_file(self.own, "file")

    def source_files(self) -> dict[str, Any] | None:
        """See DeviceData.source_files."""
        return as_config([data_set(NAME)], self.sources) if self.own is None else None

    def prepare_data(self) -> None:
        """Download what is not here."""
        if self.own is None:
            self.sources.fetch(data_set(NAME))

    def load(self) -> dict[str, Split]:
        """Read the letters, compare counts with the configuration, pad the words and split them."""
        name, content = self._file()
        words = read_letters(self.record_checksum(name, content), where=name)
        self._check(words)
        groups = words.folds if self.protocol == "folds" else word_groups(words, self.split_seed)
        x, y, mask = padded(words)
        rows = {part: torch.from_numpy(index) for part, index in self._parts(groups).items()}
        return {part: Split(Sequences(x[index], mask[index]), y[index]) for part, index in rows.items()}

    def _file(self) -> tuple[str, bytes]:
        if self.own is not None:
            return self.own.name, unpack(self.own)
        data = data_set(NAME)
        return data.files["train"].name, self.sources.read(data, data.files["train"])

    def _parts(self, groups: np.ndarray) -> dict[str, np.ndarray]:
        test, validation = groups == self.test_fold, groups == self.validation_fold
        parts = {"train": ~(test | validation), "validation": validation, "test": test}
        return {part: np.flatnonzero(chosen) for part, chosen in parts.items()}

    def _check(self, words: Words) -> None:
        found = len(LETTERS), len(words.lengths), len(words.letters)
        given = self.num_tags, self.num_words, self.num_letters
        if found != given:
            raise DataMismatch(
                "{} has {} tags, {:,} words, {:,} letters; ".format(self.own or NAME, *found)
                + "the configuration says {}, {:,}, {:,}. ".format(*given)
                + "Set --data.num_tags {} --data.num_words {} --data.num_letters {}.".format(*found)
            )


def fold_of_seed(seed: int, validation_fold: int) -> int:
    """The test fold of a run: seeds count the folds from the one after the validation fold, modulo 10."""
    return (validation_fold + 1 + seed % (FOLDS - 1)) % FOLDS


def word_groups(words: Words, seed: int) -> np.ndarray:
    """The group (W,) of each word: ten groups of distinct words that hold about as many letters each.

    Distinct words, sorted by their total of letters, are assigned in rounds, one to each group. Within a
    round the assignment is random; in the last round words go to the groups with the fewest letters.
    """
    spelled = words.spelled()
    letters: dict[str, int] = dict.fromkeys(sorted(spelled), 0)
    for word in spelled:
        letters[word] += len(word)
    order = sorted(letters, key=lambda word: (-letters[word], word))
    rounds = [order[start : start + FOLDS] for start in range(0, len(order), FOLDS)]
    draw, total, group = np.random.default_rng(seed), np.zeros(FOLDS, int), {}
    for dealt in rounds:
        places = draw.permutation(FOLDS) if dealt is not rounds[-1] else np.argsort(total, kind="stable")
        for word, place in zip(dealt, places.tolist(), strict=False):
            group[word] = place
            total[place] += letters[word]
    return np.array([group[word] for word in spelled])


def padded(words: Words) -> tuple[Tensor, Tensor, Tensor]:
    """Words filled up with zeros: x (W, T, 16, 8) uint8, y (W, T, 26) bool, mask (W, T)."""
    lengths = torch.from_numpy(words.lengths)
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    x = torch.zeros(*mask.shape, HEIGHT, WIDTH, dtype=torch.uint8)
    y = torch.zeros(*mask.shape, len(LETTERS), dtype=torch.bool)
    x[mask] = torch.from_numpy(words.pixels)
    y[mask] = torch.from_numpy(np.eye(len(LETTERS), dtype=bool)[words.letters])
    return x, y, mask
