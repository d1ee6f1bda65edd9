"""Load a finished run to analyse it."""

import warnings
from pathlib import Path
from typing import TypeVar

from torch import nn

from datamodules.base import DeviceData
from datamodules.errors import DataError
from experiments import store
from experiments.errors import UserError
from experiments.run.cli import TrainCLI, quiet_lightning
from lightning_modules.base import Scheme
from networks.pretrained import read_checkpoint

NEEDED = ("config.yaml", "record.json", "checkpoints/best.ckpt")
Term = TypeVar("Term", bound=nn.Module)


def finished(folder: Path) -> tuple[Scheme, DeviceData]:
    """The scheme of a finished run with its best weights, and its data; see `built`."""
    scheme, data = built(folder)
    read(data, folder)
    return scheme, data


def read(data: DeviceData, folder: Path) -> None:
    """Read the data of a finished run.

    Raises:
        UserError: a file is another than the run read, or the run's record is damaged.
    """
    data.prepare_data()
    try:
        data.setup()
    except DataError as error:  # a changed file that no longer fits: options that it names are not those here
        if changed := _changed(data, folder):
            raise UserError(changed) from error
        raise
    if changed := _changed(data, folder):
        raise UserError(changed)


def _changed(data: DeviceData, folder: Path) -> str:
    """What to do about a file that is another than the run read; empty if there is none."""
    trained = store.record_in(folder)["data"] or {}
    changed = [name for name, old in trained.items() if data.checksums.get(name, old) != old]
    return (
        f"{changed[0]} has changed since this run was trained. Put the old file back, or train anew."
        if changed
        else ""
    )


def built(folder: Path) -> tuple[Scheme, DeviceData]:
    """The scheme of a finished run with its best weights, and its data, not read yet.

    Raises:
        UserError: the folder lacks files of a finished run; its checkpoint cannot be read, or is of another
            scheme.
    """
    if folder.is_file():
        raise UserError(f"{folder} is a file. Give the folder of a finished run, such as runs/<id>.")
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} is no finished run: it has no {' and no '.join(missing)}. Give the folder of one, "
            f"such as runs/<id>. A stopped run resumes with the options it was started with and  "
            f"--run_dir {folder}"
        )
    quiet_lightning()
    quiet = {"accelerator": "cpu", "strategy": "auto", "devices": "1", "num_nodes": "1", "logger": "false"}
    here = [word for key, value in quiet.items() for word in (f"--trainer.{key}", value)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*`args`.*")  # a script has arguments of its own
        given = ["--config", str(folder / NEEDED[0]), "--run_dir", str(folder), *here]
        try:
            cli = TrainCLI(given, base=None)
        except ValueError as error:
            raise UserError(str(error)) from error
    scheme, data = cli.model, cli.datamodule
    assert isinstance(scheme, Scheme) and isinstance(data, DeviceData)
    _load(scheme, folder / NEEDED[2])
    return scheme.eval(), data


def _load(scheme: Scheme, file: Path) -> None:
    """The weights of a checkpoint, and what else the scheme keeps in it.

    Raises:
        UserError: it cannot be read, or its weights do not fit the scheme.
    """
    try:
        checkpoint = read_checkpoint(file)
        scheme.load_state_dict(checkpoint["state_dict"])
        scheme.on_load_checkpoint(checkpoint)  # the phase that predicts
    except Exception as error:  # foreign content can raise anything
        raise UserError(
            f"{file} is damaged, or not of the run that {NEEDED[0]} beside it describes. Train the run again."
        ) from error


def term(scheme: Scheme, kind: type[Term], need: str) -> Term:
    """The one module of this class in the scheme."""
    found = [module for module in scheme.modules() if isinstance(module, kind)]
    if len(found) != 1:
        raise UserError(
            f"this {type(scheme).__name__} run has {len(found) or 'no'} {kind.__name__} in it; one is "
            f"needed. Give the folder of a run with {need}."
        )
    return found[0]


def of(scheme: Scheme, data: DeviceData) -> str:
    """The scheme and its data set."""
    return f"{type(scheme).__name__} on {getattr(data, 'dataset', None) or type(data).__name__}"
