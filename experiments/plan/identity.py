"""The id of a run: the hash of everything in its config that can change a number.

Changing this file changes the ids of all runs. A test guards it.
"""

import hashlib
import json
from typing import Any

Tree = Any  # dicts, lists and scalars, as JSON has them

FREE_TRAINER_KEYS = {
    "logger",
    "default_root_dir",
    "enable_progress_bar",
    "enable_model_summary",
    "enable_autolog_hparams",
    "log_every_n_steps",
    "num_sanity_val_steps",
    "profiler",
    "detect_anomaly",
    "model_registry",
}
FREE_CALLBACKS = (
    "ProgressBar",
    "ModelSummary",
    "LearningRateMonitor",
    "DeviceStatsMonitor",
    "ThroughputMonitor",
    "EnergyScores",
    "Following",
)
FREE_CALLBACK_KEYS = {
    "dirpath",
    "filename",
    "verbose",
    "save_last",
    "save_weights_only",
    "save_on_exception",
    "auto_insert_metric_name",
    "enable_version_counter",
    "log_rank_zero_only",
}
FREE_DATA_KEYS = {"folder", "mirror", "num_workers"}


def identity(config: dict[str, Tree]) -> dict[str, Tree]:
    """The part of a resolved config that can change a number.

    None and empty init_args are left out, so an argument that is None equals one that does not exist. A class
    can thus get a new option, its first too, without changing the ids of its finished runs.
    """
    kept = {key: value for key, value in config.items() if key != "run_dir"}
    trainer = {k: v for k, v in kept.get("trainer", {}).items() if k not in FREE_TRAINER_KEYS}
    callbacks = trainer.get("callbacks") or []
    trainer["callbacks"] = [_without(FREE_CALLBACK_KEYS, c) for c in callbacks if not _is_free(c)]
    kept["trainer"] = trainer
    if "data" in kept:
        kept["data"] = _without(FREE_DATA_KEYS, kept["data"])
    return without_empty(_without_none(kept))


def without_empty(tree: Tree) -> Tree:
    """A tree without init_args that are empty."""
    if isinstance(tree, dict):
        return {k: without_empty(v) for k, v in tree.items() if k != "init_args" or v != {}}
    return [without_empty(v) for v in tree] if isinstance(tree, list) else tree


def run_id(kept: dict[str, Tree]) -> str:
    """Sixteen hexadecimal digits of an identity."""
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(old: Tree, new: Tree, place: str = "") -> list[str]:
    """Where two identities differ, as `key: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [d for k in keys for d in difference(old.get(k), new.get(k), f"{place}.{k}" if place else k)]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [d for i, (a, b) in pairs for d in difference(a, b, f"{place}.{i}")]
    return [] if old == new else [f"{place}: {old!r} -> {new!r}"]


def _is_free(callback: Tree) -> bool:
    name, arguments = str(callback.get("class_path")), callback.get("init_args") or {}
    return name.endswith(FREE_CALLBACKS) or ("ModelCheckpoint" in name and not arguments.get("monitor"))


def _without(keys: set[str], tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {k: _without(keys, v) for k, v in tree.items() if k not in keys}
    return [_without(keys, v) for v in tree] if isinstance(tree, list) else tree


def _without_none(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {k: _without_none(v) for k, v in tree.items() if v is not None}
    return [_without_none(v) for v in tree] if isinstance(tree, list) else tree
