"""A run from the command line: the same files as a run of a table, in a folder of the user's choice."""

import traceback
from pathlib import Path

import torch

from experiments import identity, store
from experiments.cli import TrainCLI, hush
from experiments.epochs import Tell
from experiments.errors import UserError
from experiments.fit import fit_and_test, write_config
from experiments.workers import threads


class Stopped(Exception):
    """Ctrl-C; says which folder to go on in."""


def train(arguments: list[str] | None, tell: Tell) -> tuple[store.Record, Path]:
    """Build, fit and test one run; its record and its folder."""
    hush()
    torch.set_num_threads(threads())
    try:
        cli = TrainCLI(arguments)
    except ValueError as error:
        raise UserError(str(error)) from error
    folder = Path(cli.config.run_dir)
    try:
        with store.hold(folder) as mine:
            if not mine:
                raise UserError(
                    f"{folder} is in use by another process. Wait for it, or choose another --run_dir."
                )
            return _run(cli, folder, tell), folder
    except OSError as error:
        raise UserError(store.explain(error, folder)) from error


def _run(cli: TrainCLI, folder: Path, tell: Tell) -> store.Record:
    """Train; what stops it, in words."""
    try:
        return _train(cli, folder, tell)
    except ValueError as error:
        store.write(folder / "error.txt", traceback.format_exc())
        raise UserError(f"{error}\n(traceback: {folder}/error.txt)") from error
    except (KeyboardInterrupt, SystemExit) as stop:
        raise Stopped(folder) from stop


def _train(cli: TrainCLI, folder: Path, tell: Tell) -> store.Record:
    (folder / "error.txt").unlink(missing_ok=True)
    write_config(cli, folder)
    kept = identity.identity(cli.resolved())
    facts = {"id": identity.run_id(kept), "seed": cli.config.seed_everything}
    record = fit_and_test(cli, folder, facts, tell) | {"config": kept}
    store.write_json(folder / "record.json", record)
    store.write_json(folder / "progress.json", facts | {"state": "done"})
    return record
