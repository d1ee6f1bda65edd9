"""How the loops of the compiled chain change along a direction of its scores: second derivatives.

Shapes: B sequences, T positions, N real positions of the batch, S tags, P padded tags.
"""

from typing import no_type_check

import numpy as np

from inference.chain.kernels.loops import Array, load, loop
from inference.chain.kernels.vector_product import sum_product


@loop
@no_type_check
def push(
    direction: Array,
    ends: Array,
    chain: tuple[Array, Array],
    tables: tuple[Array, Array, Array],
    d_tables: tuple[Array, Array],
    state: tuple[Array, Array, Array, Array],
    tangents: tuple[Array, Array, Array],
    span: tuple[int, int],
) -> None:
    """How `forward` changes along a direction: derivatives of log Z (B,), of alpha and of ahead (N, P).

    What scales alpha is held fixed: a tag that no answer leads to along which something changes stays at 0
    exactly, however steep the direction is elsewhere.

    `d_tables` are the matrix and its transpose times the direction of the pairwise scores, or empty for 0.
    """
    (tokens, offsets), table, (_, _, alpha, ahead) = chain, tables[0], state
    d_log_z, d_alpha, d_ahead = tangents
    size, width = direction.shape[1], alpha.shape[1]
    rows = (size + 3) // 4 * 4
    x, extra = np.zeros(width, alpha.dtype), np.zeros(width, alpha.dtype)
    zero = alpha.dtype.type(0)
    for b in range(span[0], span[1]):
        lo, hi = offsets[b], offsets[b + 1]
        for n in range(lo, hi):
            load(direction[tokens[n]], ends, n == lo, n == hi - 1, x)
            p, q, dp, dq = alpha[n], ahead[n], d_alpha[n], d_ahead[n]
            if n == lo:
                for j in range(width):
                    dq[j] = 0
            else:
                sum_product(d_ahead, n * width, d_alpha, (n - 1) * width, table, rows, width)
                if d_tables[0].size:
                    sum_product(extra, 0, alpha, (n - 1) * width, d_tables[0], rows, width)
                    for j in range(width):
                        dq[j] += extra[j]
            for j in range(width):
                dp[j] = p[j] * ((dq[j] / q[j] if q[j] > 0 else zero) + x[j])
        d_log_z[b] = 0
        if hi > lo:
            total, whole = zero, zero
            for j in range(width):
                total += d_alpha[hi - 1, j]
                whole += alpha[hi - 1, j]
            d_log_z[b] = total / whole


@loop
@no_type_check
def pull(
    rows_weight: Array,
    chain: tuple[Array, Array],
    tables: tuple[Array, Array, Array],
    d_tables: tuple[Array, Array],
    state: tuple[Array, Array, Array, Array],
    tangents: tuple[Array, Array, Array],
    out: tuple[Array, Array, Array, Array],
    span: tuple[int, int],
) -> None:
    """How `backward` changes along the direction of `push`: weighted derivatives of the results."""
    (tokens, offsets), transposed, (_, _, alpha, ahead) = chain, tables[1], state
    d_log_z, d_alpha, d_ahead = tangents
    belief, right, d_right, ends = out
    size, width = belief.shape[1], alpha.shape[1]
    rows = (size + 3) // 4 * 4
    work = np.zeros((7, width), alpha.dtype)
    m, sent, q, dm, d_sent, dq, extra = work[0], work[1], work[2], work[3], work[4], work[5], work[6]
    zero, one = alpha.dtype.type(0), alpha.dtype.type(1)
    for b in range(span[0], span[1]):
        lo, hi = offsets[b], offsets[b + 1]
        g, mean = rows_weight[b], alpha.dtype.type(d_log_z[b])
        for n in range(hi - 1, lo - 1, -1):
            p, dp = alpha[n], d_alpha[n]
            if n == hi - 1:
                total = zero
                for j in range(width):
                    total += p[j]
                for j in range(width):
                    m[j], dm[j] = p[j] / total, (dp[j] - p[j] * mean) / total
                    right[n, j], d_right[n, j] = 0, 0
            else:
                sum_product(q, 0, sent, 0, transposed, rows, width)
                sum_product(dq, 0, d_sent, 0, transposed, rows, width)
                if d_tables[1].size:
                    sum_product(extra, 0, sent, 0, d_tables[1], rows, width)
                    for j in range(width):
                        dq[j] += extra[j]
                total, back, d_back = zero, right[n], d_right[n]
                for j in range(width):
                    m[j] = p[j] * q[j] if p[j] > 0 else zero
                    dm[j] = dp[j] * q[j] + p[j] * dq[j] if p[j] > 0 else zero
                for j in range(width):
                    total += m[j]
                scale = one / total
                for j in range(width):
                    m[j] *= scale
                    dm[j] *= scale
                    back[j], d_back[j] = g * sent[j], g * d_sent[j]
            here = belief[tokens[n]]
            for s in range(size):
                here[s] = g * dm[s]
            seen, d_seen = ahead[n], d_ahead[n]
            for j in range(width):
                sent[j] = m[j] / seen[j] if seen[j] > 0 else zero
                d_sent[j] = (dm[j] - sent[j] * d_seen[j]) / seen[j] if seen[j] > 0 else zero
        if hi > lo:
            for s in range(size):
                ends[0, s] += belief[tokens[lo], s]
                ends[1, s] += belief[tokens[hi - 1], s]
