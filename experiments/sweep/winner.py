"""The best trial of a sweep, as a command line and as a layer of config."""

import shlex
from collections.abc import Iterable
from typing import Any

import yaml

from experiments.plan.layers import BASE, nested, value_of
from experiments.sweep.file import Sweep
from experiments.sweep.points import Point
from experiments.sweep.study import DONE, Trial
from experiments.sweep.trials import SEED, layers_of


def best_of(sweep: Sweep, trials: Iterable[Trial]) -> Trial | None:
    """The finished trial with the best score on validation, the earlier of equals."""
    best: Trial | None = None
    for trial in trials:
        if trial.state == DONE and trial.score is not None:
            if best is None or best.score is None or sweep.better(trial.score, best.score):
                best = trial
    return best


def command_of(sweep: Sweep, point: Point) -> str:
    """The command that trains a point by hand."""
    layers = layers_of(sweep, point)
    settings = [f"--{key}={value}" for key, value in layers.settings]
    words = [part for file in layers.files for part in ("--config", file)]
    return shlex.join(["python", "-m", "scripts.train", *words, *settings])


def layer_of(sweep: Sweep, point: Point) -> dict[str, Any]:
    """What a point and the fixed options set, as a layer over the sweep's."""
    fixed = {key: value_of(value) for key, value in sweep.options.items()}
    values = {key: value for key, value in (fixed | point).items() if key != SEED}
    return nested((str(BASE), *sweep.layers), values)


def written(layer: dict[str, Any]) -> str:
    """A layer as YAML, one line for each of its keys."""
    lines = (
        yaml.safe_dump({key: value}, default_flow_style=None, sort_keys=False, width=10**6)
        if not isinstance(value, dict)
        else f"{key}: {flow(value)}\n"
        for key, value in layer.items()
    )
    return "".join(lines)


def flow(value: object) -> str:
    """A value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("...\n").strip()  # the end of a document that is one word
