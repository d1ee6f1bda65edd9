"""Which rows are for training, validation and test."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from datamodules.errors import DataMismatch, DataNotFound
from datamodules.sources import shown

PARTS = ("train", "validation", "test")
FOLDS_OF = {"train": range(1, 7), "validation": range(7, 9), "test": range(9, 11)}  # as SEAL
FOLD_FILE = re.compile(r"fold[-_ ]?(\d+)\.arff(?:\.xz|\.gz)?$", re.IGNORECASE)

Rows = dict[str, np.ndarray]


def by_folds(fold: np.ndarray) -> Rows:
    """Folds 1 to 6 train, 7 and 8 validate, 9 and 10 test; `fold` (N,) holds each row's fold."""
    return {part: np.flatnonzero(np.isin(fold, folds)) for part, folds in FOLDS_OF.items()}


def by_files(lengths: Mapping[str, int], *, share: float, seed: int) -> Rows:
    """Rows as the files hold them, one after the other: train, validation, test.

    A part that has no file is a share of the rows of the training file, drawn with the seed.
    """
    ends = np.cumsum([lengths.get(part, 0) for part in PARTS])
    rows = {part: np.arange(end - lengths.get(part, 0), end) for part, end in zip(PARTS, ends, strict=True)}
    pool = np.random.default_rng(seed).permutation(rows["train"])
    for part in ("test", "validation"):
        if not lengths.get(part):
            count = round(share * lengths["train"])
            rows[part], pool = np.sort(pool[:count]), pool[count:]
    rows["train"] = np.sort(pool)
    return rows


def read_fold_table(content: bytes, lengths: Mapping[str, int], where: str) -> np.ndarray:
    """The fold of each row from a table file,row,fold; `lengths` names the files in the order of the rows."""
    fold = np.zeros(sum(lengths.values()), int)
    starts = dict(zip(lengths, np.cumsum([0, *lengths.values()]), strict=False))
    for line, row in enumerate(csv.DictReader(content.decode().splitlines()), 2):
        try:
            if not 0 <= int(row["row"]) < lengths[row["file"]]:
                raise ValueError
            fold[starts[row["file"]] + int(row["row"])] = int(row["fold"])
        except (KeyError, ValueError, TypeError):
            raise DataMismatch(
                f"{where}, line {line}: {','.join(map(str, row.values()))} is no row of {', '.join(lengths)}."
            ) from None
    if not np.isin(fold, range(1, 11)).all():
        raise DataMismatch(
            f"{where} does not put every row of {', '.join(lengths)} into one of the folds 1 to 10."
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
