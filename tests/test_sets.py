"""Sets of labels given by what is in them, against the same sets given in full."""

import pytest
import torch
from torch import Tensor, nn

from energies.answers import sets
from energies.base import SumEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.spaces import LabelSets

K, B, L, G = 4000, 3, 40, 5


def rare_logits() -> Tensor:
    """Coins few of which show heads: one never, one nearly always, one half of the time."""
    logits = torch.linspace(-7, -4, B * L).reshape(B, L).double()
    logits[0, 0], logits[1, 3], logits[2, L - 1] = -torch.inf, 4.0, 0.0
    return logits


def few_and_in_full() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    drawn = sets.draw(rare_logits(), 6)
    return drawn, drawn.double()


@pytest.mark.parametrize("shift", [0.0, 5.0], ids=["members are drawn", "coins are drawn"])
def test_draws_are_independent_coins(shift: float) -> None:
    torch.manual_seed(1)
    logits = rare_logits() + shift
    drawn = sets.draw(logits, K)
    assert isinstance(drawn, sets.SparseSets) == (shift == 0)
    p, heads = logits.sigmoid(), drawn.double()
    spread = (p * (1 - p)).sqrt()
    assert ((heads.mean(0) - p).abs() <= 4.5 * spread / K**0.5 + 1e-12).all()
    unit = ((heads - p) / spread.clamp_min(1e-9)).flatten(1)[:, spread.flatten() > 0.1]
    assert unit.shape[1] >= 2
    within, later = unit.T @ unit / K, unit[1:].T @ unit[:-1] / (K - 1)
    assert (within.fill_diagonal_(0).abs() < 5 / K**0.5).all() and (later.abs() < 5 / K**0.5).all()


def test_coins_that_never_show_heads_give_empty_sets() -> None:
    for logits in (torch.full((2, 3), -torch.inf), torch.full((2, 3), -800.0)):
        assert not sets.draw(logits, 5).any()


def test_logits_that_are_no_numbers_give_sets_all_the_same() -> None:
    assert sets.draw(torch.full((2, 3), torch.nan), 5).shape == (5, 2, 3)


def test_counts_of_a_poisson_process_have_its_mean_and_variance_and_its_points_are_uniform() -> None:
    torch.manual_seed(2)
    runs = [sets._poisson_process(9.0) for _ in range(4000)]
    counts = torch.tensor([float(len(points)) for points in runs])
    assert abs(float(counts.mean()) - 9) < 0.2 and abs(float(counts.var()) - 9) < 0.9
    assert 0.05 < float((counts > 13).double().mean()) < 0.1  # 0.074: drawn in two parts
    points = torch.cat(runs)
    assert abs(float(points.mean()) - 4.5) < 0.06 and float(points.max()) < 9
    assert all(bool((points.diff() > 0).all()) for points in runs)


def test_what_is_known_of_drawn_sets_is_what_is_found_in_them() -> None:
    drawn, _ = few_and_in_full()
    truth = torch.rand(B, L) < 0.05
    joined = sets.put_first(truth.float(), drawn)
    assert joined.dtype == torch.bool
    assert torch.equal(joined[0], truth) and torch.equal(joined[1:], drawn)
    for known in (drawn, joined):
        assert isinstance(known, sets.SparseSets)
        assert torch.equal(known.members.places, known.flatten().nonzero().squeeze(1))
    assert torch.equal(sets.put_first(truth, drawn.float())[1:], drawn.float())


def test_sets_drawn_in_full_are_sparse_where_few_are_in_them() -> None:
    coins = torch.rand(6, B, L) < 0.05
    joined = sets.put_first(coins[0].float(), coins)
    assert isinstance(joined, sets.SparseSets) and torch.equal(joined[1:], coins)
    assert not isinstance(sets.put_first(coins[0], ~coins), sets.SparseSets)


EDITS = {
    "an entry": lambda y: y.__setitem__((0, 1, 2), ~y[0, 1, 2]),
    "a view": lambda y: y[1].fill_(True),
    "a view of all": lambda y: y.view(-1).logical_not_(),
    "all": lambda y: y.zero_(),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("joined", [False, True])
def test_sets_edited_in_place_have_the_energy_of_a_copy(edit: str, joined: bool) -> None:
    drawn, _ = few_and_in_full()
    y = sets.put_first(torch.zeros(B, L), drawn) if joined else drawn
    energy, x = SumEnergy(LocalEnergy(nn.Linear(4, L)), LabelMixEnergy(L, G)), torch.randn(B, 4)
    before, space = energy(x, y), LabelSets(L)
    EDITS[edit](y)
    torch.testing.assert_close(energy(x, y), energy(x, y.clone()))
    assert not torch.equal(energy(x, y), before)
    logits = torch.randn(B, L)
    torch.testing.assert_close(space.log_prob(logits, y), space.log_prob(logits, y.float()))


def test_what_is_made_of_drawn_sets_is_a_plain_tensor() -> None:
    drawn, _ = few_and_in_full()
    for made in (drawn[0], drawn.view(-1), drawn.float(), drawn.clone(), drawn | drawn):
        assert type(made) is Tensor


def test_sets_drawn_where_edits_are_not_counted_are_plain() -> None:
    with torch.inference_mode():
        drawn = sets.draw(rare_logits(), 6)
        joined = sets.put_first(drawn[0], drawn)
    assert type(drawn) is Tensor and type(joined) is Tensor and drawn.any()


def test_sums_over_members_and_their_first_and_second_derivatives_are_those_of_products() -> None:
    drawn, full = few_and_in_full()
    assert isinstance(drawn, sets.SparseSets)
    table = torch.randn(L, G).double().requires_grad_()
    potentials = torch.randn(B, L).double().requires_grad_()
    torch.testing.assert_close(sets.sum_rows(table, drawn), full @ table)
    rows = torch.einsum("bl,kbl->kb", potentials, full)
    torch.testing.assert_close(sets.sum_potentials(potentials, drawn), rows)
    for function, value in ((sets.sum_rows, table), (sets.sum_potentials, potentials)):
        assert torch.autograd.gradcheck(lambda v, f=function: f(v, drawn).square(), value)
        assert torch.autograd.gradgradcheck(lambda v, f=function: f(v, drawn).square(), value)


def test_gradients_that_are_views_are_summed() -> None:
    drawn, full = few_and_in_full()
    results = []
    for y in (drawn, full):
        table = torch.ones(L, G).double().requires_grad_()
        sets.sum_rows(table, y).sum().backward()
        assert table.grad is not None
        results.append(table.grad)
    torch.testing.assert_close(*results)


def test_half_precision_changes_no_chance_and_no_noise() -> None:
    torch.manual_seed(0)
    logits = torch.full((1, 2000), -6.9)
    p = float(logits.to(torch.bfloat16).float().sigmoid()[0, 0])
    # not sparse: as on a GPU
    drawn = sets.draw(torch.cat([logits, torch.zeros(1, 2000)], 1).to(torch.bfloat16), 200)
    assert abs(float(drawn[..., :2000].double().mean()) - p) < 5 * (p / 400_000) ** 0.5
    space, y = LabelSets(4000), drawn.float()
    exact = space.log_prob(torch.cat([logits, torch.zeros(1, 2000)], 1).to(torch.bfloat16).float(), y)
    with torch.autocast("cpu", torch.bfloat16):
        found = space.log_prob(torch.cat([logits, torch.zeros(1, 2000)], 1).to(torch.bfloat16), y)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact)
