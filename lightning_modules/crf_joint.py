"""Joint training of a CRF: everything at once, from the start."""

from collections.abc import Iterable
from typing import Any

from pytorch_lightning.cli import OptimizerCallable

from datamodules.batches import Batch
from energies.base import StructuredEnergy
from inference.base import Criterion
from lightning_modules.base import Part, check_settings
from lightning_modules.crf import CRFScheme


class CRFJoint(CRFScheme):
    """The network and the pairwise scores learn together by the criterion alone.   [Scaling §2, "joint"]

    `pairwise_settings` are those in which the optimizer's group of the pairwise scores deviates, such as
    {lr: 0.03}; None makes one group of all.

    Raises:
        ValueError: `pairwise_settings` has one that the optimizer does not have.
    """

    def __init__(
        self,
        energy: StructuredEnergy,
        criterion: Criterion,
        energy_optimizer: OptimizerCallable,
        *,
        pairwise_settings: dict[str, float] | None = None,
        **scheme: Any,
    ) -> None:
        super().__init__(energy, criterion, **scheme)
        self.save_hyperparameters()
        self.energy_optimizer, self.pairwise_settings = energy_optimizer, pairwise_settings

    def training_step(self, batch: Batch, index: int) -> None:
        self.move("energy", batch)

    def parts(self) -> dict[str, Part]:
        groups: Iterable[Any] = self.energy.parameters()
        if self.pairwise_settings is not None:
            pairwise = {"params": [*self.energy.pairwise_parameters()], **self.pairwise_settings}
            groups = [{"params": [*self.energy.unary_parameters()]}, pairwise]
        energy = Part(groups, self.energy_optimizer, self.crf_loss, **self.main_options)
        check_settings("pairwise_settings", self.pairwise_settings, energy.optimizer)
        return {"energy": energy}
