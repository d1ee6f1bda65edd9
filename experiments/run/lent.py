"""Whether what a run loads of other runs was trained on the same data."""

from collections.abc import Iterator
from pathlib import Path

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities import rank_zero_warn

from experiments import store
from experiments.plan.identity import Tree


class SameData(Callback):
    """Warn of a part that comes from a run on other data: sizes may fit where names of labels do not."""

    def __init__(self, config: Tree) -> None:
        self.checkpoints = [*checkpoints(config)]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare checksums of files; runs on generated data have none."""
        here = getattr(getattr(trainer, "datamodule", None), "checksums", {})
        for checkpoint in self.checkpoints:
            there = (store.read_json(checkpoint.parent.parent / "record.json") or {}).get("data")
            if there is not None and here != there and not here.items() & there.items():
                files = ", ".join(there) or "generated data"
                rank_zero_warn(
                    f"{checkpoint} was trained on other data ({files}): what it takes for a label may be "
                    "another one here. Take the checkpoint of a run on this data."
                )


def checkpoints(config: Tree) -> Iterator[Path]:
    """All checkpoints that objects of a config load."""
    if isinstance(config, dict):
        for key, value in config.items():
            if key == "checkpoint" and isinstance(value, str) and value:
                yield Path(value)
            yield from checkpoints(value)
    elif isinstance(config, list):
        for value in config:
            yield from checkpoints(value)
