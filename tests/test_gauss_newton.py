"""Products with the Gauss-Newton matrix: against a dense one, and against those of the Hessian."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bilevel_toys import DOUBLE, ExactSolve, apart, flat, mlc
from inference.bilevel import (
    Bilevel,
    ConjugateGradient,
    Dual,
    Exact,
    GaussNewton,
    Neumann,
    Products,
    hypergradient,
)
from networks.mlp import LabelMLP

NETS: dict[str, Callable[[], nn.Module]] = {
    "LabelMLP": lambda: LabelMLP(30, 7, num_layers=2, width=5),
    "linear": lambda: nn.Linear(30, 7),
}


def matrix(product: Callable[[list[Tensor]], list[Tensor]], like: list[Tensor]) -> Tensor:
    """The dense matrix of a product, column by column."""
    sizes = [t.numel() for t in like]
    units = torch.eye(sum(sizes), dtype=DOUBLE)
    columns = [
        flat(product([part.view_as(t) for part, t in zip(unit.split(sizes), like, strict=True)]))
        for unit in units
    ]
    return torch.stack(columns, 1)


def dense(problem: Bilevel) -> Tensor:
    """J^T H_out J by `torch.func`, with the whole Jacobian and the whole Hessian."""
    theta = {name: p.detach() for name, p in problem.net.named_parameters()}
    logits = problem.net(problem.x).detach()

    def run(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(problem.net, values, (problem.x,)).flatten()

    blocks = torch.func.jacrev(run)(theta)
    jacobian = torch.cat([blocks[name].flatten(1) for name in theta], 1)
    hessian = torch.autograd.functional.hessian(problem.inner, logits)
    assert isinstance(hessian, Tensor)
    return jacobian.T @ hessian.reshape(logits.numel(), logits.numel()) @ jacobian


@pytest.mark.parametrize("net", NETS)
def test_products_are_those_of_the_dense_matrix(net: str) -> None:
    problem = mlc(NETS[net](), rows=4)
    here = GaussNewton().at(problem)
    torch.testing.assert_close(matrix(here.product, here.v), dense(problem), rtol=1e-10, atol=1e-12)


def test_without_an_energy_the_matrix_is_positive_semi_definite_and_the_hessian_is_not() -> None:
    problem = mlc(NETS["LabelMLP"](), rows=4, weight=0.0)
    found = []
    for products in (GaussNewton(), Exact()):
        here = products.at(problem)
        found.append(torch.linalg.eigvalsh(matrix(here.product, here.v)))
    assert found[0].min() > -1e-12 * found[0].max()
    assert found[1].min() < -1e-3 * found[1].max()


def test_of_a_linear_net_it_is_the_hessian() -> None:
    problem = mlc(NETS["linear"]())
    exact, ours = (
        hypergradient(problem, ExactSolve(), products, divisor=1.0, damping=0.1)
        for products in (Exact(), GaussNewton())
    )
    assert flat(exact.implicit).norm() > 1e-3 * flat(exact.explicit).norm()
    assert apart(ours.implicit, exact.implicit) < 1e-8
    assert apart(ours.explicit, exact.explicit) < 1e-12


def test_gradients_and_the_cross_term_are_the_exact_ones() -> None:
    problem = mlc(NETS["LabelMLP"]())
    ours, exact = GaussNewton().at(problem), Exact().at(problem)
    assert apart(ours.v, exact.v) < 1e-12 and apart(ours.explicit, exact.explicit) < 1e-12
    assert apart(ours.cross(exact.v), exact.cross(exact.v)) < 1e-10
    torch.testing.assert_close(ours.loss, exact.loss)


def test_conjugate_gradient_reaches_the_dense_solution() -> None:
    problem = mlc(NETS["LabelMLP"](), weight=0.1)
    one, other = (
        hypergradient(problem, solver, GaussNewton(), divisor=1.0, damping=0.1)
        for solver in (ConjugateGradient(steps=400, tolerance=1e-12), ExactSolve())
    )
    assert not one.diverged and flat(other.implicit).norm() > 0
    assert apart(one.implicit, other.implicit) < 1e-6


def test_a_loss_whose_gradient_is_constant_has_no_curvature() -> None:
    labels = mlc(NETS["LabelMLP"]())
    problem = Bilevel(labels.net, labels.x, lambda logits: logits.sum(), labels.outer, labels.phi)
    here = GaussNewton().at(problem)
    assert flat(here.product(here.v)).norm() == 0 and flat(here.cross(here.v)).norm() == 0


@pytest.mark.parametrize(
    ("products", "loss"), [(GaussNewton(), "inner"), (Dual(), "inner"), (Dual(), "outer")]
)
def test_a_loss_that_knows_the_weights_otherwise_than_by_logits_is_refused(
    products: Products, loss: str
) -> None:
    """Gauss-Newton reads the outer loss together with the net, so that one may know them."""
    torch.manual_seed(0)
    net, phi = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1)), nn.Parameter(torch.zeros(()))
    x, y = torch.randn(4, 20), torch.randn(4, 1)

    def plain(logits: Tensor) -> Tensor:
        return (logits - y).square().mean() * phi.exp()

    def penalised(logits: Tensor) -> Tensor:
        return plain(logits) + phi.exp() * sum(p.square().sum() for p in net.parameters())

    losses = {"inner": plain, "outer": plain, loss: penalised}
    problem = Bilevel(net, x, losses["inner"], losses["outer"], [phi])
    with pytest.raises(ValueError, match=r"by its logits alone.* Take inference.bilevel.Exact"):
        products.at(problem)


def test_phi_may_be_what_a_module_gives_and_not_one_tensor() -> None:
    net, energy = nn.Linear(3, 2), nn.Linear(2, 1)
    x = torch.randn(4, 3)

    def loss(logits: Tensor) -> Tensor:
        return energy(logits.tanh()).square().mean() + logits.square().mean()

    found = hypergradient(Bilevel(net, x, loss, loss, energy.parameters()), Neumann(3), Exact(), divisor=10.0)
    assert [g.shape for g in found.gradient] == [p.shape for p in energy.parameters()]
    one = object.__new__(Bilevel)  # the shape checks of the tests would refuse it first
    object.__setattr__(one, "phi", energy.weight)
    with pytest.raises(ValueError, match=r"phi is one tensor: give a list of parameters, \[phi\]"):
        one.__post_init__()
