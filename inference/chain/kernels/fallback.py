"""Sequences that a fast recursion flags as unsafe are computed again, in float64, then in log space.

Shapes: B examples, T positions, S tags.
"""

import importlib
from functools import cache
from typing import Any

import torch
from torch import Tensor

from energies.potentials import ChainPotentials, state_type
from inference.chain import reference as reference
from inference.chain.checks import explain
from inference.chain.kernels.log_space import LogSpace
from inference.chain.kernels.problem import Problem, ScoreGradient, Solved
from inference.chain.paths import fastest

SOLVERS = {
    "fused": ("fused", "Fused"),
    "compiled": ("compiled", "Compiled"),
    "triton": ("triton_solved", "TritonSolved"),
}
DECODERS = {"fused": "fused_best", "compiled": "compiled", "triton": "triton_solved"}


def solve(problem: Problem, path: str) -> Solved:
    """The problem on a fast path, or on "auto"; the sequences it flags, and only those, on slower ones.

    Raises:
        ValueError: where a row is not finite: at NaN, at +inf, and where no answer is allowed.
    """
    path = fastest(problem.unary) if path == "auto" else path
    solved = solver(path)(problem)
    if not solved.is_safe:
        solved = Mixed(problem, solved, path)
        if not bool(solved.rows.isfinite().all()):
            raise ValueError(explain(solved.rows, problem.potentials()))
    if problem.tags is not None:
        solved.rows.clamp_(min=0)  # negative only by rounding
    return solved


@cache
def solver(path: str) -> Any:  # noqa: ANN401
    """The class behind a path; its file is imported at first use, with what it needs."""
    module, name = SOLVERS[path]
    return getattr(importlib.import_module(f"inference.chain.kernels.{module}"), name)


def viterbi(p: ChainPotentials, path: str) -> tuple[Tensor, Tensor]:
    """Tags (B, T), 0 where masked, and scores (B,): maxima are safe on every path."""
    path = fastest(p.unary, maxima=True) if path == "auto" else path
    if path in DECODERS:
        return decoder(path)(p)
    with torch.no_grad():
        return reference.viterbi(p)


@cache
def decoder(path: str) -> Any:  # noqa: ANN401
    """The Viterbi of a fast path."""
    return importlib.import_module(f"inference.chain.kernels.{DECODERS[path]}").viterbi


class Mixed:
    """A problem with sequences solved in different ways; `inference.chain.kernels.problem.Solved`."""

    def __init__(self, problem: Problem, solved: Solved, path: str) -> None:
        self.shape, self.dtype = problem.unary.shape, solved.rows.dtype
        good, bad = solved.safe.nonzero().squeeze(1), (~solved.safe).nonzero().squeeze(1)
        self.parts: list[tuple[Tensor, Solved]] = [(bad, wider(subset(problem, bad), path))]
        if len(good):
            self.parts.append((good, solver(path)(subset(problem, good))))
        self.rows = solved.rows.clone()
        for index, part in self.parts:
            self.rows[index] = part.rows.to(self.dtype)
        self.safe, self.is_safe = torch.ones_like(solved.safe), True

    def gradient(self, weight: Tensor, *, pairs: bool = True) -> ScoreGradient:
        """The gradient of sum_b weight_b rows_b."""
        return self._join([part.gradient(weight[index], pairs=pairs) for index, part in self.parts])

    def tangent(
        self, weight: Tensor, direction: ScoreGradient, *, pairs: bool = True
    ) -> tuple[Tensor, ScoreGradient]:
        """The directional derivatives of rows (B,), and how the gradient changes along the direction."""
        d_rows, changes = self.rows.new_zeros(self.shape[0]), []
        for index, part in self.parts:
            unary = None if direction.unary is None else direction.unary[index]
            rows, change = part.tangent(weight[index], direction._replace(unary=unary), pairs=pairs)
            d_rows[index] = rows.to(self.dtype)
            changes.append(change)
        return d_rows, self._join(changes)

    def _join(self, found: list[ScoreGradient]) -> ScoreGradient:
        """Unary entries by sequence, sums of the others."""
        unary = self.rows.new_zeros(self.shape)
        for (index, _), gradient in zip(self.parts, found, strict=True):
            assert gradient.unary is not None
            unary[index] = gradient.unary.to(self.dtype)
        shared = [
            _add([x.to(self.dtype) for x in some if x is not None])
            for some in zip(*(s[1:] for s in found), strict=True)
        ]
        return ScoreGradient(unary, *shared)


def wider(problem: Problem, path: str) -> Solved:
    """The next attempt: float64 on a path that has it, or log space."""
    if state_type(problem.unary) == torch.float64:
        return LogSpace(problem)
    problem = problem.with_scores(lambda x: x.detach().double())
    solved = solver("fused" if path == "triton" else path)(problem)
    return solved if solved.is_safe else Mixed(problem, solved, path)


def subset(problem: Problem, rows: Tensor) -> Problem:
    """The problem of some sequences."""
    mask, tags = (None if x is None else x[rows] for x in (problem.mask, problem.tags))
    return problem._replace(unary=problem.unary.detach()[rows], mask=mask, tags=tags)


def _add(terms: list[Tensor]) -> Tensor | None:
    """The sum, or None of nothing."""
    return sum(terms[1:], terms[0]) if terms else None
