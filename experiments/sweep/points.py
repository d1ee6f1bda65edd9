"""The points of a sweep: a grid in W&B's order, or a random point of a seed and a number."""

import math
import random
from typing import Any

from experiments.sweep.file import Sweep
from experiments.sweep.parameters import Choice

Point = dict[str, Any]  # values by dotted name


def grid_size(sweep: Sweep) -> int | None:
    """The number of distinct points; None if a parameter is continuous or weighted."""
    grids = [parameter.grid() for parameter in sweep.parameters.values()]
    return math.prod(len(values or ()) for values in grids) if None not in grids else None


def grid_point(sweep: Sweep, number: int) -> Point:
    """One point of a grid; the last parameter by name changes fastest, as in W&B."""
    point: Point = {}
    for name, parameter in reversed(sweep.parameters.items()):
        values = parameter.grid() or []
        number, index = divmod(number, len(values))
        point[name] = values[index]
    return dict(reversed(point.items()))


def grid_points(sweep: Sweep) -> list[Point]:
    """All points of a grid, in order."""
    return [grid_point(sweep, number) for number in range(grid_size(sweep) or 0)]


def covering(sweep: Sweep) -> list[Point]:
    """A few points that have each value of each choice."""
    choices = {name: one.values for name, one in sweep.parameters.items() if isinstance(one, Choice)}
    number = max(map(len, choices.values()), default=1)
    return [
        random_point(sweep, 0, i) | {name: values[i % len(values)] for name, values in choices.items()}
        for i in range(number)
    ]


def random_point(sweep: Sweep, seed: int, number: int) -> Point:
    """A point that depends on seed and number alone."""
    return {
        name: parameter.draw(random.Random(f"{seed}/{number}/{name}"))
        for name, parameter in sweep.parameters.items()
    }
