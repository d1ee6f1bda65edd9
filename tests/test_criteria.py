"""Criteria of chains against values worked by hand and against counting all answers."""

import math
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor, tensor

from energies.potentials import ChainPotentials
from inference.base import CriterionPair
from inference.chain.criteria import (
    Criterion,
    Likelihood,
    MarginalCrossEntropy,
    MeanFieldCrossEntropy,
    StructuredSVM,
    cross_entropy,
    gold_probability,
    hamming,
    log_cross_entropy,
    structured_hinge,
)
from inference.chain.mean_field import MeanField

CRITERIA: list[Criterion] = [Likelihood(), MarginalCrossEntropy(), StructuredSVM(), MeanFieldCrossEntropy()]
MASK = tensor([[True, True, True, True], [True, True, True, False], [True, False, False, False]])
Y = tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]])  # tags 0 1, and 1 alone


def name(criterion: object) -> str:
    return type(criterion).__name__


def random_chain(seed: int = 0, scale: float = 1.0) -> tuple[ChainPotentials, Tensor]:
    """Potentials and one-hot gold tags of three examples with up to four positions and three tags."""
    torch.manual_seed(seed)
    p = ChainPotentials(scale * torch.randn(3, 4, 3).double(), scale * torch.randn(3, 3).double(), MASK)
    y = torch.nn.functional.one_hot(torch.randint(3, (3, 4)), 3).double() * MASK.unsqueeze(-1)
    return p, y


def answers(p: ChainPotentials, b: int) -> dict[tuple[int, ...], float]:
    """The score of every answer to an example."""
    length = int(p.real()[b].sum())
    return {
        tags: sum(float(p.unary[b, t, s]) for t, s in enumerate(tags))
        + sum(float(p.pairwise[r, s]) for r, s in pairwise(tags))
        for tags in product(range(3), repeat=length)
    }


def counted(criterion: Criterion, p: ChainPotentials, y: Tensor) -> list[float]:
    """The loss of each example by its definition."""
    rows = []
    for b in range(len(y)):
        scores = answers(p, b)
        gold = tuple(y[b].argmax(-1)[p.real()[b]].tolist())
        log_z = math.log(sum(math.exp(s) for s in scores.values()))
        if isinstance(criterion, Likelihood):
            rows.append(log_z - scores[gold])
        elif isinstance(criterion, StructuredSVM):
            cost = {tags: sum(a != g for a, g in zip(tags, gold, strict=True)) / len(gold) for tags in scores}
            rows.append(max(s + cost[tags] for tags, s in scores.items()) - scores[gold])
        else:
            right = [
                sum(math.exp(s - log_z) for tags, s in scores.items() if tags[t] == g)
                for t, g in enumerate(gold)
            ]
            rows.append(-sum(map(math.log, right)) / len(gold))
    return rows


def test_losses_of_two_examples_are_as_worked_by_hand() -> None:
    marginals = tensor([[[0.5, 0.5], [0.75, 0.25]], [[0.9, 0.1], [0.0, 0.0]]])
    gold = gold_probability(marginals, Y)
    torch.testing.assert_close(gold, tensor([[0.5, 0.25], [0.1, 1.0]]))
    by_hand = [(math.log(2) + math.log(4)) / 2, math.log(10)]
    assert cross_entropy(gold, Y).tolist() == pytest.approx(by_hand)
    scores = marginals.log().nan_to_num(neginf=-50.0) + tensor([3.0, -2.0]).view(-1, 1, 1)
    assert log_cross_entropy(scores, Y).tolist() == pytest.approx(by_hand)
    assert hamming(Y).tolist() == [[[0, 0.5], [0.5, 0]], [[1, 0], [0, 0]]]
    assert structured_hinge(tensor([0.25, -1.0]), tensor([0.25, 1.0])).tolist() == [0.5, 0]


def test_cross_entropy_of_what_cannot_be_is_large_and_finite() -> None:
    gold = tensor([[0.0, 1.0], [1.0, 1.0]], requires_grad=True)
    loss = cross_entropy(gold, Y)
    assert loss.tolist() == pytest.approx([87.34 / 2, 0], abs=0.01)
    (gradient,) = torch.autograd.grad(loss.sum(), gold)
    assert gradient.isfinite().all()
    far = log_cross_entropy(tensor([[[-500.0, 0.0], [0.0, 0.0]]]), Y[:1])
    assert far.item() == pytest.approx((500 + math.log(2)) / 2)


@pytest.mark.parametrize("criterion", CRITERIA[:3], ids=name)
def test_losses_are_those_found_by_counting_all_answers(criterion: Criterion) -> None:
    for seed in range(5):
        p, y = random_chain(seed)
        assert criterion.loss(p, y).tolist() == pytest.approx(counted(criterion, p, y))


def test_mean_field_loss_is_that_of_its_own_marginals() -> None:
    p, y = random_chain()
    q = MeanField()(p).y
    expected = cross_entropy(gold_probability(q, y), y)
    torch.testing.assert_close(MeanFieldCrossEntropy().loss(p, y), expected)


@pytest.mark.parametrize("criterion", CRITERIA, ids=name)
def test_answers_are_what_the_criterion_calls_for(criterion: Criterion) -> None:
    p, _ = random_chain(4)
    answer = criterion.predict(p)
    assert answer.shape == p.unary.shape
    assert (answer[~MASK] == 0).all()
    torch.testing.assert_close(answer[MASK].sum(-1), torch.ones(8).double())
    for b in range(3):
        tags = tuple(answer[b].argmax(-1)[MASK[b]].tolist())
        scores = answers(p, b)
        if isinstance(criterion, Likelihood | StructuredSVM):
            assert tags == max(scores, key=scores.__getitem__)
        elif isinstance(criterion, MarginalCrossEntropy):
            weight = torch.zeros(len(tags), 3)
            for labels, score in scores.items():
                weight[range(len(tags)), labels] += math.exp(score)
            assert tags == tuple(weight.argmax(-1).tolist())


@pytest.mark.parametrize("criterion", CRITERIA, ids=name)
def test_gradients_are_those_of_the_loss(criterion: Criterion) -> None:
    p, y = random_chain(1)

    def rows(unary: Tensor, pairwise: Tensor) -> Tensor:
        return criterion.loss(ChainPotentials(unary, pairwise, MASK), y)

    assert torch.autograd.gradcheck(rows, (p.unary.requires_grad_(), p.pairwise.requires_grad_()))


@pytest.mark.parametrize("criterion", CRITERIA, ids=name)
def test_padding_changes_no_loss(criterion: Criterion) -> None:
    p, y = random_chain(2)
    whole = criterion.loss(p, y)
    for b, length in enumerate(MASK.sum(-1).tolist()):
        alone = ChainPotentials(p.unary[b : b + 1, :length], p.pairwise)
        torch.testing.assert_close(criterion.loss(alone, y[b : b + 1, :length]), whole[b : b + 1])
    tagged = torch.where(MASK.unsqueeze(-1), y, torch.eye(3).double()[0])  # padding with a tag of its own
    torch.testing.assert_close(criterion.loss(p, tagged), whole, rtol=0, atol=0)


@pytest.mark.parametrize("criterion", CRITERIA, ids=name)
def test_answers_no_float_can_tell_from_impossible_still_teach(criterion: Criterion) -> None:
    """As with alpha = 2^8: the gold tags lie hundreds below the best, in float32."""
    unary = tensor([[[0.0, -400.0, -900.0], [0.0, -300.0, -500.0]]], requires_grad=True)
    y = tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    loss = criterion.loss(ChainPotentials(unary, torch.zeros(3, 3)), y)
    expected = {"Likelihood": 900.0, "StructuredSVM": 901.0}.get(name(criterion), 450.0)
    assert loss.item() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(loss.sum(), unary)
    right = gradient / gradient.abs().max()
    torch.testing.assert_close(right, tensor([[[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]]]))


@pytest.mark.parametrize("criterion", CRITERIA[:2], ids=name)
def test_sentences_without_tokens_have_no_loss(criterion: Criterion) -> None:
    p = ChainPotentials(torch.zeros(2, 0, 3), torch.zeros(3, 3))
    assert criterion.loss(p, torch.zeros(2, 0, 3)).tolist() == [0, 0]


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
def test_without_a_gradient_the_loss_is_the_same(kind: torch.dtype, scale: float) -> None:
    p, y = random_chain(seed=1, scale=scale)
    p, y = ChainPotentials(p.unary.to(kind), p.pairwise.to(kind), p.mask), y.to(kind)
    wanted = MarginalCrossEntropy().loss(p, y)
    with torch.no_grad():
        found = MarginalCrossEntropy().loss(p, y)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_a_search_that_has_not_settled_warns() -> None:
    p, _ = random_chain(0, scale=5.0)
    with pytest.warns(UserWarning, match="had not converged after 1 sweeps"):
        MeanFieldCrossEntropy(MeanField(1)).predict(p)


def test_a_pair_learns_by_one_criterion_and_answers_by_the_other() -> None:
    p, y = random_chain()
    pair = CriterionPair(MeanFieldCrossEntropy(), MarginalCrossEntropy())
    assert torch.equal(pair.loss(p, y), MeanFieldCrossEntropy().loss(p, y))
    for b, marginals in enumerate(pair.predict(p)):
        scores = answers(p, b)
        log_z = math.log(sum(map(math.exp, scores.values())))
        counts = torch.zeros_like(marginals)
        for tags, score in scores.items():
            for t, s in enumerate(tags):
                counts[t, s] += math.exp(score - log_z)
        torch.testing.assert_close(marginals, counts)


@pytest.mark.parametrize("criterion", CRITERIA[:3], ids=name)
def test_gold_tags_that_are_forbidden_are_named(criterion: Criterion) -> None:
    p, y = random_chain()
    p.unary[0, 1] = torch.where(y[0, 1] == 1, -math.inf, p.unary[0, 1])
    with pytest.raises(ValueError, match="the gold tags of example 0 are forbidden"):
        criterion.loss(p, y)
