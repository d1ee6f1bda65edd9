"""Energies: derivatives, enumeration, and the two ways to give a discrete set."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from energies.base import Energy, SumEnergy, differentiated
from energies.chain import ChainEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.potentials import ChainPotentials
from energies.pretrained import PretrainedEnergy
from energies.tag_lm import TagLMEnergy
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
    value, gradient = energy.value_and_gradient(x)(y)
    want_value, want_gradient = differentiated(energy.given(x), y)
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


S, T = 3, 4
MASK = torch.arange(T) < torch.tensor([4, 2]).unsqueeze(1)


def chain_energy(ends: bool = True, dropout: float = 0.0) -> ChainEnergy:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(D, S), nn.Dropout(dropout))
    return ChainEnergy(net, S, ends=ends).double()


def tags(*samples: int, hard: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    y = torch.randn(*samples, B, T, S).double().softmax(-1)
    y = one_hot(y.argmax(-1), S).double() if hard else y
    return torch.randn(B, T, D).double(), y * MASK.unsqueeze(-1)


def of_tags(dropout: float = 0.0) -> SumEnergy:
    return SumEnergy(chain_energy(dropout=dropout), TagLMEnergy(S, width=4).double())


WITH_DROPOUT = {
    "local": lambda: LocalEnergy(LabelMLP(D, L, width=5, dropout=0.5)).double(),
    "chain": lambda: chain_energy(dropout=0.5),
    "sum of tags": lambda: of_tags(0.5),
}
EVERY = ENERGIES | {
    "chain": chain_energy,
    "chain without ends": lambda: chain_energy(ends=False),
    "sum of tags": of_tags,
    "language model": lambda: TagLMEnergy(S, width=4).double(),
}


def answered(name: str) -> tuple[Tensor, Tensor]:
    return inputs() if name in ("local", "mix", "sum", "pretrained") else tags(7)


def slopes(energy: Energy, rows: Tensor, y: Tensor) -> list[Tensor | None]:
    return list(torch.autograd.grad(rows.square().sum(), [y, *energy.parameters()], allow_unused=True))


@pytest.mark.parametrize("name", [*EVERY, "pretrained"])
def test_an_energy_with_its_input_fixed_is_the_same_energy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("energies.pretrained.load_parts", lambda *_, **__: {"energy": spen()})
    energy = EVERY[name]() if name in EVERY else PretrainedEnergy("")
    x, y = answered(name)
    y.requires_grad_()
    energy.requires_grad_()
    given = energy.given(x)
    torch.testing.assert_close(given(y[2]), energy(x, y)[2])
    rows, want = given(y), energy(x, y)
    torch.testing.assert_close(rows, want)
    torch.testing.assert_close(slopes(energy, rows, y), slopes(energy, want, y))
    value, gradient = energy.value_and_gradient(x)(y)
    torch.testing.assert_close(value, want.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(energy(x, y).sum(), y)[0])


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("mix", "language model")])
def test_what_is_fixed_without_gradients_stays_a_constant(name: str) -> None:
    energy, (x, y) = EVERY[name](), answered(name)
    with torch.no_grad():
        given = energy.given(x)
    given(y.requires_grad_()).sum().backward()
    local = energy.local if isinstance(energy, SumEnergy) else energy
    assert y.grad is not None and all(p.grad is None for p in local.net.parameters())


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_one_dropout_mask_serves_all_answers_to_a_fixed_input(name: str) -> None:
    energy, (x, y) = WITH_DROPOUT[name](), answered(name)
    assert not torch.equal(energy(x, y), energy(x, y))
    given = energy.given(x)
    assert torch.equal(given(y), given(y)) and torch.equal(
        given.value_and_gradient(y)[1], given.value_and_gradient(y)[1]
    )
    torch.testing.assert_close(given.value_and_gradient(y)[0], given(y))


def test_the_chain_of_a_discrete_answer_is_a_sum_over_its_positions() -> None:
    energy, (x, y) = chain_energy(), tags(hard=True)
    unary, rows = energy.net(x), energy(x, y, MASK)
    for example, length in enumerate((4, 2)):
        names = y[example, :length].argmax(-1).tolist()
        want = energy.start[names[0]] + energy.end[names[-1]]
        for t, name in enumerate(names):
            want = want + unary[example, t, name]
        for before, after in itertools.pairwise(names):
            want = want + energy.pairwise[before, after]
        torch.testing.assert_close(rows[example], -want)


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_a_padded_chain_is_what_each_sentence_is_alone(ends: bool, hard: bool) -> None:
    energy, (x, y) = chain_energy(ends), tags(2, 3, hard=hard)
    rows = energy(x, y, MASK)
    assert rows.shape == (2, 3, B)
    for example, length in enumerate((4, 2)):
        alone = energy(x[example : example + 1, :length], y[:, :, example : example + 1, :length])
        torch.testing.assert_close(rows[..., example : example + 1], alone)
    loud = torch.where(MASK.unsqueeze(-1), x, 1e6)
    torch.testing.assert_close(energy(loud, y + ~MASK.unsqueeze(-1), MASK), rows)


def test_a_relaxed_answer_has_the_mean_energy_of_its_draws() -> None:
    energy, (x, y) = chain_energy(), tags()
    total = torch.zeros(B).double()
    for names in itertools.product(range(S), repeat=T):
        answer = one_hot(torch.tensor(names), S).double() * MASK.unsqueeze(-1)
        picked = torch.where(MASK, (y * answer).sum(-1), 1 / S)  # what is padded counts once, in S parts
        total = total + picked.prod(-1) * energy(x, answer, MASK)
    torch.testing.assert_close(total, energy(x, y, MASK))


def test_a_chain_without_a_mask_has_its_ends_at_the_first_and_last_position() -> None:
    start, end = torch.tensor([1.0, 2]), torch.tensor([10.0, 20])
    p = ChainPotentials(torch.zeros(1, 3, 2), torch.zeros(2, 2), None, start, end)
    y = torch.tensor([[[1.0, 0], [0, 1], [0.5, 0.5]]])
    assert p.score(y).tolist() == [1 + 15] and p.score(torch.tensor([[0, 1, 1]])).tolist() == [1 + 20]


def test_a_chain_draws_its_tables_as_it_is_told() -> None:
    torch.manual_seed(5)
    plain, after = ChainEnergy(nn.Identity(), 40, 0.5), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(plain.pairwise, 0.5 * torch.randn(40, 40)) and torch.equal(after, torch.rand(1))
    assert plain.start is None and plain.end is None
    torch.manual_seed(5)
    drawn = ChainEnergy(nn.Identity(), 40, 0.5, ends=True)
    assert torch.equal(drawn.pairwise, plain.pairwise)
    for ends in (drawn.start, drawn.end):
        assert ends.std().item() == pytest.approx(0.5, rel=0.4)
    narrow = ChainEnergy(nn.Identity(), 40, ends=True, pairwise_range=0.02)
    for table in (narrow.pairwise, narrow.start, narrow.end):
        assert 0.015 < table.abs().max() <= 0.02
    assert -0.02 <= narrow.pairwise.min() < -0.015 and 0.015 < narrow.pairwise.max() <= 0.02


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("row", [0, -1])
def test_the_mask_alone_says_where_a_chain_ends(ends: bool, row: int) -> None:
    """A relaxed answer may have nothing at a real position; it is one all the same."""
    energy, (x, y) = chain_energy(ends), tags(3)
    y[:, torch.arange(B), torch.tensor((4, 2)) - 1 if row else torch.zeros(B, dtype=torch.long)] = 0
    p = energy.potentials(x, MASK)
    torch.testing.assert_close(energy(x, y, MASK), -p.score(y))
    for value, want in zip(
        energy.over(MASK).value_and_gradient(x)(y), p.relaxed().value_and_gradient(y), strict=True
    ):
        torch.testing.assert_close(value, -want)
    whole = SumEnergy(energy, TagLMEnergy(S, width=4).double())
    alone = torch.cat([whole(x[i : i + 1, :n], y[:, i : i + 1, :n]) for i, n in enumerate((4, 2))], -1)
    torch.testing.assert_close(whole.over(MASK)(x, y), alone)
    assert whole.over(None) is whole


@pytest.mark.parametrize("kind", ["chain", "label sets"])
def test_detached_an_energy_and_its_gradient_are_the_same_and_what_was_made_of_the_input_is_constant(
    kind: str,
) -> None:
    energy: Energy = chain_energy(True) if kind == "chain" else spen()
    x, y = tags(3) if kind == "chain" else inputs()
    given, y = energy.over(MASK if kind == "chain" else None).given(x), y.requires_grad_()
    one, other = given(y), given.detached(y)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    slopes = [torch.autograd.grad(e.sum(), y, retain_graph=True)[0] for e in (one, other)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)
    net = energy.net if isinstance(energy, ChainEnergy) else energy.local.net
    reached = torch.autograd.grad(other.sum(), [*net.parameters()], allow_unused=True)
    assert all(gradient is None for gradient in reached)


def test_a_chain_that_forbids_nothing_scores_the_same_bits_without_looking_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    energy, (x, y) = chain_energy(True), tags(3)
    learned = [*energy.parameters()]

    def found() -> list[Tensor]:
        answers = y.clone().requires_grad_()
        score = energy.potentials(x, MASK).relaxed().score(answers)
        return [score, *torch.autograd.grad(score.square().sum(), [answers, *learned])]

    assert not energy.potentials(x, MASK).may_forbid()
    lean = found()
    monkeypatch.setattr(ChainPotentials, "may_forbid", lambda _: True)
    for one, other in zip(lean, found(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["unary", "pairwise", "start", "end"])
def test_one_forbidden_score_anywhere_is_seen(name: str) -> None:
    scores = {"unary": torch.zeros(2, 3, 4), "pairwise": torch.zeros(4, 4)}
    scores |= {"start": torch.zeros(4), "end": torch.zeros(4)}
    assert not ChainPotentials(**scores).may_forbid()
    scores[name].view(-1)[0] = float("-inf")
    assert ChainPotentials(**scores).may_forbid()
