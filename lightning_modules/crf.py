"""What the schemes of chains share: potentials, a criterion, and curves that say how training went."""

from typing import Any

import torch
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import StructuredEnergy
from energies.potentials import Potentials
from inference.base import Criterion
from lightning_modules.base import Scheme

POINTS = 8  # of the curve, an epoch


class ChainScheme(Scheme):
    """A chain learns by a criterion and predicts by the answer that goes with it.

    `curves` says how training went, number by number, and is kept in checkpoints. `ratio` is
    norm(U) / norm(W) of the potentials that inference saw, after scaling: a mean over each eighth of an
    epoch.   [Scaling Fig. 1]
    """

    def __init__(self, energy: StructuredEnergy, criterion: Criterion, **scheme: Any) -> None:
        super().__init__(**scheme)
        self.energy, self.criterion = energy, criterion

    def potentials(self, batch: Batch) -> Potentials:
        """What the chain says of a batch."""
        return self.energy.potentials(batch.inputs, batch.mask)

    def predictors(self) -> list[nn.Module]:
        return [self.energy]

    def predict(self, batch: Batch) -> Tensor:
        return self.criterion.predict(self.potentials(batch))

    @torch.no_grad()
    def watch_ratio(self, p: Potentials) -> None:
        """Keep norm(U) / norm(W) of a training batch for its curve."""
        self.watch("ratio", p.unary_norm().mean() / p.pairwise_norm().mean(), points=POINTS)
