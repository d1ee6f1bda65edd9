"""ARFF files of multi-label data as matrices, by the conventions of Mulan, MEKA and Clus; and CSV of numbers.

Shapes: N rows, D features, L labels.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from datamodules.errors import ArffError, quoted, short
from datamodules.readers.arff_header import Attribute, Header, read_header
from datamodules.readers.arff_rows import Rows, read_rows
from datamodules.readers.csv_cells import read_cells

ROOT_LABEL = "root"


@dataclass(frozen=True)
class ArffTable:
    """Features x (N, D) float32, as the file has them dense or sparse; answers y (N, L) uint8.

    Nominal features hold the position of their value in the declaration, missing cells NaN.
    """

    features: tuple[Attribute, ...]
    labels: tuple[str, ...]
    x: np.ndarray | csr_array
    y: np.ndarray


def read_arff(content: bytes, *, where: str, num_labels: int = 0, repeats: bool = False) -> ArffTable:
    """Read a file. The labels are the last `num_labels` attributes (Mulan), unless the relation says `-C n`.

    MEKA's `-C n` puts n labels first, `-C -n` puts them last; a Clus class attribute brings its own labels.
    `where` is the file's name, for the errors. `repeats`: attributes may share a name, as two of the
    published expr_FUN do; otherwise a repeated name is an error.
    """
    lines = _decode(content).split("\n")
    header = read_header(lines, where, repeats=repeats)
    rows = read_rows(lines, header, where)
    if header.hierarchy is not None:
        return _hierarchical(header, rows, where)
    return _parted(header, rows, num_labels, where)


def read_csv(content: bytes, *, where: str, num_labels: int) -> ArffTable:
    """Read rows of numbers below a line of names; the last `num_labels` columns are labels, 0 or 1.

    A cell that is empty or ? is missing. `where` is the file's name, for the errors.
    """
    lines, names = read_cells(_decode(content), where)
    header = Header(tuple(Attribute(name, line=1) for name in names), first_row=1)
    if not num_labels:
        raise ArffError(
            f"{where} does not say how many of its {len(header.attributes)} columns are labels, the last "
            "ones. Give --data.num_labels."
        )
    return _parted(header, read_rows(lines, header, where), num_labels, where)


def _parted(header: Header, rows: Rows, num_labels: int, where: str) -> ArffTable:
    """The columns of features and those of labels."""
    first, last = _label_columns(header, num_labels, where)
    y = _answers(header.attributes[first:last], rows, first, where)
    kept = np.r_[0:first, last : len(header.attributes)]
    x = rows.values[:, kept] if isinstance(rows.values, np.ndarray) else _columns(rows.values, first, last)
    names = tuple(attribute.name for attribute in header.attributes[first:last])
    return ArffTable(tuple(header.attributes[i] for i in kept), names, x, y)


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _label_columns(header: Header, num_labels: int, where: str) -> tuple[int, int]:
    width, declared = len(header.attributes), header.meka_labels
    if declared and num_labels and abs(declared) != num_labels:
        raise ArffError(
            f"{where}, line {header.relation_line}: the relation says -C {declared}, {abs(declared)} labels, "
            f"but num_labels is {num_labels}. Set num_labels to {abs(declared)}."
        )
    count = abs(declared) or num_labels
    if not count:
        raise ArffError(
            f"{where}: nothing says how many of the {width} attributes are labels. Give num_labels (the "
            "labels are then the last attributes), or write MEKA's -C into the relation's name."
        )
    if count >= width:
        raise ArffError(
            f"{where}: {count} labels leave no features, the file has {width} attributes. Correct num_labels."
        )
    return (0, count) if declared > 0 else (width - count, width)


def _columns(values: csr_array, first: int, last: int) -> csr_array:
    """All columns but first..last, where these are at one of the two ends."""
    return csr_array(values[:, last:] if first == 0 else values[:, :first])


def _answers(labels: tuple[Attribute, ...], rows: Rows, first: int, where: str) -> np.ndarray:
    for label in labels:
        if label.values is not None and not set(label.values) <= {"0", "1"}:
            raise ArffError(
                f"{where}, line {label.line}: the label {short(label.name)} is declared {label.domain}; "
                "a label is {0,1}. Correct the declaration, or num_labels if this is a feature."
            )
    block = rows.values[:, first : first + len(labels)]
    bad = _first_beside_0_and_1(block)
    if bad is not None:
        row, column, value = bad
        raise ArffError(
            f"{where}, line {rows.lines[row]}: the label {short(labels[column].name)} is "
            f"{'missing' if np.isnan(value) else f'{value:g}'}; a label is 0 or 1. Correct or drop the row."
        )
    y = block.astype(np.uint8) if isinstance(block, np.ndarray) else block.astype(np.uint8).toarray()
    reversed_ = [i for i, label in enumerate(labels) if label.values is not None and label.values[0] == "1"]
    y[:, reversed_] = 1 - y[:, reversed_]  # declared {1,0}: the index of "0" is 1
    return y


def _first_beside_0_and_1(block: np.ndarray | csr_array) -> tuple[int, int, float] | None:
    if isinstance(block, np.ndarray):
        rows, columns = np.nonzero((block != 0) & (block != 1))
        return (int(rows[0]), int(columns[0]), float(block[rows[0], columns[0]])) if len(rows) else None
    entries = np.flatnonzero((block.data != 0) & (block.data != 1))
    if not len(entries):
        return None
    row = int(np.searchsorted(block.indptr, entries[0], side="right")) - 1
    return row, int(block.indices[entries[0]]), float(block.data[entries[0]])


def _hierarchical(header: Header, rows: Rows, where: str) -> ArffTable:
    """Each row has its classes, all their ancestors, and the label `root`."""
    assert header.hierarchy is not None and isinstance(rows.values, np.ndarray)
    declared = header.attributes[header.hierarchy].values or ()
    names = [ROOT_LABEL, *dict.fromkeys(above for name in declared for above in _lineage(name))]
    place = {name: i for i, name in enumerate(names)}
    y = np.zeros((len(rows.lines), len(names)), np.uint8)
    y[:, 0] = 1
    known = set(declared)
    for row, classes in enumerate(rows.classes):
        for name in classes.split("@"):
            if name not in known:
                raise ArffError(
                    f"{where}, line {rows.lines[row]}: the class {quoted(name)} is not among the "
                    f"{len(known)} that the header declares. Correct the row or the declaration."
                )
            y[row, [place[above] for above in _lineage(name)]] = 1
    kept = [i for i in range(len(header.attributes)) if i != header.hierarchy]
    return ArffTable(tuple(header.attributes[i] for i in kept), tuple(names), rows.values[:, kept], y)


def _lineage(name: str) -> list[str]:
    """A class and its ancestors, the highest first: 01/02/03 is below 01/02 and 01."""
    levels = name.split("/")
    return ["/".join(levels[:depth]) for depth in range(1, len(levels) + 1)]
