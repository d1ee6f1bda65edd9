"""Potentials: the factors of an energy that exact inference needs.

Shapes: B examples, T positions, S tags a position. Scores are high where the answer is good.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from energies.answers.relaxed import RelaxedChain, hide

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

Factor = Tensor | float  # one number, or (B,): one an example


class Potentials(Protocol):
    """The scores of a structured answer: unary scores U, and pairwise scores W between its parts.

    Schemes and scalings use this interface for chains and for Gaussian fields. norm(M) is the mean absolute
    value of the entries.   [Scaling §5.2]

    Attributes:
        unary: U, (B, *positions, S): a score for each of S labels at each position.
        mask: (B, *positions) bool, True is real; None where all are.
        pairwise_unit: the norm(W) to which a scaling normalises W; norm(W) is divided by it.
        numbers: how many numbers the batch has, those that all examples share left out.
    """

    @property
    def unary(self) -> Tensor: ...

    @property
    def mask(self) -> Tensor | None: ...

    @property
    def pairwise_unit(self) -> Factor: ...

    @property
    def numbers(self) -> int: ...

    def score(self, y: Tensor) -> Tensor:
        """F(y) of each answer, (..., B)."""

    def logits(self) -> Tensor:
        """The unary scores alone, as the logits of an answer."""

    def unary_norm(self) -> Float[Tensor, " B"]:
        """norm(U) of each example, over its real positions."""

    def pairwise_norm(self) -> Tensor:
        """norm(W): one number, or one for each example, (B,)."""

    def balances(self) -> dict[str, Float[Tensor, ""]]:
        """Of a batch, for training curves: `ratio` is norm(U) / norm(W); some kinds have more."""

    def times(self, unary: Factor, rest: Factor | None = None) -> Self:
        """U times `unary` and W times `rest`, which has the shape of the pairwise norm; None is 1."""

    def repeat(self, k: int) -> Self:
        """The batch k times over, (k B, ...)."""

    def rows(self, index: Tensor) -> Self:
        """The examples at these indices, or where a bool for each example is True."""


def check_tensors(**values: object) -> None:
    """Check that arguments are tensors, or None.

    Raises:
        TypeError: one is something else, as an array of NumPy; the message names the first.
    """
    for name, value in values.items():
        if not (value is None or isinstance(value, Tensor)):
            raise TypeError(
                f"{name} is a {type(value).__name__}: give a tensor, as torch.as_tensor makes it."
            )


@dataclass(frozen=True)
class ChainPotentials:
    """The scores of a linear chain: F(y) = sum_t u_t(y_t) + sum_t W(y_t, y_t+1).   [Scaling eq. 1]

    A score of -inf forbids a tag or a transition; inference raises an error for NaN and +inf. Scores at
    masked positions do not count, nor do pairwise scores in chains of one position.

    Scores are float16, bfloat16, float32 or float64. Results are float32, or float64 if any score is; the
    unaries are then converted.

    Attributes:
        unary: u, (B, T, S), at least one tag.
        pairwise: W, the transition matrix (S, S): the score of a tag (row) before another (column). Or one
            matrix for each step, (T-1, S, S) or (B, T-1, S, S), on the reference path only.
        mask: (B, T) bool, True is real; any position may be masked: the chain connects the real ones.
        start: (S,), score of the first real tag. Scaled with W.
        end: (S,), score of the last real tag. Scaled with W.
    """

    unary: Float[Tensor, "B T S"]
    pairwise: Float[Tensor, "..."]
    mask: Tensor | None = None
    start: Float[Tensor, "..."] | None = None
    end: Float[Tensor, "..."] | None = None
    pairwise_unit: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_tensors(
            unary=self.unary, pairwise=self.pairwise, mask=self.mask, start=self.start, end=self.end
        )
        if self.unary.dim() != 3:
            raise ValueError(
                f"the unary scores have shape {tuple(self.unary.shape)}; a chain needs (examples, positions, "
                "tags): for one example call .unsqueeze(0) on them."
            )
        shape, steps = self.unary.shape, max(self.unary.shape[1] - 1, 0)
        size = shape[2]
        if not size:
            raise ValueError(f"unaries of shape {tuple(shape)} have no tags; a chain needs one or more.")
        tables = [(size, size), (steps, size, size), (shape[0], steps, size, size)]
        if self.pairwise.shape not in tables:
            raise ValueError(
                f"the pairwise scores have shape {tuple(self.pairwise.shape)}, but unaries of shape "
                f"{tuple(shape)} (examples, positions, tags) need "
                + ", ".join(map(str, tables[:-1]))
                + f" or {tables[-1]}."
            )
        for name, vector in (("start", self.start), ("end", self.end)):
            if vector is not None and vector.shape != shape[2:]:
                raise ValueError(
                    f"the {name} scores have shape {tuple(vector.shape)}; {size} tags need ({size},)."
                )
        if self.mask is not None and (self.mask.shape != shape[:2] or self.mask.dtype != torch.bool):
            raise ValueError(
                f"the mask is {self.mask.dtype} of shape {tuple(self.mask.shape)}; unaries of shape "
                f"{tuple(shape)} need bool of shape {tuple(shape[:2])}: call .bool() on it, examples first."
            )
        self._check_types()

    def _check_types(self) -> None:
        """Check that scores are floats, and make the unaries float64 if other scores are."""
        named = {"unary": self.unary, "pairwise": self.pairwise, "start": self.start, "end": self.end}
        scores = {name: x for name, x in named.items() if x is not None}
        for name, x in scores.items():
            if x.dtype not in FLOATS:
                raise ValueError(
                    f"the {name} scores are {x.dtype}; a chain takes "
                    f"{', '.join(str(kind).removeprefix('torch.') for kind in FLOATS)}: call .float() on them"
                    + (", or on their .real part." if x.is_complex() else ".")
                )
        if self.unary.dtype != torch.float64 and any(x.dtype == torch.float64 for x in scores.values()):
            object.__setattr__(self, "unary", self.unary.double())

    @property
    def numbers(self) -> int:
        """See Potentials."""
        return self.unary.numel()

    @property
    def state(self) -> torch.dtype:
        """The float type of results."""
        return state_type(self.unary)

    def score(self, y: Shaped[Tensor, "..."]) -> Float[Tensor, "... B"]:
        """F(y) of each answer.

        Shapes:
            y: integer tags (..., B, T), or a relaxed or one-hot answer (..., B, T, S), in which F is
                multilinear. Values at masked positions are ignored. An answer with a weight above 1e-6 on
                something forbidden scores -inf.

        Raises:
            ValueError: y has another shape, or a real position holds a number outside 0..S-1.
        """
        if y.is_floating_point() or y.dtype == torch.bool:
            return self.relaxed().score(y)
        self.check_shape(y)
        return self.tag_score(y).to(self.state)

    def check_shape(self, tags: Tensor) -> None:
        """Check that answers are integer tags (..., B, T).

        Raises:
            ValueError: they have another shape or type.
        """
        shape = self.unary.shape
        if tags.shape[-2:] != shape[:2] or tags.is_floating_point() or tags.dtype == torch.bool:
            raise ValueError(
                f"the tags are {tags.dtype} of shape {tuple(tags.shape)}; unaries of shape {tuple(shape)} "
                f"need integers of shape {tuple(shape[:2])}: of one-hot answers take .argmax(-1)."
            )

    def score_difference(self, y: Int[Tensor, "B T"], other: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
        """F(y) - F(other) of integer tags, accurate even if both are large."""
        of_y, of_other = self.tag_score(torch.stack([y, other]))
        return (of_y - of_other).to(self.state)

    def logits(self) -> Float[Tensor, "B T S"]:
        """See Potentials."""
        return self.unary

    def unary_norm(self) -> Float[Tensor, " B"]:
        """See Potentials."""
        if self.mask is None:
            return self.unary.abs().mean((-2, -1))
        sizes = self.unary.abs().mean(-1).masked_fill(~self.mask, 0)
        return sizes.sum(-1) / self.mask.sum(-1).clamp_min(1)

    def pairwise_norm(self) -> Float[Tensor, ""]:
        """norm(W), without start and end scores."""
        return self.pairwise.abs().mean()

    def balances(self) -> dict[str, Float[Tensor, ""]]:
        """See Potentials."""
        return {"ratio": self.unary_norm().mean() / self.pairwise_norm().mean()}

    def times(self, unary: Factor, rest: Factor | None = None) -> Self:
        """See Potentials; start and end scores are multiplied by `rest` too."""
        if isinstance(unary, Tensor) and unary.dim():
            unary = unary.view(-1, 1, 1)
        if rest is None:
            return replace(self, unary=unary * self.unary)
        pairwise = rest * self.pairwise
        start, end = (None if scores is None else rest * scores for scores in (self.start, self.end))
        return replace(self, unary=unary * self.unary, pairwise=pairwise, start=start, end=end)

    def repeat(self, k: int) -> Self:
        """See Potentials."""
        return self.rows(torch.arange(len(self.unary), device=self.unary.device).repeat(k))

    def rows(self, index: Tensor) -> Self:
        """See Potentials."""
        pairwise = self.pairwise[index] if self.pairwise.dim() == 4 else self.pairwise
        mask = None if self.mask is None else self.mask[index]
        return replace(self, unary=self.unary[index], pairwise=pairwise, mask=mask)

    def plus(self, unary: Float[Tensor, "B T S"]) -> Self:
        """These potentials with scores added to the unaries, for example a cost in loss-augmented decoding.

        Raises:
            ValueError: the shapes differ.
        """
        if unary.shape != self.unary.shape:
            raise ValueError(
                f"scores of shape {tuple(unary.shape)} cannot be added to unaries of shape "
                f"{tuple(self.unary.shape)}: give one for each example, position and tag."
            )
        return replace(self, unary=self.unary.to(self.state) + unary)

    def to(self, dtype: torch.dtype) -> Self:
        """The same scores in another type; their gradients accumulate in that type."""
        scores = (self.unary, self.pairwise, self.start, self.end)
        if all(x is None or x.dtype == dtype for x in scores):
            return self
        start, end = (None if x is None else x.to(dtype) for x in scores[2:])
        return replace(
            self, unary=self.unary.to(dtype), pairwise=self.pairwise.to(dtype), start=start, end=end
        )

    def compacted(self) -> tuple[Self, Tensor | None]:
        """The same chain with its real positions first, and the original index of each position, (B, T).

        The second is None if no position moves.
        """
        if self.mask is None or self._is_compact(self.mask):
            return self, None
        if self.pairwise.dim() > 2:
            raise ValueError(
                "pairwise scores with a matrix for each step need a mask that pads at the tail only: "
                "with masked positions in between, the matrix between two neighbours is ambiguous."
            )
        order = self.mask.byte().argsort(dim=1, descending=True, stable=True)
        unary = self.unary.gather(1, order.unsqueeze(-1).expand_as(self.unary))
        return replace(self, unary=unary, mask=self.mask.gather(1, order)), order

    def _is_compact(self, mask: Tensor) -> bool:
        """Whether padding is at the tail; under torch.compile, True with one matrix for each step."""
        if torch.compiler.is_compiling():
            return self.pairwise.dim() > 2
        return bool((mask[:, 1:] <= mask[:, :-1]).all())

    def tag_score(self, y: Int[Tensor, "... B T"]) -> Float[Tensor, "... B"]:
        """F of integer tags, in float64 for accurate differences.

        Raises:
            ValueError: a real position holds a number outside 0..S-1.
        """
        return self.score_parts(y).sum(-1)

    def score_parts(self, y: Int[Tensor, "... B T"]) -> Float[Tensor, "... B T"]:
        """The terms of F of integer tags by position, in float64: unary and incoming pairwise score.

        In the order of `compacted`; 0 where masked.

        Raises:
            ValueError: a real position holds a number outside 0..S-1.
        """
        check_tags(y, self.mask, self.unary.shape[2])
        chain, order = self.to(self.state).compacted()
        real = chain.real()
        if order is not None:
            y = y.gather(-1, order.expand_as(y))
        y = y.long().masked_fill(~real, 0)
        parts = chain.unary.expand(*y.shape, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1).double()
        if not real.shape[1]:
            return parts
        parts = parts + F.pad(_look_up(chain.pairwise, y[..., :-1], y[..., 1:]).double(), (1, 0))
        first = torch.zeros_like(y[..., :1])
        last = (real.sum(-1, keepdim=True) - 1).clamp_min(0).expand_as(first)
        for at, scores in ((first, chain.start), (last, chain.end)):
            if scores is not None:
                parts = parts.scatter_add(-1, at, scores[y.gather(-1, at)].double())
        return torch.where(real, parts, 0)  # not a product: scores at masked positions may be NaN

    def relaxed(self) -> RelaxedChain:
        """The scores made ready for relaxed answers."""
        chain, order = self.compacted()
        forbids = chain.may_forbid()
        unary, pairwise = chain.with_ends(forbids=forbids), chain.pairwise.to(self.state)
        if forbids:
            unary, pairwise = (s.clamp_min(torch.finfo(self.state).min) for s in (unary, pairwise))
        relaxed = RelaxedChain(unary, pairwise, chain.mask, order, forbids)
        return replace(relaxed, unary=hide(unary, relaxed.hidden))

    def may_forbid(self) -> bool:
        """False if no score is -inf; True also where looking means to wait for the device."""
        scores = [x.detach() for x in (self.unary, self.pairwise, self.start, self.end) if x is not None]
        if torch.compiler.is_compiling() or any(x.device.type != "cpu" for x in scores):
            return True
        return not all(math.isfinite(x.sum()) for x in scores)

    def with_ends(self, *, forbids: bool = True) -> Float[Tensor, "B T S"]:
        """The unaries plus start and end scores, for padding at the tail."""
        unary, real = self.unary.to(self.state), self.real()
        for scores, edge in ((self.start, (1, 0)), (self.end, (0, 1))):
            if scores is None:
                continue
            inner = real[:, :-1] if edge == (1, 0) else real[:, 1:]
            here = (real & ~F.pad(inner, edge)).unsqueeze(-1)  # the first, or the last real position
            if forbids:
                unary = torch.where(here, unary + scores, unary)
            else:
                unary = torch.addcmul(unary, here.to(unary.dtype), scores.to(unary.dtype))
        return unary

    def real(self) -> Tensor:
        """The mask (B, T), all True if there is none."""
        if self.mask is not None:
            return self.mask
        return torch.ones(self.unary.shape[:2], dtype=torch.bool, device=self.unary.device)


def state_type(unary: Tensor) -> torch.dtype:
    """The float type of results for these unary scores."""
    return torch.float64 if unary.dtype == torch.float64 else torch.float32


def check_tags(tags: Tensor, mask: Tensor | None, num_tags: int) -> None:
    """Raise ValueError if a real position holds a number that is no tag; skipped under torch.compile."""
    if torch.compiler.is_compiling():
        return
    wrong = (tags < 0) | (tags >= num_tags)
    if mask is not None:
        wrong = wrong & mask
    if bool(wrong.any()):
        *_, example, position = wrong.nonzero()[0].tolist()
        value = int(tags[wrong][0])
        raise ValueError(
            f"tag {value} at position {position} of example {example} is outside 0..{num_tags - 1}. "
            "If the position is padding, set its mask to False."
        )


def _look_up(pairwise: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """W(y_t, y_t+1) at every step, (..., B, T-1)."""
    if pairwise.dim() == 2:
        return pairwise[before, after]
    step = torch.arange(before.shape[-1], device=before.device)
    if pairwise.dim() == 3:
        return pairwise[step, before, after]
    return pairwise[torch.arange(before.shape[-2], device=before.device).unsqueeze(-1), step, before, after]
