"""Stage training of a chain: the network, then the pairwise scores, then everything."""

from typing import Any, Literal

from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer

from datamodules.batches import Batch
from energies.base import StructuredEnergy
from inference.base import Criterion
from lightning_modules.crf import ChainScheme
from lightning_modules.phases import Phased

Phase = Literal["unary", "pairwise", "joint"]
PHASES: tuple[Phase, ...] = ("unary", "pairwise", "joint")


class CRFStage(Phased, ChainScheme):
    """Three phases in one run, each from the weights the one before it left.   [Scaling §2, "stage"]

    `unary`: the network alone, by the cross-entropy of each position; validation scores what it says alone.
    `pairwise`: the pairwise scores, by the criterion, the network frozen. `joint`: everything, by the
    criterion. Each has an optimizer and a learning rate schedule of its own; see Phased for what ends it.
    The checkpoint of a phase predicts as the phase does. With `phases` cut to the first, this is the network
    alone.
    """

    def __init__(
        self,
        energy: StructuredEnergy,
        criterion: Criterion,
        unary_optimizer: OptimizerCallable,
        pairwise_optimizer: OptimizerCallable,
        joint_optimizer: OptimizerCallable,
        *,
        phases: tuple[Phase, ...] = PHASES,
        **scheme: Any,
    ) -> None:
        super().__init__(phases=phases, energy=energy, criterion=criterion, **scheme)
        self.save_hyperparameters()
        self.main = self.phase  # the part that moves
        self.unary_optimizer, self.pairwise_optimizer = unary_optimizer, pairwise_optimizer
        self.joint_optimizer = joint_optimizer

    def parts(self) -> dict[str, Optimizer]:
        optimizers = {
            "unary": self.unary_optimizer(self.energy.unary_parameters()),
            "pairwise": self.pairwise_optimizer(self.energy.pairwise_parameters()),
            "joint": self.joint_optimizer(self.energy.parameters()),
        }
        return {phase: optimizers[phase] for phase in self.phases}

    def loss(self, part: str, batch: Batch) -> Tensor:
        p = self.potentials(batch)
        self.watch(p)
        if part == "unary":
            return self.space.over(batch.mask).supervise(p.logits(), batch.y).mean()
        return self.criterion.loss(p, batch.y).mean()

    def predict(self, batch: Batch) -> Tensor:
        p = self.potentials(batch)
        if self.main == "unary":
            return self.space.over(batch.mask).relax(p.logits())
        return self.criterion.predict(p)

    def scheduled(self) -> list[str]:
        """Every phase has a schedule of its own."""
        return list(self.phases)

    def enter(self, phase: str) -> None:
        """See Phased; the part of that name moves."""
        super().enter(phase)
        self.main = phase

    def on_fit_start(self) -> None:
        """See Phased; here parts share parameters, so what rests is what the phase does not move."""
        super().on_fit_start()
        self._moves = self._owned
        self._rests = {
            phase: [p for p in self.energy.parameters() if all(p is not q for q in moved)]
            for phase, moved in self._moves.items()
        }

    def on_train_epoch_start(self) -> None:
        """Let go of what the phase moves, hold the rest; see Phased."""
        super().on_train_epoch_start()
        self._owned = {self.main: self._moves[self.main], "rest": self._rests[self.main]}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """See Phased."""
        super().on_load_checkpoint(checkpoint)
        self.main = self.phase
