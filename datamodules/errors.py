"""What can be wrong with data, told to a person: what, where, and what to do next."""

LONGEST = 40  # characters of a file's text in a message


class DataError(ValueError):
    """Something about the data that a person has to put right."""


class DataNotFound(DataError):
    """A file is in none of the places where it was looked for."""


class DataCorrupt(DataError):
    """A file is there but is not the file it should be: truncated, damaged, another version."""


class DataMismatch(DataError):
    """Files that can be read, but do not fit each other or the sizes in the configuration."""


class ArffError(DataError):
    """An ARFF file that breaks the format; the message starts with the file and the line."""


class FormatError(DataError):
    """A file of letters, words, vectors or folds that breaks its format; the message names file and line."""


class DiskFull(DataError):
    """There is no room to write a file."""


def short(text: str) -> str:
    """What a file says, cut to what fits into a message."""
    return f"{text[:LONGEST]}..." if len(text) > LONGEST else text


def quoted(text: str | bytes) -> str:
    """The same in quotes."""
    return repr(short(text.decode(errors="replace") if isinstance(text, bytes) else text))
