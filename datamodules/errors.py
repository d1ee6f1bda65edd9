"""What can be wrong with data, told to a person: what, where, and what to do next."""


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
    """A file of letters, of words or of vectors that breaks its format; the message names file and line."""


class DiskFull(DataError):
    """There is no room to write a file."""
