"""Products with the Hessian: the ways to compute them, against one another."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilevel_toys import DOUBLE, FINE, ONE_SIDED, ExactSolve, apart, flat, mlc, solved
from energies.base import Energy, SumEnergy
from energies.chain import ChainEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.spaces import AnswerSpace, LabelSets, TagSequences
from inference.bilevel import (
    Bilevel,
    ConjugateGradient,
    Dual,
    Exact,
    FiniteDifference,
    ForwardDifference,
    Identity,
    Neumann,
    Products,
    hypergradient,
    largest_curvature,
)
from inference.guesses import Combined, Guess, GuessContext, Perturbed, Point, Sampled, StraightThrough, Truth
from losses.objectives import Contrastive, Margin, Objective, Regression
from losses.task import EnergyAndSupervision
from networks.bilstm import BiLSTM, Tagger
from networks.inputs import Sequences, SparseRows
from networks.mlp import MLP, LabelMLP
from networks.words import WordFeatures


def small_conv() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.Softplus(),
        nn.Conv2d(3, 2, 3, stride=2),
        nn.Flatten(),
        nn.Linear(18, 7),
    )
    return net.double(), torch.randn(5, 1, 8, 8, dtype=DOUBLE)


def sentences() -> Sequences:
    ids = torch.randint(1, 20, (5, 3, 1))
    ids[1, 2] = ids[3, 1:] = 0
    return Sequences(ids, ids[..., 0] != 0)


def small_tagger() -> tuple[nn.Module, Sequences]:
    features = WordFeatures(20, 15, num_dims=4)
    return nn.Sequential(Tagger(BiLSTM(features, 3), 7)).double(), sentences()


@pytest.mark.parametrize("make", [small_conv, small_tagger])
def test_finite_differences_give_what_double_backward_gives(
    make: Callable[[], tuple[nn.Module, Tensor | Sequences]],
) -> None:
    torch.manual_seed(1)
    net, x = make()
    labels = mlc()
    problem = replace(labels, net=net, x=x)
    if isinstance(x, Sequences):
        problem = replace(
            problem,
            inner=lambda logits: labels.inner(logits.sum(1)),
            outer=lambda logits: labels.outer(logits.sum(1)),
        )
    curvature = float(largest_curvature(problem, Exact(), iterations=20))
    exact, *differences = (
        hypergradient(problem, Neumann(8), products, divisor=2 * curvature, damping=curvature)
        for products in (Exact(), FINE, ONE_SIDED)
    )
    assert not exact.diverged and flat(exact.implicit).norm() > 1e-4 * flat(exact.explicit).norm()
    for rough in differences:
        assert apart(rough.implicit, exact.implicit) < 1e-3
        assert apart(rough.explicit, exact.explicit) < 1e-12


STACKS: dict[str, Callable[[], nn.Module]] = {
    "LabelMLP": lambda: LabelMLP(30, 7, num_layers=2, width=8),
    "LabelMLP, one layer": lambda: LabelMLP(30, 7, num_layers=1, width=8),
    "LabelMLP with dropout": lambda: LabelMLP(30, 7, num_layers=3, width=8, dropout=0.4),
    "MLP, whose softplus comes last": lambda: MLP(30, num_layers=2, width=7),
    "linear": lambda: nn.Linear(30, 7),
    "dropped input": lambda: nn.Sequential(
        nn.Dropout(0.3), nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 7, bias=False)
    ),
    "two activations in a row": lambda: nn.Sequential(
        nn.Linear(30, 9), nn.Tanh(), nn.Softplus(2.0, 1.0), nn.Dropout(0.2), nn.Linear(9, 7), nn.Linear(7, 7)
    ),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(30, 6), nn.SiLU()), nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 7))
    ),
}


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
@pytest.mark.parametrize("stack", STACKS)
def test_dual_products_are_the_exact_ones(
    stack: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(2)
    problem = mlc(STACKS[stack](), dtype=dtype, rows=3)
    exact = solved(problem, Exact())
    state = torch.get_rng_state()
    monkeypatch.setattr(Exact, "at", lambda *_, **__: pytest.fail("it is the dual's turn"))
    dual = solved(problem, Dual())
    assert torch.equal(torch.get_rng_state(), state)
    tolerance = 1e-10 if dtype == DOUBLE else 1e-6
    assert flat(exact.implicit).norm() > 1e-3 * flat(exact.explicit).norm()
    assert apart(dual.implicit, exact.implicit) < tolerance
    assert apart(dual.explicit, exact.explicit) < tolerance
    assert dual.diverged == exact.diverged
    torch.testing.assert_close(dual.curvature, exact.curvature, rtol=1e-4, atol=1e-4)


def test_dual_vectors_have_the_lengths_of_what_they_stand_for() -> None:
    problem = mlc(rows=3)
    exact, dual = Exact().at(problem), Dual().at(problem)
    a, b = [exact.v], [dual.v]
    for _ in range(3):
        a.append(exact.product(a[-1]))
        b.append(dual.product(b[-1]))
    for i in range(4):
        for j in range(4):
            torch.testing.assert_close(dual.dot(b[i], b[j]), exact.dot(a[i], a[j]))
    written_to = b[1]
    dual.dot(written_to, written_to)
    written_to[0].mul_(2)
    torch.testing.assert_close(dual.dot(written_to, written_to), 4 * exact.dot(a[1], a[1]))


@pytest.mark.parametrize(
    "solver", [ConjugateGradient(steps=6, tolerance=0.0, damping=3.0), ExactSolve(), Identity()]
)
def test_every_solver_gives_the_same_with_dual_products(
    solver: ConjugateGradient | ExactSolve | Identity,
) -> None:
    problem = mlc(LabelMLP(30, 7, num_layers=1, width=4), rows=2)
    exact, dual = (hypergradient(problem, solver, p, divisor=9.0, damping=0.5) for p in (Exact(), Dual()))
    assert apart(dual.implicit, exact.implicit) < 1e-8


def test_dual_reads_positions_as_examples() -> None:
    torch.manual_seed(0)
    energy, x = LabelMixEnergy(7, 4).double(), torch.randn(2, 3, 30, dtype=DOUBLE)
    problem = Bilevel(
        LabelMLP(30, 7, width=8).double(),
        x,
        lambda logits: energy(x[:, 0], logits.sigmoid().sum(1)).mean() + logits.square().mean(),
        lambda logits: energy(x[:, 0], logits.sigmoid().mean(1)).sum(),
        list(energy.parameters()),
    )
    assert type(Dual().at(problem)) is not type(Exact().at(problem))
    assert apart(solved(problem, Dual()).implicit, solved(problem, Exact()).implicit) < 1e-10


@pytest.mark.parametrize("products", [Exact(), Dual(), FINE, ONE_SIDED])
def test_nothing_is_left_behind(products: Products) -> None:
    problem = mlc(LabelMLP(30, 7, width=8, dropout=0.5))
    before = [p.detach().clone() for p in problem.net.parameters()]
    found = solved(problem, products)
    assert all(torch.equal(p, q) for p, q in zip(problem.net.parameters(), before, strict=True))
    assert all(p.grad is None for p in [*problem.net.parameters(), *problem.phi])
    assert not any(t.requires_grad for t in found.gradient)
    torch.testing.assert_close(flat(found.gradient), flat(found.explicit) - flat(found.implicit))


@pytest.mark.parametrize("products", [FiniteDifference(), ForwardDifference()])
def test_finite_differences_put_the_parameters_back_even_if_the_loss_raises(products: Products) -> None:
    problem = mlc(dtype=torch.float32)
    calls: list[int] = []

    def breaks(logits: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 4:  # beside theta
            raise RuntimeError("the loss broke")
        return problem.inner(logits)

    before = [p.detach().clone() for p in problem.net.parameters()]
    versions = [p._version for p in problem.net.parameters()]
    with pytest.raises(RuntimeError, match="the loss broke"):
        solved(replace(problem, inner=breaks), products)
    assert all(torch.equal(p, q) for p, q in zip(problem.net.parameters(), before, strict=True))
    assert [p._version for p in problem.net.parameters()] == versions


@pytest.mark.parametrize("products", [FINE, ONE_SIDED])
def test_both_sides_of_a_difference_see_the_same_masks_and_noise(products: Products) -> None:
    problem = mlc(LabelMLP(30, 7, width=8, dropout=0.5))
    noisy = replace(problem, inner=lambda logits: problem.inner(logits + torch.randn_like(logits)))
    exact, rough = solved(noisy, Exact(), 3), solved(noisy, products, 3)
    assert apart(rough.implicit, exact.implicit) < 1e-3
    torch.manual_seed(7)
    once = noisy.net(noisy.x)
    state = torch.get_rng_state()
    solved(noisy, products, 3)
    assert torch.equal(torch.get_rng_state(), state) and once.requires_grad


class OnceOnly(torch.autograd.Function):
    """A square that forgets that it is one."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, slope: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * slope


def attend(logits: Tensor) -> Tensor:
    """Attention of each example to all, by a fused kernel that can be derived once."""
    rows = logits.view(1, 1, *logits.shape)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(rows, rows, rows).view_as(logits)


@pytest.mark.parametrize("products", [Exact(), Dual()])
@pytest.mark.parametrize(("bend", "name"), [(OnceOnly.apply, "custom autograd"), (attend, "attention")])
def test_what_can_be_derived_once_is_named_and_finite_differences_take_it(
    bend: Callable[[Tensor], Tensor], name: str, products: Products
) -> None:
    problem = mlc(dtype=torch.float32)
    once = replace(problem, inner=lambda logits: problem.inner(bend(logits)))
    with pytest.raises(ValueError, match=rf"{name}.* no second derivative.*FiniteDifference"):
        solved(once, products)
    assert flat(solved(once, FiniteDifference()).implicit).isfinite().all()


def sets_in_use(of_energy: float = 0.0) -> tuple[nn.Module, Energy, AnswerSpace, Tensor, Tensor]:
    def net(dropout: float) -> LabelMLP:
        return LabelMLP(30, 7, width=8, dropout=dropout).double()

    energy = SumEnergy(LocalEnergy(net(of_energy)), LabelMixEnergy(7, 4)).double()
    return net(0.3), energy, LabelSets(7), torch.randn(5, 30, dtype=DOUBLE), (torch.rand(5, 7) < 0.4).double()


def tags_in_use() -> tuple[nn.Module, Energy, AnswerSpace, Sequences, Tensor]:
    def net(dropout: float, *, bias: bool) -> Tagger:
        return Tagger(BiLSTM(WordFeatures(20, 15, num_dims=4), 3, dropout=dropout), 6, bias=bias).double()

    x = sentences()
    y = F.one_hot(torch.randint(6, (5, 3)), 6).double() * x.mask.unsqueeze(-1)
    energy = ChainEnergy(net(0.0, bias=False), 6, ends=True, pairwise_range=0.5).double()
    return net(0.3, bias=True), energy, TagSequences(6, reduction="sum").over(x.mask), x, y


@pytest.mark.parametrize("make", [sets_in_use, tags_in_use])
@pytest.mark.parametrize(
    ("objective", "guess"),
    [
        (Margin(), Point()),
        (Contrastive(), Combined([Point(), Sampled(4)])),
        (Contrastive(), StraightThrough(4)),
        (Regression(), Combined([Perturbed(2), Truth()])),
    ],
)
def test_differences_and_double_backward_agree_on_the_networks_energies_and_losses_in_use(
    objective: Objective,
    guess: Guess,
    make: Callable[[], tuple[nn.Module, Energy, AnswerSpace, Tensor | Sequences, Tensor]],
) -> None:
    torch.manual_seed(1)
    net, learned, space, x, y = make()
    energy, task_loss = learned.over(getattr(space, "mask", None)), EnergyAndSupervision(1.0)

    def outer(logits: Tensor) -> Tensor:
        guesses = guess(GuessContext(energy, objective, space, x, y, logits))
        return objective(energy, space, x, y, guesses)

    def inner(logits: Tensor) -> Tensor:
        return task_loss(energy, space, x, y, logits)

    problem = Bilevel(net, x, inner, outer, [*learned.parameters()])
    divisor = 2 * float(largest_curvature(problem, Exact(), iterations=30))
    found = []
    for products in (Exact(), FINE, ONE_SIDED):
        torch.manual_seed(7)  # the same masks and draws
        found.append(hypergradient(problem, Neumann(5), products, divisor=divisor, damping=divisor))
    exact, *differences = found
    assert not exact.diverged and flat(exact.implicit).norm() > 1e-3 * flat(exact.explicit).norm()
    for rough in differences:
        assert apart(rough.implicit, exact.implicit) < 1e-3
        assert apart(rough.explicit, exact.explicit) < 1e-12


def test_activations_that_work_in_place_are_derived_like_others() -> None:
    torch.manual_seed(1)
    stack = nn.Sequential(nn.Linear(30, 9), nn.LeakyReLU(inplace=True), nn.Linear(9, 7))
    problem = mlc(stack.double())
    assert apart(solved(problem, Dual()).implicit, solved(problem, Exact()).implicit) < 1e-10


def test_dual_refuses_nets_that_are_no_stack_and_says_what_to_take() -> None:
    net, x = small_conv()
    with pytest.raises(ValueError, match=r"'0' is of type Conv2d. Take .*Exact\(\).*FiniteDifference\(\)"):
        solved(replace(mlc(), net=net, x=x), Dual())
    half = mlc()
    next(half.net.parameters()).requires_grad_(False)
    with pytest.raises(ValueError, match=r"'features.layers.0.weight' is fixed. Take .*Exact\(\)"):
        solved(half, Dual())
    layer = nn.Linear(7, 7)
    with pytest.raises(ValueError, match="a weight is used twice"):
        solved(mlc(nn.Sequential(nn.Linear(30, 7), layer, nn.ReLU(), layer)), Dual())
    with pytest.raises(ValueError, match="there is none"):
        solved(mlc(nn.Sequential(nn.ReLU())), Dual())
    for hooked in (mlc(nn.Linear(30, 7)), mlc()):
        hooked.net.register_forward_hook(lambda module, args, out: out + 1)
        with pytest.raises(
            ValueError, match=rf"without hooks.*'the net' is of type {type(hooked.net).__name__}"
        ):
            solved(hooked, Dual())


def test_sparse_rows_give_what_dense_ones_give() -> None:
    problem = mlc(rows=3)
    x = problem.x * (torch.rand_like(problem.x) < 0.3)
    rows, columns = x.nonzero(as_tuple=True)
    offsets = F.pad(torch.bincount(rows, minlength=3).cumsum(0), (1, 0))
    sparse = SparseRows(x[rows, columns], columns, offsets, x.shape[1])
    right = solved(replace(problem, x=x), Exact())
    for products in (Exact(), Dual(), FINE):
        found = solved(replace(problem, x=sparse), products)
        assert apart(found.implicit, right.implicit) < (1e-4 if products is FINE else 1e-10)


def test_dual_leaves_large_batches_to_the_weights() -> None:
    small, large = mlc(rows=3), mlc(rows=300)
    assert type(Dual().at(large)) is type(Exact().at(large)) is not type(Dual().at(small))
    assert type(Dual().at(small, shared=True)) is type(Exact().at(small))
    assert apart(solved(large, Dual()).implicit, solved(large, Exact()).implicit) < 1e-10
