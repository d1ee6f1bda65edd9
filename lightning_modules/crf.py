"""What the schemes of chains share: potentials, a criterion, and curves that say how training went."""

from typing import Any

import torch
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import StructuredEnergy
from energies.potentials import Potentials
from inference.base import Criterion
from lightning_modules.base import Scheme
from lightning_modules.processes import mean_over_processes

PIECES = 8  # how many points of a curve an epoch leaves


class ChainScheme(Scheme):
    """A chain learns by a criterion and predicts by the answer that goes with it.

    `curves` says how training went, number by number, and is kept in checkpoints. `ratio` is
    norm(U) / norm(W) of the potentials that inference saw, after scaling: a mean over each eighth of an
    epoch.   [Scaling Fig. 1]
    """

    def __init__(self, energy: StructuredEnergy, criterion: Criterion, **scheme: Any) -> None:
        super().__init__(**scheme)
        self.energy, self.criterion = energy, criterion
        self._ratios: list[Tensor] = []

    def potentials(self, batch: Batch) -> Potentials:
        """What the chain says of a batch."""
        return self.energy.potentials(batch.inputs, batch.mask)

    def predictors(self) -> list[nn.Module]:
        return [self.energy]

    def predict(self, batch: Batch) -> Tensor:
        return self.criterion.predict(self.potentials(batch))

    @torch.no_grad()
    def watch(self, p: Potentials) -> None:
        """Note norm(U) / norm(W) of a training batch, for the curve; nothing waits for the device."""
        self._ratios.append(p.unary_norm().mean() / p.pairwise_norm().mean())

    def on_train_epoch_end(self) -> None:
        """Let the ratio's curve go on; see Scheme."""
        (ratios,) = mean_over_processes([torch.stack(self._ratios)])
        pieces = ratios.tensor_split(PIECES)
        self.note("ratio", *torch.stack([piece.mean() for piece in pieces if len(piece)]).tolist())
        self._ratios = []
        super().on_train_epoch_end()
