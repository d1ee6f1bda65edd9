"""A W&B sweep file, read and checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.sweep.parameters import Parameter


@dataclass(frozen=True)
class Early:
    """W&B's hyperband: bands at min_iter * eta^k, or at max_iter / eta^k for k = 1..s."""

    min_iter: int | None = None
    max_iter: int | None = None
    s: int | None = None
    eta: float = 3.0
    strict: bool = False


@dataclass(frozen=True)
class Sweep:
    """A sweep: how points are chosen, by which metric they are compared, and what is trained."""

    name: str  # the file's stem; names the study's folder and the records
    path: Path
    title: str
    method: str  # grid, random, bayes
    metric: str
    goal: str  # maximize or minimize
    parameters: dict[str, Parameter]  # by dotted name, in W&B's order
    layers: tuple[str, ...]  # config files, the lowest first; loggers are left out
    options: dict[str, Any]  # fixed `--key=value` of the command
    raw: dict[str, Any]  # for wandb.sweep
    early: Early | None = None
    run_cap: int | None = None
    target: float | None = None  # a score that ends the sweep

    def better(self, one: float, other: float) -> bool:
        """Whether a score is better than another."""
        return one > other if self.goal == "maximize" else one < other


def read_sweep(name: str) -> Sweep:
    """Read conf/sweeps/<name>.yaml, or the file of that path.

    Raises:
        SweepError: no such file, or a mistake in it; the message names line and key.
    """
    raise NotImplementedError
