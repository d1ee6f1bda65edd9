"""Where chains are empty, short, of mixed types or ill made: every path behaves alike."""

import inspect
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from energies.constraints import Constraints
from energies.potentials import ChainPotentials
from inference import chain
from inference.chain.paths import installed

NEEDS = {"compiled": "numba", "triton": "triton"}
ON_CPU = [path for path in ("reference", "fused", "compiled") if installed(NEEDS.get(path, "torch"))]
WITH_TRITON = installed("triton") and not torch.cuda.is_available()  # interpreted: see conftest.py
PATHS = [*ON_CPU, "triton"] if WITH_TRITON else ON_CPU
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow) encountered")

Function = Callable[[ChainPotentials, chain.Path], Tensor]
SUMS: dict[str, Function] = {
    "log_partition": lambda p, path: chain.log_partition(p, path=path),
    "nll": lambda p, path: chain.nll(p, torch.zeros(p.unary.shape[:2]).long(), path=path),
    "marginals": lambda p, path: chain.marginals(p, path=path),
    "entropy": lambda p, path: chain.entropy(p, path=path),
    "pairwise_marginals": lambda p, path: chain.pairwise_marginals(p, path=path),
    "max_marginals": lambda p, path: chain.max_marginals(p, path=path),
}
ANSWERS: dict[str, Function] = {
    "viterbi": lambda p, path: chain.viterbi(p, path=path).score,
    "loss_augmented": lambda p, path: chain.loss_augmented(p, torch.ones(p.unary.shape), path=path).score,
    "k_best": lambda p, path: chain.k_best(p, 2, path=path)[1],
    "sample": lambda p, path: chain.sample(p, 2, torch.Generator().manual_seed(0), path=path),
}
ALL = SUMS | ANSWERS
every_path = pytest.mark.parametrize("path", PATHS)
every_sum = pytest.mark.parametrize("name", SUMS)
every_function = pytest.mark.parametrize("name", ALL)


def leaves(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Unary, pairwise, start and end scores."""
    torch.manual_seed(0)
    size = shape[-1]
    return [torch.randn(s).to(dtype).requires_grad_() for s in (shape, (size, size), (size,), (size,))]


def build(scores: list[Tensor], mask: Tensor | None = None) -> ChainPotentials:
    return ChainPotentials(scores[0], scores[1], mask, *scores[2:])


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what the tests' type checker would stop reach the library, as it does outside of tests."""
    for name in ("plus", "__post_init__"):
        monkeypatch.setattr(ChainPotentials, name, inspect.unwrap(getattr(ChainPotentials, name)))


@every_path
@every_function
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (0, 0, 3)], ids=str)
def test_a_batch_of_nothing_has_results_of_nothing(
    path: chain.Path, name: str, shape: tuple[int, int, int]
) -> None:
    examples, length, size = shape
    scores = leaves(*shape, dtype=torch.bfloat16)
    found = ALL[name](build(scores), path)
    rows, tags = (examples,), (examples, length, size)
    assert found.shape == {
        "marginals": tags,
        "max_marginals": tags,
        "pairwise_marginals": (examples, max(length - 1, 0), size, size),
        "k_best": (2, examples),
        "sample": (2, examples, length),
    }.get(name, rows)
    assert found.dtype == (torch.int64 if name == "sample" else torch.float32)
    assert found.masked_fill(found == -math.inf, 0).eq(0).all()
    if name in SUMS:
        for x, slope in zip(scores, torch.autograd.grad(found.sum(), scores), strict=True):
            assert slope.shape == x.shape and slope.eq(0).all()


def test_chains_without_tags_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unaries of shape \(2, 4, 0\) have no tags"):
        ChainPotentials(torch.zeros(2, 4, 0), torch.zeros(0, 0))


@every_path
@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 3), (3, 3, 1)], ids=str)
@pytest.mark.usefixtures("unchecked")
def test_a_cost_is_of_every_example_position_and_tag(path: chain.Path, shape: tuple[int, ...]) -> None:
    """All of these shapes would broadcast."""
    augmented = inspect.unwrap(chain.loss_augmented)
    with pytest.raises(ValueError, match=r"to unaries of shape \(3, 3, 3\): give one for each example"):
        augmented(build(leaves(3, 3, 3)), torch.zeros(shape), path=path)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool, torch.float8_e5m2], ids=str)
def test_scores_that_are_no_floats_are_refused(which: int, dtype: torch.dtype) -> None:
    scores = [x.detach() for x in leaves(2, 3, 4)]
    scores[which] = scores[which].to(dtype)
    name = ("unary", "pairwise", "start", "end")[which]
    made = object.__new__(ChainPotentials)  # whose constructor the tests' type checker stops
    for field, x in zip(("unary", "pairwise", "start", "end"), scores, strict=True):
        object.__setattr__(made, field, x)
    with pytest.raises(ValueError, match=f"the {name} scores are {dtype}; a chain takes float32, float64"):
        made.__post_init__()


@every_path
@every_sum
def test_results_may_be_changed_in_place(path: chain.Path, name: str) -> None:
    scores = leaves(2, 4, 3)

    def slopes(change: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        found = change(SUMS[name](build(scores), path))
        return torch.autograd.grad(found.square().sum(), scores, allow_unused=True)

    for mine, right in zip(slopes(lambda x: x.mul_(3)), slopes(lambda x: x * 3), strict=True):
        assert mine.equal(right)


@every_path
@every_sum
@pytest.mark.parametrize("tables", [False, True])
def test_chains_of_one_position_leave_the_table_a_gradient_of_zero(
    path: chain.Path, name: str, tables: bool
) -> None:
    if tables and path != "reference":
        pytest.skip("takes one matrix")
    scores = leaves(2, 1, 3)
    if tables:
        scores[1] = torch.zeros(0, 3, 3, requires_grad=True)
    slopes = torch.autograd.grad(SUMS[name](build(scores), path).sum(), scores)
    assert slopes[1].shape == scores[1].shape and slopes[1].eq(0).all()


@every_path
@every_function
@pytest.mark.parametrize("which", range(4))
def test_one_score_in_float64_makes_the_result_so(path: chain.Path, name: str, which: int) -> None:
    scores = leaves(2, 4, 3)
    scores[which] = scores[which].detach().double().requires_grad_()
    found = ALL[name](build(scores), path)
    right = ALL[name](build([x.detach().double().requires_grad_() for x in scores]), "reference")
    if name != "sample":
        torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    if name in SUMS:
        for x, slope in zip(scores, torch.autograd.grad(found.sum(), scores), strict=True):
            assert slope.dtype == x.dtype


SHORT = [torch.tensor([[True], [True]]), torch.tensor([[True, False, False], [False, False, True]])]


@every_path
@every_function
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("mask", SHORT, ids=["of length 1", "of 1 real position"])
def test_a_table_that_no_two_positions_use_may_hold_anything(
    path: chain.Path, name: str, value: float, mask: Tensor
) -> None:
    unary, pairwise, *ends = leaves(*mask.shape, 3)
    found, right = [], []
    for results, table in ((found, torch.full_like(pairwise, value)), (right, pairwise.detach())):
        scores = [unary, table.requires_grad_(), *ends]
        results.append(ALL[name](build(scores, mask), path))
        if name in SUMS:
            results += torch.autograd.grad(results[0].sum(), scores)
    torch.testing.assert_close(found, right)


@every_path
@every_function
def test_ends_that_no_position_uses_may_hold_anything(path: chain.Path, name: str) -> None:
    unary, pairwise, *ends = (x.detach() for x in leaves(2, 3, 3))
    none = torch.zeros(2, 3, dtype=torch.bool)
    found = ALL[name](build([unary, pairwise, *(x * math.nan for x in ends)], none), path)
    torch.testing.assert_close(found, ALL[name](build([unary, pairwise, *ends], none), "reference"))


@every_path
@every_function
def test_a_table_that_one_example_uses_must_be_of_numbers(path: chain.Path, name: str) -> None:
    unary, pairwise, *ends = (x.detach() for x in leaves(2, 3, 3))
    mask = torch.tensor([[True, False, False], [True, True, False]])
    pairwise[1, 2] = math.nan
    with pytest.raises(ValueError, match=r"a pairwise score is nan at index \[1, 2\]"):
        ALL[name](build([unary, pairwise, *ends], mask), path)


def test_tables_of_padded_steps_may_hold_anything() -> None:
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    for shape, padded in (((3, 3, 3), (2,)), ((2, 3, 3, 3), (1, 1))):
        unary, _, *ends = leaves(2, 4, 3)
        tables = torch.randn(shape)
        spoilt = tables.clone()
        spoilt[padded] = math.nan
        for name, function in ALL.items():
            found, right = [], []
            for results, table in ((found, spoilt), (right, tables)):
                scores = [unary, table.clone().requires_grad_(), *ends]
                results.append(function(build(scores, mask), "reference"))
                if name in SUMS:
                    results += torch.autograd.grad(results[0].sum(), scores)
            torch.testing.assert_close(found, right)


def test_padded_samples_of_spans_that_must_end_are_drawn() -> None:
    rules = Constraints.for_spans(["O", "B-X", "I-X", "E-X", "S-X"], "BIOES")
    torch.manual_seed(0)
    mask = torch.arange(8) < torch.arange(1, 9).unsqueeze(1)
    p = rules.on(ChainPotentials(torch.randn(8, 8, 5), torch.randn(5, 5), mask))
    drawn = chain.sample(p, 200)
    assert drawn[:, ~mask].eq(0).all() and all(p.score(tags).isfinite().all() for tags in drawn)


@every_path
def test_tags_may_be_written_over_before_the_backward_pass(path: chain.Path) -> None:
    unary, pairwise = leaves(3, 4, 3)[:2]
    tags = torch.ones(3, 4, dtype=torch.long)
    loss = chain.nll(ChainPotentials(unary, pairwise), tags, path=path).sum()
    (before,) = torch.autograd.grad(loss, unary, retain_graph=True)
    tags.zero_()
    (after,) = torch.autograd.grad(loss, unary)
    assert before.equal(after)
