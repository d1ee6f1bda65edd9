"""A run from the command line: the same files as a run of a table, in a folder that the user chooses.

With `--trainer.devices 2` or more, Lightning (or SLURM, or torchrun) starts the same command once for each
process; the first one locks the folder and writes.
"""

import math
import os
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import yaml
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from experiments import store
from experiments.errors import Stopped, UserError
from experiments.plan.identity import difference, identity, run_id
from experiments.plan.layers import split
from experiments.run.cli import TrainCLI, quiet_lightning
from experiments.run.epochs import Tell
from experiments.run.fit import fit_and_test, movable, tracked_run, write_config
from experiments.run.workers import threads
from experiments.tracking import agent


def train(arguments: list[str] | None, tell: Tell) -> tuple[store.Record, Path]:
    """Build, fit and test one run; its record and its folder."""
    quiet_lightning()
    os.environ.setdefault("OMP_NUM_THREADS", str(threads()))  # or Lightning chooses, with several processes
    torch.set_num_threads(threads())
    try:
        cli = TrainCLI(agent.own_form(_resumed(sys.argv[1:] if arguments is None else arguments)))
    except (ValueError, MisconfigurationException) as error:
        raise UserError(str(error)) from error
    folder, first = Path(cli.config.run_dir), cli.trainer.is_global_zero
    try:
        if first:
            _refuse_foreign(folder)
        with store.hold(folder) if first else nullcontext(True) as mine:
            if not mine:
                raise UserError(
                    f"{folder} is in use by another process. Wait for it, or choose another --run_dir."
                )
            if first:
                _refuse_another(cli, folder)
                store.clear(folder)
            record = _run(cli, tell)
    except OSError as error:
        raise UserError(store.explain(error, folder)) from error
    if torch.distributed.is_initialized():  # its threads have to end before the interpreter
        torch.distributed.destroy_process_group()
    return record, folder


def _resumed(arguments: list[str]) -> list[str]:
    """With no config file, but the folder of a run: its own config first."""
    files, options = split(arguments)
    words = [word for option in options for word in option.split("=", 1)]
    own = Path(words[words.index("--run_dir") + 1], "config.yaml") if "--run_dir" in words[:-1] else None
    return arguments if files or own is None or not own.is_file() else ["--config", str(own), *arguments]


def _run(cli: TrainCLI, tell: Tell) -> store.Record:
    """Train; turn errors into messages. If one process fails, the others lose their connection to it."""
    rank = cli.trainer.global_rank
    try:
        return _train(cli, tell)
    except OSError:
        raise
    except Exception as error:
        file = cli.log.folder / (f"error-{rank}.txt" if rank else "error.txt")
        store.write(file, traceback.format_exc())
        known = isinstance(error, ValueError | MisconfigurationException)
        kind = "" if known else f"{type(error).__name__}: "
        where = f"process {rank}: " if rank else ""
        raise UserError(f"{where}{kind}{error}\n(traceback: {file})") from error
    except (KeyboardInterrupt, SystemExit) as stop:
        raise Stopped(cli.log.folder) from stop


def _train(cli: TrainCLI, tell: Tell) -> store.Record:
    folder, first = cli.log.folder, cli.trainer.is_global_zero
    if first:
        (folder / "error.txt").unlink(missing_ok=True)
        write_config(cli, folder)
    kept = identity(cli.resolved())
    cli.log.settings = _lasting(identity(movable(cli)))
    facts = {"id": run_id(kept), "seed": cli.config.seed_everything}
    with tracked_run(cli, facts) as track:
        record = fit_and_test(cli, facts, tell) | {"config": kept}
        track(record)
    if first:
        store.write_json(folder / "record.json", record)
        store.write_json(folder / "progress.json", facts | {"state": "done"})
    return record


def _lasting(kept: dict[str, Any]) -> dict[str, Any]:
    """The settings that a run keeps to its end: all but its last epoch."""
    trainer = {key: value for key, value in kept["trainer"].items() if key != "max_epochs"}
    return kept | {"trainer": trainer}


def _refuse_foreign(folder: Path) -> None:
    """Raise an error if the folder has files and is no run's: a run would overwrite what has the same name.

    Raises:
        UserError: the folder is not empty, and no run has ever been in it.
    """
    known = ("lock", "progress.json", "job.lock", "job.txt")
    if folder.is_dir() and not any((folder / name).exists() for name in known) and any(folder.iterdir()):
        raise UserError(
            f"{folder} has files and is no run's folder. Choose another --run_dir, or an empty one."
        )


def _refuse_another(cli: TrainCLI, folder: Path) -> None:
    """Raise an error if the folder holds a run with other settings: a folder is for one run.

    The last epoch may change, unless the run has trained for longer.

    Raises:
        UserError: the folder's run has other settings.
    """
    record = store.read_json(folder / "record.json") or {}
    if not record and not any(
        (folder / "checkpoints" / f"{name}.ckpt").exists() for name in ("last", "best")
    ):
        return
    try:
        old = identity(yaml.safe_load((folder / "config.yaml").read_text()))
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return
    changes = difference(old, identity(movable(cli)))
    trained = record.get("epochs") or (store.read_json(folder / "progress.json") or {}).get("epoch", 0)
    if "table" not in record and _epochs(cli.config.trainer.max_epochs) >= trained:
        changes = [change for change in changes if not change.startswith("trainer.max_epochs:")]
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise UserError(
            f"{folder} holds a run with other settings: {'; '.join(changes[:3])}{more}. Choose another "
            f"--run_dir, or resume with this run's own:  --config {folder}/config.yaml --run_dir {folder}"
        )


def _epochs(most: int | None) -> float:
    return math.inf if most in (None, -1) else float(most)
