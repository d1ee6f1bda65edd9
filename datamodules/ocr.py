"""Handwritten words, letter by letter: the benchmark of Taskar, Guestrin and Koller (2003).

Shapes: W words, T letters of the longest, 26 tags.
"""

from hashlib import sha256
from typing import Literal

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from datamodules.base import DeviceData, Split
from datamodules.errors import DataMismatch
from datamodules.readers.ocr import FOLDS, HEIGHT, LETTERS, WIDTH, Words, read_letters
from datamodules.registry import data_set
from datamodules.sources import Sources

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
            can know the words by heart. `unseen_words`: ten groups of distinct words take the place of the
            folds, so that a word of one part is in no other part.
        test_fold: 0 to 9; left out, seed 0 takes the fold after `validation_fold`, seed 1 the next, and so
            on past 9 to 0: nine seeds are the nine folds.
        validation_fold: 0 to 9.
        split_seed: draws the groups of `unseen_words`. It is not the run's seed.
        batch_size: words of a training batch.
        eval_batch_size: words of a validation or test batch.
        seed: draws the order of the training words, with the epoch; and may choose the test fold.
        folder: where data is kept; left out, DATA_DIR or data/.
        mirror: a folder to read data from; left out, DATA_MIRROR or ../shared/data. Empty: none.
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
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, seed=seed)
        self.num_tags, self.num_words, self.num_letters = num_tags, num_words, num_letters
        self.protocol, self.split_seed, self.validation_fold = protocol, split_seed, validation_fold
        self.test_fold = fold_of_seed(seed, validation_fold) if test_fold is None else test_fold
        if not {self.test_fold, validation_fold} <= set(range(FOLDS)) or self.test_fold == validation_fold:
            raise DataMismatch(
                f"test_fold is {self.test_fold} and validation_fold {validation_fold}: "
                f"give two different folds of 0 to {FOLDS - 1}."
            )
        self.sources = Sources(folder, mirror)

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        return self.sources.missing(data_set(NAME))

    def prepare_data(self) -> None:
        """Download what is not here."""
        self.sources.fetch(data_set(NAME))

    def load(self) -> dict[str, Split]:
        """Read the letters, compare their numbers with the configuration, pad the words and part them."""
        data = data_set(NAME)
        file = data.files["train"]
        content = self.noted(file.name, self.sources.read(data, file))
        words = read_letters(content, where=file.name)
        self._check(words, file.reads_as)
        groups = words.folds if self.protocol == "folds" else word_groups(words, self.split_seed)
        x, y, mask = padded(words)
        rows = {part: torch.from_numpy(index) for part, index in self._parts(groups).items()}
        return {part: Split(x[index], y[index], mask[index]) for part, index in rows.items()}

    def _parts(self, groups: np.ndarray) -> dict[str, np.ndarray]:
        test, validation = groups == self.test_fold, groups == self.validation_fold
        parts = {"train": ~(test | validation), "validation": validation, "test": test}
        return {part: np.flatnonzero(chosen) for part, chosen in parts.items()}

    def _check(self, words: Words, known: str) -> None:
        found = len(LETTERS), len(words.lengths), len(words.letters)
        told = self.num_tags, self.num_words, self.num_letters
        if found != told:
            raise DataMismatch(
                "{} has {} tags, {:,} words, {:,} letters; ".format(NAME, *found)
                + "the configuration says {}, {:,}, {:,}. ".format(*told)
                + "Set --data.num_tags {} --data.num_words {} --data.num_letters {}.".format(*found)
            )
        if known and digest(words) != known:
            rank_zero_warn(
                f"{NAME} has the published number of words and letters, but is not the version that the "
                "committed results were made with: numbers may differ."
            )


def fold_of_seed(seed: int, validation_fold: int) -> int:
    """The test fold of a run: seeds count the folds from the one after the validation fold, going round."""
    return (validation_fold + 1 + seed % (FOLDS - 1)) % FOLDS


def word_groups(words: Words, seed: int) -> np.ndarray:
    """The group (W,) of each word: ten groups of distinct words that hold about as many letters each.

    Distinct words, the one with most letters first, are dealt out in rounds, one to each group; which word of
    a round goes to which group is drawn, but the last round goes to the groups with the fewest letters.
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


def digest(words: Words) -> str:
    """A sha256 of all that is used of the file, whatever its ids are."""
    parts = (words.pixels, words.letters, words.lengths, words.folds)
    return sha256(b"".join(part.astype(np.uint8).tobytes() for part in parts)).hexdigest()
