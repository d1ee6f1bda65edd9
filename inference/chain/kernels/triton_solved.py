"""The chain on CUDA: the Triton sweep behind the interface of `Solved`.

Gradients are products over the sweep's results. The tangent is PyTorch's, step by step.

Shapes: B examples, T positions, S tags, N real positions of the batch.
"""

import torch
from torch import Tensor

from energies.potentials import ChainPotentials
from inference.chain.kernels import triton_chain
from inference.chain.kernels.fused import Fused
from inference.chain.kernels.problem import LIMITS, Problem, ScoreGradient, fits


class TritonSolved:
    """A problem after the Triton sweep; `inference.chain.kernels.problem.Solved`."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.order, sequences = problem, *compacted(problem)
        self.lengths = sequences[4]
        self.sweep = triton_chain.sweep(*sequences)
        unary, pairwise = sequences[0], sequences[1].to(self.sweep.alpha.dtype)
        self.real = torch.arange(unary.shape[1], device=unary.device) < self.lengths.unsqueeze(1)
        gaps = pairwise - pairwise.amax()
        self.table = gaps.exp()
        safe = self.sweep.safe & self.sweep.log_z.to(gaps.dtype).isfinite()
        self.safe = safe & self._whole(sequences, gaps)
        self.is_safe = bool(self.safe.all())
        if not self.is_safe:
            self.safe = safe & self._inspect(sequences, gaps)
            self.is_safe = bool(self.safe.all())
        self.gold, rows = None, self.sweep.log_z
        if problem.tags is not None:
            tags = problem.tags if self.order is None else problem.tags.gather(1, self.order)
            self.gold = tags.masked_fill(~self.real, 0)
            rows = rows - problem.potentials().tag_score(problem.tags).detach()
        self.rows = rows.to(gaps.dtype)

    def gradient(self, weight: Tensor, *, pairs: bool = True) -> ScoreGradient:
        """The gradient of sum_b weight_b rows_b."""
        weights = weight.detach().to(self.rows.dtype).view(-1, 1, 1)
        belief = self.sweep.marginals * weights
        if self.gold is not None:
            belief.scatter_add_(2, self.gold.unsqueeze(2), -weights * self.real.unsqueeze(2))
        last = (self.lengths - 1).clamp_min(0).view(-1, 1, 1).expand(-1, 1, belief.shape[2])
        start, end = belief[:, 0].sum(0), belief.gather(1, last).sum((0, 1))
        pairwise = None
        if pairs:
            before, sent = self.sweep.alpha[:, :-1], self.sweep.right[:, 1:] * weights
            pairwise = (before.flatten(0, 1).T @ sent.flatten(0, 1)) * self.table
            if self.gold is not None:
                step = -weights.squeeze(2) * self.real[:, 1:]
                pairwise.index_put_((self.gold[:, :-1], self.gold[:, 1:]), step, accumulate=True)
        if self.order is not None:
            belief = torch.zeros_like(belief).scatter(1, self.order.unsqueeze(-1).expand_as(belief), belief)
        return ScoreGradient(belief, pairwise, start, end)

    def tangent(
        self, weight: Tensor, direction: ScoreGradient, *, pairs: bool = True
    ) -> tuple[Tensor, ScoreGradient]:
        """The directional derivatives of rows (B,), and how the gradient changes along the direction."""
        return Fused(self.problem).tangent(weight, direction, pairs=pairs)

    def _whole(self, sequences: tuple[Tensor, ...], gaps: Tensor) -> Tensor:
        """The first argument of `Limits`, for each sequence."""
        unary, _, start, end, _ = sequences
        wide = _width(unary, gaps.dtype).masked_fill(~self.real, 0).amax(1) - gaps.amin()
        for scores in (start, end):
            wide = wide + _width(scores, gaps.dtype)
        return wide < LIMITS[gaps.dtype].cut

    def _inspect(self, sequences: tuple[Tensor, ...], gaps: Tensor) -> Tensor:
        """Both arguments of `Limits`, for each sequence."""
        unary, pairwise, start, end, lengths = sequences
        rows = torch.arange(len(lengths), device=lengths.device)
        scores = unary.to(gaps.dtype, copy=True)
        scores[:, 0] += start
        scores[rows, (lengths - 1).clamp_min(0)] += end
        top = scores.amax(2, keepdim=True)
        shift = (
            top.squeeze(2).masked_fill(~self.real, 0).sum(1) + (lengths - 1).clamp_min(0) * pairwise.amax()
        )
        back = self.sweep.right / self.sweep.right.sum(2, keepdim=True)
        back[:, 0] = 1
        owner = rows.unsqueeze(1).expand_as(self.real)[self.real]
        both = self.sweep.alpha[self.real], back[self.real]
        weight = self.sweep.log_z.to(gaps.dtype) - shift
        return fits((scores - top)[self.real], gaps, both, weight, owner, lengths)


def _width(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """From the least to the greatest of the last dimension."""
    return scores.amax(-1).to(dtype) - scores.amin(-1).to(dtype)


def compacted(problem: Problem) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Where each position came from, None where nothing moved, and the arguments of the kernels."""
    unary, size = problem.unary.detach(), problem.unary.shape[2]
    p, order = ChainPotentials(unary, problem.pairwise.detach(), problem.mask).compacted()
    zeros = unary.new_zeros(size)
    start, end = (zeros if x is None else x.detach() for x in (problem.start, problem.end))
    return order, (p.unary, p.pairwise, start, end, p.real().sum(1))


def viterbi(p: ChainPotentials) -> tuple[Tensor, Tensor]:
    """Tags (B, T), 0 where masked, and score (B,) of the best answers."""
    order, sequences = compacted(Problem(p.unary, p.pairwise, p.start, p.end, p.mask, None))
    tags, score = triton_chain.viterbi(*sequences)
    return tags if order is None else torch.zeros_like(tags).scatter(1, order, tags), score
