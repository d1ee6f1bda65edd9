"""Scores of spans read from tags: chunks, names.

Shapes: B examples, T positions, S tags, K kinds of span.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from energies.constraints import split_tag
from networks.sizes import match_names

OUTSIDE = -1


class SpanScores(Metric):
    """Precision, recall and F1 of spans, and accuracy, as conlleval counts.   [CoNLL-2000]

    - f1: of the spans of all kinds together; selects models. precision, recall: the same.
    - accuracy: the share of right tags, of all positions together.

    A span is right when its first and last position and its kind are. One begins at B and, where tags are
    ill-formed, at an I that comes first or after another kind; it ends before the next that begins, before O
    and at the end of the sequence. BIOES tags are read as the IOB2 tags they stand for: S as B, E as I.

    An answer's tag is its largest entry.

    Args:
        tags: names of the S tags in the order of their numbers: O, or B, I, E or S, a hyphen, and the kind.

    Raises:
        ValueError: a name is none of these.
    """

    full_state_update = False
    kind_of: Tensor
    begins: Tensor
    correct: Tensor
    found: Tensor
    actual: Tensor
    right: Tensor
    positions: Tensor

    def __init__(self, tags: Sequence[str]) -> None:
        super().__init__()
        self.tags = list(tags)
        try:
            parsed = [split_tag(tag, "BIOES") for tag in tags]
        except ValueError as error:
            raise ValueError(f"{error} Correct the list of tags, or score with SequenceScores.") from None
        self.kinds = sorted({kind for _, kind in parsed if kind})
        number = {kind: index for index, kind in enumerate(self.kinds)}
        numbers = torch.tensor([number.get(kind, OUTSIDE) for _, kind in parsed])
        self.register_buffer("kind_of", numbers, persistent=False)
        self.register_buffer("begins", torch.tensor([mark in "BS" for mark, _ in parsed]), persistent=False)
        for name in ("correct", "found", "actual"):
            self.add_state(name, torch.zeros(len(self.kinds), dtype=torch.long), dist_reduce_fx="sum")
        for name in ("right", "positions"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def check_answers(self, y: Tensor) -> None:
        """Refuse data of another number of tags."""
        match_names(y, self.tags)

    def update(self, answer: Tensor, y: Tensor, mask: Tensor) -> None:
        """Add a batch: answers and one-hot true tags, (B, T, S), and the real positions, (B, T)."""
        guess, true = answer.argmax(-1), y.argmax(-1)
        guess_kind, guess_start, guess_end = self._spans(guess, mask)
        kind, start, end = self._spans(true, mask)
        same = (guess_kind == kind) & (self.begins[guess] == self.begins[true])
        both = guess_start & start & (guess_kind == kind) & (guess_end == end)
        self.correct += self._count(kind, both)
        self.found += self._count(guess_kind, guess_start)
        self.actual += self._count(kind, start)
        self.right += (same & mask).sum()
        self.positions += mask.sum()

    def compute(self) -> dict[str, Tensor]:
        """The four scores, in [0, 1]; 0 where there is nothing to divide by."""
        scores = scores_of_counts(self.correct.sum(), self.found.sum(), self.actual.sum())
        return {**scores, "accuracy": self.right / self.positions.clamp_min(1)}

    def _spans(self, tags: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each position's kind, whether a span starts there, where the span it is in has ended; (B, T)."""
        kind = torch.where(real, self.kind_of[tags], OUTSIDE)
        before = torch.cat([torch.full_like(kind[:, :1], OUTSIDE), kind[:, :-1]], dim=1)
        inside = kind != OUTSIDE
        start = inside & (self.begins[tags] | (kind != before))
        length = tags.shape[1]
        place = torch.arange(length, device=tags.device).expand_as(tags)
        border = torch.where(start | ~inside, place, length)  # here the span before has ended
        ahead = torch.cat([border[:, 1:], torch.full_like(border[:, :1], length)], dim=1)
        return kind, start, ahead.flip(1).cummin(1).values.flip(1)

    def _count(self, kind: Tensor, chosen: Tensor) -> Tensor:
        """How many of the chosen positions are of each kind, (K,); `bincount` would wait for the device."""
        kinds = torch.arange(len(self.kinds), device=kind.device)
        return ((kind.unsqueeze(-1) == kinds) & chosen.unsqueeze(-1)).sum((0, 1))


def scores_of_counts(correct: Tensor, found: Tensor, actual: Tensor) -> dict[str, Tensor]:
    """F1, precision and recall; 0 where there is nothing to divide by."""
    return {
        "f1": 2 * correct / (found + actual).clamp_min(1),
        "precision": correct / found.clamp_min(1),
        "recall": correct / actual.clamp_min(1),
    }
