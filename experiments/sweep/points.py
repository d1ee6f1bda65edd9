"""The points of a sweep: a grid in W&B's order, or a random point for a seed and a number."""

from typing import Any

from experiments.sweep.file import Sweep

Point = dict[str, Any]  # values by dotted name


def grid_points(sweep: Sweep) -> list[Point]:
    """All points of a grid, the last parameter changing fastest."""
    raise NotImplementedError


def random_point(sweep: Sweep, seed: int, number: int) -> Point:
    """A point that depends on seed and number alone."""
    raise NotImplementedError
