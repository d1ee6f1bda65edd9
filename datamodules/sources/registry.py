"""The data sets this suite knows, read from sets.yaml. Needs no torch, so listing them is fast."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import yaml

from datamodules.errors import DataNotFound

TABLE = Path(__file__).with_name("sets.yaml")


@dataclass(frozen=True)
class DataFile:
    """One file: name, size (0: unknown) and sha256 of the unpacked bytes, and the address it comes from.

    Where the sha256 is not known, git's blob id identifies the file. `built_in`: the file is in this
    repository. `reads_as`: the sha256 of the parsed content, for files whose versions differ only in parts
    that are not read. An address that ends in .gz or .xz, unlike the name, is of the compressed file.
    """

    name: str
    size: int = 0
    sha256: str = ""
    url: str = ""
    git_blob: str = ""
    built_in: bool = False
    reads_as: str = ""


@dataclass(frozen=True)
class Package:
    """A member of a Python wheel, from which the files of a set can be rebuilt byte by byte."""

    requirement: str
    member: str
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """The files of a set by part: train, validation, test, folds (which row is in which of ten), vectors.

    Where a part comes in several files, the others have names of their own. `num_labels`: of label sets whose
    files do not tell labels from features; else 0.
    """

    name: str
    task: str
    files: Mapping[str, DataFile]
    source: str
    licence: str
    package: Package | None = None
    advice: str = ""
    num_labels: int = 0

    @property
    def size(self) -> int:
        """Bytes of all its files, unpacked."""
        return sum(file.size for file in self.files.values())

    def only(self, *parts: str) -> "DataSet":
        """The same set with these parts only."""
        return replace(self, files={part: self.files[part] for part in parts})


@cache
def data_sets() -> dict[str, DataSet]:
    """Every set, by name, in the order of the table."""
    described = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["sets"]
    return {name: _data_set(name, **fields) for name, fields in described.items()}


def data_set(name: str) -> DataSet:
    """The set of that name."""
    known = data_sets()
    if name not in known:
        close = get_close_matches(name, known, n=3, cutoff=0.5)
        meant = f" Did you mean {' or '.join(close)}?" if close else ""
        raise DataNotFound(f"There is no data set {name!r}.{meant} There are: {', '.join(known)}.")
    return known[name]


def _data_set(
    name: str, *, task: str, source: str, licence: str, files: dict, base: str = "", advice: str = "",
    package: dict | None = None, num_labels: int = 0,
) -> DataSet:  # fmt: skip
    parts = {
        part: DataFile(**{"url": f"{base}/{file['name']}" if base else "", **file})
        for part, file in files.items()
    }
    rebuilt = Package(**package) if package else None
    return DataSet(name, task, parts, source, licence, rebuilt, advice, num_labels)
