"""Spaces of answers: every property for every kind, against enumeration where there is a distribution."""

import itertools

import pytest
import torch
from torch import Tensor

from energies.spaces import AnswerSpace, LabelSets, PixelMasks, TagSequences
from losses import costs

MASK = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])


def one_hot(tags: list[list[int]], num: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tags), num).double() * MASK.unsqueeze(-1)


SPACES = {
    "sets": (LabelSets(4), torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]]).double()),
    "tags": (TagSequences(3).over(MASK), one_hot([[0, 1, 2], [1, 0, 0], [2, 2, 2]], 3)),
    "masks": (
        PixelMasks(),
        torch.tensor([[[1, 0], [1, 1]], [[0, 0], [0, 1]], [[1, 1], [1, 1]]]).double(),
    ),
}

COSTS = {name: cost for name, cost in vars(costs).items() if name.endswith(("l1", "l2", "_cost"))}


@pytest.fixture(params=SPACES)
def case(request: pytest.FixtureRequest) -> tuple[AnswerSpace, Tensor, Tensor]:
    torch.manual_seed(0)
    space, y = SPACES[request.param]
    return space, y, torch.randn(y.shape).double()


def all_answers(space: AnswerSpace, y: Tensor) -> list[Tensor]:
    """Every discrete answer to the batch, the same for each example where it fits."""
    if isinstance(space, TagSequences):
        options = itertools.product(range(space.num_tags), repeat=y.shape[1])
        return [one_hot([list(tags)] * len(y), space.num_tags) for tags in options]
    bits = itertools.product([0.0, 1.0], repeat=y[0].numel())
    return [torch.tensor(b).double().reshape(1, *y.shape[1:]).expand_as(y) for b in bits]


def test_probabilities_of_all_answers_sum_to_one(case: tuple[AnswerSpace, Tensor, Tensor]) -> None:
    space, y, logits = case
    answers = torch.stack(list({str(a.tolist()): a for a in all_answers(space, y)}.values()))
    if isinstance(space, TagSequences):  # answers that differ only where padded are one answer
        for example in range(len(y)):
            unique = torch.unique(answers[:, example], dim=0)
            alone = TagSequences(space.num_tags, space.real[example : example + 1])
            total = alone.log_prob(logits[example : example + 1], unique.unsqueeze(1)).exp().sum()
            torch.testing.assert_close(total, torch.ones_like(total))
    else:
        total = space.log_prob(logits, answers).exp().sum(0)
        torch.testing.assert_close(total, torch.ones_like(total))


def test_samples_follow_the_distribution(case: tuple[AnswerSpace, Tensor, Tensor]) -> None:
    space, _y, logits = case
    samples = space.sample(logits, 20_000).double()
    torch.testing.assert_close(samples.mean(0), space.relax(logits), atol=0.02, rtol=0)


def test_log_prob_of_the_truth_is_minus_its_supervision_up_to_the_mean(
    case: tuple[AnswerSpace, Tensor, Tensor],
) -> None:
    space, y, logits = case
    count = {LabelSets: torch.ones(3), TagSequences: MASK.sum(-1), PixelMasks: torch.full((3,), 4)}[
        type(space)
    ]
    torch.testing.assert_close(-space.log_prob(logits, y), space.supervise(logits, y) * count)


def test_the_truth_has_no_cost_and_full_quality(case: tuple[AnswerSpace, Tensor, Tensor]) -> None:
    space, y, _ = case
    assert space.cost(y, y).abs().max() < 1e-12
    torch.testing.assert_close(space.quality(y, y), torch.ones(len(y)).double())


def test_cost_and_quality_stay_in_range_and_take_samples(case: tuple[AnswerSpace, Tensor, Tensor]) -> None:
    space, y, logits = case
    guesses = torch.stack([space.relax(logits), space.relax(-logits)])
    for rows in (space.cost(guesses, y), space.quality(guesses, y)):
        assert rows.shape == (2, len(y)) and rows.min() >= 0 and rows.max() <= 1 + 1e-12


def test_decoding_the_truth_gives_it_back(case: tuple[AnswerSpace, Tensor, Tensor]) -> None:
    space, y, logits = case
    torch.testing.assert_close(space.decode(y), y)
    assert set(space.decode(space.relax(logits)).unique().tolist()) <= {0.0, 1.0}


def test_projection_is_the_nearest_feasible_point(case: tuple[AnswerSpace, Tensor, Tensor]) -> None:
    space, _y, logits = case
    anywhere = 3 * logits
    if isinstance(space, TagSequences):
        anywhere = anywhere * space.real.unsqueeze(-1)
    nearest = space.project(anywhere)
    torch.testing.assert_close(space.project(nearest), nearest)
    for _ in range(200):
        other = space.random(logits, 1)[0].double()
        inner = ((anywhere - nearest) * (other - nearest)).flatten(1).sum(1)
        assert inner.max() < 1e-9  # the obtuse-angle condition of a projection on a convex set


def test_starts_are_feasible(case: tuple[AnswerSpace, Tensor, Tensor]) -> None:
    space, y, logits = case
    for start in (space.start(logits), space.random(logits, 3)):
        assert start.shape[-y.dim() :] == y.shape
        torch.testing.assert_close(space.project(start), start)


def test_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    space, y = SPACES["tags"]
    logits = torch.randn(y.shape).double()
    noisy = logits + 100 * torch.randn(y.shape).double() * ~MASK.unsqueeze(-1)
    torch.testing.assert_close(space.relax(noisy), space.relax(logits))
    torch.testing.assert_close(space.supervise(noisy, y), space.supervise(logits, y))
    torch.testing.assert_close(space.log_prob(noisy, y), space.log_prob(logits, y))
    tagged = torch.where(MASK.unsqueeze(-1), y, torch.eye(y.shape[-1]).double()[0])
    guess = space.sample(logits, 4)
    for of in (space.quality, space.cost, TagSequences(y.shape[-1], reduction="sum").over(MASK).cost):
        torch.testing.assert_close(of(tagged, tagged), of(y, y))
        torch.testing.assert_close(of(guess, tagged), of(guess, y))


def test_log_prob_has_the_floor_of_binary_cross_entropy() -> None:
    space, y = LabelSets(2), torch.tensor([[1.0, 0.0]])
    logits = torch.tensor([[-500.0, 0.0]])
    want = -torch.nn.functional.binary_cross_entropy(logits.sigmoid(), y, reduction="sum")
    torch.testing.assert_close(space.log_prob(logits, y)[0], want)
    torch.testing.assert_close(space.log_prob(logits, y.bool())[0], want)


def test_sums_over_positions_are_means_times_lengths() -> None:
    torch.manual_seed(0)
    mean, y = SPACES["tags"]
    space, logits = TagSequences(3, reduction="sum").over(MASK), torch.randn(y.shape).double()
    lengths = MASK.sum(-1)
    torch.testing.assert_close(space.supervise(logits, y), mean.supervise(logits, y) * lengths)
    guesses = torch.stack([space.relax(logits), space.decode(space.relax(logits)), y])
    torch.testing.assert_close(space.cost(guesses, y), 2 * lengths * mean.cost(guesses, y))
    torch.testing.assert_close(space.cost(guesses, y), (guesses - y).abs().sum((-2, -1)))
    torch.testing.assert_close(space.quality(guesses, y), mean.quality(guesses, y))
    assert TagSequences(3).reduction is None and TagSequences(3, MASK, "mean").cost(guesses, y).max() <= 1


def test_a_wrong_tag_costs_two_and_its_cross_entropy_is_summed() -> None:
    space = TagSequences(2, torch.tensor([[True, True, True]]), "sum")
    y = torch.tensor([[[1.0, 0], [0, 1], [1, 0]]])
    assert space.cost(torch.tensor([[[0.0, 1], [0, 1], [0.25, 0.75]]]), y).tolist() == [2 + 0 + 1.5]
    loss = space.supervise(torch.zeros(1, 3, 2), y)
    torch.testing.assert_close(loss, 3 * torch.tensor([2.0]).log())


EMPTY = {
    **{f"sets, {name}": (LabelSets(4, cost), torch.zeros(3, 4)) for name, cost in COSTS.items()},
    "tags, all padded": (TagSequences(3).over(torch.zeros(3, 2, dtype=torch.bool)), torch.zeros(3, 2, 3)),
    "tags, no position": (TagSequences(3).over(torch.zeros(3, 0, dtype=torch.bool)), torch.zeros(3, 0, 3)),
    "tags, summed": (
        TagSequences(3, reduction="sum").over(torch.zeros(3, 2, dtype=torch.bool)),
        torch.zeros(3, 2, 3),
    ),
    "masks": (PixelMasks(), torch.zeros(3, 2, 2)),
    "masks, an empty crop": (PixelMasks(), torch.zeros(3, 0, 2)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_is_the_right_answer_to_nothing_and_anything_else_is_finite(name: str) -> None:
    space, y = EMPTY[name]
    assert space.cost(y, y).tolist() == [0, 0, 0] and space.quality(y, y).tolist() == [1, 1, 1]
    for guess in (y, space.relax(torch.randn_like(y)), space.sample(torch.randn_like(y), 2).float()):
        guess.requires_grad_()
        for judge in (space.cost, space.quality):
            rows = judge(guess, y)
            assert rows.isfinite().all()
            if rows.requires_grad:  # all but Hamming's
                assert torch.autograd.grad(rows.sum(), guess)[0].isfinite().all()


@pytest.mark.parametrize("size", [(2, 2), (5, 3)])
def test_a_crop_and_a_whole_picture_are_one_space(size: tuple[int, int]) -> None:
    space, y = PixelMasks(), torch.zeros(3, *size, dtype=torch.float64)
    assert space.start(y).shape == y.shape and space.start(y).dtype == y.dtype
    assert space.random(y, 2).shape == (2, *y.shape) and space.random(y, 2).dtype == y.dtype


def test_squared_distance_is_that_of_a_hand_worked_set() -> None:
    y, guess = torch.tensor([[1.0, 0, 1]]), torch.tensor([[0.5, 0.25, 1]])
    space = LabelSets(3, costs.squared_l2)
    assert space.cost(guess, y).tolist() == [0.3125]
    assert space.cost(torch.stack([y, 1 - y]).bool(), y).tolist() == [[0], [3]]


@pytest.mark.parametrize("size", [0, -1])
def test_a_space_of_no_labels_or_tags_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"num_labels is {size}: take 1 or more"):
        LabelSets(size)
    with pytest.raises(ValueError, match=f"num_tags is {size}: take 1 or more"):
        TagSequences(size)
