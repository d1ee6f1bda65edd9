"""Stage training of a chain: the network, then the pairwise scores, then everything."""

import math
from typing import Any, Literal

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.cli import OptimizerCallable
from pytorch_lightning.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from datamodules.batches import Batch
from energies.chain import ChainEnergy
from inference.criteria import Criterion
from lightning_modules.crf import ChainScheme

Phase = Literal["unary", "pairwise", "joint"]
PHASES: tuple[Phase, ...] = ("unary", "pairwise", "joint")


class PhaseStopping(EarlyStopping):
    """The trainer's stop rule, which ends phases; the end of the last phase is that of the run."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge the epoch; where a phase ends and more are to come, training goes on."""
        asked_otherwise = trainer.should_stop
        super().on_train_epoch_end(trainer, pl_module)
        assert isinstance(pl_module, CRFStage)
        if self.is_over() and pl_module.next_phase():
            trainer.should_stop = asked_otherwise

    def is_over(self) -> bool:
        """Whether the phase has gone on long enough without getting better."""
        return self.wait_count >= self.patience

    def begin(self) -> None:
        """Count anew, for the next phase."""
        worst = math.inf if self.mode == "min" else -math.inf
        self.wait_count, self.stopped_epoch, self.best_score = 0, 0, torch.tensor(worst)


class CRFStage(ChainScheme):
    """Three phases in one run, each from the weights the one before it left.   [Scaling §2, "stage"]

    `unary`: the network alone, by the cross-entropy of each position; validation scores what it says alone.
    `pairwise`: the pairwise scores, by the criterion, the network frozen. `joint`: everything, by the
    criterion. Each has an optimizer and a learning rate schedule of its own, and is ended by the trainer's
    EarlyStopping, which then counts anew; the end of the last phase is that of the run.

    The curve `phase` has the number of each epoch's phase. A checkpoint says which phase it is from, and
    predicts accordingly. With `phases` cut to the first, this is the network alone.
    """

    def __init__(
        self,
        energy: ChainEnergy,
        criterion: Criterion,
        unary_optimizer: OptimizerCallable,
        pairwise_optimizer: OptimizerCallable,
        joint_optimizer: OptimizerCallable,
        *,
        phases: tuple[Phase, ...] = PHASES,
        **scheme: Any,
    ) -> None:
        super().__init__(energy, criterion, **scheme)
        self.save_hyperparameters()
        self.phases: tuple[str, ...] = tuple(phases)
        self.main = self.phases[0]  # the part that moves
        self.unary_optimizer, self.pairwise_optimizer = unary_optimizer, pairwise_optimizer
        self.joint_optimizer = joint_optimizer

    def parts(self) -> dict[str, Optimizer]:
        tables = [p for name, p in self.energy.named_parameters() if not name.startswith("net.")]
        optimizers = {
            "unary": self.unary_optimizer(self.energy.net.parameters()),
            "pairwise": self.pairwise_optimizer(tables),
            "joint": self.joint_optimizer(self.energy.parameters()),
        }
        return {phase: optimizers[phase] for phase in self.phases}

    def loss(self, part: str, batch: Batch) -> Tensor:
        p = self.potentials(batch)
        self.watch(p)
        if part == "unary":
            return self.space.over(batch.mask).supervise(p.unary, batch.y).mean()
        return self.criterion.loss(p, batch.y).mean()

    def predict(self, batch: Batch) -> Tensor:
        p = self.potentials(batch)
        if self.main == "unary":
            return self.space.over(batch.mask).relax(p.unary)
        return self.criterion.predict(p)

    def scheduled(self) -> list[str]:
        """Every phase has a schedule of its own."""
        return list(self.phases)

    def configure_callbacks(self) -> list[Callback]:
        """The trainer's EarlyStopping, as a rule that ends phases; Lightning puts it in the other's place."""
        rule = self.trainer.early_stopping_callback
        if rule is None or isinstance(rule, PhaseStopping):
            return []
        return [
            PhaseStopping(
                rule.monitor,
                abs(rule.min_delta),
                rule.patience,
                mode=rule.mode,
                strict=rule.strict,
                check_finite=rule.check_finite,
                stopping_threshold=rule.stopping_threshold,
                divergence_threshold=rule.divergence_threshold,
                check_on_train_epoch_end=True,
            )
        ]

    def on_fit_start(self) -> None:
        """See Scheme; here parts share parameters, so what rests is what the phase does not move.

        Raises:
            ValueError: where nothing says when a phase is over.
        """
        super().on_fit_start()
        if self.trainer.early_stopping_callback is None:
            raise ValueError(
                "CRFStage has no EarlyStopping callback to end its phases. Add one to trainer.callbacks, or "
                "a layer that has it, such as --config conf/task/ocr.yaml."
            )
        self._moves = self._owned
        self._rests = {
            phase: [p for p in self.energy.parameters() if all(p is not q for q in moved)]
            for phase, moved in self._moves.items()
        }

    def on_train_epoch_start(self) -> None:
        """Enter the next phase if the last epoch ended one; its checkpoint still belonged to the old one."""
        rule = self.trainer.early_stopping_callback
        assert isinstance(rule, PhaseStopping)
        if rule.is_over() and (phase := self.next_phase()):
            self.main = phase
            rule.begin()
        self._owned = {self.main: self._moves[self.main], "rest": self._rests[self.main]}

    def next_phase(self) -> str | None:
        """The phase after this one, if there is one."""
        after = self.phases[self.phases.index(self.main) + 1 :]
        return after[0] if after else None

    def on_train_epoch_end(self) -> None:
        """Log the phase; see ChainScheme."""
        super().on_train_epoch_end()
        phase = float(self.phases.index(self.main))
        self.note("phase", phase)
        self.log("train/phase", phase)

    def on_fit_end(self) -> None:
        """Say so where training ended before its last phase."""
        if phase := self.next_phase():
            rank_zero_warn(
                f"training ended in the phase {self.main!r}, before {phase!r}: raise trainer.max_epochs."
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the phase too."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["phase"] = self.main

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on in the phase of the checkpoint."""
        super().on_load_checkpoint(checkpoint)
        self.main = checkpoint["phase"]
