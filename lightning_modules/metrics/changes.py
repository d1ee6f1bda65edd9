"""Where one tagger is wrong and another is right.

Shapes: B examples, T positions, S tags.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from networks.sizes import match_names


class TagChanges(Metric):
    """How often a second answer has another tag where the first has the true one.   [InfNet+ Table 3, bottom]

    An answer's tag is its largest entry.

    Args:
        tags: names of the S tags in the order of their numbers.
    """

    full_state_update = False
    counts: Tensor

    def __init__(self, tags: Sequence[str]) -> None:
        super().__init__()
        self.tags = list(tags)
        shape = (len(self.tags), len(self.tags))
        self.add_state("counts", torch.zeros(shape, dtype=torch.long), dist_reduce_fx="sum")

    def check_answers(self, y: Tensor) -> None:
        """Refuse data of another number of tags."""
        match_names(y, self.tags)

    def update(self, first: Tensor, second: Tensor, y: Tensor, mask: Tensor) -> None:
        """Add a batch: two answers and the one-hot truth, (B, T, S), and the real positions, (B, T)."""
        size = len(self.tags)
        right = mask & (first.argmax(-1) == y.argmax(-1))
        pairs = (first.argmax(-1) * size + second.argmax(-1))[right]
        self.counts += pairs.bincount(minlength=size * size).view(size, size).fill_diagonal_(0)

    def compute(self) -> Tensor:
        """Counts (S, S): row the first tag, column the second; the diagonal is 0."""
        return self.counts

    def found(self) -> list[list[str | int]]:
        """The first tag, the second and how often, the most frequent first, of what this process has seen."""
        counts = self.counts.flatten()
        order = counts.argsort(descending=True, stable=True).tolist()
        size = len(self.tags)
        rows = zip(order, counts[order].tolist(), strict=True)
        return [[self.tags[place // size], self.tags[place % size], n] for place, n in rows if n]
