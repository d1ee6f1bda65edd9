"""Where the files of a data set come from: the data folder, a mirror, a download, a Python package.

A file may be compressed, as <name>.xz or <name>.gz. The checksum of its uncompressed bytes is verified each
time it is read (60 MB take a tenth of a second), so what is parsed is what was published.
"""

import gzip
import hashlib
import lzma
import os
import zlib
from pathlib import Path

from datamodules.errors import DataCorrupt, DataNotFound, FormatError
from datamodules.readers.ocr import read_letters
from datamodules.sources.bundled import files_of_package, folds_csv
from datamodules.sources.download import download, write_whole
from datamodules.sources.registry import DataFile, DataSet

ROOT = Path(__file__).resolve().parents[2]
PACKED = {"": lambda content: content, ".xz": lzma.decompress, ".gz": gzip.decompress}


class Sources:
    """The folders to search: downloads go to `folder` (default DATA_DIR, or data/); `mirror` is only read.

    The mirror's default is DATA_MIRROR, or ../shared/data beside the repository if it exists; an empty string
    means none.
    """

    def __init__(self, folder: str | Path | None = None, mirror: str | Path | None = None) -> None:
        self.given = tuple(None if place is None else str(place) for place in (folder, mirror))
        self.folder = Path(folder or os.environ.get("DATA_DIR") or ROOT / "data")
        if mirror is None:
            mirror = os.environ.get("DATA_MIRROR")
        beside = ROOT.parent / "shared" / "data"
        default = beside if beside.is_dir() else None
        self.mirror = Path(mirror) if mirror else default if mirror is None else None

    def read(self, data: DataSet, file: DataFile) -> bytes:
        """The file's bytes, uncompressed and verified."""
        path = self.find(data, file)
        if path is None and file.built_in:
            return folds_csv(data.name)
        if path is None:
            raise DataNotFound(self.missing(data))
        content = unpack(path)
        try:
            check(file, content)
        except DataCorrupt as error:
            again = (
                f"Delete it and run:  make data DATASET={data.name}" if self._ours(path) else "Replace it."
            )
            raise DataCorrupt(f"{shown(path)} is not the file it should be: {error}. {again}") from None
        return content

    def find(self, data: DataSet, file: DataFile) -> Path | None:
        """The path in the data folder or the mirror; it may be compressed."""
        places = [place for place in (self.folder, self.mirror) if place is not None]
        candidates = [place / data.name / (file.name + packed) for place in places for packed in PACKED]
        return next((path for path in candidates if path.is_file()), None)

    def missing(self, data: DataSet) -> str | None:
        """One sentence on what is not here and how to get it; None when every file is here."""
        absent = self._absent(data)
        if not absent:
            return None
        places = [place for place in (self.folder, self.mirror) if place is not None]
        looked = " or ".join(shown(place / data.name) for place in places)
        advice = self._by_hand(data)
        if all(file.url for file in absent) or data.package:
            advice += f", or run:  make data DATASET={data.name}"
        names = ", ".join(file.name for file in absent)
        return (
            f"{data.name} is not in {looked} (looked for {names}). {advice}. {data.advice}".rstrip(". ") + "."
        )

    def fetch(self, data: DataSet) -> None:
        """Download every file that is not here into the data folder."""
        absent, reasons = self._absent(data), []
        for file in absent:
            try:
                self._download(data, file)
            except (DataNotFound, DataCorrupt) as error:
                reasons.append(str(error))
        if reasons and data.package:
            try:
                return self._unpack_package(data)
            except (DataNotFound, DataCorrupt) as error:
                reasons.append(str(error))
        if reasons:
            tried = "; ".join(dict.fromkeys(reasons))
            raise DataNotFound(
                f"{data.name} could not be fetched: {tried}. {self._by_hand(data)}. {data.advice}".rstrip()
            )

    def state(self, data: DataSet) -> str:
        """One word: present (data folder), mirror, downloadable, missing."""
        needed = [file for file in data.files.values() if not file.built_in]
        found = [self.find(data, file) for file in needed]
        if all(path is not None and self._ours(path) for path in found):
            return "present"
        if all(found):
            return "mirror"
        can_be_had = all(path or file.url for path, file in zip(found, needed, strict=True))
        return "downloadable" if can_be_had or data.package else "missing"

    def _absent(self, data: DataSet) -> list[DataFile]:
        return [file for file in data.files.values() if not file.built_in and not self.find(data, file)]

    def _by_hand(self, data: DataSet) -> str:
        absent = self._absent(data)
        names = _marked(absent[0]) if len(absent) == 1 else ", ".join(file.name for file in absent)
        return f"Put {names} from {data.source} into {shown(self.folder / data.name)}"

    def _ours(self, path: Path) -> bool:
        return path.is_relative_to(self.folder)

    def _download(self, data: DataSet, file: DataFile) -> None:
        if not file.url:
            raise DataNotFound(f"{file.name} is not offered for download")
        packed = file.url.removeprefix(file.url.removesuffix(".gz").removesuffix(".xz"))
        packed = "" if file.name.endswith(packed) else packed
        target = self.folder / data.name / (file.name + packed)
        size = 0 if packed else file.size
        download(file.url, target, check=lambda content: check(file, opened(content, packed)), size=size)

    def _unpack_package(self, data: DataSet) -> None:
        assert data.package
        content = files_of_package(data.package)
        for file in data.files.values():
            check(file, content[file.name])
            write_whole(self.folder / data.name / file.name, content[file.name])


def unpack(path: Path) -> bytes:
    """A file's bytes, decompressed by its suffix."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataNotFound(f"{shown(path)} cannot be read ({error.strerror}).") from None
    try:
        return opened(content, path.suffix)
    except DataCorrupt as error:
        raise DataCorrupt(f"{shown(path)} {error}. Fetch it again.") from None


def opened(content: bytes, suffix: str) -> bytes:
    """Decompress .gz or .xz; other suffixes mean no compression."""
    try:
        return PACKED.get(suffix, PACKED[""])(content)
    except (lzma.LZMAError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataCorrupt(f"cannot be unpacked ({error}): it is truncated or damaged") from None


def check(file: DataFile, content: bytes) -> None:
    """Raise an error if these are not the published bytes."""
    if file.size and len(content) != file.size:
        what = "truncated" if len(content) < file.size else "another version"
        raise DataCorrupt(f"{len(content):,} bytes, expected {file.size:,} ({what})")
    if file.sha256 and (found := hashlib.sha256(content).hexdigest()) != file.sha256:
        if not file.reads_as:
            raise DataCorrupt(f"sha256 {found}, expected {file.sha256}")
        _check_letters(file, content)
    if file.git_blob and (found := git_blob(content)) != file.git_blob:
        raise DataCorrupt(f"git blob id {found}, expected {file.git_blob}")


def _check_letters(file: DataFile, content: bytes) -> None:
    """Raise an error if another version of the handwritten letters has other content when read."""
    try:
        found = read_letters(content, where=file.name).digest()
    except FormatError as error:
        raise DataCorrupt(str(error)) from None
    if found != file.reads_as:
        raise DataCorrupt(f"its letters have sha256 {found}, expected {file.reads_as}")


def git_blob(content: bytes) -> str:
    """The id git gives these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def shown(path: Path) -> str:
    """The path as one would type it from the repository."""
    return (
        os.path.relpath(path, ROOT) if path.is_absolute() and path.is_relative_to(ROOT.parent) else str(path)
    )


def _marked(file: DataFile) -> str:
    marks = {"sha256": file.sha256, "git blob id": file.git_blob}
    known = next((f" ({kind} {mark})" for kind, mark in marks.items() if mark), "")
    return file.name + known
