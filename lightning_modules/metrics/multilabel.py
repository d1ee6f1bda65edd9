"""Scores of predicted label sets.

Shapes: B examples, L labels, C candidate thresholds.
"""

import torch
from torch import Tensor
from torchmetrics import Metric

from networks.sizes import at_least, match_answers

GRID = (0.01, 0.02, 0.03, 0.04, *(step / 20 for step in range(1, 20)))  # of f1_by_threshold


class MultiLabelScores(Metric):
    """Example-averaged, micro and macro F1, and mean average precision.   [SEAL §4.1 and code]

    - example_f1: F1 of each example, averaged over examples; an empty prediction scores 0. Selects models.
    - micro_f1: F1 of all (example, label) pairs together.
    - macro_f1: F1 of each label, averaged over labels; a label neither true nor predicted anywhere scores 0.
    - map: average precision of each example's ranking of the labels, averaged over examples.
    - example_f1_at_half: example_f1 at threshold 0.5, where that is one of several candidates.
    - f1_by_threshold, micro_f1_by_threshold, macro_f1_by_threshold: the three F1 at each threshold of GRID,
      vectors, so that a later question about thresholds needs no new run.

    A label is predicted where its probability reaches the threshold. With several candidates,
    `choose_threshold` fixes the one with the best example_f1 on what was seen so far (validation); the choice
    is stored in the checkpoint.
    """

    full_state_update = False
    candidates: Tensor
    threshold: Tensor
    f1_sum: Tensor
    grid_f1_sum: Tensor
    grid_right: Tensor
    grid_predicted: Tensor
    true_positives: Tensor
    predicted: Tensor
    actual: Tensor
    precision_sum: Tensor
    count: Tensor

    def __init__(self, num_labels: int, thresholds: tuple[float, ...] = (0.5,)) -> None:
        super().__init__()
        at_least(1, num_labels=num_labels)
        if not thresholds or not all(0 <= threshold <= 1 for threshold in thresholds):
            raise ValueError(f"thresholds is {[*thresholds]}: give one or more numbers from 0 to 1.")
        self.register_buffer("candidates", torch.tensor(thresholds), persistent=False)
        self.register_buffer("threshold", torch.tensor(thresholds[0]))
        self._half = thresholds.index(0.5) if len(thresholds) > 1 and 0.5 in thresholds else None
        self.add_state("f1_sum", torch.zeros(len(thresholds)), dist_reduce_fx="sum")
        self.add_state("grid_f1_sum", torch.zeros(len(GRID)), dist_reduce_fx="sum")
        self.add_state("grid_right", torch.zeros(len(GRID), num_labels), dist_reduce_fx="sum")
        self.add_state("grid_predicted", torch.zeros(len(GRID), num_labels), dist_reduce_fx="sum")
        self.add_state("true_positives", torch.zeros(len(thresholds), num_labels), dist_reduce_fx="sum")
        self.add_state("predicted", torch.zeros(len(thresholds), num_labels), dist_reduce_fx="sum")
        self.add_state("actual", torch.zeros(num_labels), dist_reduce_fx="sum")
        self.add_state("precision_sum", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    def check_answers(self, y: Tensor) -> None:
        """Refuse data of another number of labels."""
        match_answers(y, num_labels=len(self.actual))

    def update(self, probability: Tensor, y: Tensor) -> None:
        """Add a batch: probabilities and true labels, both (B, L)."""
        probability = probability.float()  # counts in bfloat16 would be inexact above 256
        for index, threshold in enumerate(self.candidates):
            predicted = (probability >= threshold).to(y.dtype)
            right = predicted * y
            self.f1_sum[index] += (2 * right.sum(-1) / (predicted.sum(-1) + y.sum(-1)).clamp_min(1)).sum()
            self.true_positives[index] += right.sum(0)
            self.predicted[index] += predicted.sum(0)
        self.grid_f1_sum += f1_by_threshold(probability, y, GRID).sum(0)
        right, predicted = counts_by_threshold(probability, y, GRID)
        self.grid_right += right
        self.grid_predicted += predicted
        self.actual += y.sum(0)
        self.precision_sum += average_precision(probability, y).sum()
        self.count += len(y)

    def decide(self, probability: Tensor) -> Tensor:
        """The label sets (B, L) that the scores judge: probabilities that reach the chosen threshold."""
        return (probability >= self.threshold).to(probability.dtype)

    def choose_threshold(self) -> None:
        """Fix the candidate with the best example_f1 so far, over all processes."""
        with self.sync_context():
            self.threshold.copy_(self.candidates[self.f1_sum.argmax()])
        self._computed = None  # what torchmetrics keeps of an earlier compute()

    def compute(self) -> dict[str, Tensor]:
        """The scores, in [0, 1]; those by threshold are (C,), all others are scalars."""
        index = (self.candidates == self.threshold).nonzero()[0, 0]
        right, predicted = self.true_positives[index], self.predicted[index]
        scores = {
            "example_f1": self.f1_sum[index] / self.count,
            "micro_f1": micro_f1(right, predicted, self.actual),
            "macro_f1": macro_f1(right, predicted, self.actual),
            "map": self.precision_sum / self.count,
            "f1_by_threshold": self.grid_f1_sum / self.count,
            "micro_f1_by_threshold": micro_f1(self.grid_right, self.grid_predicted, self.actual),
            "macro_f1_by_threshold": macro_f1(self.grid_right, self.grid_predicted, self.actual),
        }
        if self._half is not None:
            scores["example_f1_at_half"] = self.f1_sum[self._half] / self.count
        return scores


def f1_by_threshold(probability: Tensor, y: Tensor, thresholds: tuple[float, ...]) -> Tensor:
    """F1 of each example at each of the ascending thresholds, (B, C), from one count of its probabilities."""
    reached = torch.bucketize(probability.contiguous(), probability.new_tensor(thresholds), right=True)
    none = probability.new_zeros(len(y), len(thresholds) + 1)
    right, predicted = (
        none.scatter_add(1, reached, counted).flip(-1).cumsum(-1).flip(-1)[:, 1:]
        for counted in (y.to(none), torch.ones_like(probability))
    )
    return 2 * right / (predicted + y.sum(-1, keepdim=True)).clamp_min(1)


def counts_by_threshold(
    probability: Tensor, y: Tensor, thresholds: tuple[float, ...]
) -> tuple[Tensor, Tensor]:
    """How often each label is right, and predicted, at each of the ascending thresholds: both (C, L)."""
    num_labels = probability.shape[-1]
    reached = torch.bucketize(probability.contiguous(), probability.new_tensor(thresholds), right=True)
    place = (reached * num_labels + torch.arange(num_labels, device=reached.device)).flatten()
    none = probability.new_zeros((len(thresholds) + 1) * num_labels)
    right, predicted = (
        none.scatter_add(0, place, counted.flatten()).view(-1, num_labels).flip(0).cumsum(0).flip(0)[1:]
        for counted in (y.to(none), torch.ones_like(probability))
    )
    return right, predicted


def micro_f1(right: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
    """F1 of all pairs of example and label together, from counts (..., L) of the labels."""
    return 2 * right.sum(-1) / (predicted.sum(-1) + actual.sum(-1)).clamp_min(1)


def macro_f1(right: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
    """The mean over labels of their F1, from counts (..., L)."""
    return (2 * right / (predicted + actual).clamp_min(1)).mean(-1)


def average_precision(probability: Tensor, y: Tensor) -> Tensor:
    """Average precision of each example's ranking of its labels, (B,); equal probabilities share a rank.

    sum over true labels of (true labels ranked at least as high) / (labels ranked at least as high), divided
    by the number of true labels; 0 for an example without any.
    """
    ordered, order = probability.sort(-1, descending=True)
    truth = y.gather(-1, order)
    size = ordered.shape[-1]
    position = torch.arange(size, device=y.device).expand_as(ordered)
    ends = torch.ones_like(truth, dtype=torch.bool)
    ends[..., :-1] = ordered[..., :-1] != ordered[..., 1:]
    last = torch.where(ends, position, size - 1).flip(-1).cummin(-1).values.flip(-1)  # end of each tie
    precision = truth.cumsum(-1).gather(-1, last) / (last + 1)
    return (precision * truth).sum(-1) / truth.sum(-1).clamp_min(1)
