"""From the columns of an ARFF file to the input of a network: nominal values, missing values, scale.

Shapes: N rows, D columns.
"""

from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array

from datamodules.readers.arff_header import Attribute

Matrix: TypeAlias = np.ndarray | csr_array
POSITIVE = {"1", "yes", "y", "true", "t", "on", "positive", "present"}


def released(x: Matrix, features: tuple[Attribute, ...], _known: int) -> Matrix:
    """Nominal values, identifiers too, by their index in the declaration: {YES, NO} gives YES 0, NO 1."""
    return x


def one_hot(x: Matrix, features: tuple[Attribute, ...], _known: int) -> Matrix:
    """A column for each value of each nominal attribute."""
    if all(attribute.values is None for attribute in features):
        return x
    x = dense(x)
    return np.concatenate([_indicators(x[:, i], attribute) for i, attribute in enumerate(features)], axis=1)


def clean(x: Matrix, features: tuple[Attribute, ...], known: int) -> Matrix:
    """Identifiers dropped; of two values YES, true or 1 is 1 and the other 0; a column each for more values.

    An identifier is a nominal attribute of more than two values that differs in each of the first
    `known` rows.
    """
    if all(attribute.values in (None, ("0", "1")) for attribute in features):
        return x
    x = dense(x)
    columns = []
    for i, attribute in enumerate(features):
        values, column = attribute.values, x[:, i]
        if values is None:
            columns.append(column[:, None])
        elif len(values) <= 2:
            columns.append((1 - column if _is_positive(values[0]) else column)[:, None])
        elif len(np.unique(column[:known])) < known:
            columns.append(_indicators(column, attribute))
    return np.concatenate(columns, axis=1)


ENCODINGS = {"released": released, "clean": clean, "one_hot": one_hot}


class Filler:
    """Fills missing cells with the column's mean, and scales columns; fitted on rows x.

    `scale`: "range" makes each column's lowest value 0 and its highest 1, "standard" its mean 0 and its
    variance 1; None leaves it. A column that is constant keeps its values.
    """

    def __init__(self, x: Matrix, *, scale: str | None = None) -> None:
        if isinstance(x, csr_array) and np.isnan(x.data).any():
            x = dense(x)
        self.mean = _mean(x)
        self.line = None if scale is None else _range(x) if scale == "range" else _spread(x, self.mean)

    def __call__(self, x: Matrix) -> np.ndarray:
        """The rows, dense, with nothing missing. A dense argument may be changed in place."""
        x = dense(x)
        rows, columns = np.nonzero(np.isnan(x))
        x[rows, columns] = self.mean[columns]
        if self.line:
            origin, unit = self.line
            x -= origin
            x /= unit
        return x


def dense(x: Matrix) -> np.ndarray:
    """The matrix as an array."""
    return x.toarray() if isinstance(x, csr_array) else x


def _is_positive(value: str) -> bool:
    return value.casefold() in POSITIVE


def _indicators(column: np.ndarray, attribute: Attribute) -> np.ndarray:
    """(N, number of values); a missing value is missing in each of them. A numeric column stays as it is."""
    if attribute.values is None:
        return column[:, None]
    block = (column[:, None] == np.arange(len(attribute.values))).astype(np.float32)
    block[np.isnan(column)] = np.nan
    return block


def _mean(x: Matrix) -> np.ndarray:
    if isinstance(x, csr_array):
        return np.asarray(x.mean(axis=0), np.float32).ravel()
    present = ~np.isnan(x)
    return (np.where(present, x, 0).sum(0) / np.maximum(present.sum(0), 1)).astype(np.float32)


def _range(x: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Lowest value and span of each column; 0 and 1 where it is constant, so that it stays as it is."""
    if isinstance(x, csr_array):
        low, high = x.min(axis=0).toarray().ravel(), x.max(axis=0).toarray().ravel()
    else:
        low, high = np.nan_to_num(np.fmin.reduce(x)), np.nan_to_num(np.fmax.reduce(x))
    varies = high > low
    return np.where(varies, low, 0), np.where(varies, high - low, 1)


def _spread(x: Matrix, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column's present cells; 0 and 1 where it is constant."""
    distance = np.nan_to_num(dense(x) - mean.astype(np.float64))
    present = np.maximum((~np.isnan(dense(x))).sum(0), 1)
    deviation = np.sqrt((distance**2).sum(0) / present).astype(np.float32)
    varies = deviation > 1e-6
    return np.where(varies, mean, 0), np.where(varies, deviation, 1)
