"""Which rows are for training, validation and test."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from datamodules.errors import DataMismatch, DataNotFound, FormatError, quoted
from datamodules.sources.files import shown

PARTS = ("train", "validation", "test")
FOLDS_OF = {"train": range(1, 7), "validation": range(7, 9), "test": range(9, 11)}  # as SEAL
HEADER = "file,row,fold"
FOLD_ROW = re.compile(r"(.+),(\d{1,9}),(10|[1-9])", re.ASCII)
FOLD_FILE = re.compile(r"fold[-_ ]?(\d+)\.arff(?:\.xz|\.gz)?$", re.IGNORECASE)

Rows = dict[str, np.ndarray]


def by_folds(fold: np.ndarray) -> Rows:
    """Folds 1 to 6 train, 7 and 8 validate, 9 and 10 test; `fold` (N,) holds each row's fold."""
    return {part: np.flatnonzero(np.isin(fold, folds)) for part, folds in FOLDS_OF.items()}


def by_files(lengths: Mapping[str, int], *, share: float, seed: int) -> Rows:
    """Rows as the files hold them, one after the other: train, validation, test.

    A part that has no file is a share of the rows of the training file, drawn with the seed.

    Raises:
        DataMismatch: a share is needed, and it is not above 0 and below 1/2.
    """
    ends = np.cumsum([lengths.get(part, 0) for part in PARTS])
    rows = {part: np.arange(end - lengths.get(part, 0), end) for part, end in zip(PARTS, ends, strict=True)}
    given = {part: rows[part] for part in PARTS[1:] if lengths.get(part)}
    return _filled(given, rows["train"], share, lengths["train"], seed)


def by_names(names: Sequence[str], listed: Mapping[str, Sequence[str]], *, share: float, seed: int) -> Rows:
    """Rows as lists of names have them; `names` (N,) are those of all rows.

    Where validation or test has no list, it is a share of N, drawn with the seed from the rows in no list.
    All others are for training, unless it has a list.

    Raises:
        DataMismatch: a name is in two lists, a part gets no row, or a needed share is none of (0, 1/2).
    """
    place = {name: row for row, name in enumerate(names)}
    rows = {part: np.sort([place[name] for name in chosen]) for part, chosen in listed.items()}
    free = np.setdiff1d(np.arange(len(names)), np.concatenate([[], *rows.values()]))
    for one, other in combinations(rows, 2):
        if len(both := np.intersect1d(rows[one], rows[other])):
            raise DataMismatch(
                f"{quoted(names[both[0]])} is in the lists for {one} and {other}. Take it out of one of them."
            )
    rows = _filled(rows, free, share, len(names), seed)
    if empty := [part for part in PARTS if not len(rows[part])]:
        raise DataMismatch(
            f"{len(names)} pictures are too few: none is left for {empty[0]}. Give more of them, or lists."
        )
    return rows


def _filled(rows: Rows, pool: np.ndarray, share: float, of: int, seed: int) -> Rows:
    """The lacking parts drawn from the pool: test and validation a share of so many rows, the rest to train.

    Raises:
        DataMismatch: a share is needed, and it is not above 0 and below 1/2.
    """
    if not 0 < share < 0.5 and not {"test", "validation"} <= rows.keys():
        raise DataMismatch(f"share is {share}: take a number above 0 and below 1/2.")
    count = round(share * of)
    left = np.random.default_rng(seed).permutation(pool)
    for part in ("test", "validation"):
        if part not in rows:
            rows, left = {**rows, part: np.sort(left[:count])}, left[count:]
    rows = {"train": np.sort(left), **rows}
    return {part: rows[part] for part in PARTS}


def read_fold_table(content: bytes, lengths: Mapping[str, int], where: str) -> np.ndarray:
    """The fold of each row from a table file,row,fold; `lengths` names the files in the order of the rows.

    Raises:
        FormatError: a line is not a file, a row and a fold of 1 to 10; the message names the line.
        DataMismatch: a row is listed twice, or is missing.
    """
    fold = np.zeros(sum(lengths.values()), int)
    starts = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
    head, *lines = content.decode("utf-8-sig", errors="replace").splitlines() or [""]
    if head != HEADER:
        raise FormatError(f"{where}, line 1: {quoted(head)} has to be the header {HEADER}.")
    for number, line in enumerate(lines, 2):
        found = FOLD_ROW.fullmatch(line)
        if not found or int(found[2]) >= lengths.get(found[1], 0):
            raise DataMismatch(
                f"{where}, line {number}: {quoted(line)} is no row of {', '.join(lengths)} with its fold, "
                "1 to 10. Correct this line."
            )
        row = starts[found[1]] + int(found[2])
        if fold[row]:
            raise DataMismatch(
                f"{where}, line {number}: row {found[2]} of {found[1]} is listed twice. Drop one of the two."
            )
        fold[row] = int(found[3])
    if not fold.all():
        absent = int(np.argmin(fold))
        name = [file for file in lengths if starts[file] <= absent][-1]
        raise DataMismatch(
            f"{where} does not put every row of {', '.join(lengths)} into one of the folds 1 to 10: "
            f"row {absent - starts[name]} of {name} is not there."
        )
    return fold


def fold_files(folder: Path) -> list[Path]:
    """The ten files of a folder whose names end in fold1.arff ... fold10.arff, as KDIS names them."""
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        if match := FOLD_FILE.search(path.name):
            found.setdefault(int(match[1]), []).append(path)
    lacking = [str(fold) for fold in range(1, 11) if fold not in found]
    double = [path.name for paths in found.values() if len(paths) > 1 for path in paths]
    if lacking or double:
        reason = f"fold {', '.join(lacking)} is not there" if lacking else f"too many: {', '.join(double)}"
        raise DataNotFound(
            f"{shown(folder)} has to hold a file for each of ten folds, named as Bibtex-fold1.arff: {reason}."
        )
    return [found[fold][0] for fold in range(1, 11)]
