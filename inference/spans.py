"""Tags of spans from the probability of each tag: the best that are well-formed.

The score of an answer is the sum of the probabilities of its tags. So the answer has the most right tags in
expectation, of those allowed. The released code of SEAL decodes this way.   [SEAL code; srl-eval in AllenNLP]

Shapes: B examples, T positions, S tags, R kinds of span.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from energies.answers.relaxed import FORBIDDEN
from energies.constraints import Constraints, bio_tags
from energies.potentials import ChainPotentials
from inference import chain
from networks.sizes import at_least


class DecodedSpans(NamedTuple):
    """The answers (B, T), 0 at masked positions, their scores (B,), and which are surely the best, (B,)."""

    tags: Int[Tensor, "B T"]
    score: Float[Tensor, " B"]
    exact: Bool[Tensor, " B"]


@dataclass(frozen=True)
class SpanDecoder(ABC):
    """From the probabilities of the `bio_tags` of these kinds of span to tags."""

    kinds: Sequence[str]

    @torch.no_grad()
    def __call__(self, probabilities: Float[Tensor, "B T S"], mask: Bool[Tensor, "B T"]) -> DecodedSpans:
        """The best well-formed answers."""
        free = probabilities.new_zeros(*self.constraints.allowed.shape)
        return self.best(self.constraints.on(ChainPotentials(probabilities, free, mask)))

    @abstractmethod
    def best(self, p: ChainPotentials) -> DecodedSpans:
        """The best answers of a chain."""

    @cached_property
    def constraints(self) -> Constraints:
        """Which tag may follow which."""
        return Constraints.for_spans(bio_tags(self.kinds))


@dataclass(frozen=True)
class WellFormed(SpanDecoder):
    """The best BIO tags, by Viterbi."""

    def best(self, p: ChainPotentials) -> DecodedSpans:
        tags, score = chain.viterbi(p)
        return DecodedSpans(tags, score, torch.ones_like(score, dtype=torch.bool))


@dataclass(frozen=True)
class UniqueSpans(SpanDecoder):
    """The best BIO tags with at most one span of each of the kinds `unique`, by branch and bound.

    An example whose best BIO tags are allowed is done. Otherwise a kind that occurs twice and the place i of
    one of its spans make two problems: spans of this kind begin nowhere but at i, or they do not begin at i.
    The problem with the best bound is split next; the first of them that is allowed is the best answer. All
    examples are searched together, one Viterbi a round. After `most_nodes` problems an example keeps to the
    first of the two problems, which ends soon; its answer is allowed, but not `exact`.
    """

    unique: Sequence[str] = ()
    most_nodes: int = 200

    def __post_init__(self) -> None:
        at_least(2, most_nodes=self.most_nodes)
        if missing := [kind for kind in self.unique if kind not in self.kinds]:
            raise ValueError(
                f"unique has {', '.join(missing)}: take kinds that there are, as {self.kinds[0]}."
            )

    def best(self, p: ChainPotentials) -> DecodedSpans:
        tags, score, exact = WellFormed(self.kinds).best(p)
        begins = begins_of(self.unique, self.kinds).to(tags.device)
        begun = starts(tags, begins, p.real())
        rows = begun.sum(1).gt(1).any(-1).nonzero().flatten()
        searches = [
            _Search(_Problem(-float(score[row]), 0, tags[row], begun[row], torch.zeros_like(begun[row])))
            for row in rows
        ]
        self._search(p.rows(rows), begins, searches)
        for row, search in zip(rows, searches, strict=True):
            tags[row], score[row], exact[row] = search.best.tags, -search.best.cost, search.exact
        return DecodedSpans(tags, score, exact)

    def _search(self, p: ChainPotentials, begins: Tensor, searches: list["_Search"]) -> None:
        """Split problems until the best of each example is allowed."""
        waiting = [(row, search) for row, search in enumerate(searches) if not search.settled]
        while waiting:
            split = [
                (row, search, forbidden)
                for row, search in waiting
                for forbidden in search.split(p.unary[row][:, begins], narrow=search.nodes > self.most_nodes)
            ]
            few = p.rows(torch.tensor([row for row, _, _ in split], device=begins.device))
            forbidden = torch.stack([forbidden for _, _, forbidden in split])
            unary = few.unary.clone()
            unary[..., begins] = few.unary[..., begins].masked_fill(forbidden, FORBIDDEN)
            tags, score = chain.viterbi(replace(few, unary=unary))
            begun = starts(tags, begins, few.real())
            for (_, search, _), *problem in zip(split, score.tolist(), tags, begun, forbidden, strict=True):
                search.add(*problem)
            waiting = [(row, search) for row, search in waiting if not search.settled]


@dataclass(order=True)
class _Problem:
    """A chain whose spans may not begin at some places: minus its best score, and the best tags (T,).

    `begun` and `forbidden` (T, R): where a span of each unique kind begins, and where none may.
    """

    cost: float
    order: int
    tags: Tensor = field(compare=False)
    begun: Tensor = field(compare=False)
    forbidden: Tensor = field(compare=False)

    @property
    def allowed(self) -> bool:
        return bool((self.begun.sum(0) <= 1).all())


class _Search:
    """The open problems of one example, the one with the best bound first."""

    def __init__(self, root: _Problem) -> None:
        self.open, self.nodes, self.exact = [root], 1, True

    @property
    def best(self) -> _Problem:
        return self.open[0]

    @property
    def settled(self) -> bool:
        return self.best.allowed

    def split(self, scores: Float[Tensor, "T R"], *, narrow: bool) -> list[Tensor]:
        """What the children of the best problem forbid; with `narrow` the first child replaces all others."""
        problem = heapq.heappop(self.open)
        kind = int(problem.begun.sum(0).argmax())
        here = int(scores[:, kind].masked_fill(~problem.begun[:, kind], FORBIDDEN).argmax())
        only, never = problem.forbidden.clone(), problem.forbidden.clone()
        only[:, kind] = True
        only[here, kind] = False
        never[here, kind] = True
        if not narrow:
            return [only, never]
        self.open, self.exact = [], False
        return [only]

    def add(self, score: float, tags: Tensor, begun: Tensor, forbidden: Tensor) -> None:
        """Add a problem, solved."""
        heapq.heappush(self.open, _Problem(-score, self.nodes, tags, begun, forbidden))
        self.nodes += 1


def begins_of(kinds: Sequence[str], among: Sequence[str]) -> Int[Tensor, " R"]:
    """The numbers of the B- tags of some kinds."""
    tags = bio_tags(among)
    return torch.tensor([tags.index(f"B-{kind}") for kind in kinds], dtype=torch.long)


def starts(
    tags: Int[Tensor, "B T"], begins: Int[Tensor, " R"], real: Bool[Tensor, "B T"]
) -> Bool[Tensor, "B T R"]:
    """Where a span of each kind begins, for the numbers of their B- tags."""
    return (tags.unsqueeze(-1) == begins) & real.unsqueeze(-1)
