"""Multi-label svmlight files: a line has the labels `3,17`, then `column:value` for what is not 0.

Shapes: N rows, D features, L labels.
"""

import re

import numpy as np
from scipy.sparse import csr_array

from datamodules.errors import FormatError, quoted
from datamodules.readers.arff import ArffTable
from datamodules.readers.arff_header import Attribute
from datamodules.readers.arff_rows import LARGEST


def read_svmlight(content: bytes, *, where: str, num_features: int, num_labels: int) -> ArffTable:
    """Features x (N, D) float32, sparse, and label sets y (N, L); columns count from 1, labels from 0.

    Empty lines at the end, and lines of a comment alone, are no rows; a comment begins with #.

    Raises:
        FormatError: no row; or a line has another form, a column or label beyond the given sizes, or columns
            that do not ascend. The message names the line.
    """
    text = re.split(r"\r?\n", content.decode("utf-8-sig", errors="replace"))
    lines = {n: line for n, line in enumerate(text, 1) if not line.lstrip().startswith("#")}
    last = max((n for n, line in lines.items() if line.strip()), default=0)
    lines = {n: line for n, line in lines.items() if n <= last}
    if not lines:
        raise FormatError(f"{where} has no row. Give a file with rows of labels and column:value.")
    y = np.zeros((len(lines), num_labels), np.uint8)
    values: list[float] = []
    columns: list[int] = []
    ends = [0]
    for row, (number, line) in enumerate(lines.items()):
        try:
            labels, cells = _parsed(line.partition("#")[0], num_features, num_labels)
        except ValueError as error:
            raise FormatError(
                f"{where}, line {number}: {quoted(line)} has to be labels from 0 to {num_labels - 1}, then "
                f"column:value with columns that ascend from 1 to {num_features} ({error})."
            ) from None
        y[row, labels] = 1
        columns += cells
        values += cells.values()
        ends.append(len(columns))
    x = csr_array(
        (np.array(values, np.float32), np.array(columns, np.int64), np.array(ends, np.int64)),
        shape=(len(lines), num_features),
    )
    return ArffTable(
        tuple(Attribute(str(column)) for column in range(1, num_features + 1)),
        tuple(str(label) for label in range(num_labels)),
        x,
        y,
    )


def _parsed(line: str, num_features: int, num_labels: int) -> tuple[list[int], dict[int, float]]:
    """The labels of a line, and the values by column counted from 0."""
    head, _, rest = line.partition(" ")
    labels = [int(label) for label in head.split(",")] if head else []
    cells: dict[int, float] = {}
    last = 0
    for cell in rest.split():
        column, _, value = cell.partition(":")
        place = int(column)
        if not last < place <= num_features:
            raise ValueError(f"column {place}")
        cells[place - 1], last = float(value), place
    if not all(0 <= label < num_labels for label in labels):
        raise ValueError("label")
    if not all(abs(value) <= LARGEST for value in cells.values()):
        raise ValueError(f"a value that is no number up to {LARGEST:.1e}, beyond which squares overflow")
    return labels, cells
