"""Losses against values worked by hand."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, tensor

from energies.spaces import LabelSets
from losses import costs
from losses import objectives as losses
from losses.objectives import Contrastive, Guesses, Margin, NCERanking, Ranking, Regression
from losses.released import CostAugmentedTask, ReleasedMargin
from losses.task import EnergyAndSupervision
from networks.mlp import CostAugmentedHead

Y = tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
GUESS = tensor([[0.5, 0.5, 1.0], [0.0, 0.25, 0.0]])


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def test_costs_of_two_examples_are_as_worked_by_hand() -> None:
    assert costs.l1(GUESS, Y).tolist() == pytest.approx([1 / 3, 0.25])
    assert costs.soft_f1(GUESS, Y).tolist() == pytest.approx([2 * 1.5 / 4, 2 * 0.25 / 1.25])
    assert costs.soft_iou(GUESS, Y).tolist() == pytest.approx([1.5 / 2.5, 0.25])
    assert costs.f1_cost(GUESS, Y).tolist() == pytest.approx([0.25, 0.6])


def test_soft_f1_is_one_for_the_truth_and_zero_for_nothing() -> None:
    assert costs.soft_f1(Y, Y).tolist() == [1, 1]
    assert costs.soft_f1(torch.zeros_like(Y), Y).tolist() == [0, 0]


def test_soft_f1_of_binary_answers_is_the_f1_score() -> None:
    torch.manual_seed(0)
    y, guess = torch.rand(50, 7) < 0.5, torch.rand(50, 7) < 0.5
    y[:, 0] = True
    right = (y & guess).sum(-1)
    precision, recall = right / guess.sum(-1).clamp_min(1), right / y.sum(-1)
    f1 = torch.nan_to_num(2 * precision * recall / (precision + recall))
    torch.testing.assert_close(costs.soft_f1(guess.float(), y.float()), f1)


@pytest.mark.parametrize("cost", [costs.l1, costs.f1_cost, costs.iou_cost])
def test_costs_have_their_one_sided_derivatives_at_the_corners(cost: Callable[..., Tensor]) -> None:
    """A search clamps to corners; from there the gradient has to say what a step inwards does."""
    guess = tensor([[0.0, 0, 1, 1]], dtype=torch.float64, requires_grad=True)
    y, step = tensor([[0.0, 1, 1, 0]], dtype=torch.float64), 1e-6
    (gradient,) = torch.autograd.grad(cost(guess, y).sum(), guess)
    for i in range(4):
        inward = step if guess[0, i] == 0 else -step
        moved = guess.detach().clone()
        moved[0, i] += inward
        difference = ((cost(moved, y) - cost(guess, y)) / inward).item()
        assert gradient[0, i].item() == pytest.approx(difference, abs=1e-5)


def test_margin_is_as_worked_by_hand() -> None:
    true, guess = tensor([1.0, 2.0]), tensor([[0.5, 5.0]])
    # [0.3 - 0.5 + 1]_+ = 0.8,  [0.4 - 5 + 2]_+ = 0
    assert losses.margin(true, guess, tensor([[0.3, 0.4]])).tolist() == [pytest.approx([0.8, 0.0])]


def test_regression_is_as_worked_by_hand() -> None:
    energy, quality = tensor([[-1.0, 2.0]]), tensor([[0.75, 0.2]])
    first = -0.75 * math.log(sigmoid(1)) - 0.25 * math.log(1 - sigmoid(1))
    second = -0.2 * math.log(sigmoid(-2)) - 0.8 * math.log(1 - sigmoid(-2))
    assert losses.regression(energy, quality).tolist() == [pytest.approx([first, second])]


def test_regression_is_flat_where_the_value_equals_the_quality() -> None:
    quality = tensor([[0.3, 0.9]], dtype=torch.float64)
    energy = (-quality.logit()).requires_grad_()
    losses.regression(energy, quality).sum().backward()
    assert energy.grad.abs().max() < 1e-12


def test_ranking_is_as_worked_by_hand() -> None:
    true, noise = tensor([1.0, 0.0]), tensor([[0.0, 1.0], [2.0, -1.0]])
    first = math.log(math.exp(1) + 1 + math.exp(2)) - 1
    second = math.log(1 + math.exp(1) + math.exp(-1))
    assert losses.ranking(true, noise).tolist() == pytest.approx([first, second])


def test_nce_costs_log_of_k_plus_one_when_the_score_is_the_noise() -> None:
    torch.manual_seed(1)
    space, logits, shift = LabelSets(3), torch.randn(2, 3), torch.randn(2)
    guesses = Guesses(space.sample(logits, 5), logits)
    loss = NCERanking()(lambda x, y: -space.log_prob(logits, y) + shift, space, torch.zeros(2, 1), Y, guesses)
    assert loss.item() == pytest.approx(2 * math.log(6), rel=1e-5)


def test_nce_is_ranking_of_scores_with_the_noise_taken_off() -> None:
    torch.manual_seed(2)
    space, logits, weights = LabelSets(3), torch.randn(2, 3), torch.randn(3)
    samples = space.sample(logits, 4)
    plain = Ranking()(lambda x, y: y.float() @ weights, space, torch.zeros(2, 1), Y, Guesses(samples))
    nce = NCERanking()(
        lambda x, y: y.float() @ weights - space.log_prob(logits, y),
        space,
        torch.zeros(2, 1),
        Y,
        Guesses(samples, logits),
    )
    torch.testing.assert_close(plain, nce)


def every_set_but(y: Tensor) -> Tensor:
    """All answers to each example except the true one, (2^L - 1, B, L)."""
    sets = tensor(list(itertools.product([0.0, 1.0], repeat=y.shape[1])), dtype=y.dtype)
    return torch.stack([sets[(sets != true).any(1)] for true in y], 1)


def curved_energy(x: Tensor, y: Tensor) -> Tensor:
    """Labels act on one another."""
    return y @ tensor([1.0, -2.0, 0.5]) + 1.5 * y[..., 0] * y[..., 1] - (y[..., 1] - y[..., 2]).square()


def test_ranking_against_every_other_set_is_the_likelihood_of_the_normalised_model() -> None:
    space, x, guesses = LabelSets(3), torch.zeros(2, 1), every_set_but(Y)
    sets = tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    log_z = (-curved_energy(x, sets)).logsumexp(0)
    want = sum(float(curved_energy(x, true) + log_z) for true in Y)
    assert Ranking()(curved_energy, space, x, Y, Guesses(guesses)).item() == pytest.approx(want, rel=1e-5)
    even = Guesses(guesses, torch.zeros(2, 3))  # noise that knows nothing shifts every score alike
    assert NCERanking()(curved_energy, space, x, Y, even).item() == pytest.approx(want, rel=1e-5)


def test_contrastive_against_every_other_set_is_a_loss_augmented_log_partition() -> None:
    space, x, guesses = LabelSets(3), torch.zeros(2, 1), every_set_but(Y)
    sets = tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    want = []
    for true in Y:
        cost = (sets - true).abs().mean(1)
        want.append(float((cost - curved_energy(x, sets)).logsumexp(0) + curved_energy(x, true)))
    loss = Contrastive()(curved_energy, space, x, Y, Guesses(guesses))
    assert loss.item() == pytest.approx(sum(want) / 2, rel=1e-5)


def test_the_largest_margin_loss_of_any_set_is_that_of_the_loss_augmented_answer() -> None:
    space, x = LabelSets(3), torch.zeros(2, 1)
    losses_of = [
        [
            Margin()(curved_energy, space, x[:1], true[None], Guesses(guess[None, None])).item()
            for guess in found
        ]
        for true, found in zip(Y, every_set_but(Y).unbind(1), strict=True)
    ]
    for true, found, values in zip(Y, every_set_but(Y).unbind(1), losses_of, strict=True):
        cost = (found - true).abs().mean(1)
        worst = (cost - curved_energy(x, found)).max() + curved_energy(x, true)
        assert max(values) == pytest.approx(max(float(worst), 0.0), rel=1e-5)


def linear_energy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y @ tensor([1.0, -2.0, 0.5])


def test_rankings_sum_over_the_batch_or_take_its_mean() -> None:
    space, x = LabelSets(1), torch.zeros(2, 1)
    logits = torch.randn(2, Y.shape[1])
    guesses = Guesses((torch.rand(4, *Y.shape) > 0.5).float(), logits)
    for objective in (NCERanking, Ranking):
        summed, mean = (objective(how)(curved_energy, space, x, Y, guesses) for how in (None, "mean"))
        assert objective().summed and not objective("mean").summed
        torch.testing.assert_close(summed, 2 * mean)


def test_objectives_feed_their_losses_as_worked_by_hand() -> None:
    space, x, guesses = LabelSets(3), torch.zeros(2, 1), Guesses(GUESS.unsqueeze(0))
    # E(true) = 1.5, -2; E(guess) = 0, -0.5; cost = 1/3, 1/4
    margin = Margin()(linear_energy, space, x, Y, guesses)
    assert margin.item() == pytest.approx(((1 / 3 - 0 + 1.5) + 0) / 2)
    regression = Regression()(linear_energy, space, x, Y, guesses)
    want = losses.regression(tensor([[0.0, -0.5]]), tensor([[0.75, 0.4]]))
    torch.testing.assert_close(regression, want.sum())
    assert Regression().inference_energy(tensor([0.0])).item() == -0.5
    assert Margin().inference_energy(tensor([3.0])).item() == 3.0


def test_task_loss_is_as_worked_by_hand() -> None:
    logits = torch.zeros(2, 3)
    loss = EnergyAndSupervision(2.0, 0.5)(linear_energy, LabelSets(3), torch.zeros(2, 1), Y, logits)
    # E(relaxed) = 0.5 (1 - 2 + 0.5) = -0.25; BCE = 3 log 2
    assert loss.item() == pytest.approx(2 * -0.25 + 0.5 * 3 * math.log(2))


def test_released_margin_is_as_worked_by_hand() -> None:
    loss = ReleasedMargin(0.1)(linear_energy, LabelSets(3), torch.zeros(2, 1), Y, Guesses(GUESS.unsqueeze(0)))
    hinge = ((1 / 3 + 1.5) + 0) / 2  # second: [1/4 - 2]_+
    perceptron = ((1.5 - 0) + 0) / 2  # second: [-2 + 0.5]_+
    assert loss.item() == pytest.approx(hinge + 0.1 * perceptron)


def test_released_task_loss_sends_gradients_to_its_head_and_the_logits() -> None:
    torch.manual_seed(0)
    loss = CostAugmentedTask(CostAugmentedHead(3), energy_weight=0.01, supervision_weight=2.0)
    logits = torch.randn(2, 3, requires_grad=True)
    value = loss(linear_energy, LabelSets(3), torch.zeros(2, 1), Y, logits)
    value.backward()
    p = logits.detach().sigmoid()
    augmented = loss.head(p, Y).sigmoid()
    supervision = torch.nn.functional.binary_cross_entropy(p, Y, reduction="none").sum(-1)
    want = (
        -costs.l1(augmented, Y) + linear_energy(Y, augmented) + 0.01 * linear_energy(Y, p) + 2 * supervision
    )
    torch.testing.assert_close(value, want.mean())
    assert all(q.grad is not None and q.grad.abs().sum() > 0 for q in [logits, *loss.parameters()])


def test_a_network_that_ranks_by_its_likelihood_learns_as_worked_by_hand() -> None:
    space, logits = LabelSets(2), tensor([[math.log(3.0), 0.0]], requires_grad=True)
    answers = space.put_first(tensor([[1.0, 1.0]]), tensor([[[1.0, 0.0]], [[0.0, 0.0]]]))
    score = space.log_prob(logits, answers)
    torch.testing.assert_close(score.exp(), tensor([[0.375], [0.375], [0.125]]))  # 3/4, 1/4 and 1/2
    loss = losses.ranking(score[0], score[1:])
    assert loss.item() == pytest.approx(math.log(7 / 3))
    # p(label in a set drawn by the softmax) - truth: 6/7 - 1 and 3/7 - 1
    loss.sum().backward()
    torch.testing.assert_close(logits.grad, tensor([[-1 / 7, -4 / 7]]))


def test_ranking_less_the_networks_own_noise_has_half_the_gradient_of_cross_entropy_with_one_sample() -> None:
    """Of all samples, each as often as the network draws it; any K gives K / (K + 1)."""
    space, logits = LabelSets(3), torch.randn(1, 3, dtype=torch.double, requires_grad=True)
    y = tensor([[1.0, 0.0, 1.0]], dtype=torch.double)
    samples = tensor(list(itertools.product([0.0, 1.0], repeat=3)), dtype=torch.double).unsqueeze(1)
    score = space.log_prob(logits, space.put_first(y, samples))
    score = score - score.detach()
    rows = losses.ranking(score[0].expand(len(samples)), score[1:].T)
    torch.testing.assert_close(rows, torch.full_like(rows, math.log(2)))
    often = space.log_prob(logits, samples).exp().detach().squeeze()
    (mean,) = torch.autograd.grad((often * rows).sum(), logits)
    (slope,) = torch.autograd.grad(-space.log_prob(logits, y).sum(), logits)
    torch.testing.assert_close(mean, slope / 2)


def test_a_quality_is_not_that_of_answers_broadcast_to_the_guesses() -> None:
    guesses = Guesses(torch.rand(2, 4, 5))
    with pytest.raises(ValueError, match=r"shape \(4, 1\) .* guesses of shape \(2, 4, 5\): give \(4, 5\)"):
        Regression()(lambda x, y: y.sum(-1), LabelSets(5), None, torch.ones(4, 1), guesses)


class Number(Margin):
    """An objective whose author took the number out of the tensor."""

    def rows(self, *args: object) -> Tensor:  # type: ignore[override]
        return float(super().rows(*args).mean())  # type: ignore[return-value, arg-type]


def test_an_objective_without_a_tensor_is_named() -> None:
    with pytest.raises(ValueError, match=r"Number\.rows gives a float: it has to return a tensor, the loss"):
        Number()(lambda x, y: y.sum(-1), LabelSets(3), None, Y, Guesses(GUESS.unsqueeze(0)))
