"""What runs on a CUDA device for a chain: a program takes one vector over the positions of one sequence.

exp(pairwise) stays in registers; each position's scores are shifted by their maximum, each vector is divided
by its sum. Marginals are normalised at their position, so the two sweeps need nothing of each other.

Shapes: B examples, T positions, S tags, padded to P, a power of two. STATE is the type of all arithmetic, of
tensors other than unary, and what scores of any float type are read as.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _shifted(row: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """exp(row - its maximum), and the maximum."""
    top = tl.max(row, axis=0)
    return tl.exp(row - top), top


@triton.jit
@no_type_check
def _row(place: tl.tensor, tags: tl.tensor, count: int, STATE: tl.constexpr) -> tl.tensor:
    """The scores from `place` on of the first `count` tags; the others have -inf."""
    return tl.load(place + tags, mask=tags < count, other=-float("inf")).to(STATE)


@triton.jit
@no_type_check
def _square(
    place: tl.tensor, tags: tl.tensor, S: int, down: int, right: int, STATE: tl.constexpr
) -> tl.tensor:
    """The scores of all pairs of tags, given the steps from one row and one column to the next."""
    inside = (tags < S)[:, None] & (tags < S)[None, :]
    places = place + tags[:, None] * down + tags[None, :] * right
    return tl.load(places, mask=inside, other=-float("inf")).to(STATE)


@triton.jit
@no_type_check
def _is_bad(scores: tl.tensor) -> tl.tensor:
    """1 where there is NaN or +inf, else 0."""
    return tl.where(scores < float("inf"), 0, 1)


@triton.jit
@no_type_check
def sweep_kernel(
    unary: tl.tensor,
    pairwise: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    lengths: tl.tensor,
    alpha: tl.tensor,
    beta: tl.tensor,
    norms: tl.tensor,
    tops: tl.tensor,
    shifts: tl.tensor,
    T: int,
    S: int,
    P: tl.constexpr,
    STATE: tl.constexpr,
) -> None:
    """Program (b, 0) goes forward over sequence b, program (b, 1) backward.

    forward:  alpha[t] = u[t] * (W' alpha[t-1]) / c[t]        u[t] = exp(unary[t] - tops[t])
    backward: beta[t] = (W (u[t+1] * beta[t+1])) / d[t]       W = exp(pairwise - its maximum)

    start is a part of unary[0]; beta ends in exp(end - its maximum). norms (2, B, T) keeps c and d, shifts
    (B,) what the maxima of pairwise and end add to log Z, in float64.
    """
    b = tl.program_id(0).to(tl.int64)
    backward = tl.program_id(1) == 1
    n = tl.load(lengths + b)
    tags = tl.arange(0, P)
    down = tl.where(backward, 1, S)  # backward multiplies by the transpose
    scores = _square(pairwise, tags, S, down, S + 1 - down, STATE)
    peak = tl.max(tl.max(scores, axis=1), axis=0)
    weights = tl.exp(scores - peak)

    first = _row(start, tags, S, STATE)
    last = _row(end, tags, S, STATE)
    t = tl.where(backward, n - 1, 0)
    step = tl.where(backward, -1, 1)
    rows = unary + b * T * S
    norms += (tl.program_id(1) * tl.num_programs(0) + b) * T
    kept = (beta if backward else alpha) + b * T * S + tags
    row = _row(rows + t * S, tags, tl.where(n > 0, S, 0), STATE)
    seen, _ = _shifted(row)
    value, top = _shifted(tl.where(backward, last, row + first))
    done = 0
    while done < n:
        done += 1
        ahead = _row(rows + (t + step) * S, tags, tl.where(done < n, S, 0), STATE)  # long before its use
        norm = tl.sum(value, axis=0)
        value /= norm
        tl.store(kept + t * S, value, mask=tags < S)
        tl.store(norms + t, norm)
        if not backward:
            tl.store(tops + b * T + t, top)
        state = value * tl.where(backward, seen, 1.0)
        seen, top = _shifted(ahead)
        value = tl.sum(state[:, None] * weights, axis=0) * tl.where(backward, 1.0, seen)
        t += step
    if not backward:
        tl.store(shifts + b, (n - 1) * peak.to(tl.float64) + tl.max(last, axis=0))


@triton.jit
@no_type_check
def finish_kernel(
    unary: tl.tensor,
    lengths: tl.tensor,
    alpha: tl.tensor,
    beta: tl.tensor,
    norms: tl.tensor,
    tops: tl.tensor,
    marginals: tl.tensor,
    right: tl.tensor,
    overlaps: tl.tensor,
    T: int,
    S: int,
    P: tl.constexpr,
    STATE: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Program (b, i) turns ROWS positions of sequence b into their answers; alpha becomes zero at padding.

    marginals[t] = alpha[t] * beta[t] / s[t]      s[t] = alpha[t] . beta[t], kept in overlaps (B, T)
    right[t] = u[t] * beta[t] / (c[t] s[t])       for t > 0
    """
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b)
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    tags = tl.arange(0, P)
    at = b * T + t
    places = at[:, None] * S + tags[None, :]
    written = (t < T)[:, None] & (tags < S)[None, :]
    inside = written & (t < n)[:, None]
    forward = tl.load(alpha + places, mask=inside, other=0.0)
    behind = tl.load(beta + places, mask=inside, other=0.0)
    overlap = tl.sum(forward * behind, axis=1)
    tl.store(overlaps + at, overlap, mask=t < n)
    tl.store(marginals + places, tl.where(inside, forward * behind / overlap[:, None], 0.0), mask=written)
    tl.store(alpha + places, forward, mask=written & (t >= n)[:, None])
    row = tl.load(unary + places, mask=inside, other=-float("inf")).to(STATE)
    top = tl.load(tops + at, mask=t < n, other=0.0)
    norm = tl.load(norms + at, mask=t < n, other=1.0)
    linked = inside & (t > 0)[:, None]
    chances = tl.exp(row - top[:, None]) * behind / (norm * overlap)[:, None]
    tl.store(right + places, tl.where(linked, chances, 0.0), mask=written)


@triton.jit
@no_type_check
def check_kernel(
    lengths: tl.tensor,
    norms: tl.tensor,
    tops: tl.tensor,
    overlaps: tl.tensor,
    shifts: tl.tensor,
    log_z: tl.tensor,
    safe: tl.tensor,
    T: int,
    FLOOR: tl.constexpr,
    DISAGREEMENT: tl.constexpr,
    SPAN: tl.constexpr,
) -> None:
    """Program b adds up log Z of sequence b from either sweep and judges whether they can be trusted.

    log Z = sum of log c[t] + tops[t], + log(s[n-1] d[n-1]) + shifts      forward
          = sum of log d[t] + tops[t], + log(s[0] c[0]) + shifts          backward

    What a sweep loses to underflow is at most about 1e-38 of its row, so what a marginal loses is at most
    that over s[t], or over c[t] s[t] for the products of a step: neither may be under the floor.
    """
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b)
    forward = tl.load(shifts + b, mask=n > 0, other=0.0).to(tl.float64)
    backward = forward
    poor = tl.zeros((SPAN,), dtype=tl.int32)
    begun = 0
    while begun < n:
        t = begun + tl.arange(0, SPAN)
        inside = t < n
        at = b * T + t
        c = tl.load(norms + at, mask=inside, other=1.0)
        d = tl.load(norms + tl.num_programs(0).to(tl.int64) * T + at, mask=inside, other=1.0)
        s = tl.load(overlaps + at, mask=inside, other=1.0)
        top = tl.load(tops + at, mask=inside, other=0.0).to(tl.float64)
        step = tl.where(t > 0, c * s, s)
        poor |= (tl.where((s >= FLOOR) & (step >= FLOOR), 0, 1)).to(tl.int32)
        c_log, d_log, s_log = tl.log(c).to(tl.float64), tl.log(d).to(tl.float64), tl.log(s).to(tl.float64)
        forward += tl.sum(top + c_log + tl.where(t == n - 1, s_log + d_log, 0.0), axis=0)
        backward += tl.sum(top + d_log + tl.where(t == 0, s_log + c_log, 0.0), axis=0)
        begun += SPAN
    finite = (tl.abs(forward) < float("inf")) & (tl.abs(backward) < float("inf"))
    agree = tl.abs(forward - backward) <= DISAGREEMENT * (1.0 + tl.abs(forward))
    tl.store(log_z + b, forward)
    tl.store(safe + b, finite & agree & (tl.max(poor, axis=0) == 0))


@triton.jit
@no_type_check
def viterbi_kernel(
    unary: tl.tensor,
    pairwise: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    lengths: tl.tensor,
    best: tl.tensor,
    tags: tl.tensor,
    score: tl.tensor,
    T: int,
    S: int,
    P: tl.constexpr,
    STATE: tl.constexpr,
) -> None:
    """Program b finds the best tags of sequence b, the first of equals; score NaN where one is NaN or +inf.

    best[t] = unary[t] + max over s of best[t-1, s] + pairwise[s, :]

    The way back looks for the maximum again, in the one column that it needs: no pointers are kept.
    """
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b)
    each = tl.arange(0, P)
    rows = unary + b * T * S
    kept = best + b * T * S
    scores = _square(pairwise, each, S, S, 1, STATE)
    value = _row(rows, each, tl.where(n > 0, S, 0), STATE) + _row(start, each, S, STATE)
    last = _row(end, each, S, STATE)
    bad = _is_bad(value) | _is_bad(last) | tl.where(n > 1, tl.max(_is_bad(scores), axis=0), 0)
    t = 1
    while t < n:
        ahead = _row(rows + t * S, each, S, STATE)
        bad |= _is_bad(ahead)
        tl.store(kept + (t - 1) * S + each, value, mask=each < S)
        value = tl.max(value[:, None] + scores, axis=0) + ahead
        t += 1
    tl.debug_barrier()  # the way back reads what other threads stored
    value += last
    tag = tl.argmax(value, axis=0)
    found = tl.where(tl.max(bad, axis=0) > 0, float("nan"), tl.max(value, axis=0))
    tl.store(score + b, tl.where(n > 0, found, 0.0))
    t = n - 1
    while t >= 0:
        tl.store(tags + b * T + t, tag)
        value = _row(kept + (t - 1) * S, each, tl.where(t > 0, S, 0), STATE)
        value += _row(pairwise + tl.minimum(tag, S - 1), each * S, S * S, STATE)  # a NaN may name any tag
        tag = tl.argmax(value, axis=0)
        t -= 1
