"""The fast paths against log space: values, derivatives of both orders, and scores of any size."""

import gc
import math
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from energies.potentials import ChainPotentials
from inference import chain
from inference.chain import paths as chain_paths
from inference.chain.kernels import fallback

FAST = ("fused", "compiled")
Leaves = tuple[Tensor, Tensor, Tensor, Tensor]


def leaves(examples: int, length: int, size: int, scale: float = 1.0, seed: int = 0) -> Leaves:
    """Unary, pairwise, start and end scores in float64."""
    torch.manual_seed(seed)
    shapes = (examples, length, size), (size, size), (size,), (size,)
    return tuple((scale * torch.randn(shape).double()).requires_grad_() for shape in shapes)


def ragged(examples: int, length: int, seed: int = 0) -> Tensor:
    """A mask with holes, a full row and an empty one."""
    mask = torch.rand(examples, length, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[0], mask[-1] = True, examples == 1
    return mask


def build(scores: Leaves, mask: Tensor | None, dtype: torch.dtype = torch.float64) -> ChainPotentials:
    unary, pairwise, start, end = (x.to(dtype) for x in scores)
    return ChainPotentials(unary, pairwise, mask, start, end)


@pytest.mark.parametrize("path", FAST)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 1e-10)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 1, 5), (5, 9, 1), (6, 9, 5), (4, 30, 23), (3, 7, 33)])
def test_values_and_gradients_are_those_of_log_space(
    path: chain.Path, dtype: torch.dtype, tolerance: float, shape: tuple[int, int, int]
) -> None:
    scores, mask = leaves(*shape), ragged(*shape[:2])
    tags, weight = torch.randint(0, shape[2], shape[:2]), torch.randn(shape[0]).double()
    want = chain.nll(build(scores, mask), tags, path="reference")
    expected = torch.autograd.grad((want * weight).sum(), scores)
    loss = chain.nll(build(scores, mask, dtype), tags, path=path)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss.double(), want, rtol=tolerance, atol=20 * tolerance)
    found = torch.autograd.grad((loss * weight.to(dtype)).sum(), scores)
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=0, atol=tolerance)
    belief = chain.marginals(build(scores, mask, dtype), path=path)
    right = chain.marginals(build(scores, mask), path="reference")
    torch.testing.assert_close(belief.double(), right, rtol=0, atol=tolerance)
    entropy = chain.entropy(build(scores, mask, dtype), path=path)
    torch.testing.assert_close(
        entropy.double(),
        chain.entropy(build(scores, mask, dtype), path="reference").double(),
        rtol=1e-5,
        atol=1e-4,
    )
    best = chain.viterbi(build(scores, mask, dtype), path=path)
    assert best.tags.equal(chain.viterbi(build(scores, mask), path="reference").tags)


SECOND: dict[str, Callable[[ChainPotentials, chain.Path], Tensor]] = {
    "log Z": lambda p, path: chain.log_partition(p, path=path),
    "nll": lambda p, path: chain.nll(p, torch.ones(p.unary.shape[:2], dtype=torch.long), path=path),
}


@pytest.mark.parametrize("path", [*FAST, "reference"])
@pytest.mark.parametrize("what", SECOND)
def test_two_derivatives_are_those_of_finite_differences(path: chain.Path, what: str) -> None:
    scores, mask = leaves(3, 4, 3), ragged(3, 4)

    def value(*x: Tensor) -> Tensor:
        return SECOND[what](build(x, mask), path)

    assert torch.autograd.gradcheck(value, scores)
    assert torch.autograd.gradgradcheck(value, scores)


@pytest.mark.parametrize("path", [*FAST, "reference"])
def test_marginals_and_entropy_have_gradients(path: chain.Path) -> None:
    scores, mask = leaves(3, 4, 3), ragged(3, 4)
    assert torch.autograd.gradcheck(lambda *x: chain.marginals(build(x, mask), path=path), scores)
    assert torch.autograd.gradcheck(lambda *x: chain.entropy(build(x, mask), path=path), scores)
    assert torch.autograd.gradcheck(lambda *x: chain.pairwise_marginals(build(x, mask)), scores)


def test_tables_a_step_have_two_derivatives() -> None:
    unary, pairwise = leaves(2, 3, 2)[0], torch.randn(2, 2, 2, 2).double().requires_grad_()

    def value(u: Tensor, w: Tensor) -> Tensor:
        return chain.log_partition(ChainPotentials(u, w))

    assert torch.autograd.gradcheck(value, (unary, pairwise))
    assert torch.autograd.gradgradcheck(value, (unary, pairwise))


@pytest.mark.parametrize("path", FAST)
def test_a_third_derivative_is_refused_not_wrong(path: chain.Path) -> None:
    scores = leaves(2, 3, 2)
    value = chain.log_partition(build(scores, None), path=path).sum()
    (first,) = torch.autograd.grad(value, scores[0], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), scores[0], create_graph=True)
    with pytest.raises(RuntimeError, match="third derivative"):
        torch.autograd.grad(second.sum(), scores[0])


@pytest.mark.parametrize("path", FAST)
def test_a_second_derivative_of_the_entropy_is_refused_not_left_out(path: chain.Path) -> None:
    scores = leaves(2, 3, 2)
    p = build(scores, None)
    value = (chain.log_partition(p, path=path) + chain.entropy(p, path=path)).sum()
    (first,) = torch.autograd.grad(value, scores[0], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative of the entropy"):
        torch.autograd.grad((first * torch.arange(4).view(2, 1, 2)).sum(), scores[0])


def spoilt(kind: str, scores: Leaves) -> Leaves:
    """Scores with something that is hard on probabilities."""
    unary, pairwise, start, end = (x.detach().clone() for x in scores)
    if kind == "forbidden":
        pairwise[0, 1:], pairwise[2, 0], start[1] = -math.inf, -math.inf, -math.inf
        unary[:, ::3, 3] = -math.inf
    elif kind == "nearly forbidden":
        pairwise[0, 1:], pairwise[2, 0] = -1e4, -1e4
    elif kind == "equal":
        unary[:], pairwise[:] = 7, -3
    elif kind == "late turn":  # the best answer begins and ends where neither direction would look
        unary[:], pairwise[:] = 0, -math.inf
        pairwise.fill_diagonal_(0)
        unary[:, :, 0], unary[:, 0, 0], unary[:, -1, 0] = 20, -100, -100
    return tuple(x.requires_grad_() for x in (unary, pairwise, start, end))


@pytest.mark.parametrize("path", FAST)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 5.0, 10.0, 20.0, 50.0, 1e2, 1e3, 1e4])
@pytest.mark.parametrize("kind", ["plain", "forbidden", "nearly forbidden", "equal", "late turn"])
def test_no_score_is_too_large_for_float32(path: chain.Path, scale: float, kind: str) -> None:
    scores = spoilt(kind, leaves(4, 30, 5, scale))
    tags, mask = torch.zeros(4, 30, dtype=torch.long), torch.arange(30) < torch.tensor([[30], [17], [2], [1]])
    # what float32 makes of the scores is what is asked about
    exact = tuple(x.detach().float().double().requires_grad_() for x in scores)
    right = chain.log_partition(build(exact, mask), path="reference")
    single = tuple(x.detach().float().requires_grad_() for x in exact)
    found = chain.log_partition(build(single, mask, torch.float32), path=path)
    torch.testing.assert_close(found.double(), right, rtol=1e-6, atol=1e-5)
    for mine, want in zip(
        torch.autograd.grad(found.sum(), single), torch.autograd.grad(right.sum(), exact), strict=True
    ):
        assert (mine.double() - want).abs().max() < 1e-5 * max(1, want.abs().max())
    belief = chain.marginals(build(single, mask, torch.float32), path=path)
    assert (belief.double() - chain.marginals(build(exact, mask), path="reference")).abs().max() < 1e-5
    entropy = chain.entropy(build(single, mask, torch.float32), path=path)
    torch.testing.assert_close(
        entropy.double(), chain.entropy(build(exact, mask), path="reference"), atol=1e-4, rtol=1e-4
    )
    score = chain.viterbi(build(single, mask, torch.float32), path=path)
    torch.testing.assert_close(
        score.score, build(single, mask, torch.float32).score(score.tags), rtol=1e-6, atol=1e-5
    )
    assert tags.shape == score.tags.shape


@pytest.mark.parametrize("path", FAST)
@pytest.mark.parametrize("scale", [20.0, 60.0, 3e2, 1e4, 1e6])
@pytest.mark.parametrize("spread", [0.0, 1.0, 18.0])
def test_beside_moderate_pairs_no_score_of_a_position_needs_a_second_try(
    path: chain.Path, scale: float, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "wider", lambda *_: pytest.fail("float32 was not enough"))
    unary, pairwise, start, end = (x.detach() for x in leaves(24, 9, 6, seed=int(scale)))
    unary[::3] = -scale * torch.randint(2, (8, 9, 6)) + unary[::3]  # many ties, and nothing in between
    unary[1::3] = -(scale * torch.rand(8, 9, 6)).round()
    unary[2::3] *= scale
    table = spread * (pairwise - pairwise.min()) / (pairwise.max() - pairwise.min())
    rounded = (x.float().double().requires_grad_() for x in (unary + 7 * scale, table, 3 * start, 3 * end))
    scores, mask = tuple(rounded), ragged(24, 9)
    tags, along = torch.randint(0, 6, (24, 9)), [torch.randn(x.shape).double() for x in scores]

    def answers(dtype: torch.dtype, path: chain.Path) -> tuple[Tensor, ...]:
        p = build(scores, mask, dtype)
        loss = chain.nll(p, tags, path=path).double()
        first = torch.autograd.grad(loss.sum(), scores, create_graph=True)
        slope = sum((g * d).sum() for g, d in zip(first, along, strict=True))
        return (loss, chain.marginals(p, path=path).double(), *first, *torch.autograd.grad(slope, scores))

    found, right = answers(torch.float32, path), answers(torch.float64, "reference")
    for mine, wanted in zip(found, right, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found[1], right[1], rtol=3e-5, atol=1e-12)


@pytest.mark.parametrize("path", FAST)
def test_a_table_that_could_turn_the_tide_is_not_trusted_to_float32(path: chain.Path) -> None:
    unary = torch.tensor([[0.0, -61.0], [0.0, -61.0]]).double().unsqueeze(0).requires_grad_()
    for gap in (18.0, 25.0, 40.0, 130.0):
        pairwise = torch.tensor([[-gap, -gap], [-gap, 0.0]]).double().requires_grad_()
        p = ChainPotentials(unary.float(), pairwise.float())
        right = chain.marginals(ChainPotentials(unary, pairwise), path="reference")
        torch.testing.assert_close(chain.marginals(p, path=path).double(), right, rtol=0, atol=3e-6)


@pytest.mark.parametrize("path", FAST)
def test_flagged_sequences_alone_are_done_again_and_have_two_derivatives(path: chain.Path) -> None:
    unary, pairwise, *rest = (x.detach() for x in leaves(3, 4, 3))
    pairwise[0, 1], unary[1:] = -math.inf, 0  # the greatest two cannot follow each other
    unary[1, 0, 0] = unary[1, 1, 1] = 100  # too wide for float32
    unary[2, 0, 0] = unary[2, 1, 1] = 3000  # and for float64
    scores = tuple(x.requires_grad_() for x in (unary, pairwise, *rest))
    mask = torch.ones(3, 4, dtype=torch.bool)
    solved = fallback.solve(chain_paths.problem_of(build(scores, mask, torch.float32)), path)
    rungs = [(index.tolist(), type(part).__name__) for index, part in solved.parts]
    assert rungs[0] == ([1, 2], "Mixed") and rungs[1][0] == [0]
    assert [index.tolist() for index, _ in solved.parts[0][1].parts] == [[1], [0]]

    def value(*x: Tensor) -> Tensor:
        return chain.log_partition(build(x, mask), path=path)

    direction = [torch.randn_like(x) for x in scores]
    for compute in (value, lambda *x: chain.log_partition(build(x, mask), path="reference")):
        gradient = torch.autograd.grad(compute(*scores).sum(), scores, create_graph=True)
        product = sum((g * d).sum() for g, d in zip(gradient, direction, strict=True))
        hessian = torch.autograd.grad(product, scores)
        if compute is value:
            found = hessian
    for mine, want in zip(found, hessian, strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("path", [*FAST, "reference"])
def test_half_precision_is_read_as_such_and_its_gradient_comes_back_so(path: chain.Path) -> None:
    scores = leaves(4, 6, 5)
    half = tuple(x.detach().bfloat16().requires_grad_() for x in scores)
    loss = chain.log_partition(build(half, None, torch.bfloat16), path=path)
    assert loss.dtype == torch.float32
    wide = tuple(x.detach().double().requires_grad_() for x in half)
    torch.testing.assert_close(loss.double(), chain.log_partition(build(wide, None)), rtol=1e-6, atol=1e-5)
    for x, g in zip(half, torch.autograd.grad(loss.sum(), half), strict=True):
        assert g.dtype == torch.bfloat16 and g.shape == x.shape


UNDER_COMPILE = """
import torch
from energies.potentials import ChainPotentials
from inference import chain

torch.manual_seed(0)
scores = [torch.randn(shape, requires_grad=True) for shape in ((3, 5, 4), (4, 4), (4,))]
mask = torch.tensor([[True] * 5, [False, True, False, True, True], [False] * 5])
tags = torch.randint(0, 4, (3, 5))
for path in ("fused", "compiled", "auto"):
    def loss(u, w, start):
        return chain.nll(ChainPotentials(2 * u, w, mask, start), tags, path=path).sum()
    def entropies(u, w, start):
        return torch.special.entr(chain.marginals(ChainPotentials(2 * u, w, mask, start), path=path)).sum()
    for function in (loss, entropies):
        seen = torch.compile(function, fullgraph=True, backend="aot_eager")
        found, want = (torch.autograd.grad(f(*scores), scores) for f in (seen, function))
        for mine, right in zip(found, want):
            torch.testing.assert_close(mine, right)
    def best(u, w, start):
        return chain.viterbi(ChainPotentials(u, w, mask, start), path=path)
    found, want = (f(*scores) for f in (torch.compile(best, fullgraph=True, backend="aot_eager"), best))
    assert found.tags.equal(want.tags)
    torch.testing.assert_close(found.score, want.score)
"""


def test_torch_compile_sees_one_operator(root: Path) -> None:
    """In a process of its own: torch.compile cannot look through this one's shape checks."""
    done = subprocess.run([sys.executable, "-c", UNDER_COMPILE], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_threads_share_a_batch_without_changing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pytest.importorskip("inference.chain.kernels.compiled")
    scores, mask, tags = leaves(7, 9, 5), ragged(7, 9), torch.randint(0, 5, (7, 9))

    def everything() -> list[Tensor]:
        loss = chain.nll(build(scores, mask), tags, path="compiled")
        gradient = torch.autograd.grad(loss.sum(), scores, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in gradient), scores)
        return [loss, *gradient, *second, chain.viterbi(build(scores, mask), path="compiled").tags]

    alone = everything()
    monkeypatch.setattr(compiled, "SHARED", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for mine, want in zip(everything(), alone, strict=True):
        torch.testing.assert_close(mine, want)


@pytest.mark.parametrize("path", FAST)
def test_a_graph_can_be_walked_twice_and_holds_on_to_nothing(path: chain.Path) -> None:
    scores = leaves(2, 3, 2)
    loss = chain.log_partition(build(scores, None), path=path).sum()
    once, twice = (torch.autograd.grad(loss, scores, retain_graph=True) for _ in range(2))
    for left, right in zip(once, twice, strict=True):
        assert left.equal(right)
    gc.collect()  # what the first import of a path leaves holds the frames that led to it
    gc.disable()
    try:
        watched = weakref.ref(loss.grad_fn.next_functions[0][0].solved)
        del loss
        assert watched() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("path", ["fused", "compiled"])
def test_the_same_scores_give_the_same_bits_wherever_they_lie_in_memory(path: chain.Path) -> None:
    scores, mask = leaves(4, 5, 4), ragged(4, 5)
    tags, weight = torch.zeros(4, 5, dtype=torch.long), torch.randn(4, 5, 4)
    seen = set()
    for turn in range(200):
        kept = [torch.empty(16 * (turn + k) % 4096 + 1) for k in range(7)]  # moves what comes after
        p = build(scores, mask, torch.float32)
        unary = p.unary.detach().requires_grad_()
        p = replace(p, unary=unary)
        loss = chain.nll(p, tags, path=path).sum() + (chain.marginals(p, path=path) * weight).sum()
        (gradient,) = torch.autograd.grad(loss, unary)
        seen.add((float(loss.detach()), gradient.numpy().tobytes()))
        del kept
    assert len(seen) == 1


ENDS = {"forbidden": [-math.inf, 0.1, 0.0], "far below": [-2e6, 0.1, 0.0], "far above": [1e6, 2e6, 2e6]}


@pytest.mark.parametrize("path", FAST)
@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("length", [1, 3])
def test_scores_of_the_ends_do_not_round_those_of_positions(path: chain.Path, kind: str, length: int) -> None:
    unary = torch.tensor([1e6, 0.0, 0.3]).repeat(1, length, 1)
    ends = torch.tensor(ENDS[kind])
    p = ChainPotentials(unary, torch.zeros(3, 3), None, ends, ends)
    wide = ChainPotentials(unary.double(), torch.zeros(3, 3).double(), None, ends.double(), ends.double())
    right = chain.marginals(wide, path="reference")
    torch.testing.assert_close(chain.marginals(p, path=path).double(), right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("path", FAST)
def test_log_z_beyond_float32_is_an_error_not_infinity(path: chain.Path) -> None:
    unary = torch.tensor([[[3e38, 0.0], [3e38, 0.0]]])
    with pytest.raises(ValueError, match="too large"):
        chain.log_partition(ChainPotentials(unary, torch.zeros(2, 2)), path=path)


@pytest.mark.parametrize("path", FAST)
@pytest.mark.parametrize("gap", [199.0, 241.1])
def test_float64_keeps_small_marginals_beside_a_steep_table(path: chain.Path, gap: float) -> None:
    unary = torch.tensor([[[0, -1e6], [0, -499.5], [-1e6, 0]]]).double()
    p = ChainPotentials(unary, torch.tensor([[-gap, -gap], [-gap, 0]]).double())
    right = chain.marginals(p, path="reference")
    torch.testing.assert_close(chain.marginals(p, path=path), right, rtol=1e-9, atol=0)


@pytest.mark.parametrize("path", FAST)
@pytest.mark.parametrize(("far", "against", "dtype"), [(20, 12, torch.float32), (60, 40, torch.float64)])
def test_a_steep_direction_at_one_tag_leaves_the_others_alone(
    path: chain.Path, far: float, against: float, dtype: torch.dtype
) -> None:
    """The gradient of -log p(gold), where the first position believes in gold and the second does not."""

    def slopes(dtype: torch.dtype, path: chain.Path) -> tuple[Tensor, ...]:
        unary = torch.tensor([[[0.0, 0.0], [0.0, -far]]]).to(dtype).requires_grad_()
        pairwise = torch.tensor([[0.0, 0.0], [-against, 0.0]]).to(dtype).requires_grad_()
        gold = chain.marginals(ChainPotentials(unary, pairwise), path=path)[0, 0, 1]
        return torch.autograd.grad(-gold.log(), (unary, pairwise))

    for mine, right in zip(slopes(dtype, path), slopes(torch.float64, "reference"), strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-5, atol=1e-6)
