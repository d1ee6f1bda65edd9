"""The last rung: the reference recursion in float64. Slow; any range of scores.

Shapes: B examples, T positions, S tags.
"""

from functools import cached_property

import torch
from torch import Tensor

from energies.potentials import ChainPotentials
from inference import chain_reference as reference
from inference.kernels.problem import Problem, Slopes


class LogSpace:
    """A problem in log space; `inference.kernels.problem.Solved`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem.with_scores(lambda x: x.detach().double())
        self.rows = _rows(self.problem)
        self.safe, self.is_safe = torch.ones_like(self.rows, dtype=torch.bool), True

    def gradient(self, weight: Tensor, *, pairs: bool = True) -> Slopes:
        """The gradient of sum_b weight_b rows_b. No autograd: inside an operator there is none."""
        p, tags = _potentials(self.problem), self.problem.tags
        c, weights = reference.Chain.of(p), weight.detach().double()
        belief = reference.marginals(p)
        counts = self._counts(c, weights)
        if tags is not None:
            tags = tags.masked_fill(~p.real(), 0).unsqueeze(-1)
            belief = belief.scatter_add(2, tags, -p.real().unsqueeze(-1).double())
            tags = tags.squeeze(-1) if c.order is None else tags.squeeze(-1).gather(1, c.order)
            step = weights.unsqueeze(1) * c.real[:, 1:]
            counts.index_put_((tags[:, :-1], tags[:, 1:]), -step, accumulate=True)
        belief = belief * weights.view(-1, 1, 1)
        first, last = (c.restore(where.double()).unsqueeze(-1) for where in reference.ends_of(c.real))
        return Slopes(belief, counts, (belief * first).sum((0, 1)), (belief * last).sum((0, 1)))

    def _counts(self, c: reference.Chain, weights: Tensor) -> Tensor:
        """Expected pairs of neighbours (S, S), one step after another."""
        a, b = reference.forward_messages(c), reference.backward_messages(c)
        counts = a.new_zeros(a.shape[2], a.shape[2])
        for t in range(1, a.shape[1]):
            joint = a[:, t - 1].unsqueeze(2) + c.pairwise[t - 1] + (c.unary[:, t] + b[:, t]).unsqueeze(1)
            belief = joint.flatten(1).softmax(-1).view_as(joint)
            counts += torch.where(c.real[:, t, None, None], belief * weights.view(-1, 1, 1), 0).sum(0)
        return counts

    def tangent(self, weight: Tensor, direction: Slopes, *, pairs: bool = True) -> tuple[Tensor, Slopes]:
        """The slopes of rows (B,) along the direction, and how the gradient changes along it, by autograd."""
        leaves, rows = self._graph
        known = [x for x in leaves if x is not None]
        with torch.enable_grad():
            weights = weight.detach().double().requires_grad_()
            gradient = torch.autograd.grad((rows * weights).sum(), known, create_graph=True)
            along = rows.new_zeros(())
            for slope, x in zip(
                gradient, (d for d, x in zip(direction, leaves, strict=True) if x is not None), strict=True
            ):
                along = along if x is None else along + (slope * x.detach()).sum()
            found = torch.autograd.grad(
                along, [weights, *known], retain_graph=True, allow_unused=True, materialize_grads=True
            )
        change = iter(found[1:])
        return found[0], Slopes(*(None if x is None else next(change) for x in leaves))

    @cached_property
    def _graph(self) -> tuple[list[Tensor | None], Tensor]:
        """Scores as leaves, and rows as a function of them."""
        leaves = self.problem.with_scores(lambda x: x.clone().requires_grad_())
        with torch.enable_grad():
            return list(leaves[:4]), _rows(leaves)


def _potentials(problem: Problem) -> ChainPotentials:
    return ChainPotentials(problem.unary, problem.pairwise, problem.mask, problem.start, problem.end)


def _rows(problem: Problem) -> Tensor:
    """Log Z, less the score of the gold tags where there are some, (B,)."""
    p = _potentials(problem)
    rows = reference.log_partition(p)
    return rows if problem.tags is None else rows - p.score(problem.tags)
