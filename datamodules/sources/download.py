"""Fetch one file over HTTP; an incomplete file never has the final name.

Bytes are written to `<name>.part`; a later call resumes where the last one stopped. The file gets its name
only after its check has passed. Processes that fetch the same file wait for each other.
"""

import errno
import fcntl
import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from datamodules.errors import DataCorrupt, DataNotFound, DiskFull

TRIES = 4
PATIENCE = 20  # seconds without an answer
CHUNK = 1 << 16


class _Broken(Exception):
    """The connection broke; another try may get further."""


def download(url: str, target: Path, *, check: Callable[[bytes], None], size: int = 0) -> None:
    """Download `url` to `target`; `check` gets the bytes and raises an error if they are wrong."""
    part = target.with_name(target.name + ".part")
    with room_for(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(part) as sink:
            if target.exists():
                return part.unlink()
            try:
                resumed = _length(sink) > 0
                _gather(url, sink, size)
                if resumed and not _passes(check, part):  # the part was of another file: once from the start
                    sink.truncate(0)
                    _gather(url, sink, size)
                try:
                    check(part.read_bytes())
                except DataCorrupt:
                    sink.truncate(0)
                    raise
                part.replace(target)
            finally:
                if part.exists() and not _length(sink):
                    part.unlink()


def write_whole(target: Path, content: bytes) -> None:
    """Write a file atomically."""
    with room_for(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as sink:
            try:
                sink.write(content)
                sink.flush()
                os.chmod(sink.name, 0o644)
                Path(sink.name).replace(target)
            except BaseException:
                Path(sink.name).unlink(missing_ok=True)
                raise


def _passes(check: Callable[[bytes], None], part: Path) -> bool:
    try:
        check(part.read_bytes())
    except DataCorrupt:
        return False
    return True


@contextmanager
def room_for(target: Path) -> Iterator[None]:
    """Turn a full disk or a folder without write access into one clear error."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull(
                f"No room left to write {target} ({error.strerror}). Make room, or choose another folder "
                "with DATA_DIR=/path; then run the same command again; what was downloaded is kept."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise DataNotFound(
                f"{target} cannot be written ({error.strerror}). Choose another folder with DATA_DIR=/path."
            ) from error
        raise


@contextmanager
def _alone(part: Path) -> Iterator[BinaryIO]:
    """Open the part to append to it, when no other process does."""
    while True:
        with part.open("ab") as sink:
            fcntl.flock(sink, fcntl.LOCK_EX)
            if part.exists() and os.path.samestat(os.fstat(sink.fileno()), part.stat()):
                yield sink
                return


def _gather(url: str, sink: BinaryIO, size: int) -> None:
    """Append to `sink` until the file is complete; a broken connection is retried."""
    host = urllib.parse.urlsplit(url).netloc
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(url.rpartition("/")[2], total=size or None)
        for attempt in range(1, TRIES + 1):
            if size and _length(sink) > size:
                sink.truncate(0)
            if size and _length(sink) == size:
                return
            try:
                for total in _receive(url, sink):
                    progress.update(bar, completed=_length(sink), total=size or total)
                return
            except _Broken as error:
                if attempt == TRIES:
                    raise DataNotFound(f"{host} breaks off each time ({error})") from error


def _receive(url: str, sink: BinaryIO) -> Iterator[int | None]:
    """Append what the server sends from where the file ends; yields the size it announces."""
    start = _length(sink)
    with _ask(url, start) as response:
        if start and response.status != http.HTTPStatus.PARTIAL_CONTENT:  # it sends the whole file only
            sink.truncate(0)
            start = 0
        announced = response.headers.get("Content-Length", "")
        total = start + int(announced) if re.fullmatch(r"[0-9]{1,18}", announced) else None
        while piece := _piece(response):
            sink.write(piece)
            yield total
    if total is not None and _length(sink) < total:
        raise _Broken("the answer was too short")


def _ask(url: str, start: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        return urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return _ask(url, 0)  # the part is longer than the file
        raise DataNotFound(f"{url} answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise DataNotFound(
            f"{urllib.parse.urlsplit(url).netloc} cannot be reached ({error.reason})"
        ) from error
    except (http.client.HTTPException, OSError) as error:
        raise _Broken(error) from error


def _piece(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise _Broken(error) from error


def _length(sink: BinaryIO) -> int:
    sink.flush()
    return os.fstat(sink.fileno()).st_size
