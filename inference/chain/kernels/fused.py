"""The chain in plain PyTorch on rescaled probabilities, with hand-written derivatives.

A step is one product, one multiplication, one sum, one division. Both directions run in one loop as a batch
of two: a sequence backwards is a chain with its matrix transposed. Sequences are sorted by length, so step k
works on those that have a k-th position and needs no mask.

Shapes: B examples, T positions, N real positions of the batch, S tags.
"""

from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from energies.potentials import check_tags, state_type
from inference.chain.kernels.problem import LARGE, LIMITS, Problem, ScoreGradient, fits, largest_safe_size


class Layout(NamedTuple):
    """Where the N real positions of a batch stand, one sequence after another, and when each is worked on.

    Step k of the loop owns 2 n_k rows of a buffer: the k-th positions of n_k sequences, then those that are
    k-th from the end.
    """

    tokens: Tensor  # (N,) index into the flattened batch
    owner: Tensor  # (N,) sequence of each
    forth: Tensor  # (N,) row of each in the buffer, on the way from the start
    back: Tensor  # (N,) and from the end
    source: Tensor  # (2 N,) which position each row holds
    steps: list[int]  # n_k
    first: Tensor  # (B',) the first position of each sequence that has one
    last: Tensor  # (B',)

    @classmethod
    def of(cls, mask: Tensor | None, shape: torch.Size, device: torch.device) -> Self:
        """The layout of a batch (B, T, S); any position may be masked."""
        real = torch.ones(shape[:2], dtype=torch.bool, device=device) if mask is None else mask
        lengths = real.sum(1)
        tokens = real.reshape(-1).nonzero().squeeze(1)
        owner = tokens // max(shape[1], 1)
        ahead = torch.arange(len(tokens), device=device) - (lengths.cumsum(0) - lengths)[owner]
        behind = lengths[owner] - 1 - ahead
        steps = torch.bincount(ahead, minlength=1)
        place = torch.empty_like(lengths)
        place[lengths.argsort(descending=True, stable=True)] = torch.arange(len(lengths), device=device)
        place, begins = place[owner], 2 * (steps.cumsum(0) - steps)
        forth, back = begins[ahead] + place, begins[behind] + steps[behind] + place
        source = tokens.new_empty(2 * len(tokens))
        count = torch.arange(len(tokens), device=device)
        source[forth], source[back] = count, count
        return cls(tokens, owner, forth, back, source, steps.tolist(), count[ahead == 0], count[behind == 0])

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The part (2, n_k, ...) of each step in a buffer (2 N, ...)."""
        parts = buffer.split([2 * n for n in self.steps])
        return [part.view(2, n, *buffer.shape[1:]) for part, n in zip(parts, self.steps, strict=True)]


class Fused:
    """A problem after both sweeps; `inference.chain.kernels.problem.Solved`."""

    def __init__(self, problem: Problem) -> None:
        self.shape, self.dtype = problem.unary.shape, state_type(problem.unary)
        self.layout = Layout.of(problem.mask, self.shape, problem.unary.device)
        pairwise = problem.pairwise.detach().to(self.dtype)
        table_top = pairwise.amax()
        gaps, top = self._gaps(problem)
        table_gaps = pairwise - table_top
        self.tags = self._gold_tags(problem)
        wide, table_wide = -gaps.amin() if len(gaps) else gaps.sum(), -table_gaps.amin()
        limits = LIMITS[self.dtype]
        is_whole = bool(
            (wide <= limits.cut) & (table_wide <= limits.cut) & (wide + table_wide < limits.whole)
        )
        emission, self.table = gaps.exp(), table_gaps.exp()
        if not is_whole:
            emission.masked_fill_(gaps < -limits.cut, 0)
            self.table.masked_fill_(table_gaps < -limits.cut, 0)
        totals = self._sweep(emission)
        weight = self._per_sequence(totals.log_())
        steps = torch.bincount(self.layout.owner, minlength=self.shape[0])
        log_z = self._per_sequence(top) + (steps - 1).clamp_min(0) * table_top.double() + weight
        # in the difference to gold tags what is best at each position falls out
        rows = log_z if self.tags is None else weight - self._score(self.tags, gaps, table_gaps)
        self.rows, self.safe = rows.to(self.dtype), log_z.to(self.dtype).isfinite()
        if not is_whole and self.shape[1] * self.shape[2] > largest_safe_size(float(table_wide), limits):
            both = self.alpha, self.messages.index_select(0, self.layout.back)
            self.safe = self.safe & fits(gaps, table_gaps, both, weight, self.layout.owner, steps)
        self.is_safe = bool(self.safe.all())

    def _sweep(self, emission: Tensor) -> Tensor:
        """Both recursions: normalised `messages` and, before a position's own score, `ahead`; totals (N,)."""
        layout = self.layout
        emission = emission.index_select(0, layout.source)
        self.messages, self.ahead = torch.empty_like(emission), torch.empty_like(emission)
        totals = emission.new_empty(len(emission), 1)
        self.tables = torch.stack([self.table, self.table.T])
        views = zip(*(layout.views(x) for x in (emission, self.messages, self.ahead, totals)), strict=True)
        previous = None
        for own, message, ahead, total in views:
            if previous is None:
                ahead.fill_(1)
                message.copy_(own)
            else:
                torch.bmm(previous[:, : own.shape[1]], self.tables, out=ahead)
                torch.mul(ahead, own, out=message)
            torch.sum(message, 2, keepdim=True, out=total)
            previous = message.div_(total)
        return totals.index_select(0, layout.forth).view(-1)

    def gradient(self, weight: Tensor, *, pairs: bool = True) -> ScoreGradient:
        """The gradient of sum_b weight_b rows_b."""
        rows_weight = weight.detach().to(self.dtype)[self.layout.owner].unsqueeze(1)
        belief = self.marginals * rows_weight
        pairwise = None
        if pairs:
            pairwise = (self.alpha[:-1].T @ (self.right * rows_weight)[1:]).mul_(self.table)
        if self.tags is not None:
            belief.scatter_add_(1, self.tags.unsqueeze(1), -rows_weight)
            if pairwise is not None:
                linked = -rows_weight[1:, 0].index_fill(0, self.layout.first[1:] - 1, 0)
                pairwise.view(-1).index_add_(0, self.tags[:-1] * self.shape[2] + self.tags[1:], linked)
        return self._score_gradient(belief, pairwise)

    def tangent(
        self, weight: Tensor, direction: ScoreGradient, *, pairs: bool = True
    ) -> tuple[Tensor, ScoreGradient]:
        """The directional derivatives of rows (B,), and how the gradient changes along the direction.

        `rho` is the derivative of the logarithm of a message.
        """
        owner = self.layout.owner
        given = direction.unary if direction.unary is not None else self.messages.new_zeros(self.shape)
        own = self._by_position(given)
        self._add_ends(own, direction.start, direction.end)
        d_table = self.table * direction.pairwise.to(self.dtype) if direction.pairwise is not None else None
        forth, back = self._push(own, d_table)
        at_end = self.layout.last
        d_rows = own.new_zeros(self.shape[0])
        d_rows[owner[at_end]] = (self.alpha[at_end] * forth[at_end]).sum(1)
        forth = forth - d_rows[owner].unsqueeze(1)
        if self.tags is not None:
            table = None if direction.pairwise is None else direction.pairwise.to(self.dtype)
            d_rows = d_rows - self._score(self.tags, own, table)
        rows_weight = weight.detach().to(self.dtype)[owner].unsqueeze(1)
        belief, change = self.marginals, forth + back - own
        belief = belief * (change - (belief * change).sum(1, keepdim=True)) * rows_weight
        pairwise = None
        if pairs:
            before, sent = self.alpha[:-1].T, (self.right * rows_weight)[1:]
            pairwise = (self.alpha * forth)[:-1].T @ sent + before @ (sent * back[1:])
            pairwise = pairwise * self.table + (0 if d_table is None else (before @ sent) * d_table)
        return d_rows, self._score_gradient(belief, pairwise)

    def _push(self, own: Tensor, d_table: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rho of both directions at every position, two (N, S), each with the position's own share."""
        layout = self.layout
        inverse = self.ahead.reciprocal().masked_fill_(self.ahead == 0, 0)
        drive = own.index_select(0, layout.source)
        if d_table is not None:
            inner = (self.alpha[:-1] @ d_table) * inverse[layout.forth[1:]]
            drive.index_add_(0, layout.forth[1:], inner.index_fill_(0, layout.first[1:] - 1, 0))
            inner = (self.messages[layout.back[1:]] @ d_table.T) * inverse[layout.back[:-1]]
            drive.index_add_(0, layout.back[:-1], inner.index_fill_(0, layout.last[:-1], 0))
        rho = torch.empty_like(drive)
        previous = None
        views = zip(*(layout.views(x) for x in (drive, inverse, self.messages, rho)), strict=True)
        for share, scale, message, out in views:
            if previous is None:
                out.copy_(share)
            else:
                torch.addcmul(share, torch.bmm(previous[:, : out.shape[1]], self.tables), scale, out=out)
            previous = message * out
        return rho.index_select(0, layout.forth), rho.index_select(0, layout.back)

    @cached_property
    def alpha(self) -> Tensor:
        """Forward probabilities at every position, (N, S)."""
        return self.messages.index_select(0, self.layout.forth)

    @cached_property
    def marginals(self) -> Tensor:
        """Tag probabilities (N, S), normalised at each position: they need no log Z."""
        belief = self.alpha * self.ahead.index_select(0, self.layout.back)
        return belief.div_(belief.sum(1, keepdim=True))

    @cached_property
    def right(self) -> Tensor:
        """What a position sends back (N, S): alpha before it (outer) this, times the matrix, are pairs."""
        sent = self.messages.index_select(0, self.layout.back)
        predicted = self.ahead.index_select(0, self.layout.forth)
        sent.div_((predicted * sent).sum(1, keepdim=True))
        return sent.index_fill_(0, self.layout.first, 0)

    def _gold_tags(self, problem: Problem) -> Tensor | None:
        """The gold tags of the real positions (N,), where there are some."""
        if problem.tags is None:
            return None
        tags = problem.tags.reshape(-1).index_select(0, self.layout.tokens)
        if bool(((tags < 0) | (tags >= self.shape[2])).any()):
            check_tags(problem.tags, problem.mask, self.shape[2])
        return tags

    def _score(self, tags: Tensor, scores: Tensor, pairwise: Tensor | None) -> Tensor:
        """What scores of positions (N, S) and pairs give to tags, (B,)."""
        given = scores.gather(1, tags.unsqueeze(1)).squeeze(1)
        if pairwise is not None:
            linked = pairwise.reshape(-1).index_select(0, tags[:-1] * self.shape[2] + tags[1:])
            given[1:] += linked.index_fill_(0, self.layout.first[1:] - 1, 0)
        return self._per_sequence(given)

    def _per_sequence(self, values: Tensor) -> Tensor:
        """Sums (B,) of numbers at positions (N,)."""
        return values.new_zeros(self.shape[0]).index_add_(0, self.layout.owner, values)

    def _gaps(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Scores less the greatest of their position (N, S), and that (N,) in float64."""
        scores, ends = self._by_position(problem.unary), (problem.start, problem.end)
        self._add_ends(scores, *ends)
        top = scores.amax(1, keepdim=True)
        gaps = scores.sub_(top)
        if ends == (None, None) or not bool((top.abs() > LARGE).any()):
            return gaps, top.squeeze(1).double()
        at, sums = torch.cat([self.layout.first, self.layout.last]), self._exact_at_ends(problem)
        top = top.double()
        top[at] = sums.amax(1, keepdim=True)
        gaps[at] = (sums - top[at]).to(self.dtype)
        return gaps, top.squeeze(1)

    def _by_position(self, unary: Tensor) -> Tensor:
        """Scores of the real positions (N, S), free to be changed."""
        flat = unary.detach().to(self.dtype).reshape(-1, self.shape[2])
        return flat.index_select(0, self.layout.tokens)

    def _add_ends(self, scores: Tensor, start: Tensor | None, end: Tensor | None) -> None:
        """Add scores of the ends (S,) to those of positions (N, S)."""
        for at, given in ((self.layout.first, start), (self.layout.last, end)):
            if given is not None:
                scores.index_add_(0, at, given.detach().to(self.dtype).expand(len(at), -1))

    def _exact_at_ends(self, problem: Problem) -> Tensor:
        """What first positions have in all, then last ones, in float64 (2 B', S)."""
        first, last = self.layout.first, self.layout.last
        tokens = self.layout.tokens.index_select(0, torch.cat([first, last]))
        sums = problem.unary.detach().reshape(-1, self.shape[2]).index_select(0, tokens).double()
        alone = first == last
        always = torch.ones_like(alone)
        for given, here in ((problem.start, [always, alone]), (problem.end, [alone, always])):
            if given is not None:
                sums += torch.where(torch.cat(here).unsqueeze(1), given.detach().double(), 0.0)
        return sums

    def _score_gradient(self, belief: Tensor, pairwise: Tensor | None) -> ScoreGradient:
        """Numbers at real positions (N, S), put where they belong, with their sums at the ends."""
        layout, count = self.layout, self.shape[0] * self.shape[1]
        first, last = belief[layout.first].sum(0), belief[layout.last].sum(0)
        if len(belief) < count:
            belief = belief.new_zeros(count, self.shape[2]).index_copy_(0, layout.tokens, belief)
        whole = belief.resize_(self.shape)  # a view could not be changed in place where autograd hands it out
        return ScoreGradient(whole, pairwise, first, last)
