"""The distributions of a W&B sweep file, each as a map from a quantile to a value."""

import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parameter:
    """What one parameter may be."""

    def grid(self) -> list[Any] | None:
        """The values of a grid, in order; None if there is no end of them."""
        raise NotImplementedError

    def draw(self, source: random.Random) -> object:
        """A value at random."""
        raise NotImplementedError
