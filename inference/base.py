"""What a search for an answer is, and what it returns; what structured potentials are trained by."""

import enum
from abc import ABC, ABCMeta, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from energies.base import Slope
from energies.potentials import Potentials
from energies.spaces import AnswerSpace

P = TypeVar("P", bound=Potentials)


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
        self, slope: Slope, space: AnswerSpace, like: Tensor, logits: Tensor | None = None
    ) -> Prediction:
        """The answer to each example at which the target is lowest, as far as the search can tell.

        `slope` gives value and gradient of the target; `logits` are those of a feed-forward net, if any.
        Answers have the shape and the type of `like`, whose values are not read.
        """


class Criterion(ABC, Generic[P]):
    """What potentials of one kind are trained by, and how they are decoded then.   [Scaling §4]"""

    @abstractmethod
    def loss(self, p: P, y: Tensor) -> Tensor:
        """The loss (B,) of each example; y is its true answer."""

    @abstractmethod
    def predict(self, p: P) -> Tensor:
        """The answer to each example, discrete or relaxed, 0 where a position is not real."""
