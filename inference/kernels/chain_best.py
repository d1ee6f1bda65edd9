"""Viterbi of the compiled chain.

Shapes: B sequences, T positions, S tags, P padded tags.
"""

from typing import no_type_check

import numpy as np

from inference.kernels.chain_loops import Array, load, loop
from inference.kernels.vector_math import largest
from inference.kernels.vector_product import max_sum


@loop
@no_type_check
def pad(pairwise: Array, width: int) -> tuple[Array, Array, bool]:
    """The pairwise scores and their transpose as flat tables (P * P,), -inf where padded; any NaN or +inf."""
    size, bad = len(pairwise), False
    table, transposed = np.empty(width * width, pairwise.dtype), np.empty(width * width, pairwise.dtype)
    for i in range(width * width):
        table[i] = transposed[i] = -np.inf
    for i in range(size):
        for j in range(size):
            table[i * width + j] = transposed[j * width + i] = pairwise[i, j]
            bad |= not pairwise[i, j] < np.inf
    return table, transposed, bad


@loop
@no_type_check
def best(
    unary: Array,
    ends: Array,
    chain: tuple[Array, Array],
    tables: tuple[Array, Array, bool],
    out: tuple[Array, Array],
    span: tuple[int, int],
) -> None:
    """Viterbi: tags (B * T,) and scores (B,), NaN where a score is NaN or +inf.

    Only scores are kept. The back trace looks again for the argmax, in the one column that it needs.
    """
    (tokens, offsets), (table, transposed, spoilt), (tags, scores) = chain, tables, out
    size = unary.shape[1]
    width = (size + 15) // 16 * 16
    rows = (size + 3) // 4 * 4
    longest = 0
    for b in range(span[0], span[1]):
        longest = max(longest, offsets[b + 1] - offsets[b])
    a, x = np.empty(longest * width, unary.dtype), np.empty(width, unary.dtype)
    zero = unary.dtype.type(0)
    for j in range(width):
        x[j] = -np.inf
    for b in range(span[0], span[1]):
        lo, hi = offsets[b], offsets[b + 1]
        bad = spoilt
        for n in range(lo, hi):
            load(unary[tokens[n]], ends, n == lo, n == hi - 1, x)
            here = (n - lo) * width
            if n > lo:
                max_sum(a, here, a, here - width, table, rows, width)
            for j in range(width):
                bad |= not x[j] < np.inf
                a[here + j] = x[j] + (a[here + j] if n > lo else zero)
        tag, top = -1, zero
        for n in range(hi - 1, lo - 1, -1):
            here = (n - lo) * width
            for j in range(width):
                x[j] = a[here + j] + (transposed[tag * width + j] if tag >= 0 else zero)
            best_here = largest(x)
            top = best_here if tag < 0 else top
            tag = 0
            while tag < size - 1 and x[tag] < best_here:
                tag += 1
            tags[tokens[n]] = tag
        scores[b] = np.nan if bad else top
