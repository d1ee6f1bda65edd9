"""Scalings of potentials against values worked by hand and against what they promise."""

import pytest
import torch
from torch import tensor

from energies.gaussian import GaussianPotentials
from energies.potentials import ChainPotentials
from energies.scaling import (
    FixedAlpha,
    HardTemperature,
    Offline,
    Online,
    Regularised,
    Scaling,
    Temperature,
    under_each,
)

MASK = tensor([[True, True], [True, False]])


def potentials() -> ChainPotentials:
    """Two examples, two positions, two tags; the second example is one position long."""
    unary = tensor([[[1.0, -2.0], [3.0, 4.0]], [[-1.0, 1.0], [99.0, 99.0]]])
    return ChainPotentials(unary, tensor([[1.0, -1.0], [0.0, 2.0]]), MASK, start=tensor([1.0, 2.0]))


def test_norms_are_mean_sizes_over_real_positions() -> None:
    assert potentials().unary_norm().tolist() == [2.5, 1.0]
    assert potentials().pairwise_norm().item() == 1.0


def test_each_scaling_is_as_worked_by_hand() -> None:
    p = potentials()
    over_norm = tensor([2.5, 1.0]).view(-1, 1, 1)
    expected = {
        FixedAlpha(0.5): (0.5 * p.unary, p.pairwise),
        Online(): (p.unary, p.pairwise),
        Offline(3.0): (3 * p.unary / over_norm, p.pairwise),
        Regularised(2.0, 0.1): (p.unary, p.pairwise),
        Temperature(3.0): (3 * p.unary, 3 * p.pairwise),
        HardTemperature(3.0): (3 * p.unary / over_norm, 3 * p.pairwise),
    }
    for scaling, (unary, pairwise) in expected.items():
        scaled = scaling(p)
        torch.testing.assert_close(scaled.unary, unary)
        torch.testing.assert_close(scaled.pairwise, pairwise)
        assert scaled.start is not None
        torch.testing.assert_close(scaled.start, pairwise[1, 1] / 2 * tensor([1.0, 2.0]))


def test_only_regularisation_asks_a_price_that_of_the_squared_distance() -> None:
    assert Regularised(2.0, 0.1).penalty(potentials()).tolist() == pytest.approx([0.1 * 0.25, 0.1 * 1.0])
    for scaling in (FixedAlpha(2.0), Online(), Offline(2.0), Temperature(2.0), HardTemperature(2.0)):
        assert scaling.penalty(potentials()).tolist() == [0, 0]


@pytest.mark.parametrize("scaling", [Offline(2.0), HardTemperature(2.0)])
def test_normalised_potentials_do_not_know_the_scale_of_their_layers(scaling: Scaling) -> None:
    p = potentials()
    louder = ChainPotentials(7 * p.unary, 0.2 * p.pairwise, MASK)
    torch.testing.assert_close(scaling(louder).unary, scaling(p).unary)
    torch.testing.assert_close(scaling(louder).pairwise, scaling(p).pairwise)


def test_gradients_flow_through_the_norms() -> None:
    torch.manual_seed(0)
    unary, pairwise = (
        torch.randn(2, 2, 2).double().requires_grad_(),
        torch.randn(2, 2).double().requires_grad_(),
    )
    for scaling in (Offline(2.0), Regularised(2.0, 0.5), HardTemperature(2.0)):

        def out(u: torch.Tensor, w: torch.Tensor, scaling: Scaling = scaling) -> tuple[torch.Tensor, ...]:
            p = ChainPotentials(u, w, MASK)
            return scaling(p).unary[MASK], scaling(p).pairwise, scaling.penalty(p)

        assert torch.autograd.gradcheck(out, (unary, pairwise))


def test_the_grid_of_online_scaling_stands_as_one_batch() -> None:
    p, online = potentials(), Online(reach=2)
    assert online.grid.tolist() == [0.25, 0.5, 1, 2, 4]
    all_at_once = under_each(p, online.grid)
    for k, alpha in enumerate(online.grid.tolist()):
        one = FixedAlpha(alpha)(p)
        assert torch.equal(all_at_once.unary[2 * k : 2 * k + 2], one.unary)
        assert all_at_once.mask is not None and torch.equal(all_at_once.mask[2 * k : 2 * k + 2], MASK)


def test_online_scaling_takes_the_least_loss_and_among_equals_the_nearest() -> None:
    online = Online(reach=2)
    online.choose(tensor([3.0, 2.0, 3.0, 4.0, 1.0]))
    assert online.alpha.item() == 4
    online.choose(tensor([1.0, 1.0, 5.0, 1.0, 5.0]))
    assert online.alpha.item() == 2
    online.choose(tensor([torch.nan, 1.0, torch.inf, 2.0, torch.nan]))
    assert online.alpha.item() == 0.5
    online.choose(torch.full((5,), torch.nan))
    assert online.alpha.item() == 0.5


def test_what_online_scaling_chose_is_kept_with_the_weights() -> None:
    online, again = Online(reach=2), Online(reach=2)
    online.choose(tensor([3.0, 2.0, 3.0, 4.0, 1.0]))
    again.load_state_dict(online.state_dict())
    assert again.alpha.item() == 4
    assert torch.equal(again(potentials()).unary, 4 * potentials().unary)


def test_the_ratio_of_a_gaussian_field_is_in_units_of_its_pairwise_scores() -> None:
    p = GaussianPotentials(torch.randn(2, 6, 2), torch.rand(2, 6, 3))
    ratio = p.unary_norm() / (p.pairwise_norm() / p.pairwise_unit)
    torch.testing.assert_close(Regularised(2.0, 0.1).penalty(p), 0.1 * (ratio - 2).square())


def test_of_two_equal_candidates_the_nearer_by_its_ratio_is_taken() -> None:
    online = Online(subset=1)
    grid = online.grid.tolist()
    online.alpha.fill_(2.0)
    losses = torch.tensor([1.0 if alpha in (0.5, 4.0) else 9.0 for alpha in grid])
    assert losses.sum() == 2 + 9 * (len(grid) - 2)
    online.choose(losses)
    assert online.alpha.item() == 4  # twice as large; 0.5 is a quarter
