"""Guesses: the answers an energy learns from.

They come from a task-net (its relaxed answer, perturbed or sampled) or from a search over the energy (its
minimum, cost-augmented, adversarial). Relaxed answers of a task-net are differentiable in its logits; samples
and results of a search are constants. A scheme that wants constants only asks under `torch.no_grad`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from energies.base import BatchEnergy, Energy
from energies.spaces import AnswerSpace
from inference.base import Prediction
from inference.gradient import Search, composed
from losses.amounts import above_zero, not_negative
from losses.objectives import Guesses, Objective, ValueAndGradient
from losses.observed import over_entries
from networks.inputs import Inputs
from networks.sizes import at_least


@dataclass(frozen=True)
class GuessContext:
    """What guesses may depend on: the energy, its objective, and a batch.

    `logits` (B, ...) are those of the task-net, None if the scheme has none.
    """

    energy: Energy | BatchEnergy
    objective: Objective
    space: AnswerSpace
    x: Inputs
    y: Tensor
    logits: Tensor | None = None

    def required_logits(self) -> Tensor:
        """The logits of the task-net.

        Raises:
            ValueError: the scheme has no task-net.
        """
        if self.logits is None:
            raise ValueError(
                "these guesses come from the logits of a task-net, and there are none: give the scheme a "
                "`guesser`, or the GuessContext `logits`."
            )
        return self.logits

    def search(self, inference: Search, target: Callable[[ValueAndGradient], ValueAndGradient]) -> Guesses:
        """One guess: the lowest point of a search. `target` maps the energy to what the search minimises.

        Raises:
            ValueError: the search gives no prediction, or answers of another shape than the truth.
        """
        value_and_gradient = target(self.energy.value_and_gradient(self.x))
        found = inference(value_and_gradient, self.space, self.y, self.logits)
        if not isinstance(found, Prediction):
            raise ValueError(
                f"the search {type(inference).__name__} gives a {type(found).__name__}: it has to return an "
                "inference.base.Prediction."
            )
        if found.y.shape != self.y.shape:
            raise ValueError(
                f"the search {type(inference).__name__} gives answers of shape {tuple(found.y.shape)}: they "
                f"have to be {tuple(self.y.shape)}, as `like` is."
            )
        return Guesses(found.y.unsqueeze(0).to(self.y.dtype))


class Guess(ABC):
    """Where an objective's guesses come from."""

    @abstractmethod
    def __call__(self, context: GuessContext) -> Guesses:
        """K guesses for each example of the batch."""


@dataclass(frozen=True)
class Point(Guess):
    """The task-net's relaxed answer.   [SEAL-dynamic, margin and regression]"""

    def __call__(self, context: GuessContext) -> Guesses:
        return Guesses(context.space.relax(context.required_logits()).unsqueeze(0))


@dataclass(frozen=True)
class Several(Guess):
    """A number of guesses for each example."""

    num_samples: int = 10

    def __post_init__(self) -> None:
        at_least(1, num_samples=self.num_samples)


@dataclass(frozen=True)
class Perturbed(Several):
    """The relaxed answer of the task-net, and more of them with Gaussian noise on the logits.

    [SEAL-dynamic, regression-s]

    One of `num_samples` is the answer without noise.
    """

    std: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(std=self.std)

    def __call__(self, context: GuessContext) -> Guesses:
        logits = context.required_logits()
        noise = torch.randn(self.num_samples - 1, *logits.shape, dtype=logits.dtype, device=logits.device)
        return Guesses(context.space.relax(torch.cat([logits + self.std * noise, logits.unsqueeze(0)])))


@dataclass(frozen=True)
class Sampled(Several):
    """Discrete samples of the task-net, with its logits, which give NCE log P_N.   [SEAL eq. 9]"""

    def __call__(self, context: GuessContext) -> Guesses:
        logits = context.required_logits()
        return Guesses(context.space.sample(logits, self.num_samples), logits)


@dataclass(frozen=True)
class StraightThrough(Several):
    """Discrete samples of the task-net, with the gradient of its relaxed answer.

    [Implicit §4; Bengio 2013]
    """

    def __call__(self, context: GuessContext) -> Guesses:
        logits = context.required_logits()
        relaxed = context.space.relax(logits)
        draws = context.space.sample(logits, self.num_samples).to(relaxed.dtype)
        return Guesses(draws + relaxed - relaxed.detach(), logits)


@dataclass(frozen=True)
class Concrete(Several):
    """Relaxed samples: logits with Gumbel or logistic noise, divided by a temperature.

    [Maddison et al. 2017; Jang et al. 2017]
    """

    temperature: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(temperature=self.temperature)

    def __call__(self, context: GuessContext) -> Guesses:
        logits = context.required_logits()
        noise = gumbel if context.space.simplex else logistic
        draws = logits + noise(logits, self.num_samples)
        return Guesses(context.space.relax(draws / self.temperature))


def gumbel(logits: Tensor, num_samples: int) -> Tensor:
    """Gumbel noise (K, B, ...): the argmax of logits plus noise is a sample of their softmax."""
    return -logits.new_empty(num_samples, *logits.shape).exponential_().log()


def logistic(logits: Tensor, num_samples: int) -> Tensor:
    """Logistic noise (K, B, ...): the sign of a logit plus noise is a sample of its sigmoid.

    At least float32: noise of 8 bits would not reach rare labels.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    uniform = torch.rand(num_samples, *logits.shape, dtype=dtype, device=logits.device)
    return torch.logit(uniform, eps=torch.finfo(dtype).eps)


@dataclass(frozen=True)
class Minimum(Guess):
    """The minimum of `Objective.inference_energy` that a search finds.   [DVN §3.3, inference samples]"""

    inference: Search

    def __call__(self, context: GuessContext) -> Guesses:
        return context.search(self.inference, context.objective.inference_value_and_gradient)


@dataclass(frozen=True)
class CostAugmented(Guess):
    """The most violating answer: the lowest E - cost.   [SPEN eq. 5]"""

    inference: Search

    def __call__(self, context: GuessContext) -> Guesses:
        def violation(energy: Tensor, guess: Tensor) -> Tensor:
            return energy - context.space.cost(guess, context.y)

        return context.search(self.inference, partial(composed, target=violation))


@dataclass(frozen=True)
class Adversarial(Guess):
    """The answer of the highest regression loss.   [DVN §3.3]

    As in the released code, the quality q is a constant in each step: the search follows the gradient
    (sigmoid(-E) - q) dE/dy.
    """

    inference: Search

    def __call__(self, context: GuessContext) -> Guesses:
        def minus_loss(of_energy: ValueAndGradient) -> ValueAndGradient:
            def of_loss(guess: Tensor) -> tuple[Tensor, Tensor]:
                energy, gradient = of_energy(guess)
                quality = context.space.quality(guess, context.y)
                value = -F.binary_cross_entropy_with_logits(-energy, quality, reduction="none")
                return value, over_entries(torch.sigmoid(-energy) - quality, guess) * gradient

            return of_loss

        return context.search(self.inference, minus_loss)


@dataclass(frozen=True)
class Truth(Guess):
    """The true answer, as a guess of quality 1."""

    def __call__(self, context: GuessContext) -> Guesses:
        return Guesses(context.y.unsqueeze(0))


@dataclass(frozen=True)
class Combined(Guess):
    """The guesses of several sources together.   [DVN: minimum, adversarial, truth]

    Or the relaxed answer, which is differentiable in the logits, with discrete samples.   [Implicit §4]
    """

    sources: list[Guess]

    def __call__(self, context: GuessContext) -> Guesses:
        return Guesses(torch.cat([source(context).y for source in self.sources]))
