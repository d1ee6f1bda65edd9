"""Words as numbers: ids of words and characters, and pretrained word vectors.

Shapes: V word ids, R rows of vectors, C characters of the longest word, D numbers of a vector.
"""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datamodules.errors import DataNotFound, FormatError, quoted

PADDING, UNKNOWN = 0, 1
SENNA_FILES = ("words.lst", "embeddings.txt")
LARGEST = float(np.finfo(np.float32).max)
DIGITS = str.maketrans("123456789", "000000000")

Ids = dict[str, int]
Vectors = dict[str, np.ndarray]  # each (D,) float32


def numbered(names: Iterable[str]) -> Ids:
    """Ids from 2 in alphabetical order; 0 is padding, 1 is unknown."""
    return {name: number for number, name in enumerate(sorted(set(names)), 2)}


def normalised(word: str) -> str:
    """The word as SENNA's list has it: lower-case, each digit a 0."""
    return word.lower().translate(DIGITS)


def word_tables(
    words: Ids,
    characters: Ids,
    vectors: Vectors,
    num_dims: int,
    *,
    form: Callable[[str], str] = normalised,
    unknown: np.ndarray | None = None,
    longest: int | None = None,
) -> dict[str, Tensor]:
    """Tables of characters and vectors, indexed by word id.

    Each spelling has an id of its own, so that its letters can be read. Spellings of one form share a row of
    vectors; those without a trained vector share row 1, which is learned. The number of rows depends on the
    words only, not on the vectors.

    Args:
        words: the id of each spelling.
        characters: the id of each character.
        vectors: by form.
        num_dims: D.
        form: what a word is looked up as.
        unknown: the initial value of row 1; left out, 0.
        longest: characters of a word that are kept at most; left out, all.

    Returns:
        characters (V, C): ids of the characters of each word, then 0; the unknown word has the one character
        1. rows (V,): each word's row of vectors. vectors (R, D): row 0 is padding; a form without a vector
        has a row of 0, which is not used.
    """
    forms = numbered(map(form, words))
    table = np.zeros((len(forms) + 2, num_dims), np.float32)
    if unknown is not None:
        table[UNKNOWN] = unknown
    for known in forms.keys() & vectors.keys():
        table[forms[known]] = vectors[known]
    rows = [PADDING, UNKNOWN]
    rows += [forms[known] if known in vectors else UNKNOWN for known in map(form, words)]
    spelled = np.zeros((len(words) + 2, max((len(word[:longest]) for word in words), default=1)), np.int64)
    spelled[UNKNOWN, 0] = UNKNOWN
    for word, number in words.items():
        letters = [characters.get(character, UNKNOWN) for character in word[:longest]]
        spelled[number, : len(letters)] = letters
    return {
        "characters": torch.from_numpy(spelled),
        "rows": torch.tensor(rows),
        "vectors": torch.from_numpy(table),
    }


def read_vectors(content: bytes, wanted: Collection[str] | None, num_dims: int, *, where: str) -> Vectors:
    """Vectors of the requested words (None: of all), from lines of a word and its numbers between blanks.

    This is the text format of GloVe and word2vec.

    Raises:
        FormatError: a line has not `num_dims` values, or one that is not a finite number; the line is named.
    """
    lines = content.split(b"\n")
    header = lines[0].split()
    first = int(len(header) == 2 and num_dims > 1 and all(cell.isdigit() for cell in header))
    pairs = [line.rstrip().partition(b" ") for line in lines]
    names = [pair[0] for pair in pairs]
    return _pick(names, [pair[2] for pair in pairs], wanted, num_dims, where=where, first=first)


def read_senna(words: bytes, numbers: bytes, wanted: Collection[str], num_dims: int) -> Vectors:
    """Vectors of the requested words, from the two files of SENNA, whose lines correspond.

    Raises:
        FormatError: they have different numbers of lines, or as in `read_vectors`.
    """
    names, rows = ([line.strip() for line in text.rstrip().split(b"\n")] for text in (words, numbers))
    if len(names) != len(rows):
        raise FormatError(
            f"words.lst has {len(names):,} lines and embeddings.txt {len(rows):,}; their lines have to "
            "correspond. Take both from the same SENNA."
        )
    return _pick(names, rows, wanted, num_dims, where="embeddings.txt")


def senna_file(folder: Path, name: str) -> Path:
    """A file in the folder, or where SENNA's archive has it.

    Raises:
        DataNotFound: it is in none of these places.
    """
    places = [folder / inner / name for inner in ("", "hash", "embeddings")]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataNotFound(
            f"{folder} has no {name}, nor have hash/ and embeddings/ in it. Correct --data.senna."
        )
    return path


def _pick(
    names: list[bytes],
    numbers: list[bytes],
    wanted: Collection[str] | None,
    num_dims: int,
    *,
    where: str,
    first: int = 0,
) -> Vectors:
    """Check the length of every line from `first` on, and parse those that are requested."""
    for index in range(first, len(names)):
        if numbers[index].count(b" ") != num_dims - 1 and (names[index] or numbers[index]):
            place = f"{where}, line {index + 1}"
            _check(names[index], numbers[index], num_dims, place, is_first=index == first)
    sought = {word.encode() for word in wanted} if wanted is not None else set(names) - {b""}
    found = {names[index]: index for index in range(len(names) - 1, first - 1, -1) if names[index] in sought}
    rows = [numbers[index].split() for index in found.values()]
    try:
        table = np.array([list(map(float, row)) for row in rows]).reshape(len(found), num_dims)
        if (np.abs(table) <= LARGEST).all() and not any(b"_" in numbers[index] for index in found.values()):
            words = [name.decode() for name in found]
            return dict(zip(words, table.astype(np.float32), strict=True))
    except ValueError:
        pass
    for index in sorted(found.values()):
        _check(names[index], numbers[index], num_dims, f"{where}, line {index + 1}")
    raise AssertionError("some line is wrong")


def _check(word: bytes, numbers: bytes, num_dims: int, place: str, *, is_first: bool = False) -> None:
    """Raise the error of a line, its numbers first; in the first line advise on the size."""
    cells = numbers.split()
    if len(cells) != num_dims:
        other = f"Take a file of {num_dims}-d vectors, or set --data.num_dims {len(cells)}."
        advice = other if is_first and cells else "Correct this line."
        raise FormatError(
            f"{place}: {len(cells)} numbers after the word and a blank, expected {num_dims}. {advice}"
        )
    for cell in cells:
        try:
            fits = abs(float(cell)) <= LARGEST and b"_" not in cell
        except ValueError:
            fits = False
        if not fits:
            raise FormatError(f"{place}: {quoted(cell)} is not a finite number. Correct this line.")
    try:
        word.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{place}: the word is not UTF-8. Correct this line.") from None
