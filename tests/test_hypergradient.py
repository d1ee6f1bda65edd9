"""Hypergradients against closed forms and finite differences of the whole, and what they say in the end."""

import math
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilevel_toys import DOUBLE, FINE, ONE_SIDED, ExactSolve, Quadratic, apart, flat, mlc, solved
from energies.mlc import LabelMixEnergy
from inference.bilevel import (
    Bilevel,
    ConjugateGradient,
    Dropped,
    Dual,
    Exact,
    FiniteDifference,
    Hypergradient,
    Identity,
    Neumann,
    Products,
    hypergradient,
    largest_curvature,
    why_stopped,
)
from networks.mlp import LabelMLP


@pytest.mark.parametrize("products", [Exact(), FINE, ONE_SIDED])
def test_the_total_gradient_is_that_of_the_loss_at_the_moved_minimum(products: Products) -> None:
    toy = Quadratic()
    right = toy.total_by_differences()
    divisor = float(torch.linalg.eigvalsh(toy.a)[-1])
    found = hypergradient(toy.problem(), Neumann(200), products, divisor=divisor)
    torch.testing.assert_close(flat(found.gradient), right, rtol=1e-6, atol=1e-6)
    with_wrong_sign = flat(found.explicit) + flat(found.implicit)
    assert (with_wrong_sign - right).norm() > 0.1 * right.norm()
    assert (flat(found.explicit) - right).norm() > 0.1 * right.norm()


def test_solvers_agree_where_the_hessian_is_positive_definite() -> None:
    toy = Quadratic()
    exact = hypergradient(toy.problem(), ExactSolve(), Exact(), divisor=1.0)
    torch.testing.assert_close(flat(exact.gradient), toy.total_by_differences(), rtol=1e-6, atol=1e-6)
    for solver in (ConjugateGradient(steps=6, tolerance=0.0), Neumann(2000)):
        found = hypergradient(toy.problem(), solver, Exact(), divisor=10.0)
        torch.testing.assert_close(flat(found.implicit), flat(exact.implicit))
        assert not found.diverged
    damped = hypergradient(toy.problem(), ExactSolve(), Exact(), divisor=1.0, damping=0.5)
    by_steps = hypergradient(
        toy.problem(),
        ConjugateGradient(steps=6, tolerance=0.0, damping=0.2),
        Exact(),
        divisor=1.0,
        damping=0.3,
    )
    torch.testing.assert_close(flat(by_steps.implicit), flat(damped.implicit))
    assert (flat(damped.implicit) - flat(exact.implicit)).norm() > 1e-2


def test_more_terms_come_nearer_to_the_total_gradient() -> None:
    toy = Quadratic()
    right, divisor = toy.total_by_differences(), float(torch.linalg.eigvalsh(toy.a)[-1])
    errors = [
        (flat(hypergradient(toy.problem(), Neumann(k), Exact(), divisor=divisor).gradient) - right).norm()
        for k in (0, 1, 5, 20, 100)
    ]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-2 * errors[0]


@pytest.mark.parametrize("products", [Exact(), FINE, ONE_SIDED, Dual()])
def test_no_term_and_divisor_1_is_the_mixed_derivative_of_the_energy(products: Products) -> None:
    problem = mlc(weight=0.7)
    theta = list(problem.net.parameters())
    v = torch.autograd.grad(problem.outer(problem.net(problem.x)), theta)
    weighted = problem.inner(problem.net(problem.x)) - mlc(weight=0.0).inner(problem.net(problem.x))
    mixed = torch.autograd.grad(weighted, theta, create_graph=True)
    right = torch.autograd.grad(mixed, problem.phi, v)
    for solver in (Identity(), Neumann(0)):
        found = hypergradient(problem, solver, products, divisor=1.0)
        assert apart(found.implicit, list(right)) < (
            1e-4 if isinstance(products, FiniteDifference) else 1e-10
        )


@pytest.mark.parametrize("products", [Exact(), FINE, ONE_SIDED, Dual()])
def test_an_inner_loss_without_the_energy_has_no_implicit_gradient(products: Products) -> None:
    found = solved(mlc(weight=0.0), products)
    assert flat(found.implicit).abs().max() == 0
    unmentioned = replace(mlc(), inner=lambda logits: logits.square().sum())
    assert flat(solved(unmentioned, products).implicit).abs().max() == 0
    straight = replace(mlc(nn.Linear(30, 7)), inner=lambda logits: logits.sum())
    assert flat(solved(straight, products).implicit).abs().max() == 0


def test_the_explicit_gradient_alone_asks_nothing_of_the_inner_loss() -> None:
    problem = mlc()
    blind = replace(problem, inner=lambda logits: pytest.fail("the inner loss was asked"))
    found = hypergradient(blind, Dropped(), Exact(), divisor=1.0)
    right = solved(problem, Exact())
    assert apart(found.gradient, right.explicit) < 1e-12 and flat(found.implicit).abs().max() == 0
    assert not found.diverged


def halves(problem: Callable[[slice], Bilevel], products: Products) -> list[Hypergradient]:
    """Two processes with half of the batch each: threads, which wait for one another at each average."""
    barrier, given = threading.Barrier(2), {}
    found: dict[int, Hypergradient] = {}

    def work(rank: int) -> None:
        def reduce(tensors: list[Tensor]) -> list[Tensor]:
            given[rank] = [t.clone() for t in tensors]
            barrier.wait(timeout=180)
            mean = [(a + b) / 2 for a, b in zip(given[0], given[1], strict=True)]
            barrier.wait(timeout=180)
            return mean

        half = problem(slice(2 * rank, 2 * rank + 2))
        found[rank] = hypergradient(half, Neumann(4), products, divisor=40.0, damping=0.1, reduce=reduce)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=360)
    return [found[0], found[1]]


@pytest.mark.parametrize("products", [Exact(), Dual(), FINE, ONE_SIDED])
def test_processes_that_average_give_what_one_with_the_whole_batch_gives(products: Products) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 30, dtype=DOUBLE), (torch.rand(4, 7) < 0.3).double()
    net, energy = LabelMLP(30, 7, width=8).double(), LabelMixEnergy(7, 4).double()

    def part(rows: slice) -> Bilevel:
        own, own_energy = deepcopy(net), deepcopy(energy)

        def inner(logits: Tensor) -> Tensor:
            supervision = F.binary_cross_entropy_with_logits(logits, y[rows], reduction="none").sum(-1)
            return (supervision + own_energy(x[rows], logits.sigmoid())).mean()

        def outer(logits: Tensor) -> Tensor:
            return (own_energy(x[rows], y[rows]) - own_energy(x[rows], logits.sigmoid())).square().mean()

        return Bilevel(own, x[rows], inner, outer, list(own_energy.parameters()))

    whole = hypergradient(part(slice(0, 4)), Neumann(4), Exact(), divisor=40.0, damping=0.1)
    alone = hypergradient(part(slice(0, 2)), Neumann(4), Exact(), divisor=40.0, damping=0.1)
    assert apart(alone.implicit, whole.implicit) > 1e-2
    for found in halves(part, products):
        assert apart(found.explicit, whole.explicit) < 1e-10
        assert apart(found.implicit, whole.implicit) < (
            1e-4 if isinstance(products, FiniteDifference) else 1e-10
        )


@pytest.mark.parametrize("products", [Exact(), Dual(), FINE, ONE_SIDED])
def test_the_largest_curvature_is_the_largest_eigenvalue(products: Products) -> None:
    problem = mlc(LabelMLP(30, 7, num_layers=1, width=4), rows=3)
    exact = Exact().at(problem)
    sizes = [t.numel() for t in exact.v]
    units = torch.eye(sum(sizes), dtype=DOUBLE)
    split = ([u.view_as(t) for u, t in zip(unit.split(sizes), exact.v, strict=True)] for unit in units)
    hessian = torch.stack([flat(exact.product(unit)) for unit in split])
    torch.testing.assert_close(hessian, hessian.T)
    right = torch.linalg.eigvalsh(hessian).abs().max()
    found = largest_curvature(problem, products, iterations=100)
    torch.testing.assert_close(found, right, rtol=1e-3, atol=0)
    few = largest_curvature(problem, products)
    assert 0.3 * right < few <= right * (1 + 1e-6)
    torch.testing.assert_close(few, largest_curvature(problem, products))


def told(found: Hypergradient, divisor: float) -> str:
    return why_stopped(float(found.curvature), divisor)


@pytest.mark.parametrize("products", [Exact(), Dual()])
def test_a_divisor_below_the_curvature_is_told_with_both_numbers(products: Products) -> None:
    problem = mlc()
    curvature = float(largest_curvature(problem, products, iterations=50))
    divisor = 0.3 * curvature
    found = solved(problem, products, 40, divisor=divisor)
    assert found.diverged and flat(found.implicit).isfinite().all()
    assert 2 * divisor < found.curvature <= curvature * 1.001
    sentence = told(found, divisor)
    assert f"{divisor:.4g}" in sentence and f"{float(found.curvature):.4g} or more" in sentence


def test_other_ends_are_told_too() -> None:
    uphill = replace(mlc(), inner=lambda logits: -logits.square().sum())
    found = hypergradient(uphill, ConjugateGradient(), Exact(), divisor=1.0)
    assert found.diverged and f"a damping above {-float(found.curvature):.2g} times" in told(found, 1.0)
    none = hypergradient(mlc(), Neumann(2), Exact(), divisor=torch.tensor(0.0))
    assert none.diverged and "is not a finite number" in told(none, 0.0)
    series = hypergradient(uphill, Neumann(3), Exact(), divisor=1.0)
    assert series.diverged and series.curvature < 0
    assert f"{float(series.curvature):.4g} or less" in told(series, 1.0)
    assert flat(none.implicit).abs().max() == 0


def test_the_damping_asked_for_lets_the_solver_go_on() -> None:
    uphill = replace(mlc(), inner=lambda logits: -logits.square().sum())
    stopped = hypergradient(uphill, ConjugateGradient(50), Exact(), divisor=1.0, damping=3.0)
    assert stopped.diverged and stopped.curvature < 0
    largest = float(largest_curvature(uphill, Exact(), iterations=100))
    assert float(3.0 - stopped.curvature) <= largest * 1.001
    assert not hypergradient(
        uphill, ConjugateGradient(50), Exact(), divisor=1.0, damping=1.01 * largest
    ).diverged
    with pytest.raises(ValueError, match=r"damping is -3\.0: take a finite number, 0"):
        hypergradient(uphill, Neumann(1), Exact(), divisor=1.0, damping=-3.0)


@pytest.mark.parametrize("divisor", [0.0, -2.0, math.inf, math.nan])
@pytest.mark.parametrize("solver", [Neumann(3), Identity(), Dropped()])
def test_a_divisor_that_is_none_is_refused(divisor: float, solver: Neumann | Identity | Dropped) -> None:
    with pytest.raises(ValueError, match=r"divisor .* take a positive number"):
        hypergradient(mlc(), solver, Exact(), divisor=divisor)


def test_a_curvature_that_is_not_finite_is_refused() -> None:
    problem = mlc()
    for products in (Exact(), Dual()):
        with pytest.raises(ValueError, match="curvature of the inner loss is nan"):
            largest_curvature(
                replace(problem, inner=lambda logits: problem.inner(logits * math.nan)), products
            )
    with pytest.raises(ValueError, match="iterations is 0: take 1 or more"):
        largest_curvature(problem, Exact(), iterations=0)
    steep = replace(mlc(), inner=lambda logits: 1e200 * logits.square().sum())  # its square is no number
    with pytest.raises(ValueError, match="the curvature of the inner loss is inf"):
        largest_curvature(steep, Exact())


def test_options_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ValueError, match="terms is -1: take 0 or more"):
        Neumann(-1)
    with pytest.raises(ValueError, match=r"step is 0\.0: take a finite number above 0"):
        FiniteDifference(0.0)
    fixed = mlc()
    fixed.phi[0].requires_grad_(False)
    for products in (Exact(), Dual(), FINE, ONE_SIDED):
        with pytest.raises(ValueError, match="requires no grad"):
            solved(fixed, products)
        with pytest.raises(ValueError, match="phi is empty"):
            solved(replace(mlc(), phi=[]), products)
    frozen = mlc()
    frozen.net.requires_grad_(False)
    for products in (Exact(), FINE, ONE_SIDED):
        with pytest.raises(ValueError, match="no parameter that requires grad"):
            solved(frozen, products)
