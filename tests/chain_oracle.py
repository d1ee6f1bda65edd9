"""Chains by counting: every sequence of tags is scored by a plain loop.

Shapes: T positions, S tags, Y = S ** (number of real positions) answers.
"""

import itertools

import torch
from torch import Tensor

from energies.potentials import ChainPotentials


def answers(p: ChainPotentials, row: int) -> tuple[Tensor, Tensor]:
    """Every answer (Y, T) of one example, 0 where masked, and its score (Y,)."""
    real = p.real()[row].nonzero().squeeze(1).tolist()
    length, size = p.unary.shape[1:]
    tags, scores = [], []
    for choice in itertools.product(range(size), repeat=len(real)):
        full = torch.zeros(length, dtype=torch.long)
        score = p.unary.new_zeros(())
        for step, (t, s) in enumerate(zip(real, choice, strict=True)):
            full[t] = s
            score = score + p.unary[row, t, s]
            if step:
                score = score + _table(p, row, step - 1)[choice[step - 1], s]
        if real and p.start is not None:
            score = score + p.start[choice[0]]
        if real and p.end is not None:
            score = score + p.end[choice[-1]]
        tags.append(full)
        scores.append(score)
    return torch.stack(tags), torch.stack(scores)


def _table(p: ChainPotentials, row: int, step: int) -> Tensor:
    if p.pairwise.dim() == 2:
        return p.pairwise
    return p.pairwise[step] if p.pairwise.dim() == 3 else p.pairwise[row, step]


def log_partition(p: ChainPotentials) -> Tensor:
    return torch.stack([answers(p, row)[1].logsumexp(0) for row in range(len(p.unary))])


def entropy(p: ChainPotentials) -> Tensor:
    rows = []
    for row in range(len(p.unary)):
        log_p = answers(p, row)[1].log_softmax(0)
        rows.append(-(log_p.exp() * log_p.masked_fill(log_p.isinf(), 0)).sum())
    return torch.stack(rows)


def marginals(p: ChainPotentials) -> Tensor:
    out = torch.zeros_like(p.unary)
    for row in range(len(p.unary)):
        tags, scores = answers(p, row)
        for y, q in zip(tags, scores.softmax(0), strict=True):
            for t in p.real()[row].nonzero().squeeze(1).tolist():
                out[row, t, y[t]] += q
    return out


def pairwise_marginals(p: ChainPotentials) -> Tensor:
    examples, length, size = p.unary.shape
    out = p.unary.new_zeros(examples, max(length - 1, 0), size, size)
    for row in range(examples):
        tags, scores = answers(p, row)
        real = p.real()[row].nonzero().squeeze(1).tolist()
        for y, q in zip(tags, scores.softmax(0), strict=True):
            for t, after in itertools.pairwise(real):
                out[row, t, y[t], y[after]] += q
    return out


def max_marginals(p: ChainPotentials) -> Tensor:
    out = torch.zeros_like(p.unary)
    for row in range(len(p.unary)):
        tags, scores = answers(p, row)
        for t in p.real()[row].nonzero().squeeze(1).tolist():
            for s in range(p.unary.shape[2]):
                out[row, t, s] = scores[tags[:, t] == s].max()
    return out
