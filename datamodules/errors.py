"""Errors about data; each message says what is wrong, where, and what to do next."""

from collections import Counter
from collections.abc import Collection
from itertools import islice
from pathlib import Path

LONGEST = 40  # characters of a file's text in a message


class DataError(ValueError):
    """Data that the user has to correct."""


class DataNotFound(DataError):
    """A file is in none of the folders that were searched."""


class DataCorrupt(DataError):
    """A file has the wrong content: truncated, damaged, another version."""


class DataMismatch(DataError):
    """Files that can be read, but do not fit each other or the sizes in the configuration."""


class ArffError(DataError):
    """An ARFF file that breaks the format; the message starts with the file and the line."""


class FormatError(DataError):
    """A file of letters, words, vectors or folds that breaks its format; the message names file and line."""


class DiskFull(DataError):
    """The disk has no space left to write a file."""


def no_file(path: object, option: str) -> str:
    """What to do about a file of the user that is not there."""
    if Path(str(path)).is_dir():
        return f"{path} (--data.{option}) is a folder. Give the file in it."
    return f"There is no file {path} (--data.{option}). Put it there, or correct the path."


def refuse_twice(option: str, names: Collection[str]) -> None:
    """Refuse a name that an option lists twice: one of its numbers would have no example.

    Raises:
        DataMismatch: there is one.
    """
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataMismatch(f"--data.{option} lists {quoted(twice[0])} twice. List each once.")


def bad_line(where: str, number: int, reason: str) -> FormatError:
    """A line of a file of the user that breaks its format."""
    return FormatError(f"{where}, line {number}: {reason}. Correct this line.")


def not_utf8(where: str, number: int) -> FormatError:
    """A line of a file of the user in another encoding."""
    return FormatError(
        f"{where}, line {number}: this is not UTF-8. Correct this line; or convert the file, as by "
        "iconv -f LATIN1 -t UTF-8."
    )


def listed(names: Collection[str]) -> str:
    """The first names."""
    return ", ".join(islice(names, 5)) + (", ..." if len(names) > 5 else "")


def short(text: str) -> str:
    """Text of a file, cut to fit into a message."""
    return f"{text[:LONGEST]}..." if len(text) > LONGEST else text


def quoted(text: str | bytes) -> str:
    """The same in quotes."""
    return repr(short(text.decode(errors="replace") if isinstance(text, bytes) else text))
