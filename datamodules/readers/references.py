"""References without tags: one a line, a source, a tab and the text."""

import re
from collections.abc import Iterator

from datamodules.errors import FormatError, bad_line, not_utf8, quoted

TOKEN = re.compile(r"\w+|[^\w\s]")


def tokens_of(text: str) -> list[str]:
    r"""Maximal runs of word characters, and single other characters: `\w+|[^\w\s]`."""
    return TOKEN.findall(text)


def read_references(content: bytes, *, where: str) -> list[list[str]]:
    """The tokens of each reference, in the order of the file; empty lines are skipped.

    Raises:
        FormatError: with the line: not UTF-8, no tab, a reference without a token; or the file has none.
    """
    found = [_reference(line, where, number) for number, line in _lines(content)]
    if not found:
        raise FormatError(f"{where}: the file has no reference. Is it truncated?")
    return found


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return ((number, line.rstrip(b"\r")) for number, line in enumerate(lines, 1) if line.strip())


def _reference(line: bytes, where: str, number: int) -> list[str]:
    try:
        _, tab, text = line.decode().partition("\t")
    except UnicodeDecodeError:
        raise not_utf8(where, number) from None
    if not tab:
        raise bad_line(where, number, f"no tab between the source and the reference: {quoted(line)}")
    tokens = tokens_of(text)
    if not tokens:
        raise FormatError(
            f"{where}, line {number}: the reference is empty. Write one after the tab, or delete this line."
        )
    return tokens
