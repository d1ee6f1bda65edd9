"""Handwritten words from a file in the layout of letter.data: one letter a line, tab-separated.

Columns: id, letter, next_id, word_id, position, fold, then 16 x 8 pixels row by row. Words are what the links
next_id make of the letters; word_id and position are not read. A tab may end a line.

Shapes: N letters, W words.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from string import ascii_lowercase

import numpy as np

from datamodules.errors import FormatError, quoted

HEIGHT, WIDTH, FOLDS = 16, 8, 10
FIELDS = 6  # before the pixels
COLUMNS = FIELDS + HEIGHT * WIDTH
INTEGER = re.compile(r"\s*-?\d{1,18}\s*", re.ASCII)  # int() takes more, such as 1_0
LETTERS = {letter: code for code, letter in enumerate(ascii_lowercase)}


@dataclass(frozen=True)
class Words:
    """Letters of a word follow each other: pixels (N, 16, 8) in {0, 1}, letters (N,) 0 for a to 25 for z.

    Word w has `lengths[w]` letters and is in fold `folds[w]`; lengths and folds (W,). Words are in the order
    of the lines they begin in.
    """

    pixels: np.ndarray
    letters: np.ndarray
    lengths: np.ndarray
    folds: np.ndarray

    def spelled(self) -> list[str]:
        """The words as text."""
        text = "".join(ascii_lowercase[code] for code in self.letters)
        ends = np.cumsum(self.lengths)
        return [text[end - length : end] for end, length in zip(ends, self.lengths, strict=True)]

    def digest(self) -> str:
        """A sha256 of all arrays."""
        parts = (self.pixels, self.letters, self.lengths, self.folds)
        return sha256(b"".join(part.astype(np.uint8).tobytes() for part in parts)).hexdigest()


def read_letters(content: bytes, *, where: str) -> Words:
    """Read the file; `where` is its name, for the errors.

    Raises:
        FormatError: with the line: a column is missing or holds what it must not, a letter is blank, or links
            do not make words.
    """
    lines = content.decode("utf-8-sig", errors="replace").split("\n")
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    if not numbers:
        raise FormatError(f"{where}: the file has no letter. Is it truncated?")
    rows = [lines[number - 1].rstrip("\t\r ").split("\t", FIELDS) for number in numbers]
    table = _Table(rows, numbers, where)
    pixels, letters, folds = table.pixels(), table.letters(), table.folds()
    order, lengths = table.words(folds)
    starts = np.cumsum(lengths) - lengths
    return Words(pixels[order], letters[order], lengths, folds[order[starts]])


class _Table:
    """The lines split into the six fields and the text of the pixels."""

    def __init__(self, rows: list[list[str]], numbers: Sequence[int], where: str) -> None:
        self.rows, self.numbers, self.where = rows, numbers, where

    def pixels(self) -> np.ndarray:
        """Pixels (N, 16, 8): digits at even places of the text, tabs between them."""
        width = 2 * HEIGHT * WIDTH - 1
        for index, row in enumerate(self.rows):
            if len(row) <= FIELDS or len(row[FIELDS]) != width or not row[FIELDS].isascii():
                raise self._bad_pixels(index)
        text = "".join(row[FIELDS] for row in self.rows).encode("ascii")
        block = np.frombuffer(text, np.uint8).reshape(-1, width)
        values = block[:, ::2] - np.uint8(ord("0"))
        bad = (values > 1).any(1) | (block[:, 1::2] != ord("\t")).any(1)
        if bad.any():
            raise self._bad_pixels(int(bad.argmax()))
        blank = ~values.any(1)
        if blank.any():
            raise self._bad(int(blank.argmax()), "no pixel is set, and a blank letter looks like padding")
        return values.reshape(-1, HEIGHT, WIDTH)

    def letters(self) -> np.ndarray:
        """Codes (N,) of the letters."""
        for index, row in enumerate(self.rows):
            if row[1] not in LETTERS:
                raise self._bad(index, f"the letter is {quoted(row[1])}; it has to be one of a to z")
        return np.array([LETTERS[row[1]] for row in self.rows])

    def folds(self) -> np.ndarray:
        """The fold (N,) of each letter."""
        folds = self._integers(5, "fold")
        bad = (folds < 0) | (folds >= FOLDS)
        if bad.any():
            index = int(bad.argmax())
            raise self._bad(index, f"the fold is {folds[index]}; it has to be 0 to {FOLDS - 1}")
        return folds

    def words(self, folds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The letters (N,) in the order of the links, and the lengths (W,) of the words they make."""
        following, first = self._links(), np.ones(len(self.rows), bool)
        first[following[following >= 0]] = False
        order: list[int] = []
        lengths: list[int] = []
        for start in np.flatnonzero(first).tolist():
            begin, index = len(order), start
            while index >= 0:
                if folds[index] != folds[start]:
                    raise self._bad(
                        index,
                        f"the fold is {folds[index]}, but the word began in fold {folds[start]} "
                        f"(line {self.numbers[start]})",
                    )
                order.append(index)
                index = int(following[index])
            lengths.append(len(order) - begin)
        if len(order) < len(self.rows):
            index = int(np.delete(np.arange(len(self.rows)), order)[0])
            raise self._bad(index, "next_id leads round in a circle, so the word has no first letter")
        return np.array(order), np.array(lengths)

    def _links(self) -> np.ndarray:
        """The row (N,) that follows each row in its word, -1 after the last letter."""
        ids, next_ids = self._integers(0, "id").tolist(), self._integers(2, "next_id").tolist()
        row_of: dict[int, int] = {}
        for index, letter in enumerate(ids):
            if row_of.setdefault(letter, index) != index:
                raise self._bad(index, f"the id {letter} is that of line {self.numbers[row_of[letter]]} too")
        following = np.full(len(ids), -1)
        before: dict[int, int] = {}
        for index, letter in enumerate(next_ids):
            if letter == -1:
                continue
            if letter not in row_of:
                raise self._bad(index, f"next_id is {letter}, the id of no line; a word ends with -1")
            following[index] = row_of[letter]
            if (other := before.setdefault(letter, index)) != index:
                raise self._bad(index, f"next_id is {letter}, as in line {self.numbers[other]}")
        return following

    def _integers(self, column: int, name: str) -> np.ndarray:
        cells = [row[column] for row in self.rows]
        for index, cell in enumerate(cells):
            if not INTEGER.fullmatch(cell):
                raise self._bad(index, f"{name} is {quoted(cell)}, which is no whole number")
        return np.array(list(map(int, cells)), np.int64)

    def _bad_pixels(self, index: int) -> FormatError:
        cells = "\t".join(self.rows[index]).split("\t")
        if len(cells) != COLUMNS:
            return self._bad(index, f"{len(cells)} columns between tabs, a letter has {COLUMNS}")
        place, cell = next((i, c) for i, c in enumerate(cells[FIELDS:]) if c not in ("0", "1"))
        row, column = divmod(place, WIDTH)
        return self._bad(index, f"the pixel p_{row}_{column} is {quoted(cell)}; a pixel is 0 or 1")

    def _bad(self, index: int, reason: str) -> FormatError:
        return FormatError(f"{self.where}, line {self.numbers[index]}: {reason}. Correct or drop this word.")
