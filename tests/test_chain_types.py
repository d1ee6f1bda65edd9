"""Every function of the chain library, on every path and float type, against float64 on the same numbers."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from energies.potentials import ChainPotentials
from inference import chain
from inference.chain import paths as chain_paths
from inference.chain.criteria import (
    Criterion,
    Likelihood,
    MarginalCrossEntropy,
    MeanFieldCrossEntropy,
    StructuredSVM,
)

TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
PATHS = ["reference", "fused", "compiled", "triton"]
INTERPRETED = (
    () if torch.cuda.is_available() else (torch.float16, torch.float64)
)  # slow without a GPU, left out
NEEDS = {"compiled": "numba", "triton": "triton"}
WAYS = [*((path, "one") for path in PATHS), ("reference", "step"), ("auto", "step"), ("auto", "example")]
SHORT, SCALES, SIZE = 7, (20.0, 1.0), 5  # length of the shorter chain; what the unaries are multiplied with
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow) encountered")


def length_of(path: str) -> int:
    """Tags of the longer chain: few for Triton's interpreter, which is slow."""
    return 12 if path == "triton" and not torch.cuda.is_available() else 50


def potentials(path: str, table: str, dtype: torch.dtype, length: int | None = None) -> ChainPotentials:
    """Two random chains; the unaries of one are twenty times as large as the rest."""
    if path in NEEDS and not chain_paths.installed(NEEDS[path]):
        pytest.skip(f"{NEEDS[path]} is not installed")
    draw = torch.Generator().manual_seed(1)
    device = "cuda" if path == "triton" and torch.cuda.is_available() else "cpu"
    length = length or length_of(path)
    shape = {"one": (), "step": (length - 1,), "example": (2, length - 1)}[table]
    shapes = (2, length, SIZE), (*shape, SIZE, SIZE), (SIZE,), (SIZE,)
    unary, *others = (torch.randn(shape, generator=draw) for shape in shapes)
    unary = unary * torch.tensor(SCALES).view(-1, 1, 1)
    scores = [x.to(device, dtype).requires_grad_() for x in (unary, *others)]
    mask = torch.arange(length) < torch.tensor([length, SHORT]).unsqueeze(1)
    return ChainPotentials(scores[0], scores[1], mask.to(device), *scores[2:])


def leaves(p: ChainPotentials) -> list[Tensor]:
    assert p.start is not None and p.end is not None
    return [p.unary, p.pairwise, p.start, p.end]


def other_tags(p: ChainPotentials) -> Tensor:
    """Tags of which each is an arbitrary one."""
    examples, length, size = p.unary.shape
    return torch.arange(length, device=p.unary.device).remainder(size).expand(examples, -1)


def gold(p: ChainPotentials, *, likely: bool) -> Tensor:
    """One-hot tags: the best by the exact scores, or others."""
    best = chain.viterbi(p.to(torch.float64), path="reference").tags
    answer = one_hot(best if likely else other_tags(p), SIZE) * p.real().unsqueeze(-1)
    return answer.to(p.unary.dtype)


def a_cost(p: ChainPotentials) -> Tensor:
    return (1 - one_hot(other_tags(p), SIZE).to(p.unary.dtype)) / 4


Function = Callable[[ChainPotentials, chain.Path], Tensor]
FUNCTIONS: dict[str, Function] = {
    "log_partition": lambda p, path: chain.log_partition(p, path=path),
    "nll of what is likely": lambda p, path: chain.nll(
        p, chain.viterbi(p.to(torch.float64), path="reference").tags, path=path
    ),
    "nll of what is not": lambda p, path: chain.nll(p, other_tags(p), path=path),
    "marginals": lambda p, path: chain.marginals(p, path=path),
    "entropy": lambda p, path: chain.entropy(p, path=path),
    "pairwise_marginals": lambda p, path: chain.pairwise_marginals(p, path=path),
    "max_marginals": lambda p, path: chain.max_marginals(p, path=path),
    "score of tags": lambda p, _: p.score(other_tags(p)),
    "score of relaxed answers": lambda p, _: p.score(one_hot(other_tags(p), SIZE) * 0.7),
    "viterbi": lambda p, path: chain.viterbi(p, path=path).score,
    "loss_augmented": lambda p, path: chain.loss_augmented(p, a_cost(p), path=path).score,
    "k_best": lambda p, path: chain.k_best(p, 3, path=path)[1],
    "slope": lambda p, _: p.relaxed().value_and_gradient(one_hot(other_tags(p), SIZE) * 0.7)[1],
}


@cache
def right(name: str, table: str, dtype: torch.dtype, length: int) -> tuple[Tensor, list[Tensor]]:
    """What a function gives for the same numbers in float64, and its gradients along `direction`."""
    p = potentials("reference", table, dtype, length)
    unary, pairwise, start, end = (x.detach().double().requires_grad_() for x in leaves(p))
    p = replace(p, unary=unary, pairwise=pairwise, start=start, end=end)
    return with_gradients(FUNCTIONS[name](p, "reference"), p)


def with_gradients(found: Tensor, p: ChainPotentials) -> tuple[Tensor, list[Tensor]]:
    """A result and its gradients in all scores along a random direction; none of what has no graph."""
    if not found.requires_grad:
        return found, []
    direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    along = (found * direction.to(found)).sum()
    return found.detach(), list(torch.autograd.grad(along, leaves(p)))


@pytest.mark.parametrize(
    ("path", "table", "dtype"),
    [(*way, dtype) for way in WAYS for dtype in TYPES if way[0] != "triton" or dtype not in INTERPRETED],
)
def test_state_and_results_are_float32_whatever_the_scores(
    path: chain.Path, table: str, dtype: torch.dtype
) -> None:
    p = potentials(path, table, dtype)
    state = torch.float64 if dtype == torch.float64 else torch.float32
    rounding = 1e-12 if dtype == torch.float64 else 2e-6
    for name, function in FUNCTIONS.items():
        found, gradients = with_gradients(function(p, path), p)
        wanted, slopes = right(name, table, dtype, length_of(path))
        assert found.dtype == state, name
        assert "nll" not in name or (found >= 0).all(), name
        error = (found.cpu().double() - wanted).abs() - rounding * wanted.abs()
        assert error.max() < 1000 * rounding, f"{name}: {error.max()}"
        for mine, slope in zip(gradients, slopes, strict=True):
            error = (mine.cpu().double() - slope).abs().max()
            assert mine.dtype == dtype, name
            assert error < 3 * torch.finfo(dtype).eps * slope.abs().max() + 1e-4, f"{name}: {error}"


CRITERIA = [Likelihood(), MarginalCrossEntropy(), StructuredSVM(), MeanFieldCrossEntropy()]


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("dtype", TYPES[:3], ids=str)
@pytest.mark.parametrize(("path", "table"), [way for way in WAYS if way[0] != "triton"])
def test_losses_of_half_precision_are_those_of_the_same_numbers(
    criterion: Criterion, path: str, table: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(criterion, MeanFieldCrossEntropy) and table != "one":
        pytest.skip("mean field takes one matrix")
    if path != "auto":
        monkeypatch.setattr(chain_paths, "fastest", lambda unary, maxima: path)
    p = potentials(path, table, dtype)
    wide = p.to(torch.float64)
    for likely in (True, False):
        y = gold(p, likely=likely)
        found, right = criterion.loss(p, y), criterion.loss(wide, y.double())
        assert found.dtype == torch.float32 and (found >= 0).all()
        torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=2e-3)
    assert criterion.predict(p).dtype == torch.float32


@pytest.mark.parametrize("path", ["auto", "reference", *PATHS])
def test_autocast_changes_no_sum_and_no_gradient(path: chain.Path) -> None:
    torch.manual_seed(0)
    device = "cuda" if path == "triton" and torch.cuda.is_available() else "cpu"
    scores = [torch.randn(size).to(device).requires_grad_() for size in [(4, 12, 5), (5, 5)]]
    tags, along = torch.randint(5, (4, 12)).to(device), torch.randn(4, 12, 5).to(device)

    def found() -> list[Tensor]:
        p = ChainPotentials(*scores)
        total = chain.nll(p, tags, path=path).sum() + (chain.marginals(p, path=path) * along).sum()
        total = total + chain.entropy(p, path=path).sum()
        return [total, *torch.autograd.grad(total, scores)]

    exact = found()
    with torch.autocast(device, torch.bfloat16):
        for one, other in zip(found(), exact, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_autocast_rounds_no_mean_field() -> None:
    torch.manual_seed(0)
    p, y = ChainPotentials(torch.randn(4, 12, 5), torch.randn(5, 5).requires_grad_()), torch.eye(5)[[1] * 12]
    losses = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            losses.append(MeanFieldCrossEntropy().loss(p, y.expand(4, 12, 5)).sum())
    one, other = (torch.autograd.grad(loss, p.pairwise)[0] for loss in losses)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", [0.0, 1e3, -1e5])
def test_a_constant_at_every_position_rounds_no_probability(level: float) -> None:
    torch.manual_seed(0)
    unary, pairwise = torch.randn(2, 60, 3) + level, torch.randn(3, 3)
    narrow, wide = ChainPotentials(unary, pairwise), ChainPotentials(unary.double(), pairwise.double())
    pairs = chain.pairwise_marginals(narrow)
    assert pairs.dtype == torch.float32
    torch.testing.assert_close(pairs.double(), chain.pairwise_marginals(wide), rtol=0, atol=1e-6)
    for path in ("reference", "auto"):
        belief, amount = chain.marginals(narrow, path=path), chain.entropy(narrow, path=path)
        torch.testing.assert_close(belief.double(), chain.marginals(wide), rtol=0, atol=1e-6)
        torch.testing.assert_close(amount.double(), chain.entropy(wide), rtol=1e-5, atol=1e-5)
    draw = [chain.sample(p, 300, torch.Generator().manual_seed(1)) for p in (narrow, wide)]
    assert (draw[0] == draw[1]).double().mean() > 0.99


@pytest.mark.parametrize("name", ["unary", "pairwise", "start", "end", "mask"])
def test_arrays_of_numpy_are_named(name: str) -> None:
    scores = {"unary": torch.zeros(2, 3, 4), "pairwise": torch.zeros(4, 4), "start": torch.zeros(4)}
    given = {**scores, "end": torch.zeros(4), "mask": torch.ones(2, 3).bool()}
    p = object.__new__(ChainPotentials)  # the shape checks of tests would look at its arguments first
    p.__dict__.update(given | {name: given[name].numpy()})
    with pytest.raises(TypeError, match=f"{name} is a ndarray: give a tensor, as torch.as_tensor makes it"):
        p.__post_init__()
