"""The distributions of a W&B sweep file, each a map from a quantile to a value.

W&B's names are of three kinds: a choice, a whole number, and a number. A number is uniform or normal, as it
is or as an exponent of e, and may be rounded to multiples of q.
"""

import json
import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from experiments.plan.yaml_file import Tree

UNIFORM, NORMAL = ("min", "max"), ("mu", "sigma")
SHAPES: dict[str, tuple[str, ...]] = {  # the keys of each distribution
    "constant": ("value",),
    "categorical": ("values", "probabilities"),
    "categorical_w_probabilities": ("values", "probabilities"),
    "int_uniform": UNIFORM,
    "uniform": UNIFORM,
    "q_uniform": (*UNIFORM, "q"),
    "log_uniform": UNIFORM,
    "log_uniform_values": UNIFORM,
    "q_log_uniform": (*UNIFORM, "q"),
    "q_log_uniform_values": (*UNIFORM, "q"),
    "inv_log_uniform": UNIFORM,
    "inv_log_uniform_values": UNIFORM,
    "normal": NORMAL,
    "q_normal": (*NORMAL, "q"),
    "log_normal": NORMAL,
    "q_log_normal": (*NORMAL, "q"),
}
LARGEST_EXPONENT = 700  # of e, as a float


class Parameter(ABC):
    """What one parameter may be."""

    @abstractmethod
    def at(self, quantile: float) -> Any:  # noqa: ANN401
        """The value at a quantile in [0, 1)."""

    @abstractmethod
    def grid(self) -> list[Any] | None:
        """The values of a grid, in order; None if W&B makes no grid of them."""

    def draw(self, source: random.Random) -> Any:  # noqa: ANN401
        """A value at random."""
        return self.at(source.random())


@dataclass(frozen=True)
class Choice(Parameter):
    """One of these values; a constant is a choice of one."""

    values: tuple[Any, ...]
    probabilities: tuple[float, ...] | None = None

    def at(self, quantile: float) -> Any:  # noqa: ANN401
        """The value whose share of [0, 1) has the quantile."""
        return self.values[self._index(quantile)]

    def grid(self) -> list[Any] | None:
        """The values, each once."""
        distinct = {json.dumps(value, sort_keys=True): value for value in self.values}
        return None if self.probabilities else [*distinct.values()]

    def _index(self, quantile: float) -> int:
        last = len(self.values) - 1
        total = 0.0
        for index, share in enumerate(self.probabilities or ()):
            total += share
            if quantile < total:
                return index
        return last if self.probabilities else min(int(quantile * len(self.values)), last)


@dataclass(frozen=True)
class Whole(Parameter):
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int

    def at(self, quantile: float) -> int:
        """All are equally likely."""
        return min(self.low + int(quantile * (self.high - self.low + 1)), self.high)

    def grid(self) -> list[int]:
        """All of them."""
        return list(range(self.low, self.high + 1))


@dataclass(frozen=True)
class Number(Parameter):
    """A number: x uniform in [first, second] or normal with mean first and deviation second; e^x if `log`.

    With `q` the number is rounded to a multiple of it, which may lie outside of the interval, as in W&B.
    """

    first: float
    second: float
    normal: bool = False
    log: bool = False
    q: float | None = None

    def at(self, quantile: float) -> float:
        """The inverse of the distribution function, rounded."""
        if self.normal:
            x = NormalDist(self.first, self.second).inv_cdf(min(max(quantile, 1e-12), 1 - 1e-12))
        else:
            x = self.first + quantile * (self.second - self.first)
        value = math.exp(x) if self.log else x
        return value if self.q is None else round(value / self.q) * self.q

    def quantile(self, value: float) -> float:
        """The quantile of a value."""
        if self.log and value <= 0:  # rounded down
            return 0.0
        x = math.log(value) if self.log else value
        if self.normal:
            return NormalDist(self.first, self.second).cdf(x)
        return min(max((x - self.first) / (self.second - self.first), 0.0), 1.0)

    def grid(self) -> list[float] | None:
        """The steps of q from the first on, without the second, as in W&B."""
        if self.q is None or self.log or self.normal:
            return None
        import numpy as np

        return np.arange(self.first, self.second, self.q).tolist()


def shape(tree: Tree) -> str:
    """The distribution that a parameter names, or has by its keys; empty if there is none."""
    if "distribution" in tree:
        return tree["distribution"]
    if "min" in tree or "max" in tree:
        whole = all(isinstance(tree.get(key, 0), int) for key in UNIFORM)
        return "int_uniform" if whole else "uniform"
    return "constant" if "value" in tree else "categorical" if "values" in tree else ""


def build(distribution: str, tree: Tree) -> Parameter:
    """The parameter of checked keys."""
    if distribution == "constant":
        return Choice((tree["value"],))
    if "categorical" in distribution:
        shares = tree.get("probabilities")
        return Choice(tuple(tree["values"]), tuple(shares) if shares else None)
    if distribution == "int_uniform":
        return Whole(tree["min"], tree["max"])
    log, q = "log" in distribution, tree.get("q", 1.0) if distribution.startswith("q_") else None
    if "normal" in distribution:
        return Number(tree.get("mu", 0.0), tree.get("sigma", 1.0), normal=True, log=log, q=q)
    low, high = tree["min"], tree["max"]
    if distribution.endswith("_values"):
        low, high = math.log(low), math.log(high)  # log(1/x) uniform is log(x) uniform
    elif distribution.startswith("inv_"):
        low, high = -high, -low
    return Number(low, high, log=log, q=q)
