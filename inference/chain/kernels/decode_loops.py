"""Viterbi of the compiled chain.

Shapes: B sequences, T positions, S tags, P padded tags.
"""

from typing import no_type_check

import numpy as np

from inference.chain.kernels.loops import Array, loop
from inference.chain.kernels.vector_math import largest
from inference.chain.kernels.vector_product import max_sum


@loop
@no_type_check
def pad(pairwise: Array, width: int) -> tuple[Array, Array, bool]:
    """The pairwise scores and their transpose as matrices (P, P), -inf where padded; any NaN or +inf."""
    size, bad = len(pairwise), False
    table, transposed = np.empty((width, width), pairwise.dtype), np.empty((width, width), pairwise.dtype)
    for i in range(width):
        for j in range(width):
            table[i, j] = transposed[i, j] = -np.inf
    for i in range(size):
        for j in range(size):
            table[i, j] = transposed[j, i] = pairwise[i, j]
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
    size, width = unary.shape[1], len(table)
    rows = (size + 3) // 4 * 4
    longest = 1
    for b in range(span[0], span[1]):
        longest = max(longest, offsets[b + 1] - offsets[b])
    spoilt_ends = is_bad(ends[0]) or is_bad(ends[1])
    a = np.empty((longest, width), unary.dtype)
    a[0] = -np.inf
    for b in range(span[0], span[1]):
        lo, hi = offsets[b], offsets[b + 1]
        bad = (spoilt and hi > lo + 1) or (spoilt_ends and hi > lo)
        for n in range(lo, hi):
            if n == lo:
                a[0, :size] = ends[0]
            else:
                max_sum(a, (n - lo) * width, a, (n - lo - 1) * width, table, rows, width)
            add(a[n - lo], unary[tokens[n]])
            bad |= is_bad(unary[tokens[n]])
        tag, top = 0, unary.dtype.type(0)
        for n in range(hi - 1, lo - 1, -1):
            before = a[n - lo]
            if n == hi - 1:
                add(before, ends[1])
                top = largest(before)
                tag = find(before, top)
            else:
                add(before, transposed[tag])
                tag = find(before, largest(before))
            tags[tokens[n]] = tag
        scores[b] = np.nan if bad else top


@loop
@no_type_check
def add(a: Array, scores: Array) -> None:
    """Add scores to the first numbers of a."""
    for j in range(len(scores)):
        a[j] += scores[j]


@loop
@no_type_check
def is_bad(scores: Array) -> bool:
    """Whether there is NaN or +inf."""
    bad = 0
    for j in range(len(scores)):
        bad |= not scores[j] < np.inf
    return bad != 0


@loop
@no_type_check
def find(x: Array, value: float) -> int:
    """Where a value first occurs."""
    for j in range(len(x)):
        if x[j] == value:
            return j
    return 0
