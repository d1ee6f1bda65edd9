"""The loops of the compiled chain: plain numba over real positions packed one after another.

A sum is taken in a loop that writes no array. In a loop that writes one, LLVM uses vectors or single numbers
by how near the arrays lie in memory, and the two add in another order: equal scores would not give equal
bits.

Each takes a range of sequences, so that threads can share a batch. Arrays are C-contiguous; scores are
float32 or float64, and so is the state, in rows padded from S tags to a width P.

Shapes: B sequences, T positions, N real positions of the batch, S tags, P padded tags.
"""

import math
from typing import Any, no_type_check

import numpy as np
from numba import njit

from inference.chain.kernels.problem import LARGE, MARGIN
from inference.chain.kernels.vector_math import exponential, largest
from inference.chain.kernels.vector_product import sum_product

Array = np.ndarray[Any, Any]
LOOSE = {"contract", "reassoc", "nsz", "arcp"}  # sums may be reordered; NaN and infinities keep their meaning
loop = njit(cache=True, nogil=True, fastmath=LOOSE, error_model="numpy")


@loop
@no_type_check
def pack(mask: Array, examples: int, length: int) -> tuple[Array, Array]:
    """Real positions, b * T + t each, sequence after sequence (N,), and where each begins (B + 1,)."""
    tokens, offsets = np.empty(examples * length, np.int64), np.zeros(examples + 1, np.int64)
    whole = mask.size == 0
    n = 0
    for b in range(examples):
        for t in range(length):
            if whole or mask[b, t]:
                tokens[n] = b * length + t
                n += 1
        offsets[b + 1] = n
    return tokens[:n], offsets


@loop
@no_type_check
def tabulate(pairwise: Array, width: int, cut: float) -> tuple[Array, Array, Array]:
    """exp(pairwise - top) as a flat matrix (P * P,), its transpose, and facts: top, deepest, kept, dropped.

    Gaps to the top below -cut become 0 in the matrix; of the gaps, `deepest` is the least of all, `kept` the
    least that was kept, and `dropped` the greatest that was not.
    """
    size = len(pairwise)
    table, transposed = np.zeros(width * width, pairwise.dtype), np.zeros(width * width, pairwise.dtype)
    top = -np.inf
    for i in range(size):
        for j in range(size):
            top = max(top, pairwise[i, j])
    deepest, kept, dropped = 0.0, 0.0, -np.inf
    for i in range(size):
        for j in range(size):
            gap = pairwise[i, j] - pairwise.dtype.type(top)
            deepest = min(deepest, gap)
            if gap < -cut:
                dropped = max(dropped, gap)
            else:  # NaN too
                kept = min(kept, gap)
                table[i * width + j] = exponential(gap)
                transposed[j * width + i] = table[i * width + j]
    facts = np.empty(4)
    facts[0], facts[1], facts[2], facts[3] = top, deepest, kept, dropped
    return table, transposed, facts


@loop
@no_type_check
def score_tags(
    unary: Array, pairwise: Array, ends: Array, chain: tuple[Array, Array], tags: Array, scores: Array
) -> bool:
    """F(tags), taken off the scores (B,); False, and nonsense, where a tag is none."""
    tokens, offsets = chain
    size = unary.shape[1]
    for b in range(len(offsets) - 1):
        total, before = 0.0, -1
        for n in range(offsets[b], offsets[b + 1]):
            tag = tags[tokens[n]]
            if tag < 0 or tag >= size:
                return False
            total += unary[tokens[n], tag]
            total += ends[0, tag] if before < 0 else pairwise[before, tag]
            before = tag
        if before >= 0:
            total += ends[1, before]
        scores[b] -= total
    return True


@loop
@no_type_check
def weights(x: Array, p: Array, deepest: Array, cut: float) -> float:
    """exp(x - top) into p, and top. The deepest gap to a top stays on record; beyond -cut, p is 0."""
    top, floor, zero = largest(x), x.dtype.type(-cut), x.dtype.type(0)
    for j in range(len(x)):
        gap = x[j] - top
        deepest[j] = gap if gap < deepest[j] else deepest[j]
        p[j] = zero if gap < floor else exponential(gap)
    return top


@loop
@no_type_check
def step(p: Array, q: Array, scale: float, is_first: bool) -> float:
    """P times what the position before predicts, scale * q; what that adds up to."""
    total = p.dtype.type(0)
    if is_first:
        for j in range(len(p)):
            q[j] = 1
        for j in range(len(p)):
            total += p[j]
    else:
        for j in range(len(p)):
            p[j] *= q[j] * scale
        for j in range(len(p)):
            total += p[j]
    return total


@loop
@no_type_check
def forward(
    unary: Array,
    ends: Array,
    chain: tuple[Array, Array],
    tables: tuple[Array, Array, Array],
    limits: Array,
    state: tuple[Array, Array, Array, Array],
    span: tuple[int, int],
) -> None:
    """The forward sweep: log Z (B,), safe (B,), and probabilities of tags up to a factor a position.

    `limits` are `inference.chain.kernels.problem.Limits` and what `largest_safe_size` says of the table.

    alpha (N, P) are given all scores so far, ahead (N, P) those before the position. The factor is the sum of
    alpha: it divides one position later, so that no product waits for a sum.
    """
    (tokens, offsets), (table, _, facts), (log_z, safe, alpha, ahead) = chain, tables, state
    size, width = unary.shape[1], alpha.shape[1]
    rows = (size + 3) // 4 * 4
    x, deepest, one = np.empty(width, unary.dtype), np.empty(width, unary.dtype), unary.dtype.type(1)
    sums = np.empty(size)
    for j in range(width):
        x[j] = -np.inf
    for b in range(span[0], span[1]):
        lo, hi = offsets[b], offsets[b + 1]
        for j in range(width):
            deepest[j] = 0
        shift, weight, product, scale = 0.0, 0.0, 1.0, one
        for n in range(lo, hi):
            load(unary[tokens[n]], ends, n == lo, n == hi - 1, x)
            if n == lo or n == hi - 1:
                shift += make_exact(unary[tokens[n]], ends, n == lo, n == hi - 1, x, sums)
            shift += weights(x, alpha[n], deepest, limits[0])
            if n > lo:
                shift += facts[0]
                sum_product(ahead, n * width, alpha, (n - 1) * width, table, rows, width)
            total = step(alpha[n], ahead[n], scale, n == lo)
            scale = one / total
            product *= total
            if not 1e-20 < product < 1e20:  # one logarithm for many positions
                weight += math.log(product)
                product = 1.0
        weight += math.log(product)
        log_z[b] = shift + weight
        gap = 0.0
        for s in range(size):
            gap = min(gap, deepest[s])
        safe[b] = -np.inf < log_z[b] < np.inf
        whole = min(gap, facts[1]) >= -limits[0] and -facts[1] - gap < limits[1]
        if hi > lo and not whole and (hi - lo) * size > limits[3]:
            safe[b] = safe[b] and inspect(unary, ends, tokens[lo:hi], alpha[lo:hi], weight, facts, limits)


@loop
@no_type_check
def inspect(
    unary: Array, ends: Array, tokens: Array, alpha: Array, weight: float, facts: Array, limits: Array
) -> bool:
    """Whether one sequence is safe by the second argument of `inference.chain.kernels.problem.Limits`."""
    size, last = unary.shape[1], len(tokens) - 1
    x, sums, dropped, kept, least = np.empty(size, unary.dtype), np.empty(size), facts[3], 0.0, 1.0
    for n in range(len(tokens)):
        load(unary[tokens[n]], ends, n == 0, n == last, x)
        if n == 0 or n == last:
            make_exact(unary[tokens[n]], ends, n == 0, n == last, x, sums)
        top = largest(x)
        for s in range(size):
            gap = x[s] - top
            if gap < -limits[0]:
                dropped = max(dropped, gap)
            else:
                kept = min(kept, gap)
            if alpha[n, s] > 0:
                least = min(least, alpha[n, s])
    spread = -facts[2] - kept
    return spread - math.log(least) < limits[2] and weight > dropped + len(tokens) * math.log(size) + MARGIN


@loop
@no_type_check
def load(scores: Array, ends: Array, is_first: bool, is_last: bool, x: Array) -> None:
    """The scores of one position, those of the ends included, into the padded x."""
    for s in range(len(scores)):
        x[s] = scores[s]
    if is_first:
        for s in range(len(scores)):
            x[s] += ends[0, s]
    if is_last:
        for s in range(len(scores)):
            x[s] += ends[1, s]


@loop
@no_type_check
def make_exact(scores: Array, ends: Array, is_first: bool, is_last: bool, x: Array, sums: Array) -> float:
    """Where sums at an end are large, add again in float64, less the greatest, which is given back."""
    if abs(largest(x)) <= LARGE:
        return 0.0
    load(scores, ends, is_first, is_last, sums)
    top = largest(sums)
    for s in range(len(scores)):
        x[s] = sums[s] - top
    return top


@loop
@no_type_check
def backward(
    rows_weight: Array,
    chain: tuple[Array, Array],
    tables: tuple[Array, Array, Array],
    state: tuple[Array, Array, Array, Array],
    tags: Array,
    out: tuple[Array, Array, Array, Array],
    span: tuple[int, int],
) -> None:
    """Weighted marginals (B * T, S), less gold tags; right factors (N, P); sums at the ends; gold pairs.

    With m the marginals at a position, m / ahead is what the next position sends back, and the product of
    alpha with it times the matrix gives m one position earlier. It stays normalised by itself; the rest that
    rounding leaves is taken off one position later.
    """
    (tokens, offsets), transposed, (_, _, alpha, ahead) = chain, tables[1], state
    belief, right, ends, pairs = out
    size, width = belief.shape[1], alpha.shape[1]
    rows = (size + 3) // 4 * 4
    m, sent, q = np.empty(width, alpha.dtype), np.empty(width, alpha.dtype), np.empty(width, alpha.dtype)
    zero, one = alpha.dtype.type(0), alpha.dtype.type(1)
    for b in range(span[0], span[1]):
        lo, hi = offsets[b], offsets[b + 1]
        g, tag = rows_weight[b], -1
        for n in range(hi - 1, lo - 1, -1):
            p, back, total = alpha[n], right[n], zero
            if n == hi - 1:
                for j in range(width):
                    total += p[j]
                for j in range(width):
                    m[j], back[j] = p[j] / total, 0
                rest = zero
            else:
                sum_product(q, 0, sent, 0, transposed, rows, width)
                for j in range(width):
                    m[j] = p[j] * q[j] * (one - rest) if p[j] > 0 else zero
                    back[j] = g * sent[j]
                for j in range(width):
                    total += m[j]
                rest = total - one
            here = belief[tokens[n]]
            for s in range(size):
                here[s] = g * m[s]
            if tags.size:
                after, tag = tag, tags[tokens[n]]
                here[tag] -= g
                if after >= 0:
                    pairs[tag, after] -= g
            predicted = ahead[n]
            for j in range(width):
                sent[j] = m[j] / predicted[j] if predicted[j] > 0 else zero
        if hi > lo:
            for s in range(size):
                ends[0, s] += belief[tokens[lo], s]
                ends[1, s] += belief[tokens[hi - 1], s]
