"""The rows of an ARFF file as one matrix.

Rows are parsed in blocks by built-ins that loop in C. A block that does not parse is halved again and again,
which finds the line to name in the error.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, compress

import numpy as np
from scipy.sparse import csr_array

from datamodules.errors import ArffError, quoted, short
from datamodules.readers.arff_header import QUOTED, Attribute, Bad, Header, split_cells, unquote

CELLS_OF_A_BLOCK = 1_000_000
LARGEST = float(np.finfo(np.float32).max) ** 0.5  # its square is still a number of a network
TOKEN = re.compile(rf"{QUOTED}|,|[^\s,]+")


@dataclass(frozen=True)
class Rows:
    """All attributes as numbers, values (N, attributes) float32; a row's line; its Clus classes, if any."""

    values: np.ndarray | csr_array
    lines: np.ndarray
    classes: list[str]


def read_rows(lines: list[str], header: Header, where: str) -> Rows:
    """Parse all rows below the header."""
    first = header.first_row
    kept = [i for i in range(first, len(lines)) if (row := lines[i].strip()) and row[0] != "%"]
    if not kept:
        raise ArffError(f"{where}, line {first}: there are no rows after it. Is the file truncated?")
    rows = [lines[i].strip() for i in kept]
    numbers = np.array(kept) + 1
    sparse = rows[0].startswith("{")
    if sparse and header.hierarchy is not None:
        raise ArffError(
            f"{where}, line {numbers[0]}: sparse rows with a hierarchical class are not supported."
        )
    reader = _SparseRows(header.attributes) if sparse else _DenseRows(header)
    # A file has about as many cells in a row as commas in its first rows.
    commas = sum(row.count(",") for row in rows[:100]) // len(rows[:100])
    step = max(1, CELLS_OF_A_BLOCK // (commas + 1))
    for start in range(0, len(rows), step):
        _parse(reader.take, rows[start : start + step], numbers[start : start + step], where)
    return Rows(reader.matrix(), numbers, reader.classes)


def _parse(take: Callable[[list[str]], None], rows: list[str], numbers: np.ndarray, where: str) -> None:
    """Parse the rows, all or none; an error names the first line that fails alone."""
    try:
        take(rows)
    except Bad as error:
        if len(rows) == 1:
            raise ArffError(f"{where}, line {numbers[0]}: {error}. Correct or drop this row.") from None
        half = len(rows) // 2
        for part in (slice(half), slice(half, None)):
            _parse(take, rows[part], numbers[part], where)


class _DenseRows:
    """Rows of the form v, v, v."""

    def __init__(self, header: Header) -> None:
        self.attributes, self.hierarchy = header.attributes, header.hierarchy
        self.blocks: list[np.ndarray] = []
        self.classes: list[str] = []

    def take(self, rows: list[str]) -> None:
        width = len(self.attributes)
        quoted = any("'" in row or '"' in row for row in rows)
        table = [split_cells(row) if quoted else row.split(",") for row in rows]
        for row, cells in zip(rows, table, strict=True):
            if len(cells) != width:
                raise Bad(
                    "a sparse row among dense ones"
                    if row.startswith("{")
                    else f"{len(cells)} values, but the header declares {width} attributes"
                )
        block = np.zeros((len(rows), width), np.float32)
        columns = list(zip(*table, strict=True))
        for i, attribute in enumerate(self.attributes):
            if i != self.hierarchy:
                block[:, i] = _values(attribute, columns[i])
        self.blocks.append(block)
        if self.hierarchy is not None:
            self.classes += [cell.strip() for cell in columns[self.hierarchy]]

    def matrix(self) -> np.ndarray:
        return np.concatenate(self.blocks)


class _SparseRows:
    """Rows of the form {index value, index value}; what a row leaves out is 0 or the first nominal value."""

    def __init__(self, attributes: Sequence[Attribute]) -> None:
        self.attributes = attributes
        kinds: dict[tuple[str, ...] | None, int] = {}
        self.kind = np.array(
            [kinds.setdefault(attribute.values, i) for i, attribute in enumerate(attributes)]
        )
        self.blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.classes: list[str] = []

    def take(self, rows: list[str]) -> None:
        tokens, counts = self._tokens(rows)
        columns = self._columns(tokens[0::3])
        self._refuse_repeats(columns, counts)
        values = np.zeros(len(columns), np.float32)
        kinds = (
            self.kind[columns] if len(rows) > 1 else columns
        )  # alone, so that an error names the attribute
        for kind in np.unique(kinds):
            here = kinds == kind
            values[here] = _values(self.attributes[kind], list(compress(tokens[1::3], here)))
        self.blocks.append((counts, columns, values))

    def matrix(self) -> csr_array:
        counts, columns, values = (np.concatenate(parts) for parts in zip(*self.blocks, strict=True))
        pointer = np.concatenate([[0], np.cumsum(counts)])
        matrix = csr_array((values, columns.astype(np.int32), pointer), (len(counts), len(self.attributes)))
        matrix.eliminate_zeros()
        return matrix

    def _tokens(self, rows: list[str]) -> tuple[list[str], np.ndarray]:
        """index, value, comma, index, value, comma, ... and how many pairs each row has."""
        for row in rows:
            if row[0] != "{" or row[-1] != "}":
                raise Bad(
                    "a sparse row is written {index value, index value}; this one is not, or is cut off"
                )
        inner = [row[1:-1].strip() for row in rows]
        if any("'" in row or '"' in row for row in inner):
            each = [TOKEN.findall(row) for row in inner]
            counts = np.array([row.count(",") + 1 if row else 0 for row in each])
            tokens = [unquote(token) for token in chain(*([*row, ","] for row in each if row))]
        else:
            counts = np.array([row.count(",") + 1 if row else 0 for row in inner])
            tokens = "".join(f"{row}," for row in inner if row).replace(",", " , ").split()
        if len(tokens) != 3 * counts.sum() or set(tokens[2::3]) - {","}:
            raise Bad(
                "a sparse row holds pairs of an attribute's index and its value, with commas between them"
            )
        return tokens, counts

    def _columns(self, tokens: list[str]) -> np.ndarray:
        if "_" in "".join(tokens):
            raise Bad("an attribute's index is not a whole number")
        try:
            columns = np.array(list(map(int, tokens)), np.int64)
        except (ValueError, OverflowError):
            raise Bad("an attribute's index is not a whole number") from None
        wrong = (columns < 0) | (columns >= len(self.attributes))
        if wrong.any():
            worst, last = columns[wrong][0], len(self.attributes) - 1
            raise Bad(f"there is no attribute {worst}: the header declares 0 to {last}")
        return columns

    def _refuse_repeats(self, columns: np.ndarray, counts: np.ndarray) -> None:
        keys = np.repeat(np.arange(len(counts)), counts) * len(self.attributes) + columns
        if (np.diff(keys) <= 0).any() and len(np.unique(keys)) < len(keys):
            raise Bad("an attribute's index comes twice in a row")


def _values(attribute: Attribute, cells: Sequence[str]) -> np.ndarray:
    """The numbers of a column's cells: all at once, or one by one if a cell is faulty."""
    try:
        if attribute.values is not None:
            return np.array(list(map(attribute.codes.__getitem__, cells)), np.float32)
        numbers = np.array(list(map(float, cells)))
        if np.all(np.abs(numbers) <= LARGEST) and "_" not in "".join(cells):
            return numbers.astype(np.float32)
    except (KeyError, ValueError):
        pass
    read = _number if attribute.values is None else _code
    return np.array([read(attribute, cell.strip()) for cell in cells], np.float32)


def _code(attribute: Attribute, cell: str) -> float:
    code = attribute.codes.get(cell)
    if code is None and cell != "?":
        raise Bad(
            f"{short(attribute.name)} is {quoted(cell)}, which is not among its values {attribute.domain}"
        )
    return np.nan if code is None else code


def _number(attribute: Attribute, cell: str) -> float:
    if cell == "?":
        return np.nan
    try:
        number = float(cell) if "_" not in cell else np.nan
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise Bad(
            f"{short(attribute.name)} is {quoted(cell)}, which is no number; ? stands for a missing value"
        )
    if abs(number) > LARGEST:
        raise Bad(
            f"{short(attribute.name)} is {quoted(cell)}, whose square overflows float32: numbers go up to "
            f"{LARGEST:.1e}, and ? stands for a missing value"
        )
    return number
