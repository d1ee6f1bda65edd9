"""The last fallback: log space in float64, for any range of scores.

Shapes: B examples, T positions, S tags.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from energies.potentials import ChainPotentials
from inference.chain import reference as reference
from inference.chain.kernels.problem import Problem, ScoreGradient

# Down to here 1 / sum^2, which second derivatives have, is a number, and what fell out does not count.
LEAST = 1e-140


class LogSpace:
    """A problem in log space; `inference.chain.kernels.problem.Solved`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem.with_scores(lambda x: x.detach().double())
        self.potentials = self.problem.potentials()
        self.chain = reference.Chain.of(self.potentials)
        with torch.no_grad():
            self.a = forward_messages(self.chain)
            self.rows = _rows(self.potentials, self.chain, self.a, self.problem.tags)
        self.safe, self.is_safe = torch.ones_like(self.rows, dtype=torch.bool), True

    @torch.no_grad()
    def gradient(self, weight: Tensor, *, pairs: bool = True) -> ScoreGradient:
        """The gradient of sum_b weight_b rows_b. No autograd: inside an operator there is none."""
        c, p, tags = self.chain, self.potentials, self.problem.tags
        weights, b = weight.detach().double(), backward_messages(self.chain)
        belief = c.restore(torch.where(c.real.unsqueeze(-1), (self.a + b).softmax(-1), 0))
        counts = self._counts(b, weights) if pairs else None
        if tags is not None:
            tags = tags.masked_fill(~p.real(), 0).unsqueeze(-1)
            belief = belief.scatter_add(2, tags, -p.real().unsqueeze(-1).double())
            tags = tags.squeeze(-1) if c.order is None else tags.squeeze(-1).gather(1, c.order)
            step = weights.unsqueeze(1) * c.real[:, 1:]
            if counts is not None:
                counts.index_put_((tags[:, :-1], tags[:, 1:]), -step, accumulate=True)
        belief = belief * weights.view(-1, 1, 1)
        first, last = (c.restore(where.double()).unsqueeze(-1) for where in reference.ends_of(c.real))
        return ScoreGradient(belief, counts, (belief * first).sum((0, 1)), (belief * last).sum((0, 1)))

    def _counts(self, b: Tensor, weights: Tensor) -> Tensor:
        """Expected pairs of neighbours (S, S), one step after another."""
        a, c = self.a, self.chain
        counts = a.new_zeros(a.shape[2], a.shape[2])
        for t in range(1, a.shape[1]):
            joint = a[:, t - 1].unsqueeze(2) + c.pairwise[t - 1] + (c.unary[:, t] + b[:, t]).unsqueeze(1)
            belief = joint.flatten(1).softmax(-1).view_as(joint)
            counts += torch.where(c.real[:, t, None, None], belief * weights.view(-1, 1, 1), 0).sum(0)
        return counts

    def tangent(
        self, weight: Tensor, direction: ScoreGradient, *, pairs: bool = True
    ) -> tuple[Tensor, ScoreGradient]:
        """See `Solved`; by autograd."""
        leaves, rows = self._graph
        known = [x for x in leaves if x is not None]
        with torch.enable_grad():
            weights = weight.detach().double().requires_grad_()
            gradient = torch.autograd.grad(
                (rows * weights).sum(), known, create_graph=True, allow_unused=True, materialize_grads=True
            )
            along = rows.new_zeros(())
            for g, x in zip(
                gradient, (d for d, x in zip(direction, leaves, strict=True) if x is not None), strict=True
            ):
                along = along if x is None else along + (g * x.detach()).sum()
            found = torch.autograd.grad(
                along, [weights, *known], retain_graph=True, allow_unused=True, materialize_grads=True
            )
        change = iter(found[1:])
        return found[0], ScoreGradient(*(None if x is None else next(change) for x in leaves))

    @cached_property
    def _graph(self) -> tuple[list[Tensor | None], Tensor]:
        """Scores as leaves, and rows as a function of them."""
        leaves = self.problem.with_scores(lambda x: x.clone().requires_grad_())
        with torch.enable_grad():
            p = leaves.potentials()
            c = reference.Chain.of(p)
            return list(leaves[:4]), _rows(p, c, forward_messages(c), leaves.tags)


def forward_messages(c: reference.Chain) -> Tensor:
    """The float64 messages of `inference.chain.reference`, faster; c has one transition matrix.

    A position takes S exponentials and a product with exp(W) instead of S^2 exponentials. Where a sum of
    probabilities is so small that what fell out of it may count, the example is done by the reference.
    """
    assert c.unary.dtype == torch.float64
    a = c.unary[:, 0]
    messages, sums = [a], []
    table, top = _table(c)
    for t in range(1, c.unary.shape[1]):
        total, shift = _mixed(a, table)
        a = torch.where(c.real[:, t, None], total.clamp_min(LEAST).log() + (shift + top) + c.unary[:, t], a)
        messages.append(a)
        sums.append(total)
    return _made_good(c, messages, sums, reference.forward_messages)


def backward_messages(c: reference.Chain) -> Tensor:
    """See `forward_messages`."""
    assert c.unary.dtype == torch.float64
    b = torch.zeros_like(c.unary[:, 0])
    messages, sums = [b], []
    table, top = _table(c)
    for t in range(c.unary.shape[1] - 1, 0, -1):
        total, shift = _mixed(c.unary[:, t] + b, table.T)
        b = torch.where(c.real[:, t, None], total.clamp_min(LEAST).log() + (shift + top), b)
        messages.append(b)
        sums.append(total)
    return _made_good(c, messages[::-1], sums[::-1], reference.backward_messages)


def _table(c: reference.Chain) -> tuple[Tensor, Tensor]:
    """exp(W - top), and top, the greatest of W; nothing where there is no step."""
    scores = c.pairwise[:1].reshape(-1, c.unary.shape[2])
    if not len(scores):
        return scores, scores.sum()
    top = scores.detach().amax().clamp_min(torch.finfo(scores.dtype).min)
    return (scores - top).exp(), top


def _mixed(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """exp(x - shift) times the matrix, (B, S), and the shift (B, 1)."""
    shift = x.detach().amax(1, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
    return (x - shift).exp() @ table, shift


def _made_good(
    c: reference.Chain, messages: list[Tensor], sums: list[Tensor], again: Callable[[reference.Chain], Tensor]
) -> Tensor:
    """The messages (B, T, S), those of examples with a sum below LEAST, or none, done again."""
    found = torch.stack(messages, 1)
    if not sums:
        return found
    kept = (torch.stack(sums, 1).detach().amin(2) >= LEAST) | ~c.real[:, 1:]
    lost = ~kept.all(1)
    if not bool(lost.any()):
        return found
    rest = reference.Chain(c.unary[lost], c.pairwise, c.real[lost], None)
    return found.index_put((lost,), again(rest))


def _rows(p: ChainPotentials, c: reference.Chain, a: Tensor, tags: Tensor | None) -> Tensor:
    """Log Z of forward messages, less the score of the gold tags where there are some, (B,)."""
    log_z = torch.where(c.real[:, 0], reference.log_sum_exp(a[:, -1], 1), 0)
    return log_z if tags is None else log_z - p.tag_score(tags)
