"""Linear chains in log space: slow, simple, and differentiable to any order.

This file defines every function of `inference.chain`; the fast paths are tested against it. Positions are
compacted (padding at the tail), and start and end scores are added to the unaries of the first and last
position.

Shapes: B examples, T positions, S tags, K answers.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from energies.answers.relaxed import FORBIDDEN
from energies.potentials import ChainPotentials

# Probabilities come from differences of messages, which may be large and close.
WIDE = torch.float64
Sum = Callable[[Tensor, int], Tensor]  # the sum of a semiring over a dimension: log-sum-exp, or max


class Chain(NamedTuple):
    """A chain ready for a recursion: unary (B, T, S), a matrix a step (T-1, 1 or B, S, S), real (B, T)."""

    unary: Tensor
    pairwise: Tensor
    real: Tensor
    order: Tensor | None

    @classmethod
    def of(cls, p: ChainPotentials) -> Self:
        """Compact the potentials; the state of half-precision scores is float32."""
        p, order = p.compacted()
        real = p.real()
        unary = p.with_ends().masked_fill(~real.unsqueeze(-1), 0)
        pairwise = _a_step(p).to(unary.dtype)
        if not len(pairwise):
            unary = unary + pairwise.sum()  # an empty sum: it keeps the pairwise scores in the graph
        return cls(unary, pairwise, real, order)

    def restore(self, values: Tensor, dim: int = 1) -> Tensor:
        """Values at compacted positions, moved back to their original positions along `dim`."""
        if self.order is None:
            return values
        between, after = [1] * (dim - 1), [1] * (values.dim() - dim - 1)
        order = self.order.view(len(values), *between, -1, *after).expand_as(values)
        return torch.zeros_like(values).scatter(dim, order, values)


def _a_step(p: ChainPotentials) -> Tensor:
    """One transition matrix for each step, (T-1, 1 or B, S, S); 0 at steps into padding."""
    meet = None if p.mask is None else (p.mask[:, 1:] & p.mask[:, :-1])[..., None, None]  # (B, T-1, 1, 1)
    if p.pairwise.dim() == 4:
        table = p.pairwise if meet is None else torch.where(meet, p.pairwise, 0)
        return table.transpose(0, 1)
    table = p.pairwise
    if meet is not None:
        table = torch.where(meet.any() if table.dim() == 2 else meet.any(0), table, 0)
    return table.expand(max(p.unary.shape[1] - 1, 0), *table.shape[-2:]).unsqueeze(1)


def ends_of(real: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last real position of each compacted sequence, as two masks (B, T)."""
    position = torch.arange(real.shape[1], device=real.device)
    return real & (position == 0), real & (position == real.sum(-1, keepdim=True) - 1)


def log_sum_exp(scores: Tensor, dim: int) -> Tensor:
    """Log sum exp whose derivatives are 0, not NaN, where every score is -inf."""
    top = scores.detach().amax(dim, keepdim=True)
    top = top.masked_fill(top == FORBIDDEN, 0)
    total = (scores - top).exp().sum(dim)
    never = total == 0
    return torch.where(never, FORBIDDEN, total.masked_fill(never, 1).log() + top.squeeze(dim))


def largest(scores: Tensor, dim: int) -> Tensor:
    """The maximum, as a `Sum`."""
    return scores.amax(dim)


def forward_messages(c: Chain, add: Sum = log_sum_exp) -> Tensor:
    """a_t(s): the sum over all prefixes with tag s at t, (B, T, S); constant after the end."""
    a = c.unary[:, 0]
    messages = [a]
    for t in range(1, c.unary.shape[1]):
        step = add(a.unsqueeze(2) + c.pairwise[t - 1], 1) + c.unary[:, t]
        a = torch.where(c.real[:, t, None], step, a)
        messages.append(a)
    return torch.stack(messages, 1)


def backward_messages(c: Chain, add: Sum = log_sum_exp) -> Tensor:
    """b_t(s): the sum over all suffixes after tag s at t, (B, T, S); 0 from the end on."""
    b = torch.zeros_like(c.unary[:, 0])
    messages = [b]
    for t in range(c.unary.shape[1] - 1, 0, -1):
        step = add(c.pairwise[t - 1] + (c.unary[:, t] + b).unsqueeze(1), 2)
        b = torch.where(c.real[:, t, None], step, b)
        messages.append(b)
    return torch.stack(messages[::-1], 1)


def log_partition(p: ChainPotentials) -> Tensor:
    """Log Z, (B,)."""
    c = Chain.of(p)
    return _empty_rows(c) if not c.real.shape[1] else _log_z(c, forward_messages(c))


def _log_z(c: Chain, messages: Tensor) -> Tensor:
    """Log Z of forward messages, (B,)."""
    return torch.where(c.real[:, 0], log_sum_exp(messages[:, -1], 1), 0)


def _empty_rows(c: Chain) -> Tensor:
    """A zero for each chain of no position."""
    return c.unary.sum((1, 2))


def nll(p: ChainPotentials, tags: Tensor) -> Tensor:
    """Log Z - F(tags), (B,), as log Z of score differences to these tags, without large numbers."""
    p = p.to(p.state)
    c, gold = Chain.of(p), p.score_parts(tags)
    if not c.real.shape[1]:
        return _empty_rows(c)
    base = finite(gold.detach()).to(c.unary.dtype)
    beyond = _log_z(c, forward_messages(c._replace(unary=c.unary - base.unsqueeze(2))))
    return (beyond - (gold - base).sum(1)).to(base.dtype).clamp_min(0)


def marginals(p: ChainPotentials) -> Tensor:
    """Tag probabilities (B, T, S), normalised by position: more accurate than exp(a + b - log Z)."""
    c = Chain.of(p.to(WIDE))
    if not c.real.shape[1]:
        return c.unary.to(p.state)
    belief = (forward_messages(c) + backward_messages(c)).softmax(-1)
    return c.restore(torch.where(c.real.unsqueeze(-1), belief, 0)).to(p.state)


def pairwise_marginals(p: ChainPotentials) -> Tensor:
    """Probabilities of two neighbouring tags (B, T-1, S, S)."""
    c = Chain.of(p.to(WIDE))
    if not c.real.shape[1]:
        return (c.unary.unsqueeze(-1) + c.pairwise.sum((0, 1))).to(p.state)
    a, b = forward_messages(c)[:, :-1], (c.unary + backward_messages(c))[:, 1:]
    joint = a.unsqueeze(3) + c.pairwise.transpose(0, 1) + b.unsqueeze(2)
    belief = joint.flatten(2).softmax(-1).view_as(joint)
    belief = torch.where(c.real[:, 1:, None, None], belief, 0).to(p.state)
    if c.order is None:
        return belief
    left = c.order[:, :-1, None, None].expand_as(belief)
    room = belief.new_zeros(len(belief), c.real.shape[1], *belief.shape[2:])
    return room.scatter(1, left, belief)[:, :-1]


def max_marginals(p: ChainPotentials) -> Tensor:
    """The best score of any answer with each tag at each position (B, T, S); 0 where masked."""
    c = Chain.of(p)
    if not c.real.shape[1]:
        return c.unary
    best = forward_messages(c, largest) + backward_messages(c, largest)
    return c.restore(torch.where(c.real.unsqueeze(-1), best, 0))


def viterbi(p: ChainPotentials) -> tuple[Tensor, Tensor]:
    """Tags (B, T) and score (B,) of the best answer.

    Only scores are kept: the back trace redoes the argmax on the one column it needs.
    """
    c = Chain.of(p)
    examples, length = c.real.shape
    if not length:
        return c.real.long(), _empty_rows(c)
    messages = forward_messages(c, largest)
    score, tag = messages[:, -1].max(1)
    tags = [tag]
    rows = torch.arange(examples, device=tag.device)
    for t in range(length - 1, 0, -1):
        table = c.pairwise[t - 1]
        column = table[0].T[tag] if len(table) == 1 else table[rows, :, tag]
        before = (messages[:, t - 1] + column).argmax(1)
        tag = torch.where(c.real[:, t], before, tag)
        tags.append(tag)
    found = torch.stack(tags[::-1], 1).masked_fill(~c.real, 0)
    return c.restore(found), torch.where(c.real[:, 0], score, 0)


def k_best(p: ChainPotentials, k: int) -> tuple[Tensor, Tensor]:
    """The k best answers, best first: tags (K, B, T) and scores (K, B).

    If a chain has fewer than k answers, the rest have score -inf and arbitrary tags.
    """
    c = Chain.of(p)
    examples, length, size = c.unary.shape
    if not length:
        return c.real.long().expand(k, -1, -1), _empty_scores(c.unary, k)
    best = c.unary.new_full((examples, size, k), FORBIDDEN)
    best[..., 0] = c.unary[:, 0]
    back = []
    for t in range(1, length):  # candidates of a tag: every tag before it, and every rank there
        candidates = best.unsqueeze(3) + c.pairwise[t - 1].unsqueeze(2)  # (B, S, K, S)
        top, source = candidates.flatten(1, 2).topk(k, dim=1)
        step = top.transpose(1, 2) + c.unary[:, t].unsqueeze(-1)
        best = torch.where(c.real[:, t, None, None], step, best)
        back.append(source.transpose(1, 2))  # (B, S, K) into S * K
    scores, state = best.flatten(1).topk(k, dim=1)  # (B, K) into S * K
    tags = [state // k]
    for t in range(length - 1, 0, -1):
        before = back[t - 1].flatten(1).gather(1, state)
        state = torch.where(c.real[:, t, None], before, state)
        tags.append(state // k)
    found = torch.stack(tags[::-1], 2).masked_fill(~c.real.unsqueeze(1), 0)
    scores = torch.where(c.real[:, 0], scores.T, _empty_scores(c.unary, k))
    return c.restore(found, 2).transpose(0, 1), scores


def sample(p: ChainPotentials, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Exact, independent samples (N, B, T), by backward sampling."""
    c = Chain.of(p.to(WIDE))
    examples, length, size = c.unary.shape
    if not length:
        return c.real.long().expand(n, -1, -1)
    messages = forward_messages(c)
    rows = torch.arange(examples, device=p.unary.device).unsqueeze(1)
    tag = messages[:, -1].softmax(-1).multinomial(n, replacement=True, generator=generator)  # (B, N)
    tags = [tag]
    for t in range(length - 1, 0, -1):
        table = c.pairwise[t - 1].transpose(1, 2)
        column = table[0][tag] if len(table) == 1 else table[rows, tag]  # (B, N, S)
        scores = messages[:, t - 1].unsqueeze(1) + column
        belief = torch.where(c.real[:, t, None, None], scores, 0).softmax(-1).view(-1, size)
        before = belief.multinomial(1, generator=generator).view_as(tag)
        tag = torch.where(c.real[:, t, None], before, tag)
        tags.append(tag)
    found = torch.stack(tags[::-1], 2).masked_fill(~c.real.unsqueeze(1), 0)  # (B, N, T)
    return c.restore(found, 2).transpose(0, 1)


def _empty_scores(like: Tensor, k: int) -> Tensor:
    """Scores (K, B) of empty chains: their one answer scores 0, and there is no other."""
    scores = like.new_full((k, len(like)), FORBIDDEN)
    scores[:1] = 0
    return scores


def entropy(p: ChainPotentials) -> Tensor:
    """Log Z - E[F], (B,), as a sum of conditional entropies, without differences of large numbers."""
    c = Chain.of(p.to(WIDE))
    if not c.real.shape[1]:
        return _empty_rows(c).to(p.state)
    a, b = forward_messages(c), backward_messages(c)
    belief = torch.where(c.real.unsqueeze(-1), (a + b).softmax(-1), 0)
    total = -(belief[:, 0] * finite((c.unary[:, 0] + b[:, 0]).log_softmax(-1))).sum(1)
    for t in range(1, c.unary.shape[1]):
        onward = c.pairwise[t - 1] + (c.unary[:, t] + b[:, t]).unsqueeze(1)
        given = finite(onward - finite(log_sum_exp(onward, 2)).unsqueeze(2))  # log p(tag | tag before)
        joint = a[:, t - 1].unsqueeze(2) + onward
        pairs = joint.flatten(1).softmax(-1).view_as(joint)
        total = total - torch.where(c.real[:, t], (pairs * given).sum((1, 2)), 0)
    return total.to(p.state)


def finite(scores: Tensor) -> Tensor:
    """Scores with 0 in place of -inf, for expectations in which these have probability 0."""
    return scores.masked_fill(scores == FORBIDDEN, 0)
