"""One run of a table, in a process of its own: log.txt, config.yaml, training, and record.json last.

This module is imported by the fork server before torch is, so it imports nothing heavy at its top.
"""

import os
import shutil
import signal
import sys
import threading
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from experiments import store
from experiments.errors import CannotResume, Pruned, SweepError

if TYPE_CHECKING:
    from pytorch_lightning import Callback

HELD = "another process works on it"


class Watch(Protocol):
    """Makes a callback that follows a run in its own process. It is no part of the run's identity."""

    def callback(self) -> "Callback": ...


@dataclass(frozen=True)
class Job:
    """What a worker gets about a run."""

    id: str
    config: dict[str, Any]
    identity: dict[str, Any]
    facts: dict[str, Any]  # table, row, column, seed
    threads: int
    fresh: bool = False
    runs: Path = store.RUNS
    watch: Watch | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `done` with a record, `failed`, `pruned` with a score, or `held` elsewhere."""

    state: str
    reason: str = ""
    record: store.Record | None = None
    score: float | None = None
    all_alike: bool = False  # a fault of the sweep: no other trial can do better


def execute(job: Job, answer: Connection) -> None:
    """Entry of the worker process."""
    for sign in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(sign, signal.SIG_IGN)  # the launcher handles Ctrl-C and SLURM's notice
    signal.signal(signal.SIGTERM, _die)
    threading.Thread(target=_die_with_launcher, daemon=True).start()
    store.RUNS = job.runs
    folder = store.run_dir(job.id)
    try:
        with store.hold(folder) as mine:
            answer.send(run(job, folder) if mine else Outcome("held", HELD))
    except store.StoreError as error:
        answer.send(Outcome("failed", str(error)))
    except OSError as error:
        answer.send(Outcome("failed", store.explain(error, folder)))
    finally:
        answer.close()
    _flush()
    os._exit(0)  # skips the interpreter's slow shutdown


def run(job: Job, folder: Path) -> Outcome:
    """Train and record; any error makes a failed run with a reason."""
    try:
        found = store.read_record(job.id)
        if found and not job.fresh and store.is_whole(store.checkpoint(job.id)):
            return Outcome("done", record=found)  # another process finished it
        prepare(job, folder)
        with (folder / "log.txt").open("a", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        record = _train_from_what_is_left(job, folder)
        store.write_json(folder / "record.json", record)
        store.write_json(folder / "progress.json", job.facts | {"id": job.id, "state": "done"})
        for name in store.RESUMABLE:  # a finished run is not resumed
            _remove(folder / "checkpoints" / name)
        return Outcome("done", record=record)
    except Pruned as pruned:
        state = {"id": job.id, "state": "pruned", "epoch": pruned.epochs, "best": pruned.score}
        store.write_json(folder / "progress.json", job.facts | state)
        return Outcome("pruned", f"after {pruned.epochs} epochs", score=pruned.score)
    except (Exception, SystemExit) as error:
        return _fail(job, folder, error)


def prepare(job: Job, folder: Path) -> None:
    """Remove from the folder all that a killed run cannot resume from."""
    store.clear(folder)
    failed = store.read_json(folder / "progress.json") or {}
    broken = failed.get("state") == "failed" and not failed.get("resumable")
    if job.fresh or broken or not store.checkpoint(job.id).exists():
        for name in ("checkpoints", "metrics.csv", "log.txt", "wandb"):
            _remove(folder / name)
    for name in ("record.json", "error.txt", "progress.json"):
        _remove(folder / name)


def _train_from_what_is_left(job: Job, folder: Path) -> store.Record:
    """Train; a checkpoint that is not of this run is removed, and the others are tried."""
    try:
        return _train(job, folder)
    except CannotResume as error:
        warnings.warn(str(error), stacklevel=1)
        error.path.unlink()
        return _train_from_what_is_left(job, folder)


def _train(job: Job, folder: Path) -> store.Record:
    import torch

    from experiments.run.cli import TrainCLI, quiet_lightning
    from experiments.run.fit import fit_and_test, tracked_run, write_config

    sys.argv = sys.argv[:1]
    torch.set_num_threads(job.threads)
    quiet_lightning()
    facts = {"id": job.id} | job.facts
    cli = TrainCLI(job.config, run_dir=str(folder), base=None)
    write_config(cli, folder)
    if job.watch:
        cli.trainer.callbacks.append(job.watch.callback())  # type: ignore[attr-defined]  # after EpochLog
    with tracked_run(cli, facts) as track:
        record = fit_and_test(cli, facts) | {"config": job.identity}
        track(record)
    return record


def _fail(job: Job, folder: Path, error: BaseException) -> Outcome:
    reason = one_line(error, folder)
    resumable = isinstance(error, OSError | MemoryError | store.StoreError)
    try:
        store.write(folder / "error.txt", f"{reason}\n\n{traceback.format_exc()}")
        state = job.facts | {"id": job.id, "state": "failed", "reason": reason, "resumable": resumable}
        store.write_json(folder / "progress.json", state)
    except store.StoreError:
        pass  # a full disk: the launcher still gets the reason
    return Outcome("failed", reason, all_alike=isinstance(error, SweepError))


def one_line(error: BaseException, folder: Path) -> str:
    """The reason in one sentence."""
    if isinstance(error, OSError) and error.errno in store.FULL:
        return store.explain(error, folder)
    text = " ".join(str(error).split())
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{text}"[:400] or type(error).__name__


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _die(number: int, frame: FrameType | None) -> None:
    """Exit at once; Lightning would raise an exception later, and the run would count as failed."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _die_with_launcher() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
