"""Autograd functions of chains: log Z, its gradient and entropy, with hand-written derivatives.

Under torch.compile log Z, its gradient, the derivative of that along a direction, and Viterbi are one opaque
operator each.

Shapes: B examples, T positions, S tags.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from energies.potentials import ChainPotentials, state_type
from inference.chain.kernels.fallback import solve, viterbi
from inference.chain.kernels.problem import Problem, ScoreGradient, Solved
from inference.chain.reference import finite

Gradients = tuple[Tensor | None, ...]
Context = Any  # what torch hands from a forward to its backward


def solved_by(problem: Problem, path: str) -> Solved:
    """The problem's solution. Autocast would round sums of probabilities, here and in derivatives."""
    with torch.autocast(problem.unary.device.type, enabled=False):
        return solve(problem, path)


def gradient_of(solved: Solved, weight: Tensor, *, pairs: bool = True) -> ScoreGradient:
    """`Solved.gradient`, not rounded."""
    with torch.autocast(weight.device.type, enabled=False):
        return solved.gradient(weight, pairs=pairs)


def change_of(
    solved: Solved, weight: Tensor, direction: ScoreGradient, *, pairs: bool = True
) -> tuple[Tensor, ScoreGradient]:
    """`Solved.tangent`, not rounded."""
    with torch.autocast(weight.device.type, enabled=False):
        return solved.tangent(weight, direction, pairs=pairs)


class Rows(torch.autograd.Function):
    """Rows (B,) of a solved problem as a function of its scores."""

    @staticmethod
    def forward(ctx: Context, solved: Solved, *scores: Tensor | None) -> Tensor:
        ctx.solved = solved
        ctx.save_for_backward(*scores)
        return solved.rows.detach()  # detached: otherwise ctx would hold a reference cycle

    @staticmethod
    def backward(ctx: Context, weight: Tensor) -> Gradients:
        pairs = ctx.needs_input_grad[2]
        if torch.is_grad_enabled():
            return None, *Gradient.apply(ctx.solved, pairs, weight, *ctx.saved_tensors)
        return None, *present(
            gradient_of(ctx.solved, weight, pairs=pairs), [x is not None for x in ctx.saved_tensors]
        )


class Gradient(torch.autograd.Function):
    """The gradient of sum_b weight_b rows_b: unary (B, T, S), pairwise (S, S), start and end (S,)."""

    @staticmethod
    def forward(
        ctx: Context, solved: Solved, pairs: bool, weight: Tensor, *scores: Tensor | None
    ) -> Gradients:
        ctx.solved = solved
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight, *scores)
        ctx.there = [x is not None for x in scores]
        return tuple(present(gradient_of(solved, weight, pairs=pairs), ctx.there))

    @staticmethod
    def backward(ctx: Context, *direction: Tensor | None) -> Gradients:
        weight, *scores = ctx.saved_tensors
        pairs = ctx.needs_input_grad[4]
        if torch.is_grad_enabled():
            return None, None, *Change.apply(ctx.solved, pairs, weight, *scores, *direction)
        d_rows, change = change_of(ctx.solved, weight, ScoreGradient(*direction), pairs=pairs)
        return None, None, d_rows, *present(change, ctx.there)


class Change(torch.autograd.Function):
    """The derivative of `Gradient` along a direction; third derivatives raise an error."""

    @staticmethod
    def forward(ctx: Context, solved: Solved, pairs: bool, weight: Tensor, *both: Tensor | None) -> Gradients:
        there = [x is not None for x in both[:4]]
        d_rows, change = change_of(solved, weight, ScoreGradient(*both[4:]), pairs=pairs)
        return d_rows, *present(change, there)

    @staticmethod
    def backward(ctx: Context, *_: Tensor | None) -> Gradients:
        raise RuntimeError(
            'a third derivative of a chain needs path="reference": the other paths have two derivatives.'
        )


class Entropy(torch.autograd.Function):
    """log Z - E[F]; E[F] is the derivative of log Z along the scores themselves.

    Its gradient is minus the change of log Z's gradient in that direction.
    """

    @staticmethod
    def forward(ctx: Context, solved: Solved, *scores: Tensor | None) -> Tensor:
        ctx.solved, ctx.direction = (
            solved,
            ScoreGradient(*(None if x is None else finite(x.detach()) for x in scores)),
        )
        ctx.save_for_backward(*scores)
        d_rows, _ = change_of(solved, torch.ones_like(solved.rows), ctx.direction, pairs=False)
        return solved.rows - d_rows

    @staticmethod
    def backward(ctx: Context, weight: Tensor) -> Gradients:
        pairs, scores = ctx.needs_input_grad[2], ctx.saved_tensors
        return None, *EntropyGradient.apply(ctx.solved, ctx.direction, pairs, weight, *scores)


class EntropyGradient(torch.autograd.Function):
    """The gradient of sum_b weight_b entropy_b; its own derivative raises an error."""

    @staticmethod
    def forward(
        ctx: Context,
        solved: Solved,
        direction: ScoreGradient,
        pairs: bool,
        weight: Tensor,
        *scores: Tensor | None,
    ) -> Gradients:
        _, change = change_of(solved, -weight, direction, pairs=pairs)
        return tuple(present(change, [x is not None for x in scores]))

    @staticmethod
    def backward(ctx: Context, *_: Tensor | None) -> Gradients:
        raise RuntimeError(
            'a second derivative of the entropy needs path="reference": the other paths have one derivative.'
        )


def present(gradient: ScoreGradient, there: list[bool]) -> ScoreGradient:
    """The entries of the scores that are given; None for the others."""
    return ScoreGradient(*(g if known else None for g, known in zip(gradient, there, strict=True)))


def rows(problem: Problem, path: str) -> Tensor:
    """Log Z (B,), minus the score of the gold tags if there are any."""
    if torch.compiler.is_compiling():
        return chain_rows(*problem, path)
    with torch.no_grad():
        solved = solved_by(problem, path)
    return Rows.apply(solved, *problem[:4]) if torch.is_grad_enabled() else solved.rows


def marginals(problem: Problem, path: str) -> Tensor:
    """Tag probabilities (B, T, S)."""
    if torch.compiler.is_compiling():
        problem = problem.with_scores(lambda x: x.to(state_type(x)))
        return chain_gradient(torch.ones_like(problem.unary[:, 0, 0]), *problem, path)[0]
    with torch.no_grad():
        solved = solved_by(problem, path)
    return Gradient.apply(solved, False, torch.ones_like(solved.rows), *problem[:4])[0]


def best(p: ChainPotentials, path: str) -> tuple[Tensor, Tensor]:
    """Tags (B, T) of the best answers and their scores (B,)."""
    if torch.compiler.is_compiling():
        with torch.no_grad():
            return chain_best(p.unary, p.pairwise, p.start, p.end, p.mask, path)
    return viterbi(p, path)


def entropy(problem: Problem, path: str) -> Tensor:
    """Entropy (B,), in float64: log Z and E[F] can be large and close."""
    kind = state_type(problem.unary)
    problem = problem.with_scores(Tensor.double)
    with torch.no_grad():
        solved = solved_by(problem, path)
    return Entropy.apply(solved, *problem[:4]).to(kind)


@torch.library.custom_op("structured_prediction::chain_rows", mutates_args=())
def chain_rows(
    unary: Tensor,
    pairwise: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    mask: Tensor | None,
    tags: Tensor | None,
    path: str,
) -> Tensor:
    """`rows` as one operator. Its backward pass solves again, since a solution has no fixed shape."""
    return solved_by(Problem(unary, pairwise, start, end, mask, tags), path).rows.clone()


@torch.library.custom_op("structured_prediction::chain_gradient", mutates_args=())
def chain_gradient(
    weight: Tensor,
    unary: Tensor,
    pairwise: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    mask: Tensor | None,
    tags: Tensor | None,
    path: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of sum_b weight_b rows_b as one operator, in the type of each score."""
    found = gradient_of(solved_by(Problem(unary, pairwise, start, end, mask, tags), path), weight)
    like = unary, pairwise, *(pairwise[0] if x is None else x for x in (start, end))
    one, two, three, four = (
        g.to(x.dtype, copy=True) for g, x in zip(found, like, strict=True) if g is not None
    )
    return one, two, three, four


@torch.library.custom_op("structured_prediction::chain_change", mutates_args=())
def chain_change(
    along: Sequence[Tensor | None],
    weight: Tensor,
    unary: Tensor,
    pairwise: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    mask: Tensor | None,
    tags: Tensor | None,
    path: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """How `chain_gradient` changes along a direction, as one operator: in weight, and in each score."""
    there = unary, pairwise, start, end
    direction = (None if x is None else d for d, x in zip(along, there, strict=True))
    solved = solved_by(Problem(*there, mask, tags), path)
    d_rows, found = change_of(solved, weight, ScoreGradient(*direction))
    like = (pairwise[0] if x is None else x for x in there)
    one, two, three, four = (
        torch.zeros_like(x) if g is None else g.to(x.dtype, copy=True)
        for g, x in zip(found, like, strict=True)
    )
    return d_rows.clone(), one, two, three, four


@torch.library.custom_op("structured_prediction::chain_best", mutates_args=())
def chain_best(
    unary: Tensor, pairwise: Tensor, start: Tensor | None, end: Tensor | None, mask: Tensor | None, path: str
) -> tuple[Tensor, Tensor]:
    """Viterbi as one operator: tags (B, T) and scores (B,)."""
    tags, score = viterbi(ChainPotentials(unary, pairwise, mask, start, end), path)
    return tags.clone(), score.clone()


@chain_rows.register_fake
def _fake_rows(unary: Tensor, *_: object) -> Tensor:
    return unary.new_empty(unary.shape[0], dtype=state_type(unary))


@chain_gradient.register_fake
def _fake_gradient(
    weight: Tensor, unary: Tensor, pairwise: Tensor, start: Tensor | None, end: Tensor | None, *_: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ends = (torch.empty_like(pairwise[0]) if x is None else torch.empty_like(x) for x in (start, end))
    first, last = ends
    return torch.empty_like(unary), torch.empty_like(pairwise), first, last


@chain_change.register_fake
def _fake_change(
    along: Sequence[Tensor | None], weight: Tensor, unary: Tensor, *scores: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(weight), *_fake_gradient(weight, unary, *scores)


@chain_best.register_fake
def _fake_best(unary: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    score = unary.new_empty(unary.shape[0], dtype=state_type(unary))
    return unary.new_empty(unary.shape[:2], dtype=torch.long), score


def _remember(ctx: Context, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ANN401
    *tensors, ctx.path = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _operator_backward(ctx: Context, weight: Tensor) -> Gradients:
    saved = ctx.saved_tensors
    found = chain_gradient(weight, *saved, ctx.path)
    return *present(ScoreGradient(*found), [x is not None for x in saved[:4]]), None, None, None


def _gradients_backward(ctx: Context, *along: Tensor | None) -> Gradients:
    weight, *saved = ctx.saved_tensors
    d_rows, *change = chain_change(list(along), weight, *saved, ctx.path)
    return d_rows, *present(ScoreGradient(*change), [x is not None for x in saved[:4]]), None, None, None


chain_rows.register_autograd(_operator_backward, setup_context=_remember)
chain_gradient.register_autograd(_gradients_backward, setup_context=_remember)
