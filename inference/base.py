"""The interfaces of inference: searches over answers, and criteria for structured potentials."""

import enum
from abc import ABC, ABCMeta, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar, get_args, get_origin

import torch
from jaxtyping import Float
from torch import Tensor

from energies.base import ValueAndGradient
from energies.potentials import Potentials
from energies.scaling import under_each
from energies.spaces import AnswerSpace

P = TypeVar("P", bound=Potentials)
NUMBERS = 2**24  # that the potentials of one call may have


class Status(enum.Enum):
    """How a search ended; the value is the sentence a person reads."""

    CONVERGED = "reached the tolerance"
    OUT_OF_STEPS = "ran all its steps without reaching the tolerance"


@dataclass(frozen=True)
class Prediction:
    """An answer y (B, ...), the value (B,) of what was minimised, and how the search ended."""

    y: Tensor
    energy: Tensor
    status: Status
    steps: int


@dataclass(frozen=True)  # no fields: a config may give those of GradientInference without naming it
class Inference(metaclass=ABCMeta):
    """A search over relaxed answers, with gradients of the target that it minimises."""

    @abstractmethod
    def __call__(
        self,
        value_and_gradient: ValueAndGradient,
        space: AnswerSpace,
        like: Tensor,
        logits: Tensor | None = None,
    ) -> Prediction:
        """For each example the answer of the lowest target value found.

        `value_and_gradient` is that of the target; `logits` are those of a feed-forward net, if there is one.
        Answers have the shape and the type of `like`, whose values are not used.
        """


class Criterion(ABC, Generic[P]):
    """A training loss for one kind of potentials, with the decoding that goes with it.   [Scaling §4]"""

    @abstractmethod
    def loss(self, p: P, y: Tensor) -> Tensor:
        """The loss (B,) of each example; y is its true answer."""

    def losses(self, p: P, y: Tensor, alphas: Float[Tensor, " K"]) -> Float[Tensor, "K B"]:
        """The loss of each example with U times each alpha, as many alphas in one call as memory allows."""
        parts = alphas.split(max(1, NUMBERS // p.numbers))
        return torch.cat([self._under_each(p, y, some) for some in parts])

    def _under_each(self, p: P, y: Tensor, alphas: Float[Tensor, " K"]) -> Float[Tensor, "K B"]:
        answers = y.repeat(len(alphas), *[1] * (y.dim() - 1))
        return self.loss(under_each(p, alphas), answers).unflatten(0, (len(alphas), -1))

    @abstractmethod
    def predict(self, p: P) -> Tensor:
        """The answer to each example, discrete or relaxed, 0 at masked positions."""

    def declared_for(self) -> set[type]:
        """The kinds of potentials that its class names, as in Criterion[ChainPotentials]."""
        bases = (base for cls in type(self).__mro__ for base in vars(cls).get("__orig_bases__", ()))
        own = (get_args(base) for base in bases if issubclass(get_origin(base) or object, Criterion))
        return {kind for kinds in own for kind in kinds if isinstance(kind, type)}


@dataclass(frozen=True)
class CriterionPair(Criterion[P]):
    """The loss of one criterion with the prediction of another."""

    loss_of: Criterion
    prediction_of: Criterion

    def loss(self, p: P, y: Tensor) -> Tensor:
        return self.loss_of.loss(p, y)

    def losses(self, p: P, y: Tensor, alphas: Float[Tensor, " K"]) -> Float[Tensor, "K B"]:
        return self.loss_of.losses(p, y, alphas)

    def predict(self, p: P) -> Tensor:
        return self.prediction_of.predict(p)

    def declared_for(self) -> set[type]:
        return self.loss_of.declared_for() | self.prediction_of.declared_for()
