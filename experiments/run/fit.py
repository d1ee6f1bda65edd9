"""Fit, test the best checkpoint, return the record: one run in this process, by hand or from a table."""

import statistics
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_warn

from experiments import record, starts, store
from experiments.errors import CannotResume, UserError
from experiments.fields import is_number
from experiments.plan.identity import Tree
from experiments.run import memory
from experiments.run.cli import TrainCLI
from experiments.run.epochs import Tell, best_so_far, read_rows
from experiments.tracking.logger import End, tracked


class RunError(UserError):
    """A run that ended without numbers."""


def fit_and_test(cli: TrainCLI, facts: dict[str, Any], tell: Tell | None = None) -> store.Record:
    """Train, from the last checkpoint if there is one; then test the best one.

    Several processes all call this; each returns the record.
    """
    memory.keep_freed()
    torch.set_flush_denormal(True)  # denormal numbers in Adam's state make a step 4 times as slow
    here = record.source() | record.device(str(cli.trainer.strategy.root_device))
    cli.log.facts, cli.log.tell = facts, tell
    cli.log.here = starts.last(here)
    kept = _fit(cli)
    if not cli.log.started:  # nothing was left to train
        cli.log.load_state_dict(_of_log(kept))
        cli.log.starts_at(kept.get("epoch", -1) + 1)
    folder = cli.log.folder
    best = folder / "checkpoints" / "best.ckpt"
    if not best.exists():
        raise RunError(f"no checkpoint in {best.parent}: training ended before its first validation.")
    chosen = _load(best)
    began = time.monotonic()
    with _restoring(best, "checkpoint_connector"):
        scores = cli.trainer.test(
            cli.model, datamodule=cli.datamodule, ckpt_path=str(best), weights_only=True, verbose=False
        )
    inference = time.monotonic() - began
    if cli.trainer.is_global_zero:
        cli.log.before.unlink(missing_ok=True)  # a finished run keeps one
    steps = getattr(cli.model, "steps", None)
    rows, sizes = read_rows(folder), getattr(cli.model, "sizes", None)
    monitor = best_so_far(cli.trainer)[0]
    return facts | {
        "metrics": _metrics(rows, chosen["epoch"], scores),
        "epochs": kept.get("epoch", -1) + 1,
        "best_epoch": chosen["epoch"],
        "stopped": kept.get("training_ended", ""),
        "seconds": round(_of_log(kept)["seconds"], 2),
        "inference_seconds": round(inference, 3),
        **record.peak_memory(),
        "updates": dict(kept.get("scheme_steps") or (steps if isinstance(steps, dict) else {})),
        **(sizes() if callable(sizes) else {}),
        "train_examples_per_second": _median(_first_phase(rows), "train/examples_per_second"),
        "curves": _curve(rows, monitor, kept.get("epoch", -1) + 1) | kept.get("scheme_curves", {}),
        **({"findings": findings} if (findings := getattr(cli.model, "findings", None)) else {}),
        "data": dict(getattr(cli.datamodule, "checksums", {})),
        "versions": record.versions(),
        **here,
        "threads": torch.get_num_threads(),
        "starts": cli.log.starts,
        "finished": record.now(),
    }


def write_config(cli: TrainCLI, folder: Path) -> None:
    """Write the resolved config, usable as --config with another --run_dir."""
    store.write(folder / "config.yaml", yaml.safe_dump(movable(cli), sort_keys=False))


def tracked_run(cli: TrainCLI, facts: dict[str, Any]) -> AbstractContextManager[End]:
    """Log a run to W&B within a `with` block, if that is its logger; call what it gives with the record."""
    rows = read_rows(cli.log.folder) if cli.log.last.exists() else []
    return tracked(cli.trainer, facts, lambda: (movable(cli), rows))


def movable(cli: TrainCLI) -> dict[str, Any]:
    """The resolved config, without the path of its folder."""
    config = {key: value for key, value in cli.resolved().items() if key != "run_dir"}
    return _movable(config, str(cli.config.run_dir).rstrip("/"))


def _movable(tree: Tree, folder: str) -> Tree:
    if isinstance(tree, dict):
        return {key: _movable(value, folder) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_movable(value, folder) for value in tree]
    inside = isinstance(tree, str) and f"{tree}/".startswith(f"{folder}/")
    return "${run_dir}" + tree.removeprefix(folder) if inside else tree


def _fit(cli: TrainCLI) -> dict[str, Any]:
    """Train the remaining epochs, from the latest intact checkpoint; return the last checkpoint."""
    start = _start(cli)
    kept = _load(start) if start else {}
    with _restoring(start):
        ended = kept.get("training_ended", "")
        more = not ended or ended.startswith("max_epochs")  # max_epochs may be larger now
        if more and start and _follow(kept, cli.trainer) and cli.trainer.is_global_zero:
            cli.trainer.strategy.checkpoint_io.save_checkpoint(kept, start)
    if not more:
        return kept
    del kept  # Lightning loads it again; one copy in memory is enough
    try:
        with _restoring(start, "checkpoint_connector"):
            path = str(start) if start else None
            cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=path, weights_only=True)
    except UserError:
        raise
    except ValueError as error:
        raise RunError(cli.explain(error)) from error
    return _load(cli.log.last) if cli.log.last.exists() else {}


def _start(cli: TrainCLI) -> Path | None:
    """The checkpoint to resume from; damaged ones are removed. None if the best one is missing."""
    if not _is_whole(cli.log.folder / "checkpoints" / "best.ckpt"):
        return None
    return next(filter(_is_whole, (cli.log.last, cli.log.before)), None)


def _is_whole(path: Path) -> bool:
    whole = store.is_whole(path)
    if path.exists() and not whole:
        rank_zero_warn(f"{path} is damaged. Training resumes from what is left.")
        path.unlink()
    return whole


@contextmanager
def _restoring(path: Path | None, module: str = "") -> Iterator[None]:
    """Turn errors of restoring a checkpoint into one that names it; `module` is Lightning's that restores."""
    try:
        yield
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        frames = traceback.walk_tb(error.__traceback__)
        names = {str(frame.f_globals.get("__name__")) for frame, _ in frames}
        if path is None or not any(name.endswith(module) for name in names):
            raise
        raise CannotResume(path, error) from error


def _follow(kept: dict[str, Any], trainer: Trainer) -> bool:
    """Whether the run's folder was moved; then paths in its checkpoint are updated.

    In another folder a ModelCheckpoint would drop its best score, and look for files in the old one.
    """
    moved = False
    for callback in trainer.checkpoint_callbacks:
        state = kept.get("callbacks", {}).get(callback.state_key, {})
        old, new = state.get("dirpath"), getattr(callback, "dirpath", None)
        if old and new and old != new:
            moved = True
            for name in ("dirpath", "best_model_path", "kth_best_model_path", "last_model_path"):
                state[name] = state[name].replace(old, str(new), 1)
            scores = state["best_k_models"].items()
            state["best_k_models"] = {path.replace(old, str(new), 1): score for path, score in scores}
    return moved


def _load(path: Path) -> dict[str, Any]:
    """A checkpoint, memory-mapped: tensors are read only when they are used."""
    with _restoring(path):
        content = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
        return dict(content) | {"epoch": int(content["epoch"])}


def _metrics(
    rows: list[dict[str, Any]], best: int, scores: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The validation scores of the chosen epoch that are numbers, and the test scores, which have to be."""
    row = next((r for r in rows if int(r["epoch"]) == best), {})
    logged = {name: float(value) for name, value in row.items() if name.startswith("val/") and value != ""}
    found = {name: value for name, value in logged.items() if is_number(value)}
    for name, value in ((k, float(v)) for score in scores for k, v in score.items()):
        if not is_number(value):
            raise RunError(f"{name} is {value}: the run diverged, or the metric is undefined on this data.")
        found[name] = value
    return found


def _column(rows: list[dict[str, Any]], name: str) -> list[float]:
    """A number of each epoch that has it, to six digits."""
    return [float(f"{float(row[name]):.6g}") for row in rows if row.get(name)]


def _curve(rows: list[dict[str, Any]], monitor: str, epochs: int) -> dict[str, list[float]]:
    """The monitored score of each epoch; none if metrics.csv has lost some, or places would be no epochs."""
    if [int(row["epoch"]) for row in rows] == [*range(epochs)]:
        return {monitor: _column(rows, monitor)}
    rank_zero_warn(f"metrics.csv lacks some of the {epochs} epochs: the record has no curve of {monitor}.")
    return {}


def _first_phase(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The epochs of a run's first phase: later phases train other parts, at other speeds."""
    return [row for row in rows if not float(row.get("train/phase") or 0)]


def _median(rows: list[dict[str, Any]], name: str) -> float | None:
    values = _column(rows, name)
    return statistics.median(values) if values else None


def _of_log(kept: dict[str, Any]) -> dict[str, Any]:
    """The state of EpochLog in the last checkpoint."""
    states = [s for key, s in kept.get("callbacks", {}).items() if key.startswith("EpochLog")]
    return states[0] if states else {"seconds": 0.0}
