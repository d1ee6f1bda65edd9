"""What a run writes each epoch: last.ckpt to resume from, progress.json to watch, metrics.csv to plot."""

import csv
import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint
from pytorch_lightning.callbacks.early_stopping import EarlyStoppingReason
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.utilities import rank_zero_only

from experiments import starts, store
from experiments.errors import ConfigError, UserError, short, suggest
from experiments.plan.identity import difference

TELL_EVERY = 0.5  # seconds; epochs may take milliseconds
SAVING = 0.04  # share of the time that may go into last.ckpt

Progress = dict[str, Any]
Tell = Callable[[Progress], None]


class EpochLog(Checkpoint):
    """Keeps the files of a run up to date, so that it can be watched, and killed at any time.

    It is a Lightning `Checkpoint`, so that it is called last: after the scheme's logging, EarlyStopping and
    ModelCheckpoint. ModelCheckpoint's own `save_last` writes only when the best changes, so last.ckpt is
    written here: with each new best, at the end, and otherwise after every epoch, unless this would take more
    than a few percent of the time.

    Of several processes the first one writes, and broadcasts folder and times to the others.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = {}  # further entries of progress.json
        self.tell: Tell | None = None
        self.started = False
        self.here: starts.Start = {}  # code and processor of this process
        self.starts: list[starts.Start] = []
        self.checksums: dict[str, str] = {}  # of the data that the run began with, by file
        self.settings: dict[str, Any] = {}  # of a run by hand, whose folder may be given with others
        self.began_with: dict[str, Any] = {}  # the settings in the checkpoint
        self.rows: list[dict[str, Any]] = []
        self.header: list[str] = []
        self.spent = self.reported = self.saved = self.cost = 0.0
        self.best: float | None = None
        self.began = time.monotonic()

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def before(self) -> Path:
        """The previous one, in case the last is damaged."""
        return self.last.with_name("before.ckpt")

    @property
    def seconds(self) -> float:
        """Time spent on the epochs that are kept, over all starts."""
        return self.spent + time.monotonic() - self.began

    def state_dict(self) -> dict[str, Any]:
        """The time spent so far, the starts, the checksums of the data and the settings."""
        state = {"seconds": self.seconds, "starts": self.starts, "checksums": self.checksums}
        return state | ({"settings": self.settings} if self.settings else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them."""
        self.spent = state_dict["seconds"]
        self.starts = state_dict.get("starts", [starts.UNKNOWN])
        self.checksums = state_dict.get("checksums", {})
        self.began_with = state_dict.get("settings", {})

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Store in the checkpoint whether training ended with this epoch."""
        checkpoint["training_ended"] = why_ended(trainer)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Use the folder of the first process in all."""
        self.folder = Path(trainer.strategy.broadcast(str(self.folder)))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise an error if data or settings are not those of the run's first epoch."""
        self._compare_data(trainer)
        self._compare_settings()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The same, where nothing was left to train."""
        self._compare_data(trainer)
        self._compare_settings()

    def _compare_settings(self) -> None:
        changes = difference(self.began_with, self.settings) if self.began_with and self.settings else []
        if changes:
            raise UserError(
                f"this run began with other settings than {self.folder}/config.yaml has now: "
                f"{'; '.join(changes[:3])}. Put the old ones back, or train anew with another --run_dir."
            )

    def _compare_data(self, trainer: Trainer) -> None:
        found = dict(getattr(getattr(trainer, "datamodule", None), "checksums", {}))
        changed = [name for name, old in self.checksums.items() if found.get(name, old) != old]
        if changed:
            raise UserError(
                f"{short(changed[0])} has changed since this run began. Put the old file back, or train "
                "anew: by hand with another --run_dir, in a table with FRESH=1."
            )
        self.checksums = found

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the rows of epochs that will be run again."""
        self.began = time.monotonic()
        self.starts_at(trainer.current_epoch)
        self.rows = [r for r in read_rows(self.folder) if int(r["epoch"]) < trainer.current_epoch]
        self.best = best_so_far(trainer)[1]
        self._tell(trainer)

    def starts_at(self, epoch: int) -> None:
        """Record that this process works on the run from this epoch on."""
        self.starts = [*self.starts, {"epoch": epoch} | self.here]
        self.started = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the losses of the previous epoch: Lightning would keep those of parts that no longer move."""
        for name in [name for name in trainer.callback_metrics if name.startswith("train/")]:
            del trainer.callback_metrics[name]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise a clear error for a callback that monitors a score which validation does not log."""
        names = [name for name in trainer.callback_metrics if name.startswith("val/")]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            wanted = str(getattr(callback, "monitor", None) or "")
            if wanted.startswith("val/") and wanted not in names:
                raise ConfigError(
                    f"trainer.callbacks: {type(callback).__name__} monitors {wanted}, which validation does "
                    f"not log. {suggest(wanted, names)} Set `monitor`, or add the layer that does, such as "
                    "--config conf/data/ocr.yaml."
                )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add a row, save the checkpoint to resume from, write the progress."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.rows.append({"epoch": trainer.current_epoch, "seconds": round(self.seconds, 2), **metrics})
        self._write()
        best = best_so_far(trainer)[1]
        due = time.monotonic() - self.saved > self.cost / SAVING
        if trainer.strategy.broadcast(due or best != self.best or bool(why_ended(trainer))):
            began = time.monotonic()
            self._keep_last()
            trainer.save_checkpoint(self.last)
            self.best, self.saved, self.cost = best, time.monotonic(), time.monotonic() - began
        self._tell(trainer)

    @rank_zero_only
    def _keep_last(self) -> None:
        if self.last.exists():
            self.last.replace(self.before)

    @rank_zero_only
    def _write(self) -> None:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        path = self.folder / "metrics.csv"
        whole = names != self.header
        text = io.StringIO()
        writer = csv.DictWriter(text, names)
        if whole:
            writer.writeheader()
        writer.writerows(self.rows if whole else self.rows[-1:])
        if whole:
            store.write(path, text.getvalue(), sure=False)
        else:
            store.append(path, text.getvalue())
        self.header = names

    @rank_zero_only
    def _tell(self, trainer: Trainer) -> None:
        if time.monotonic() - self.reported < TELL_EVERY:
            return
        self.reported = time.monotonic()
        monitor, best = best_so_far(trainer)
        latest = trainer.callback_metrics.get(monitor)
        progress = self.facts | {
            "state": "running",
            "epoch": len(self.rows),
            "max_epochs": trainer.max_epochs,
            "metric": monitor,
            "latest": None if latest is None else float(latest),
            "best": best,
            "seconds": round(self.seconds, 2),
        }
        store.write(self.folder / "progress.json", json.dumps(progress), sure=False)
        if self.tell:
            self.tell(progress)


class InPlace(TorchCheckpointIO):
    """Writes checkpoints in their own folder under another name, then renames: none is ever incomplete.

    Lightning writes to the system's folder for temporary files, where a kill leaves them.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None
    ) -> None:
        """Write a new version without a copy in memory, then rename it."""
        with store.replacing(Path(path)) as part, part.open("wb") as file:
            torch.save(checkpoint, file)


def best_so_far(trainer: Trainer) -> tuple[str, float | None]:
    """The monitored score, and its best value."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor:
            best = callback.best_model_score
            return callback.monitor, None if best is None else float(best)
    return "", None


def why_ended(trainer: Trainer) -> str:
    """Why training stops after this epoch; empty if it continues."""
    stopper, stops = trainer.early_stopping_callback, trainer.should_stop and _may_stop(trainer)
    reason = getattr(stopper, "stopping_reason", EarlyStoppingReason.NOT_STOPPED)
    if stops and isinstance(stopper, EarlyStopping) and reason is not EarlyStoppingReason.NOT_STOPPED:
        if reason is EarlyStoppingReason.PATIENCE_EXHAUSTED:
            return f"{stopper.monitor} did not improve for {stopper.patience} epochs"
        return str(stopper.stopping_reason_message)
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch + 1:
        return f"max_epochs {trainer.max_epochs} reached"
    return "asked to stop" if stops else ""


def _may_stop(trainer: Trainer) -> bool:
    """Whether the fewest epochs and steps are over, before which Lightning ends nothing."""
    epochs, steps = trainer.min_epochs or 0, trainer.min_steps or 0
    return trainer.current_epoch + 1 >= epochs and trainer.global_step >= steps


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.csv; truncated and damaged rows are left out."""
    try:
        with (folder / "metrics.csv").open(newline="", encoding="utf-8", errors="replace") as file:
            return list(filter(_is_whole, csv.DictReader(file)))
    except (OSError, csv.Error):
        return []


def _is_whole(row: dict[str | None, Any]) -> bool:
    """Whether a row has an epoch and, in each column, a number or nothing."""
    try:
        [float(value) for value in row.values() if value != ""]
    except (TypeError, ValueError):  # a missing cell is None, excess cells are a list
        return False
    return re.fullmatch("[0-9]{1,9}", row.get("epoch", "")) is not None
