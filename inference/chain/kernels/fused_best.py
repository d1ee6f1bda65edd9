"""Viterbi of the fused chain: from both ends of each sequence at once, to the middle.

A sequence backwards is a chain with its matrix transposed. So both ways are one batch of two, the loop takes
half as many steps as there are positions, and so does the back trace, from the middle to the ends. Sequences
stand sorted by length: step k works on the first n_k, those that are long enough for it.

Shapes: B sequences, B' that have a real position, R rows of all steps (the sum of the n_k), S tags.
"""

from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from energies.potentials import ChainPotentials

# Pairs of tags scored at a time: more would leave a CPU's cache, or take too much of a GPU's memory
PAIRS = {"cpu": 2**20, "cuda": 2**26}


class Halves(NamedTuple):
    """Which position each step works on, from the left end and from the right, as rows of (2, R).

    The middle of a sequence is length // 2. Worked out by numpy: on few numbers it is the quicker one.
    """

    steps: list[int]  # n_k: how many have their middle at k or later
    order: Tensor  # (B',) the sequences that have a position, longest first
    tokens: Tensor  # (2 R,) on the way to the middle: index of each row's position into the flattened batch
    first: Tensor  # which of these rows are of first positions
    last: Tensor  # and of last ones
    source: Tensor  # (2 R,) on the way back from the middle: where each row's position stands in `tokens`
    inside: Tensor  # which of these rows are not past an end: with even lengths, the right one is nearer

    @classmethod
    def of(cls, real: Tensor) -> Self:
        """The halves of a batch with these real positions (B, T)."""
        mask = real.cpu().numpy()
        lengths = mask.sum(1)
        order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        length, middle = lengths[order], lengths[order] // 2
        k, b = np.nonzero(np.arange(middle[0] + 1 if len(order) else 0)[:, None] <= middle)
        steps = np.bincount(k)
        begin, last, middle = (lengths.cumsum() - lengths)[order][b], length[b] - 1, middle[b]
        inward = np.stack([k, last - k])
        to_end = np.stack([middle - k, last - middle - k])
        source = (steps.cumsum() - steps)[np.maximum(to_end, 0)] + b
        source[1] += len(b)
        parts = [
            order,
            np.flatnonzero(mask)[begin + inward].reshape(-1),
            np.flatnonzero(inward == 0),
            np.flatnonzero(inward == last),
            source.reshape(-1),
            np.flatnonzero(to_end >= 0),
        ]
        moved = torch.from_numpy(np.concatenate(parts)).to(real.device)
        return cls(steps.tolist(), *moved.split([len(part) for part in parts]))


@torch.no_grad()
def viterbi(p: ChainPotentials) -> tuple[Tensor, Tensor]:
    """Tags (B, T), 0 where masked, and score (B,) of the best answers, NaN or inf where a score is."""
    most = max(PAIRS.get(p.unary.device.type, 2**20) // (2 * p.unary.shape[2] ** 2), 1)
    if most >= len(p.unary):
        return best(p)
    parts = zip(p.unary.split(most), p.real().split(most), strict=True)
    tags, score = zip(*(best(replace(p, unary=unary, mask=real)) for unary, real in parts), strict=True)
    return torch.cat(tags), torch.cat(score)


def best(p: ChainPotentials) -> tuple[Tensor, Tensor]:
    """`viterbi` of as many sequences as are worked on at a time."""
    (examples, length, size), dtype = p.unary.shape, p.state
    tags = torch.zeros(examples * length, dtype=torch.long, device=p.unary.device)
    score = torch.zeros(examples, dtype=dtype, device=p.unary.device)
    halves = Halves.of(p.real())
    if not halves.steps:
        return tags.view(examples, length), score
    own, pairwise = p.unary.reshape(-1, size).index_select(0, halves.tokens).to(dtype), p.pairwise.to(dtype)
    for rows, given in ((halves.first, p.start), (halves.last, p.end)):
        if given is not None:
            own.index_add_(0, rows, given.to(dtype).expand(len(rows), -1))
    ahead, message = sweep(own.view(2, -1, size), pairwise, halves.steps)
    message = message.view(-1, size).index_select(0, halves.source).view_as(ahead)
    count = halves.steps[0]
    right = halves.source.view(2, -1)[1, :count]
    score[halves.order], tag = (message[0, :count] + ahead.view(-1, size).index_select(0, right)).max(1)
    found = trace(message, pairwise, halves.steps, tag).view(-1).index_select(0, halves.inside)
    tags[halves.tokens.index_select(0, halves.source.index_select(0, halves.inside))] = found
    return tags.view(examples, length), score


def sweep(own: Tensor, pairwise: Tensor, steps: list[int]) -> tuple[Tensor, Tensor]:
    """The best score of all from an end to each tag, (2, R, S), without and with its own, which is `own`."""
    size, count = len(pairwise), steps[0]
    tables = torch.stack([pairwise, pairwise.T], 1).unsqueeze(2)  # (S, 2, 1, S)
    ahead, message = torch.empty_like(own), torch.empty_like(own)
    ahead[:, :count], message[:, :count] = 0, own[:, :count]
    columns = message.permute(2, 0, 1).unsqueeze(3).split(steps, 2)  # (S, 2, n_k, 1)
    pairs = own.new_empty(size, 2, count, size)
    views = zip(steps[1:], columns, *(x.split(steps, 1)[1:] for x in (ahead, own, message)), strict=False)
    for n, before, best, given, total in views:
        if n < count:
            pairs = pairs[:, :, :n]
        torch.add(before[:, :, :n] if n < count else before, tables, out=pairs)
        torch.amax(pairs, 0, out=best)
        torch.add(best, given, out=total)
        count = n
    return ahead, message


def trace(message: Tensor, pairwise: Tensor, steps: list[int], tag: Tensor) -> Tensor:
    """The tags (2, R) from the middle's, (B',), to the ends: where message and step together are best."""
    tables = torch.stack([pairwise.T, pairwise])
    way = torch.tensor([[0], [1]], device=tag.device)
    found = tag.new_empty(message.shape[:2])
    found[:, : steps[0]] = tag
    count = steps[0]
    nearer = found.split(steps, 1)
    views = zip(steps[1:], nearer, nearer[1:], message.split(steps, 1)[1:], strict=False)
    for n, before, out, given in views:
        after = before[:, :n] if n < count else before
        torch.argmax(tables[way, after] + given, 2, out=out)
        count = n
    return found
