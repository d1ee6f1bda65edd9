"""Joint training of a CRF: everything at once, from the start."""

from typing import Any

from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor

from datamodules.batches import Batch
from energies.base import StructuredEnergy
from inference.base import Criterion
from lightning_modules.base import Part
from lightning_modules.crf import CRFScheme
from losses.observed import mean


class CRFJoint(CRFScheme):
    """The network and the pairwise scores learn together by the criterion alone.   [Scaling §2, "joint"]"""

    def __init__(
        self,
        energy: StructuredEnergy,
        criterion: Criterion,
        energy_optimizer: OptimizerCallable,
        **scheme: Any,
    ) -> None:
        super().__init__(energy, criterion, **scheme)
        self.save_hyperparameters()
        self.energy_optimizer = energy_optimizer

    def training_step(self, batch: Batch, index: int) -> None:
        self.move("energy", batch)

    def energy_loss(self, batch: Batch) -> Tensor:
        """Mean over the batch of the criterion's L(y, U, W).   [Scaling eqs. 4-8]"""
        p = self.energy.potentials(batch.inputs, batch.mask)
        self.watch_balance(p)
        return mean(self.criterion.loss(p, batch.y), batch.observed)

    def parts(self) -> dict[str, Part]:
        learned = self.energy.parameters()
        return {"energy": Part(learned, self.energy_optimizer, self.energy_loss, **self.main_options)}
