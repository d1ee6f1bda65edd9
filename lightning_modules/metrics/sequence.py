"""Scores of tag sequences, position by position.

Shapes: B examples, T positions, S tags.
"""

import torch
from torch import Tensor
from torchmetrics import Metric


class SequenceScores(Metric):
    """The share of right tags.                                                   [Scaling §6, OCR]

    - word_accuracy: of each sequence, averaged over sequences. Selects models.
    - accuracy: of all positions together.

    A sequence without real positions does not count. An answer's tag is its largest entry, so answers may be
    relaxed.
    """

    full_state_update = False
    shares: Tensor
    sequences: Tensor
    right: Tensor
    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("shares", torch.zeros(()), dist_reduce_fx="sum")
        for name in ("sequences", "right", "positions"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, answer: Tensor, y: Tensor, mask: Tensor) -> None:
        """Add a batch: answers and one-hot true tags, (B, T, S), and the real positions, (B, T)."""
        right = ((answer.argmax(-1) == y.argmax(-1)) & mask).sum(-1)
        lengths = mask.sum(-1)
        self.shares += (right / lengths.clamp_min(1)).sum()
        self.sequences += (lengths > 0).sum()
        self.right += right.sum()
        self.positions += lengths.sum()

    def compute(self) -> dict[str, Tensor]:
        """Both scores, in [0, 1]."""
        return {
            "word_accuracy": self.shares / self.sequences.clamp_min(1),
            "accuracy": self.right / self.positions.clamp_min(1),
        }
