"""Training in phases, each ended by the trainer's stop rule."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.callbacks.early_stopping import EarlyStoppingReason
from pytorch_lightning.utilities.rank_zero import rank_zero_warn

from lightning_modules.base import Scheme
from lightning_modules.engine.best import forget_best, restart
from networks.pretrained import read_checkpoint


class PhaseStopping(EarlyStopping):
    """The trainer's stop rule, applied to each phase of a scheme; the last phase ends the run."""

    def __init__(self, rule: EarlyStopping, scheme: "Phased") -> None:
        super().__init__(
            rule.monitor,
            abs(rule.min_delta),
            rule.patience,
            mode=rule.mode,
            strict=rule.strict,
            check_finite=rule.check_finite,
            stopping_threshold=rule.stopping_threshold,
            divergence_threshold=rule.divergence_threshold,
        )
        self.scheme = scheme

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """If the last epoch ended a phase, enter the next one and reset the counters."""
        if self._is_over() and (phase := self.scheme.next_phase()):
            self.scheme.enter(phase)
            restart(self)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge the epoch; training does not stop while another phase follows."""
        with self._going_on(trainer):
            super().on_train_epoch_end(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The same, where not every epoch validates, or some do in their midst."""
        with self._going_on(trainer):
            super().on_validation_end(trainer, pl_module)

    @contextmanager
    def _going_on(self, trainer: Trainer) -> Iterator[None]:
        asked_otherwise = trainer.should_stop
        yield
        if self._is_over() and self.scheme.next_phase():
            trainer.should_stop = asked_otherwise

    def _is_over(self) -> bool:
        """Whether the rule has ended the phase."""
        return self.stopping_reason is not EarlyStoppingReason.NOT_STOPPED


class Phased(Scheme):
    """A scheme that trains in phases; with one phase it is like any other.

    The trainer's EarlyStopping ends each phase and is then reset; the last phase ends the run. The training
    curve `phase` has the number of each epoch's phase, and a checkpoint stores its phase. A phase of
    `from_best` begins with the weights of the best epoch so far, which stays the best until one is better.
    Other phases begin with the last weights and train something else: no epoch before them is kept as the
    best, so the last of them is tested.
    """

    from_best: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, phases: Sequence[str], **scheme: Any) -> None:
        super().__init__(**scheme)
        self.phases = tuple(phases)
        if not phases or len({*phases}) < len(phases):
            raise ValueError(f"phases is {[*phases]}: name one or more, each once.")
        self.phase = self.phases[0]
        self._stopping: PhaseStopping | None = None

    def enter(self, phase: str) -> None:
        """Begin a phase, before its first epoch; the last checkpoint is of the previous phase."""
        self.phase = phase
        if phase in self.from_best:
            best = Path(self.keeper(phase).best_model_path)
            self.load_state_dict(read_checkpoint(best)["state_dict"])
        else:
            forget_best(self.trainer)

    def next_phase(self) -> str | None:
        """The phase after this one, if there is one."""
        after = self.phases[self.phases.index(self.phase) + 1 :]
        return after[0] if after else None

    def configure_callbacks(self) -> list[Callback]:
        """The trainer's EarlyStopping as a PhaseStopping, by which Lightning replaces it."""
        rule = self.trainer.early_stopping_callback
        if rule is None or rule is self._stopping or len(self.phases) == 1:
            return []
        self._stopping = PhaseStopping(rule, self)
        return [self._stopping]

    def on_fit_start(self) -> None:
        """See Scheme.

        Raises:
            ValueError: the trainer has no EarlyStopping to end a phase, or no ModelCheckpoint that keeps
                the best epoch for a phase that begins with it.
        """
        super().on_fit_start()
        if self.next_phase() and self.trainer.early_stopping_callback is None:
            raise ValueError(
                f"{type(self).__name__} has no EarlyStopping callback to end its phases. Add one to "
                "trainer.callbacks, or a layer that has it, such as --config conf/data/ocr.yaml."
            )
        for phase in (p for p in self.phases[1:] if p in self.from_best):
            self.keeper(phase)

    def keeper(self, phase: str) -> Any:  # noqa: ANN401  (a ModelCheckpoint)
        """The callback that keeps the best epoch by the stop rule's score, from which a phase begins."""
        assert self.trainer.early_stopping_callback is not None
        judged = self.trainer.early_stopping_callback.monitor
        for keeper in self.trainer.checkpoint_callbacks:
            if getattr(keeper, "monitor", None) == judged:
                return keeper
        raise ValueError(
            f"the phase `{phase}` goes on from the epoch with the best {judged}, and no ModelCheckpoint "
            f"keeps it: add one with `monitor: {judged}` to trainer.callbacks."
        )

    def on_train_epoch_end(self) -> None:
        """Log the phase; see Scheme."""
        super().on_train_epoch_end()
        if len(self.phases) > 1:
            phase = float(self.phases.index(self.phase))
            self.append_to_curve("phase", phase)
            self.log("train/phase", phase)

    def on_fit_end(self) -> None:
        """Warn if training ended before its last phase."""
        if phase := self.next_phase():
            rank_zero_warn(
                f"training ended in the phase {self.phase!r}, before {phase!r}: raise trainer.max_epochs."
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the phase too."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["phase"] = self.phase

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Resume in the phase of the checkpoint."""
        super().on_load_checkpoint(checkpoint)
        self.phase = checkpoint["phase"]
