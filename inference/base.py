"""What a search for an answer is, and what it returns."""

import enum
from abc import ABCMeta, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from energies.base import Slope
from energies.spaces import AnswerSpace


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


@dataclass(frozen=True)  # without fields: so a config may give those of GradientInference without its class
class Inference(metaclass=ABCMeta):
    """A search among relaxed answers, by the slope of what is to be low."""

    @abstractmethod
    def __call__(
        self, slope: Slope, space: AnswerSpace, x: Tensor, logits: Tensor | None = None
    ) -> Prediction:
        """The answer to each example at which the target is lowest, as far as the search can tell.

        `slope` gives value and gradient of the target; `logits` are those of a feed-forward net, if any.
        """
