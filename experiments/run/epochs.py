"""What a run writes each epoch: last.ckpt to go on from, progress.json to watch, metrics.csv to plot."""

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
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.utilities import rank_zero_only

from experiments import starts, store
from experiments.errors import ConfigError, suggest

TELL_EVERY = 0.5  # seconds; epochs may take milliseconds
SAVING = 0.04  # share of the time that may go into last.ckpt

Progress = dict[str, Any]
Tell = Callable[[Progress], None]


class EpochLog(Checkpoint):
    """Keeps the files of a run up to date, so that it can be watched, and killed at any moment.

    It is a Lightning `Checkpoint` to be called last: after the scheme has logged its epoch, EarlyStopping has
    judged it and ModelCheckpoint has kept it. ModelCheckpoint's own `save_last` writes only when the best
    changes, so last.ckpt is written here: with each new best, at the end, and else after every epoch, unless
    epochs are so short that this would cost more than a few percent.

    Of several processes the first one writes, and says to the others where and when.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = {}  # what progress.json says of the run besides
        self.tell: Tell | None = None
        self.started = False
        self.here: starts.Start = {}  # code and processor of this process
        self.starts: list[starts.Start] = []
        self.rows: list[dict[str, Any]] = []
        self.header: list[str] = []
        self.spent = self.told = self.saved = self.cost = 0.0
        self.best: float | None = None
        self.began = time.monotonic()

    @property
    def last(self) -> Path:
        """The checkpoint to go on from."""
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def before(self) -> Path:
        """The one before that, for where it is damaged."""
        return self.last.with_name("before.ckpt")

    @property
    def seconds(self) -> float:
        """Time spent on the epochs that are kept, over all sittings."""
        return self.spent + time.monotonic() - self.began

    def state_dict(self) -> dict[str, Any]:
        """Time spent so far, and by which starts."""
        return {"seconds": self.seconds, "starts": self.starts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.spent = state_dict["seconds"]
        self.starts = state_dict.get("starts", [starts.NOT_TOLD])

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep in the checkpoint whether training has ended with this epoch."""
        checkpoint["training_ended"] = why_ended(trainer)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The folder of the first process is the folder of all."""
        self.folder = Path(trainer.strategy.broadcast(str(self.folder)))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the rows of epochs that will be run again."""
        self.began = time.monotonic()
        self.starts_at(trainer.current_epoch)
        self.rows = [r for r in read_rows(self.folder) if int(r["epoch"]) < trainer.current_epoch]
        self.best = best_so_far(trainer)[1]
        self._tell(trainer)

    def starts_at(self, epoch: int) -> None:
        """This process works on the run from here on."""
        self.starts = [*self.starts, {"epoch": epoch} | self.here]
        self.started = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the losses of the epoch before: Lightning would tell those of parts that move no more."""
        for name in [name for name in trainer.callback_metrics if name.startswith("train/")]:
            del trainer.callback_metrics[name]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse callbacks that wait for a score which validation does not log, before they die of it."""
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
        """Add a row, save what to go on from, tell how far we are."""
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
        if time.monotonic() - self.told < TELL_EVERY:
            return
        self.told = time.monotonic()
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
    """Writes checkpoints beside where they belong, so that they are never there by half.

    Lightning's own go through the system's folder for temporary files, and are left there by a kill.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None
    ) -> None:
        """Write a new version, then let it take the file's place; no copy of it is made in memory."""
        with store.replacing(Path(path)) as part, part.open("wb") as file:
            torch.save(checkpoint, file)


def best_so_far(trainer: Trainer) -> tuple[str, float | None]:
    """What validation is judged by, and the best of it."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor:
            best = callback.best_model_score
            return callback.monitor, None if best is None else float(best)
    return "", None


def why_ended(trainer: Trainer) -> str:
    """Why training stops after this epoch, or nothing while it goes on."""
    stopper = trainer.early_stopping_callback
    if isinstance(stopper, EarlyStopping) and trainer.should_stop:
        return f"{stopper.monitor} did not improve for {stopper.patience} epochs"
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch + 1:
        return f"max_epochs {trainer.max_epochs} reached"
    return "asked to stop" if trainer.should_stop else ""


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.csv; one that was cut off or damaged is left out."""
    try:
        with (folder / "metrics.csv").open(newline="", encoding="utf-8", errors="replace") as file:
            return list(filter(_is_whole, csv.DictReader(file)))
    except (OSError, csv.Error):
        return []


def _is_whole(row: dict[str | None, Any]) -> bool:
    """Whether a row has an epoch and, in each column, a number or nothing."""
    try:
        [float(value) for value in row.values() if value != ""]
    except (TypeError, ValueError):  # a cell too few is None, those too many are a list
        return False
    return re.fullmatch("[0-9]{1,9}", row.get("epoch", "")) is not None
