"""Texts with sets of labels: CSV, JSON lines, or a file of texts beside a file of labels.

Shapes: N texts, L labels.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datamodules.errors import FormatError, bad_line, listed, not_utf8, quoted

TEXT, LABELS, BETWEEN = "text", "labels", ";"  # columns of a CSV file, and what separates names of labels


@dataclass(frozen=True)
class LabelledTexts:
    """N texts, the names of each one's labels, and the line of each in the file `where`.

    `declared` are the labels that are columns of a CSV file or that a data set names, None where only names
    of labels occur. `advice` says what to do about a wrong line, or row of a data set of the hub.
    """

    texts: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    where: str
    declared: tuple[str, ...] | None = None
    advice: str = "Correct this line."

    def indicators(self, names: Sequence[str]) -> np.ndarray:
        """The label sets (N, L) as 0 and 1, in the order of `names`.

        Raises:
            FormatError: a label is none of them; the message names the line.
        """
        column = {name: index for index, name in enumerate(names)}
        y = np.zeros((len(self.texts), len(names)), np.uint8)
        for row, (chosen, line) in enumerate(zip(self.labels, self.lines, strict=True)):
            if unknown := [name for name in chosen if name not in column]:
                reason = f"the label {quoted(unknown[0])} is none of the {len(names)}: {listed(names)}"
                raise FormatError(f"{self.where}, line {line}: {reason}. {self.advice}")
            y[row, [column[name] for name in chosen]] = 1
        return y


def read_csv(content: bytes, *, where: str, unlabelled: bool = False) -> LabelledTexts:
    """A CSV file with a header: a column `text`, then a column `labels`, or a column 0/1 for each label.

    Names in the column `labels` are separated by semicolons. Blanks around names, 0 and 1 do not count; those
    of a text stay. `unlabelled`: the column `text` may be alone.

    Raises:
        FormatError: with the line: not UTF-8, no such header, a row with another number of columns, an empty
            text, a cell that is not 0 or 1.
    """
    csv.field_size_limit(max(len(content), 1 << 17))
    rows = _rows(csv.reader(io.StringIO(_decoded(content, where), newline=""), strict=True), where)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    names = tuple(header[1:])
    if (
        len(header) < (1 if unlabelled else 2)
        or header[0] != TEXT
        or len({*header}) < len(header)
        or "" in names
    ):
        raise bad_line(
            where,
            1,
            f"the header has to be {TEXT},{LABELS} or {TEXT} and a name for each label, each once, not "
            + quoted(",".join(header)),
        )
    one_column = names == (LABELS,)
    lines, texts, labels = [], [], []
    for line, cells in rows:
        if len(cells) != len(header):
            raise bad_line(where, line, f"{len(cells)} columns, the header has {len(header)}")
        lines.append(line)
        texts.append(_text(cells[0], where, line))
        labels.append(
            split_names(cells[1], BETWEEN) if one_column else _marked(cells[1:], names, where, line)
        )
    return _read(texts, labels, lines, where, None if one_column else names)


def read_json_lines(content: bytes, *, where: str, unlabelled: bool = False) -> LabelledTexts:
    """A line {"text": "...", "labels": ["...", ...]} for each text; empty lines are skipped.

    `unlabelled`: a line may lack its labels.

    Raises:
        FormatError: with the line: not UTF-8, not such an object, an empty text.
    """
    lines, texts, labels = [], [], []
    for line, written in enumerate(_decoded(content, where).split("\n"), 1):
        if not written.strip():
            continue
        found: Any = None
        try:
            found = json.loads(written, object_pairs_hook=_each_once)
            if unlabelled:
                found.setdefault(LABELS, [])
            text, names = found[TEXT], [name.strip() for name in found[LABELS]]
            fits = isinstance(found[LABELS], list) and all(names)
            "".join([text, *names]).encode()  # half a surrogate is no character
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            fits = False
        if not fits:
            wrong = _wrong_part(found, written)
            raise bad_line(where, line, f'{wrong} is not {{"text": "...", "labels": ["...", ...]}}')
        lines.append(line)
        texts.append(_text(text, where, line))
        labels.append(tuple(names))
    return _read(texts, labels, lines, where)


def read_line_pairs(texts: bytes, labels: bytes, *, where: tuple[str, str]) -> LabelledTexts:
    """A text on each line of one file, on that line of the other its labels with blanks between.   [SGM]

    Raises:
        FormatError: not UTF-8, files of different length, an empty text; the message names file and line.
    """
    rows, sets = (_lines(content, name) for content, name in zip((texts, labels), where, strict=True))
    if len(rows) != len(sets):
        raise FormatError(
            f"{where[0]} has {len(rows):,} lines and {where[1]} has {len(sets):,}: they have to be texts and "
            "their labels line by line. Take both files from one release."
        )
    read = [_text(text, where[0], line) for line, text in enumerate(rows, 1)]
    named = [tuple(one.split()) for one in sets]
    return _read(read, named, range(1, len(rows) + 1), where[1])


def read_names(content: bytes, *, where: str) -> tuple[str, ...]:
    """Names of labels, one a line.

    Raises:
        FormatError: not UTF-8, an empty line, a name given twice.
    """
    names = tuple(name.strip() for name in _lines(content, where))
    for line, name in enumerate(names, 1):
        if not name or name in names[: line - 1]:
            raise bad_line(where, line, f"{quoted(name)} has to be the name of a label, each once")
    return names


def _rows(reader: Iterator[list[str]], where: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not empty, with the line each begins on."""
    begins = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise bad_line(where, begins, f"the row that begins here is no CSV ({error})") from None
        if cells:
            yield begins, cells
        begins = reader.line_num + 1  # type: ignore[attr-defined]  # csv's reader has no public type


def _read(
    texts: Sequence[str],
    labels: Sequence[tuple[str, ...]],
    lines: Sequence[int],
    where: str,
    declared: tuple[str, ...] | None = None,
) -> LabelledTexts:
    if not texts:
        raise FormatError(f"{where}: the file has no text. Is it truncated?")
    return LabelledTexts(tuple(texts), tuple(labels), tuple(lines), where, declared)


def _text(text: str, where: str, line: int) -> str:
    if not text.strip():
        raise bad_line(where, line, "the text is empty")
    return text


def _wrong_part(found: object, written: str) -> str:
    """What is wrong with a line of JSON: the line, its keys, or a value."""
    if not isinstance(found, dict):
        return quoted(written)
    if absent := [key for key in (TEXT, LABELS) if key not in found]:
        return f"an object without the key {absent[0]!r} (it has {listed([quoted(key) for key in found])})"
    names = found[LABELS]
    named = isinstance(names, list) and all(isinstance(name, str) and name.strip() for name in names)
    key = TEXT if named else LABELS
    return f"an object whose {key} is {quoted(json.dumps(found[key]))}"


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of a line of JSON; ValueError if a key is there twice."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def split_names(cell: str, between: str = BETWEEN) -> tuple[str, ...]:
    """The names in a cell, without blanks around them and without empty ones."""
    return tuple(name for part in cell.split(between) if (name := part.strip()))


def _marked(cells: Sequence[str], names: Sequence[str], where: str, line: int) -> tuple[str, ...]:
    """The names whose cells are 1."""
    for cell, name in zip(cells, names, strict=True):
        if cell.strip() not in ("0", "1"):
            raise bad_line(where, line, f"{quoted(cell)} in the column {name} has to be 0 or 1")
    return tuple(name for cell, name in zip(cells, names, strict=True) if cell.strip() == "1")


def _lines(content: bytes, where: str) -> list[str]:
    """The lines of a file, whether or not the last one ends."""
    lines = [line.removesuffix("\r") for line in _decoded(content, where).split("\n")]
    return lines[:-1] if lines and not lines[-1] else lines


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        for line, part in enumerate(content.split(b"\n"), 1):
            try:
                part.decode("utf-8-sig")
            except UnicodeDecodeError:
                raise not_utf8(where, line) from None
        raise AssertionError("some line could not be decoded") from None
