"""Build a run: data, scheme and trainer from config files and options."""

import hashlib
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning import Trainer
from pytorch_lightning.cli import LightningArgumentParser

from experiments.errors import ConfigError
from experiments.plan.advice import not_installed, of_the_project, ours, refused
from experiments.plan.layers import BASE, file_and_row, split
from experiments.plan.parser import Args, ConfigCLI
from experiments.run import slurm
from experiments.run.epochs import EpochLog, InPlace
from experiments.run.lent import SameData
from experiments.run.settings import check
from experiments.tracking import agent

BY_HAND = Path("runs/by_hand")


class TrainCLI(ConfigCLI):
    """LightningCLI as this project uses it: `model`, `data` and `trainer` are built, nothing runs yet."""

    def __init__(self, args: Args = None, *, run_dir: str | None = None, base: Path | None = BASE) -> None:
        given = args if isinstance(args, list) else sys.argv[1:]
        super().__init__(args, run_dir=run_dir or by_hand_folder(given), base=base)

    def parse_arguments(self, parser: LightningArgumentParser, args: Args) -> None:
        """Parse, and check what the trainer is told."""
        super().parse_arguments(parser, args)
        check(self.config)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the callback that writes the run's files, and set its folder."""
        folder = self.config["run_dir"]
        if not folder.strip():
            raise ConfigError("--run_dir is empty. Name the folder of the run's files, or leave it out.")
        if self.config["trainer"]["default_root_dir"] not in (None, folder):
            raise ConfigError("Leave --trainer.default_root_dir out: all files of a run go to its --run_dir.")
        trainer = super().instantiate_trainer(**kwargs | {"default_root_dir": folder})
        trainer.strategy.checkpoint_io = InPlace()
        self.log = EpochLog(Path(folder))
        trainer.callbacks += [SameData(self.resolved()), self.log]  # type: ignore[attr-defined]  # Lightning's
        return trainer

    def instantiate_classes(self) -> None:
        """Build the objects; if one raises an error, report that error and not the errors it caused.

        The data comes first, because models take their sizes from it.

        Raises:
            ConfigError: an object could not be built.
        """
        try:
            self.parser.instantiate_classes(Namespace(data=self.config.data))
            super().instantiate_classes()
        except (ValueError, ModuleNotFoundError) as error:
            first = of_the_project(error)
            absent = isinstance(first, ModuleNotFoundError)
            raise ConfigError(not_installed(str(first)) if absent else self.explain(first)) from error

    def explain(self, error: BaseException) -> str:
        """The error of an object, and the option it is about."""
        return refused(error, self.resolved())


def by_hand_folder(arguments: list[str]) -> str:
    """runs/by_hand/<names of the scheme's and the objective's file>-<time>-<hash of the command>.

    It ends in the id of W&B's run if an agent of a sweep starts it, and in a batch job of SLURM in the job's
    id instead of the time, so a requeued job finds its run.
    """
    files = [Path(file_and_row(name)[0]) for name in split(arguments)[0]]
    dials = [f.stem for f in files if f.parent.name in ("scheme", "objective")]
    name = "-".join(dials or [f.stem for f in files[-1:]]) or "run"
    job, command = slurm.batch_job(), hashlib.sha256(repr(arguments).encode()).hexdigest()[:8]
    end = f"{job or time.strftime('%Y%m%d-%H%M%S')}-{command}"
    return str(BY_HAND / f"{name}-{agent.trial() or end}")


def quiet_lightning() -> None:
    """Suppress Lightning's banners, advice that does not apply, and lines of code in our own warnings."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    known = ("not have many workers", "smaller than the logging interval", "srun", "sync_dist", "pytree")
    for words in (*known, "LeafSpec", "exists and is not empty"):
        warnings.filterwarnings("ignore", f".*{words}.*")
    warnings.formatwarning = sentence


def sentence(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of the project without the line of code that gave it; any other as Python has it."""
    if ours(filename):
        return f"{message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"
