"""Scores of label sets against scikit-learn and by hand."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from lightning_modules.metrics.multilabel import GRID, MultiLabelScores, average_precision


def batch(rows: int = 60, labels: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    y = (torch.rand(rows, labels) < 0.3).float()
    y[:, 0] = 1
    y[:, -1] = 0  # a label that never occurs
    return torch.rand(rows, labels).mul(8).round().div(8), y  # with ties


def test_f1_scores_agree_with_scikit_learn() -> None:
    probability, y = batch()
    metric = MultiLabelScores(9)
    for p, t in zip(probability.split(25), y.split(25), strict=True):
        metric.update(p, t)
    got = {name: float(value) for name, value in metric.compute().items() if not value.dim()}
    predicted = (probability >= 0.5).numpy()
    for name, average in {"example_f1": "samples", "micro_f1": "micro", "macro_f1": "macro"}.items():
        assert got[name] == pytest.approx(f1_score(y.numpy(), predicted, average=average, zero_division=0))


def test_average_precision_agrees_with_scikit_learn_ties_included() -> None:
    probability, y = batch()
    want = [average_precision_score(t, p) for t, p in zip(y.numpy(), probability.numpy(), strict=True)]
    np.testing.assert_allclose(average_precision(probability, y).numpy(), want, rtol=1e-5)
    metric = MultiLabelScores(9)
    metric.update(probability, y)
    assert float(metric.compute()["map"]) == pytest.approx(np.mean(want), rel=1e-5)


def test_scores_of_two_examples_are_as_worked_by_hand() -> None:
    metric = MultiLabelScores(3)
    metric.update(torch.tensor([[0.9, 0.6, 0.1], [0.2, 0.1, 0.3]]), torch.tensor([[1.0, 0, 1], [0, 0, 1]]))
    scores = {name: float(value) for name, value in metric.compute().items() if not value.dim()}
    # first: one of two right, one of two found: F1 1/2; second predicts nothing: 0
    assert scores["example_f1"] == pytest.approx(0.25)
    assert scores["micro_f1"] == pytest.approx(2 / (2 + 3))
    assert scores["macro_f1"] == pytest.approx((1 + 0 + 0) / 3)
    # first ranks 0, 1, 2: (1/1 + 2/3) / 2; second ranks 2 first: 1
    assert scores["map"] == pytest.approx((5 / 6 + 1) / 2)


def test_a_threshold_reached_exactly_counts() -> None:
    metric = MultiLabelScores(1)
    metric.update(torch.tensor([[0.5]]), torch.tensor([[1.0]]))
    assert float(metric.compute()["example_f1"]) == 1


def test_the_threshold_is_chosen_on_what_was_seen_and_kept_for_the_test() -> None:
    probability, y = torch.tensor([[0.3, 0.1], [0.35, 0.05]]), torch.tensor([[1.0, 0], [1, 0]])
    metric = MultiLabelScores(2, thresholds=(0.5, 0.2, 0.01))
    metric.update(probability, y)
    assert float(metric.compute()["example_f1"]) == 0  # the first candidate until one is chosen
    metric.choose_threshold()
    assert float(metric.compute()["example_f1"]) == 1
    metric.reset()
    other = MultiLabelScores(2, thresholds=(0.5, 0.2, 0.01))
    other.load_state_dict(metric.state_dict())
    other.update(torch.tensor([[0.15, 0.25]]), torch.tensor([[0.0, 1]]))
    assert float(other.threshold) == pytest.approx(0.2) and float(other.compute()["example_f1"]) == 1


def test_beside_a_chosen_threshold_the_score_at_one_half_is_told() -> None:
    probability, y = torch.tensor([[0.6, 0.3], [0.4, 0.1]]), torch.tensor([[1.0, 0], [1, 0]])
    metric = MultiLabelScores(2, thresholds=(0.4, 0.5, 0.2))
    metric.update(probability, y)
    metric.choose_threshold()
    scores = {name: float(value) for name, value in metric.compute().items() if not value.dim()}
    # at 0.4 both are right; at 0.5 the second predicts nothing
    assert scores["example_f1"] == 1 and scores["example_f1_at_half"] == pytest.approx(0.5)
    for thresholds in ((0.5,), (0.3, 0.2)):
        other = MultiLabelScores(2, thresholds)
        other.update(probability, y)
        assert "example_f1_at_half" not in other.compute()


def test_f1_at_each_threshold_of_the_grid_is_the_f1_of_a_metric_with_that_threshold() -> None:
    torch.manual_seed(0)
    probability, y = torch.rand(50, 7).square(), (torch.rand(50, 7) < 0.3).float()
    probability[:5, 0], y[:3] = torch.tensor(GRID)[:5], 0  # thresholds reached exactly, and empty truths
    metric = MultiLabelScores(7)
    for rows in (slice(0, 20), slice(20, 50)):
        metric.update(probability[rows], y[rows])
    alone = [MultiLabelScores(7, (threshold,)) for threshold in GRID]
    for one in alone:
        one.update(probability, y)
    right = torch.stack([one.compute()["example_f1"] for one in alone])
    assert len(set(right.tolist())) > 10
    torch.testing.assert_close(metric.compute()["f1_by_threshold"], right)


def test_micro_and_macro_f1_at_each_threshold_are_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    probability = torch.rand(60, 9, generator=generator).square()
    y = (torch.rand(60, 9, generator=generator) < 0.3).float()
    probability[:9, 0], y[:, 8], probability[:, 8] = torch.tensor(GRID)[:9], 0, 0  # a label that never occurs
    metric = MultiLabelScores(9)
    for rows in (slice(0, 25), slice(25, 60)):
        metric.update(probability[rows], y[rows])
    scores = metric.compute()
    for kind in ("micro", "macro"):
        right = [
            f1_score(y, probability >= threshold, average=kind, zero_division=0)
            for threshold in probability.new_tensor(GRID)
        ]
        torch.testing.assert_close(
            scores[f"{kind}_f1_by_threshold"], torch.tensor(right, dtype=torch.float32)
        )
        torch.testing.assert_close(scores[f"{kind}_f1"], scores[f"{kind}_f1_by_threshold"][GRID.index(0.5)])


def test_probabilities_in_half_precision_are_counted_exactly() -> None:
    metric = MultiLabelScores(983)
    metric.update(torch.ones(3, 983, dtype=torch.bfloat16), torch.ones(3, 983))
    found = metric.compute()
    assert found["f1_by_threshold"][13] == found["example_f1"] == 1
    assert found["micro_f1_by_threshold"][13] == 1
