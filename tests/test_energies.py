"""Energies: derivatives, enumeration, and the two ways to give a discrete set."""

import itertools

import pytest
import torch
from torch import Tensor

from energies.base import Energy, SumEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from networks.mlp import MLP, LabelMLP

L, D, B = 4, 3, 2


def spen() -> SumEnergy:
    torch.manual_seed(0)
    local = LocalEnergy(LabelMLP(D, L, num_layers=2, width=5))
    return SumEnergy(local, LabelMixEnergy(L, 6)).double()


ENERGIES = {
    "local": lambda: LocalEnergy(LabelMLP(D, L, width=5)).double(),
    "mix": lambda: LabelMixEnergy(L, 6).double(),
    "sum": spen,
}


@pytest.fixture(params=ENERGIES)
def energy(request: pytest.FixtureRequest) -> Energy:
    torch.manual_seed(3)
    return ENERGIES[request.param]()


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(B, D).double(), torch.rand(7, B, L).double()


def test_samples_share_one_pass_over_the_input(energy: Energy) -> None:
    x, y = inputs()
    torch.testing.assert_close(energy(x, y), torch.stack([energy(x, one) for one in y]))


def test_gradients_agree_with_finite_differences(energy: Energy) -> None:
    x, y = inputs()
    assert torch.autograd.gradcheck(lambda y: energy(x, y), y.requires_grad_())
    parameters = list(energy.parameters())
    assert torch.autograd.gradcheck(lambda *_: energy(x, y.detach()), parameters)


def test_closed_form_slope_is_the_derivative(energy: Energy) -> None:
    x, y = inputs()
    value, gradient = energy.slope(x)(y)
    want_value, want_gradient = Energy.slope(energy, x)(y)
    torch.testing.assert_close(value, want_value)
    torch.testing.assert_close(gradient, want_gradient)


@pytest.mark.parametrize("share", [0.03, 0.5])  # looked up; multiplied
def test_discrete_sets_give_the_same_energy_and_parameter_gradients_as_floats(
    energy: Energy, share: float
) -> None:
    x, y = inputs()
    discrete = y < share
    discrete[1, 0, 2] = True
    discrete[0] = False  # empty sets too
    results = []
    for answers in (discrete, discrete.double()):
        energy.zero_grad()
        rows = energy(x, answers)
        rows.square().sum().backward()
        results.append((rows.detach(), [p.grad.clone() for p in energy.parameters() if p.grad is not None]))
    torch.testing.assert_close(results[0], results[1])


def test_local_energy_alone_is_lowest_where_potentials_are_positive() -> None:
    local = ENERGIES["local"]()
    x, _ = inputs()
    sets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=L))).double()
    rows = local(x, sets.unsqueeze(1).expand(-1, B, -1))
    best = sets[rows.argmin(0)]
    torch.testing.assert_close(best, (local.net(x) > 0).double())


def test_mix_energy_is_its_formula_on_every_set() -> None:
    mix = ENERGIES["mix"]()
    sets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=L))).double()
    want = [
        -sum(
            float(v.detach()) * float(torch.log1p(torch.exp(column @ one + m)).detach())
            for v, column, m in zip(mix.weights, mix.patterns.T, mix.bias, strict=True)
        )
        for one in sets
    ]
    got = mix(torch.zeros(1, D).double(), sets.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(got, torch.tensor(want).double())


def test_networks_start_as_released() -> None:
    torch.manual_seed(0)
    net = LabelMLP(400, 50, num_layers=3, width=300, dropout=0.5)
    mix = LabelMixEnergy(100, 2000)
    linears = [layer for layer in net.features.layers if isinstance(layer, torch.nn.Linear)]
    for linear in linears:
        bound = (6 / linear.in_features) ** 0.5  # Kaiming-uniform, ReLU gain, fan-in
        assert linear.weight.abs().max() <= bound and linear.weight.abs().max() > 0.99 * bound
        assert linear.bias.abs().max() == 0
    assert net.labels.bias is None and net.labels.weight.abs().max() <= (6 / 350) ** 0.5  # Xavier-uniform
    assert mix.patterns.abs().max() <= (6 / 100) ** 0.5 and mix.patterns.abs().max() > 0.99 * (6 / 100) ** 0.5
    assert mix.weights.std().item() == pytest.approx((2 / 2000) ** 0.5, rel=0.1)


def test_the_last_layer_has_no_dropout() -> None:
    dropouts = [type(layer).__name__ for layer in MLP(3, num_layers=3, width=4, dropout=0.5).layers]
    assert dropouts == ["Linear", "Softplus", "Dropout"] * 2 + ["Linear", "Softplus"]
    assert not any(
        isinstance(m, torch.nn.Dropout) for m in MLP(3, num_layers=1, width=4, dropout=0.5).modules()
    )
