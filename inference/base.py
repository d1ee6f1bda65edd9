"""What a search for an answer returns."""

import enum
from dataclasses import dataclass

from torch import Tensor


class Status(enum.Enum):
    """How a search ended; the value is the sentence a person reads."""

    EXACT = "exact"
    CONVERGED = "reached the tolerance"
    OUT_OF_STEPS = "ran all its steps without reaching the tolerance"


@dataclass(frozen=True)
class Prediction:
    """An answer y (B, ...), the value (B,) of what was minimised, and how the search ended."""

    y: Tensor
    energy: Tensor
    status: Status
    steps: int
