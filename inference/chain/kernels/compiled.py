"""The chain on a CPU, compiled by numba: see `loops` for the recursion.

One thread unless torch has more and the batch is worth sharing. Compiled at the first call for a float type,
in some seconds, or beforehand by `scripts.compile_chain`, and kept on disk.

Shapes: B examples, T positions, N real positions of the batch, S tags, P tags padded to vectors.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energies.potentials import ChainPotentials, check_tags, state_type
from inference.chain.kernels import decode_loops, loops, tangent_loops
from inference.chain.kernels.problem import LIMITS, Problem, ScoreGradient, largest_safe_size
from inference.chain.kernels.vector_product import LANES

Array = np.ndarray[Any, Any]
Span = tuple[int, int]
NO_MASK = np.empty((0, 0), np.bool_)
NO_TAGS = np.empty(0, np.int64)
Kind = type[np.float32] | type[np.float64]
KINDS: dict[torch.dtype, Kind] = {torch.float32: np.float32, torch.float64: np.float64}
LARGEST = {kind: float(np.finfo(kind).max) for kind in KINDS.values()}
NO_TABLE = {kind: np.empty(0, kind) for kind in KINDS.values()}
SHARED = 4_000_000  # multiplications below which threads cost more than they save


class Compiled:
    """A problem after its forward sweep; `inference.chain.kernels.problem.Solved`."""

    def __init__(self, problem: Problem) -> None:
        self.shape, dtype = problem.unary.shape, state_type(problem.unary)
        self.kind = KINDS[dtype]
        self.chain = packed(problem.mask, self.shape)
        scores, pairwise, ends = arrays(problem, self.kind)
        self.has_steps = len(self.chain[0]) > self.shape[0] or bool(np.diff(self.chain[1]).max() > 1)
        if not self.has_steps:
            pairwise = np.zeros_like(pairwise)  # whatever it holds
        self.tables = loops.tabulate(pairwise, padded(self.shape[2]), LIMITS[dtype].cut)
        limits = np.array([*LIMITS[dtype], largest_safe_size(-self.tables[2][1], LIMITS[dtype])])
        log_z, safe = np.empty(self.shape[0]), np.empty(self.shape[0], np.bool_)
        self.state = (log_z, safe, self._positions(), self._positions())
        self.spans = spans(self.chain[1], self.shape[2])

        def work(_: int, span: Span) -> None:
            loops.forward(scores, ends, self.chain, self.tables, limits, self.state, span)

        share(self.spans, work)
        safe &= np.abs(log_z) <= LARGEST[self.kind]
        self.tags = NO_TAGS
        if problem.tags is not None:
            self.tags = problem.tags.numpy().reshape(-1).copy()  # the caller may write over its own
            if not loops.score_tags(scores, pairwise, ends, self.chain, self.tags, log_z):
                check_tags(problem.tags, problem.mask, self.shape[2])
        self.safe, self.is_safe = torch.from_numpy(safe), bool(safe.all())
        with np.errstate(over="ignore"):
            self.rows = torch.from_numpy(log_z.astype(self.kind))

    def gradient(self, weight: Tensor, *, pairs: bool = True) -> ScoreGradient:
        """The gradient of sum_b weight_b rows_b."""
        weights, size = array(weight, self.kind), self.shape[2]
        belief, right, ends = self._belief(), self._positions(), self._ends()
        gold = np.zeros((len(self.spans), size, size), self.kind)

        def work(k: int, span: Span) -> None:
            out = belief, right, ends[k], gold[k]
            loops.backward(weights, self.chain, self.tables, self.state, self.tags, out, span)

        share(self.spans, work)
        pairwise = None
        if pairs:
            pairwise = product(self.state[2], right)[:size, :size] * self._table(self.tables[0])
            pairwise += gold.sum(0)
        return self._score_gradient(belief, pairwise, ends)

    def tangent(
        self, weight: Tensor, direction: ScoreGradient, *, pairs: bool = True
    ) -> tuple[Tensor, ScoreGradient]:
        """The directional derivatives of rows (B,), and how the gradient changes along the direction."""
        weights, size = array(weight, self.kind), self.shape[2]
        direction = direction if self.has_steps else direction._replace(pairwise=None)
        along = arrays(self._filled(direction), self.kind)
        d_tables = (NO_TABLE[self.kind],) * 2 if direction.pairwise is None else self._d_tables(along[1])
        tangents = (np.empty(self.shape[0]), self._positions(), self._positions())
        belief, right, d_right, ends = self._belief(), self._positions(), self._positions(), self._ends()

        def work(k: int, span: Span) -> None:
            tangent_loops.push(
                along[0], along[2], self.chain, self.tables, d_tables, self.state, tangents, span
            )
            out = belief, right, d_right, ends[k]
            tangent_loops.pull(weights, self.chain, self.tables, d_tables, self.state, tangents, out, span)

        share(self.spans, work)
        if self.tags.size:
            loops.score_tags(*along, self.chain, self.tags, tangents[0])
        pairwise = None
        if pairs:
            counts = product(tangents[1], right) + product(self.state[2], d_right)
            pairwise = counts[:size, :size] * self._table(self.tables[0])
            if direction.pairwise is not None:
                pairwise += product(self.state[2], right)[:size, :size] * self._table(d_tables[0])
        return torch.from_numpy(tangents[0].astype(self.kind)), self._score_gradient(belief, pairwise, ends)

    def _positions(self) -> Array:
        """Room for a padded row a real position, (N, P).

        torch's, which begins where its products like it: they round by where memory begins, and numpy's
        begins anywhere, so the same numbers would not give the same bits.
        """
        shape = len(self.chain[0]), padded(self.shape[2])
        return torch.empty(shape, dtype=getattr(torch, self.kind.__name__)).numpy()

    def _belief(self) -> Array:
        """Room for numbers shaped as the unaries, (B * T, S), 0 wherever no loop will write."""
        full = len(self.chain[0]) == self.shape[0] * self.shape[1]
        make = np.empty if full else np.zeros
        return make((self.shape[0] * self.shape[1], self.shape[2]), self.kind)

    def _ends(self) -> Array:
        """Room for sums over first and last positions, for each thread."""
        return np.zeros((len(self.spans), 2, self.shape[2]), self.kind)

    def _table(self, flat: Array) -> Array:
        """A padded matrix as (S, S)."""
        size = self.shape[2]
        return flat.reshape(padded(size), -1)[:size, :size]

    def _filled(self, direction: ScoreGradient) -> Problem:
        """The direction with zeros for what it leaves out, as if it were scores."""
        unary, pairwise, start, end = direction
        size = self.shape[2]
        unary = torch.zeros(self.shape) if unary is None else unary
        return Problem(
            unary, torch.zeros(size, size) if pairwise is None else pairwise, start, end, None, None
        )

    def _d_tables(self, direction: Array) -> tuple[Array, Array]:
        """The pairwise matrix and its transpose, times the direction of the pairwise scores."""
        size, width = self.shape[2], padded(self.shape[2])
        square = np.zeros((width, width), direction.dtype)
        square[:size, :size] = direction
        return self.tables[0] * square.reshape(-1), self.tables[1] * square.T.reshape(-1)

    def _score_gradient(self, belief: Array, pairwise: Array | None, ends: Array) -> ScoreGradient:
        both = torch.from_numpy(ends.sum(0))
        table = None if pairwise is None else torch.from_numpy(pairwise)
        return ScoreGradient(torch.from_numpy(belief.reshape(self.shape)), table, both[0], both[1])


def viterbi(p: ChainPotentials) -> tuple[Tensor, Tensor]:
    """Tags (B, T), 0 where masked, and score (B,) of the best answers; NaN where a score is NaN or +inf."""
    shape, chain = p.unary.shape, packed(p.mask, p.unary.shape)
    scores, pairwise, ends = arrays(p, KINDS[state_type(p.unary)])
    tables = decode_loops.pad(pairwise, padded(shape[2]))
    tags, best = np.zeros(shape[:2], np.int64), np.empty(shape[0], scores.dtype)

    def work(_: int, span: Span) -> None:
        decode_loops.best(scores, ends, chain, tables, (tags.reshape(-1), best), span)

    share(spans(chain[1], shape[2]), work)
    return torch.from_numpy(tags), torch.from_numpy(best)


def padded(size: int) -> int:
    """The width of rows of that many tags.

    Never a multiple of 256: down a column of such a matrix all numbers compete for the same few places in
    the cache, which at 256 tags costs a third of the time and at 512 more than half.
    """
    width = -(-size // LANES) * LANES
    return width if width % 256 else width + LANES


def packed(mask: Tensor | None, shape: torch.Size) -> tuple[Array, Array]:
    """Real positions (N,) of the flattened batch, and where each sequence begins among them (B + 1,)."""
    real = NO_MASK if mask is None else np.ascontiguousarray(mask.numpy())
    return loops.pack(real, shape[0], shape[1])


def array(scores: Tensor, kind: Kind) -> Array:
    """A tensor's numbers, contiguous, copied only where they have to be.

    numpy does what it can here and elsewhere: a small call into torch takes as long as some sequences.
    """
    scores = scores.detach() if scores.requires_grad else scores
    scores = scores.float() if scores.dtype == torch.bfloat16 else scores
    return np.ascontiguousarray(scores.numpy(), kind)


def arrays(problem: Problem | ChainPotentials, kind: Kind) -> tuple[Array, Array, Array]:
    """Scores of positions (B * T, S), of pairs (S, S) and of ends (2, S)."""
    size = problem.unary.shape[2]
    ends = np.zeros((2, size), kind)
    for row, scores in zip(ends, (problem.start, problem.end), strict=True):
        if scores is not None:
            row[:] = array(scores, kind)
    return array(problem.unary, kind).reshape(-1, size), array(problem.pairwise, kind), ends


def product(left: Array, right: Array) -> Array:
    """left^T right, (P, P)."""
    return torch.mm(torch.from_numpy(left).T, torch.from_numpy(right)).numpy()


def spans(offsets: Array, size: int) -> list[Span]:
    """The sequences in as many runs of about equal work as there are threads."""
    threads, examples = torch.get_num_threads(), len(offsets) - 1
    if threads == 1 or offsets[-1] * size**2 < SHARED:
        return [(0, examples)]
    cuts = np.searchsorted(offsets, np.linspace(0, offsets[-1], threads + 1)[1:-1])
    edges = [0, *cuts.tolist(), examples]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b] or [(0, examples)]


def share(parts: list[Span], work: Callable[[int, Span], None]) -> None:
    """Do each part, in a thread of its own where there are several: the loops release Python's lock."""
    if len(parts) == 1:
        work(0, parts[0])
        return
    for _ in pool(len(parts)).map(work, range(len(parts)), parts):
        pass


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Threads that wait for work."""
    return ThreadPoolExecutor(threads, thread_name_prefix="chain")
