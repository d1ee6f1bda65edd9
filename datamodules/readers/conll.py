"""Column files of tagged sentences: one token a line, blanks between columns, an empty line after a sentence.

Shapes: N sentences; columns hold the tokens of all sentences, one after the other.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, compress

import numpy as np

from datamodules.errors import FormatError, bad_line, listed, not_utf8, quoted


@dataclass(frozen=True)
class Sentences:
    """Columns of tokens, sentence after sentence, and the number of tokens of each sentence, lengths (N,)."""

    columns: tuple[tuple[str, ...], ...]
    lengths: np.ndarray

    def without(self, word: str) -> "Sentences":
        """The same without the tokens of this word in the first column; no sentence is left empty."""
        keep = np.array([name != word for name in self.columns[0]], bool)
        lengths = np.bincount(np.repeat(np.arange(len(self.lengths)), self.lengths)[keep])
        columns = tuple(tuple(compress(column, keep)) for column in self.columns)
        return Sentences(columns, lengths[lengths > 0])

    def digest(self) -> str:
        """A sha256 of all tokens and lengths."""
        columns = "\n".join(" ".join(column) for column in self.columns)
        return sha256(columns.encode() + self.lengths.astype("<i8").tobytes()).hexdigest()


def read_sentences(
    content: bytes, *, where: str, num_columns: int = 3, tags: Collection[str] = (), may_lack: int = 0
) -> Sentences:
    """Read a file; Windows line ends are accepted, and several empty lines count as one.

    Args:
        content: the file's bytes.
        where: the file's name, for the errors.
        num_columns: how many columns each token has.
        tags: what the last column may hold; left out, anything.
        may_lack: how many of its last columns a token may lack; they are then empty, and so is its tag.

    Raises:
        FormatError: with the line: a column too few or too many, a tag that is none of `tags`, no text.
    """
    rows = [line.split() for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    for number, row in enumerate(rows, 1):
        if row and (lacking := num_columns - len(row)) <= may_lack:
            row += [b""] * lacking
        if row and len(row) != num_columns:
            raise bad_line(
                where, number, f"{len(row)} columns, a token has {num_columns}: {quoted(b' '.join(row))}"
            )
    tokens = [row for row in rows if row]
    if not tokens:
        raise FormatError(f"{where}: the file has no token. Is it truncated?")
    try:
        columns = tuple(tuple(map(bytes.decode, column)) for column in zip(*tokens, strict=True))
    except UnicodeDecodeError:
        raise not_utf8(where, _first_undecodable(rows)) from None
    known = {tag.encode() for tag in tags} | ({b""} if may_lack else set())
    if tags and (strange := [n for n, row in enumerate(rows, 1) if row and row[-1] not in known]):
        tag = quoted(rows[strange[0] - 1][-1])
        raise bad_line(where, strange[0], f"the tag {tag} is none of the {len(tags)}: {listed(tags)}")
    empty = np.flatnonzero([not row for row in [*rows, []]])
    lengths = np.diff(empty, prepend=-1) - 1
    return Sentences(columns, lengths[lengths > 0])


def joined(parts: Sequence[Sentences]) -> Sentences:
    """The sentences of several files, one file after the other."""
    columns = zip(*(part.columns for part in parts), strict=True)
    return Sentences(
        tuple(tuple(chain.from_iterable(column)) for column in columns),
        np.concatenate([part.lengths for part in parts]),
    )


def _first_undecodable(rows: list[list[bytes]]) -> int:
    for number, row in enumerate(rows, 1):
        try:
            b" ".join(row).decode()
        except UnicodeDecodeError:
            return number
    raise AssertionError("some row could not be decoded")
