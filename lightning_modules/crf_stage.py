"""Stage training of a CRF: the network, then the pairwise scores, then everything."""

from functools import partial
from typing import Any, Literal

from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor

from datamodules.batches import Batch
from energies.base import StructuredEnergy
from inference.base import Criterion
from lightning_modules.base import Part
from lightning_modules.crf import CRFScheme
from lightning_modules.engine.phases import Phased
from losses.observed import mean

Phase = Literal["unary", "pairwise", "joint", "restart", "second_restart"]
PHASES: tuple[Phase, ...] = ("unary", "pairwise", "joint")


class CRFStage(Phased, CRFScheme):
    """Three phases in one run, each from the last weights of the one before.   [Scaling §2, "stage"]

    `unary`: the network alone, by the cross-entropy of each position; validation scores its own prediction.
    `pairwise`: the pairwise scores, by the criterion, the network frozen. `joint`: everything, by the
    criterion. Each has an optimizer and a learning rate schedule of its own; see Phased for what ends it. The
    checkpoint of a phase predicts as the phase does. With the first phase only, this trains the network
    alone.

    Two more phases are a control that is not in the paper. `restart` and `second_restart` are `joint` again,
    from the weights of the best epoch so far, by a new `restart_optimizer`; None takes `joint_optimizer`. So
    (joint, restart, second_restart) has three phases and no stage.
    """

    from_best = ("restart", "second_restart")

    def __init__(
        self,
        energy: StructuredEnergy,
        criterion: Criterion,
        unary_optimizer: OptimizerCallable,
        pairwise_optimizer: OptimizerCallable,
        joint_optimizer: OptimizerCallable,
        *,
        phases: tuple[Phase, ...] = PHASES,
        restart_optimizer: OptimizerCallable | None = None,
        **scheme: Any,
    ) -> None:
        super().__init__(phases=phases, energy=energy, criterion=criterion, **scheme)
        self.save_hyperparameters()
        self.unary_optimizer, self.pairwise_optimizer = unary_optimizer, pairwise_optimizer
        self.joint_optimizer, self.restart_optimizer = joint_optimizer, restart_optimizer or joint_optimizer

    def training_step(self, batch: Batch, index: int) -> None:
        self.move(self.phase, batch)

    def unary_loss(self, batch: Batch) -> Tensor:
        """Mean over the batch of the cross-entropy of the network's scores U."""
        p = self.energy.potentials(batch.inputs, batch.mask)
        self.watch_balance(p)
        return mean(self.space.over(batch.mask).supervise(p.logits(), batch.y), batch.observed)

    def parts(self) -> dict[str, Part]:
        unary, pairwise = self.energy.unary_parameters(), self.energy.pairwise_parameters()
        everything = [*self.energy.parameters()]
        again = partial(Part, everything, self.restart_optimizer, self.crf_loss)
        parts = {
            "unary": partial(Part, unary, self.unary_optimizer, self.unary_loss),
            "pairwise": partial(Part, pairwise, self.pairwise_optimizer, self.crf_loss),
            "joint": partial(Part, everything, self.joint_optimizer, self.crf_loss),
            "restart": again,
            "second_restart": again,
        }
        return {phase: parts[phase](**self.main_options) for phase in self.phases}

    def predict(self, batch: Batch) -> Tensor:
        p = self.energy.potentials(batch.inputs, batch.mask)
        if self.phase == "unary":
            return self.space.over(batch.mask).relax(p.logits())
        return self.criterion.predict(p)
