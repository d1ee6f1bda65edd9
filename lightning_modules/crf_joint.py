"""Joint training of a chain: everything at once, from the start."""

from typing import Any

from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer

from datamodules.batches import Batch
from energies.base import StructuredEnergy
from inference.base import Criterion
from lightning_modules.crf import ChainScheme


class CRFJoint(ChainScheme):
    """The network and the pairwise scores learn together by the criterion alone.   [Scaling §2, "joint"]"""

    main = "energy"

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

    def parts(self) -> dict[str, Optimizer]:
        return {"energy": self.energy_optimizer(self.energy.parameters())}

    def loss(self, part: str, batch: Batch) -> Tensor:
        p = self.potentials(batch)
        self.watch(p)
        return self.criterion.loss(p, batch.y).mean()
