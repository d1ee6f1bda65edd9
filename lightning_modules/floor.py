"""The floor of a table: answers that learn nothing about an input but, at most, which word it is.

Shapes: N training examples, B examples, L labels, H x W pixels, T positions, S tags.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.spaces import AnswerSpace
from lightning_modules.base import Part, Scheme, still


class CountedAnswer(nn.Module, ABC):
    """An answer that is counted in the training answers; its parameters get no gradient."""

    @abstractmethod
    def count(self, train: Batch, validation: Batch, space: AnswerSpace) -> None:
        """Count the training answers; choose on validation what has to be chosen."""

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """Relaxed answers, of the shape of the batch's."""


class MeanAnswer(CountedAnswer):
    """The mean training answer (L,) or (H, W), cut where validation has the best mean quality.

    So it is the most frequent labels, as many as validation likes; or the mean mask. Every input has the same
    answer. Entries above the cut are at least 1/2, and all keep their order.
    """

    def count(self, train: Batch, validation: Batch, space: AnswerSpace) -> None:
        mean = _observed(train.y, train).float().mean(0)
        y = validation.y.float()
        cuts = mean.unique()
        quality = [space.quality((mean >= cut).float().expand_as(y), y).mean() for cut in cuts]
        self.mean, self.cut = nn.Parameter(mean), nn.Parameter(cuts[torch.stack(quality).argmax()])

    def forward(self, batch: Batch) -> Tensor:
        return (torch.where(self.mean >= self.cut, 1 + self.mean, self.mean) / 2).expand_as(batch.y)


class FrequentTag(CountedAnswer):
    """The most frequent tag of the training positions, at every position."""

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(num_tags))

    def count(self, train: Batch, validation: Batch, space: AnswerSpace) -> None:
        counts = _observed(train.y, train)[_observed(train.mask, train)].sum(0)
        self.counts = nn.Parameter(counts.to(self.counts))

    def forward(self, batch: Batch) -> Tensor:
        return self.counts.expand_as(batch.y)


class FrequentTagOfWord(CountedAnswer):
    """The most frequent tag of each word; of a word that training lacks, the most frequent tag of all.

    A word is the first of the numbers of its position.
    """

    def __init__(self, num_words: int, num_tags: int) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(num_words, num_tags))

    def count(self, train: Batch, validation: Batch, space: AnswerSpace) -> None:
        real = _observed(train.mask, train)
        words = _observed(train.inputs.values[..., 0], train)[real].to(self.counts.device)
        tags = _observed(train.y, train)[real].to(self.counts)
        self.counts = nn.Parameter(torch.zeros_like(self.counts).index_add(0, words, tags))

    def renumber(self, tables: dict[str, Tensor], known: Tensor) -> None:
        """See networks.words.WordFeatures.renumber."""
        self.counts.data = self.counts.data[known]

    def forward(self, batch: Batch) -> Tensor:
        counts = self.counts[batch.inputs.values[..., 0]]
        return torch.where(counts.any(-1, keepdim=True), counts, self.counts.sum(0))


class Floor(Scheme):
    """Answers without a network: what a method has to beat before it has learnt anything of the inputs.

    They are counted before the first epoch, in the examples as they are stored: pictures are whole, whatever
    windows networks are trained on. The steps of the epoch move nothing; they make a floor a run like any
    other.
    """

    def __init__(self, answer: CountedAnswer, **scheme: Any) -> None:
        super().__init__(**scheme)
        self.save_hyperparameters()
        self.answer = answer

    def setup(self, stage: str) -> None:
        """Count the answers; a checkpoint is read later and has the same counts."""
        super().setup(stage)
        splits = self.trainer.datamodule.splits  # type: ignore[attr-defined]
        train, validation = (
            Batch(split.inputs, split.y, split.mask, split.observed)
            for split in (splits["train"], splits["validation"])
        )
        self.answer.count(train, validation, self.space)

    def training_step(self, batch: Batch, index: int) -> None:
        self.move("answer", batch)

    def parts(self) -> dict[str, Part]:
        return {"answer": still(self.answer)}

    def predictors(self) -> list[nn.Module]:
        return [self.answer]

    def predict(self, batch: Batch) -> Tensor:
        return self.answer(batch)


def _observed(values: Tensor | None, batch: Batch) -> Tensor:
    """The rows of a batch whose answers are known."""
    assert values is not None
    return values if batch.observed is None else values[batch.observed]
