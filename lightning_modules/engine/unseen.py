"""Scores of the test examples whose inputs training lacks, where some of them are training inputs too."""

from copy import deepcopy
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from datamodules.batches import Batch
from networks.inputs import Inputs, rows_of


class Unseen:
    """A copy of a metric that judges only examples whose inputs are no training inputs."""

    def __init__(self, metric: Metric, train: set[bytes]) -> None:
        self.metric, self.train = deepcopy(metric), train
        self.metric.reset()

    def judge(self, batch: Batch, answers: Tensor) -> None:
        """Add the examples of a batch that are not seen in training."""
        new = [i for i, one in enumerate(fingerprints(batch.inputs)) if one not in self.train]
        if new:
            index = torch.tensor(new, device=batch.y.device)
            mask = [] if batch.mask is None else [batch.mask[index]]
            self.metric.update(answers[index], batch.y[index], *mask)


def unseen(metric: Metric, splits: dict[str, Any]) -> Unseen | None:
    """None where no test example has the inputs of a training example."""
    if "test" not in splits:
        return None
    train = {*fingerprints(splits["train"].inputs)}
    test = fingerprints(splits["test"].inputs)
    seen = sum(one in train for one in test)
    return Unseen(metric, train) if 0 < seen < len(test) else None


def fingerprints(inputs: Inputs) -> list[bytes]:
    """The content of each example, without padding; of named inputs its sha256."""
    if isinstance(inputs, Tensor):
        return [row.tobytes() for row in inputs.cpu().numpy()]
    return [_content(rows_of(inputs, torch.tensor([i]))) for i in range(len(inputs))]


def _content(example: Any) -> bytes:  # noqa: ANN401  (one of networks.inputs)
    total = sha256()
    for value in vars(example).values():
        if isinstance(value, Tensor):
            total.update(b"|" + value.cpu().numpy().tobytes())
    return total.digest()
