"""Gradient-based inference: every property for every start and every space."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from energies.base import BatchEnergy, Energy, SumEnergy
from energies.chain import ChainEnergy
from energies.constraints import Constraints
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.potentials import ChainPotentials
from energies.spaces import AnswerSpace, LabelSets, PixelMasks, TagSequences
from inference import chain
from inference.base import Inference
from inference.gradient import Blank, FromNet, GradientInference, LogitInference, Uniform, composed
from inference.guesses import (
    Adversarial,
    Combined,
    CostAugmented,
    GuessContext,
    Minimum,
    Perturbed,
    Point,
    Sampled,
    Truth,
)
from inference.released import SquashedMinimum, SquashedPoint
from losses.objectives import Margin, Regression
from networks.mlp import LabelMLP

B = 3
MASK = torch.tensor([[True, True], [True, False], [True, True]])


class Bowl(Energy):
    """Squared distance to a point; its minimum over a box or simplex is the projection of that point."""

    def __init__(self, center: Tensor) -> None:
        super().__init__()
        self.center = torch.nn.Parameter(center)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (y - self.center).square().flatten(y.dim() - self.center.dim() + 1).sum(-1)


SPACES: dict[str, tuple[AnswerSpace, tuple[int, ...]]] = {
    "sets": (LabelSets(4), (B, 4)),
    "tags": (TagSequences(3).over(MASK), (B, 2, 3)),
    "masks": (PixelMasks(), (B, 2, 3)),
}
SEARCHES: dict[str, Inference] = {
    "answers": GradientInference(Uniform(4), steps=60, step_size=0.1),
    "logits": LogitInference(steps=60, step_size=0.5, num_starts=4),
}
STARTS = {"blank": Blank(), "net": FromNet(), "uniform": Uniform(4)}


@pytest.fixture(params=SPACES)
def bowl(request: pytest.FixtureRequest) -> tuple[AnswerSpace, Bowl, Tensor]:
    torch.manual_seed(0)
    space, shape = SPACES[request.param]
    center = 2 * torch.randn(shape)
    if isinstance(space, TagSequences):
        center = center * space.real.unsqueeze(-1)
    return space, Bowl(center), torch.randn(shape)


@pytest.mark.parametrize("start", STARTS)
def test_a_known_minimum_is_found_and_the_feasible_set_is_never_left(
    bowl: tuple[AnswerSpace, Bowl, Tensor], start: str
) -> None:
    space, energy, logits = bowl
    seen: list[Tensor] = []
    inner = energy.value_and_gradient(logits)

    def watched(y: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(y.clone())
        return inner(y)

    found = GradientInference(STARTS[start], steps=300, step_size=0.05)(watched, space, logits, logits)
    want = space.project(energy.center.detach())
    torch.testing.assert_close(found.y, want, atol=0.02, rtol=0)
    for y in seen:
        torch.testing.assert_close(space.project(y), y)


def test_logits_reach_a_known_minimum_inside_and_never_leave_the_feasible_set(
    bowl: tuple[AnswerSpace, Bowl, Tensor],
) -> None:
    space, _, logits = bowl
    energy = Bowl(space.relax(logits / 2))
    seen: list[Tensor] = []
    inner = energy.value_and_gradient(logits)

    def watched(y: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(y.clone())
        return inner(y)

    found = LogitInference(steps=300, step_size=2.0)(watched, space, logits)
    torch.testing.assert_close(found.y, energy.center, atol=0.01, rtol=0)
    for y in seen:
        torch.testing.assert_close(space.project(y), y)
    assert seen[0].shape == (1, *logits.shape) and not any(y.requires_grad for y in seen)


@pytest.mark.parametrize("num_starts", [1, 4])
def test_an_answer_from_logits_is_never_worse_than_its_starts(
    bowl: tuple[AnswerSpace, Bowl, Tensor], num_starts: int
) -> None:
    space, energy, logits = bowl
    starts: list[Tensor] = []
    inner = energy.value_and_gradient(logits)

    def watched(y: Tensor) -> tuple[Tensor, Tensor]:
        starts.append(inner(y)[0])
        return inner(y)

    found = LogitInference(steps=6, step_size=30.0, num_starts=num_starts)(watched, space, logits)
    assert len(starts) == 6 and starts[0].shape == (num_starts, len(logits))
    torch.testing.assert_close(found.energy, torch.stack(starts).amin((0, 1)))
    torch.testing.assert_close(found.energy, energy(logits, found.y).detach())


def test_logits_begin_small_and_move_by_descent_with_momentum() -> None:
    space, energy, x = LabelSets(50), Bowl(torch.rand(1, 50)), torch.zeros(1, 50)
    seen: list[Tensor] = []
    inner = energy.value_and_gradient(x)

    def watched(y: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(y[0].clone())
        return inner(y)

    LogitInference(steps=6, step_size=0.7, spread=0.3)(watched, space, x)
    z = seen[0].logit().requires_grad_()
    assert 0.25 < z.abs().max() <= 0.3001 and z.min() < 0 < z.max()
    descent = torch.optim.SGD([z], lr=0.7, momentum=0.9)
    for got in seen:
        torch.testing.assert_close(got, z.sigmoid().detach())
        descent.zero_grad()
        energy(x, z.sigmoid()).sum().backward()
        descent.step()


def chain_case(seed: int) -> tuple[BatchEnergy, TagSequences, Tensor]:
    torch.manual_seed(seed)
    energy = ChainEnergy(torch.nn.Linear(3, 3), 3, pairwise_std=0.5, ends=True)
    mask = torch.arange(4) < torch.tensor([4, 2, 1]).unsqueeze(1)
    return energy.over(mask), TagSequences(3).over(mask), torch.randn(B, 4, 3)


@pytest.mark.parametrize("search", SEARCHES)
def test_searches_find_the_best_of_all_tag_sequences_or_come_close(search: str) -> None:
    missed = []
    for seed in range(8):
        energy, space, x = chain_case(seed)
        options = torch.tensor(list(itertools.product(range(3), repeat=4)))
        answers = torch.nn.functional.one_hot(options, 3).float().unsqueeze(1) * space.real.unsqueeze(-1)
        best = energy(x, answers).amin(0)
        found = SEARCHES[search](energy.value_and_gradient(x), space, x)
        assert found.y[~space.real].abs().max() == 0
        assert (found.energy >= best - 1e-5).all()  # multilinear: no relaxed answer lies lower
        missed.append(energy(x, space.decode(found.y)) - best)
    gaps = torch.stack(missed)
    assert (gaps < 1e-5).float().mean() >= 0.9 and gaps.max() < 1


@pytest.mark.parametrize("search", SEARCHES)
def test_padding_moves_no_search(search: str) -> None:
    energy, space, x = chain_case(0)
    with torch.no_grad():
        loud = torch.where(space.real.unsqueeze(-1), x, 1e4)
        found = []
        for inputs in (x, loud):
            torch.manual_seed(3)
            found.append(SEARCHES[search](energy.value_and_gradient(inputs), space, inputs).y)
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("start", STARTS)
def test_the_answer_is_never_worse_than_the_start(bowl: tuple[AnswerSpace, Bowl, Tensor], start: str) -> None:
    space, energy, logits = bowl
    torch.manual_seed(5)
    begin = STARTS[start](space, logits, logits)
    torch.manual_seed(5)
    found = GradientInference(STARTS[start], steps=5, step_size=3.0)(
        energy.value_and_gradient(logits), space, logits, logits
    )
    assert (found.energy <= energy(logits, begin).min(0).values + 1e-6).all()
    torch.testing.assert_close(found.energy, energy(logits, found.y).detach())


def test_the_end_point_of_the_last_step_is_no_candidate() -> None:
    space, energy = LabelSets(2), Bowl(torch.ones(1, 2))
    x = torch.zeros(1, 2)
    found = GradientInference(Blank(), steps=1, step_size=0.5)(energy.value_and_gradient(x), space, x)
    assert found.y.tolist() == [[0, 0]] and found.steps == 1


def test_steps_are_those_of_projected_adam() -> None:
    space, energy, x = LabelSets(2), Bowl(torch.tensor([[0.9, 0.2]])), torch.zeros(1, 2)
    seen: list[Tensor] = []
    inner = energy.value_and_gradient(x)

    def watched(y: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(y[0].clone())
        return inner(y)

    GradientInference(Blank(), steps=6, step_size=0.1)(watched, space, x)
    y = torch.zeros(1, 2, requires_grad=True)
    adam = torch.optim.Adam([y], lr=0.1)
    for got in seen:
        torch.testing.assert_close(got, y.detach())
        adam.zero_grad()
        energy(x, y).sum().backward()
        adam.step()
        with torch.no_grad():
            y.clamp_(0, 1)


def spen_case(logits: Tensor | None = None) -> GuessContext:
    torch.manual_seed(2)
    energy = SumEnergy(LocalEnergy(LabelMLP(3, 5, width=6)), LabelMixEnergy(5, 4))
    y = torch.tensor([[1.0, 0, 0, 1, 0], [0, 1, 0, 0, 0]])
    return GuessContext(energy, Regression(), LabelSets(5), torch.randn(2, 3), y, logits)


def test_targets_follow_the_chain_rule() -> None:
    case = spen_case()
    y = torch.rand(3, 2, 5)
    target = lambda e, guess: torch.tanh(e) - 2 * case.space.cost(guess, case.y)  # noqa: E731
    value, gradient = composed(case.energy.value_and_gradient(case.x), target)(y)
    leaf = y.clone().requires_grad_()
    want = target(case.energy(case.x, leaf), leaf)
    want.sum().backward()
    torch.testing.assert_close(value, want.detach())
    torch.testing.assert_close(gradient, leaf.grad)


@pytest.mark.parametrize(
    "search", [GradientInference(Blank(), steps=100, step_size=0.1), LogitInference(100, 2.0)]
)
def test_cost_augmented_guesses_violate_the_margin_more_than_the_plain_minimum(search: Inference) -> None:
    case = spen_case()

    def violation(y: Tensor) -> Tensor:
        return case.space.cost(y, case.y) - case.energy(case.x, y).detach()

    case = GuessContext(case.energy, Margin(), case.space, case.x, case.y)
    assert (violation(CostAugmented(search)(case).y) >= violation(Minimum(search)(case).y) - 1e-5).all()


def test_adversarial_guesses_have_the_higher_regression_loss() -> None:
    case = spen_case()
    search = GradientInference(Blank(), steps=30, step_size=0.1)
    loss = {
        name: case.objective(case.energy, case.space, case.x, case.y, guess(case)).item()
        for name, guess in {"adversarial": Adversarial(search), "minimum": Minimum(search)}.items()
    }
    assert loss["adversarial"] >= loss["minimum"]


def test_guesses_of_a_net_are_what_they_say() -> None:
    logits = torch.randn(2, 5, requires_grad=True)
    case = spen_case(logits)
    point = Point()(case).y
    torch.testing.assert_close(point[0], logits.detach().sigmoid())
    perturbed = Perturbed(4, std=0.5)(case).y
    assert perturbed.shape == (4, 2, 5) and perturbed.requires_grad
    torch.testing.assert_close(perturbed[-1], point[0])  # the clean one comes last
    assert (perturbed[:-1] != point).all()
    sampled = Sampled(6)(case)
    assert sampled.y.shape == (6, 2, 5) and sampled.y.dtype == torch.bool and not sampled.y.requires_grad
    torch.testing.assert_close(SquashedPoint()(case).y, point.sigmoid())
    together = Combined([Point(), Truth()])(case).y
    torch.testing.assert_close(together[1], case.y)


def test_perturbation_has_the_standard_deviation_it_names() -> None:
    case = spen_case(torch.zeros(2, 5))
    noise = Perturbed(20_001, std=0.7)(case).y[:-1].logit()
    assert noise.std().item() == pytest.approx(0.7, rel=0.02)


def test_squashed_guesses_stay_between_one_half_and_its_sigmoid() -> None:
    y = SquashedMinimum(GradientInference(Blank(), steps=20, step_size=0.5))(spen_case()).y
    assert y.min() >= 0.5 and y.max() <= torch.tensor(1.0).sigmoid() + 1e-6


def test_guesses_without_a_net_say_what_is_missing() -> None:
    with pytest.raises(ValueError, match="give the scheme a `guesser`"):
        Sampled(3)(spen_case())
    with pytest.raises(ValueError, match="guesser"):
        Minimum(GradientInference(FromNet()))(spen_case())


@pytest.mark.parametrize("search", SEARCHES)
def test_no_gradient_reaches_the_parameters_through_a_search(search: str) -> None:
    case = spen_case()
    found = SEARCHES[search](case.energy.value_and_gradient(case.x), case.space, case.y)
    assert not found.y.requires_grad and not found.energy.requires_grad
    assert all(p.grad is None for p in case.energy.parameters())


@pytest.mark.parametrize("search", [GradientInference(FromNet(), steps=4), LogitInference(steps=4)])
def test_an_energy_in_half_precision_is_searched_in_the_type_of_the_answers(search: Inference) -> None:
    like, logits = torch.zeros(3, 5), torch.randn(3, 5).to(torch.bfloat16)

    def value_and_gradient(y: Tensor) -> tuple[Tensor, Tensor]:
        assert y.dtype == torch.float32
        return y.sum(-1).to(torch.bfloat16), torch.ones_like(y, dtype=torch.bfloat16)

    found = search(value_and_gradient, LabelSets(5), like, logits)
    assert found.y.dtype == torch.float32


@pytest.mark.parametrize("first", [True, False])
def test_a_start_whose_energy_is_nan_leaves_the_others_their_result(first: bool) -> None:
    def energy(y: Tensor) -> tuple[Tensor, Tensor]:
        value = (y - 0.25).square().sum(-1)
        value[0 if first else -1] = torch.nan
        return value, 2 * (y - 0.25)

    found = GradientInference(Uniform(3), steps=30)(energy, LabelSets(4), torch.zeros(5, 4))
    assert (found.energy < 0.05).all() and ((found.y - 0.25).abs() < 0.2).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_searches_stay_finite_where_two_forbidden_scores_meet(dtype: torch.dtype) -> None:
    rules = Constraints.for_spans(["O", "B-X", "I-X", "E-X", "S-X"], "BIOES")
    potentials = rules.on(ChainPotentials(torch.randn(1, 3, 5, dtype=dtype), torch.randn(5, 5, dtype=dtype)))
    energy = ChainEnergy(torch.nn.Identity(), 5).minus_score(potentials)
    for tags in ([1, 2, 3], [1, 3, 4], [0, 0, 4]):
        y = one_hot(torch.tensor([tags]), 5).to(dtype)
        value, gradient = energy.value_and_gradient(y)
        torch.testing.assert_close(value, energy(y))
        assert value.isfinite().all() and gradient.isfinite().all()
    space, best = TagSequences(5, torch.ones(1, 3).bool()), -chain.viterbi(potentials).score
    for search in (GradientInference(Blank()), GradientInference(Uniform()), LogitInference()):
        found = search(energy.value_and_gradient, space, torch.zeros(1, 3, 5, dtype=dtype))
        assert not found.y.isnan().any() and (found.energy >= best - 1e-5).all()
