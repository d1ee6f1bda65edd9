"""Guesses: the answers an energy learns from.

A task-net gives them (its point, perturbed, sampled) or a search over the energy does (its minimum, cost-
augmented, adversarial). A scheme that wants constants asks for them without gradients; to one that asks with
gradients, the relaxed answers of a task-net carry them back to it, samples and searches do not.
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
from inference.gradient import Search, toward
from losses.objectives import Guesses, Objective, Slope
from losses.observed import over_entries
from networks.inputs import Inputs
from networks.sizes import at_least


@dataclass(frozen=True)
class GuessContext:
    """All that a guess may look at: what learns, how, and a batch.

    `logits` (B, ...) are those of the task-net, None where the scheme has none.
    """

    energy: Energy | BatchEnergy
    objective: Objective
    space: AnswerSpace
    x: Inputs
    y: Tensor
    logits: Tensor | None = None

    def known_logits(self) -> Tensor:
        """The logits, or a message about who should have given them."""
        if self.logits is None:
            raise ValueError(
                "these guesses come from a task-net, but the scheme has none: give it a `guesser`."
            )
        return self.logits

    def search(self, inference: Search, target: Callable[[Slope], Slope]) -> Guesses:
        """The one guess a search finds lowest; `target` makes the slope it follows of the energy's."""
        slope = target(self.energy.slope(self.x))
        return Guesses(inference(slope, self.space, self.y, self.logits).y.unsqueeze(0))


class Guess(ABC):
    """Where an objective's guesses come from."""

    @abstractmethod
    def __call__(self, case: GuessContext) -> Guesses:
        """K guesses for each example of the case's batch."""


@dataclass(frozen=True)
class Point(Guess):
    """The task-net's relaxed answer.   [SEAL-dynamic, margin and regression]"""

    def __call__(self, case: GuessContext) -> Guesses:
        return Guesses(case.space.relax(case.known_logits()).unsqueeze(0))


@dataclass(frozen=True)
class Several(Guess):
    """A number of guesses for each example."""

    num_samples: int = 10

    def __post_init__(self) -> None:
        at_least(1, num_samples=self.num_samples)


@dataclass(frozen=True)
class Perturbed(Several):
    """The task-net's relaxed answer, and others with Gaussian noise on its logits.

    [SEAL-dynamic, regression-s]

    Of `num_samples`, one is the clean answer.
    """

    std: float = 1.0

    def __call__(self, case: GuessContext) -> Guesses:
        logits = case.known_logits()
        noise = torch.randn(self.num_samples - 1, *logits.shape, dtype=logits.dtype, device=logits.device)
        return Guesses(case.space.relax(torch.cat([logits + self.std * noise, logits.unsqueeze(0)])))


@dataclass(frozen=True)
class Sampled(Several):
    """Discrete draws from the task-net, and its logits, from which NCE takes log P_N.   [SEAL eq. 9]"""

    def __call__(self, case: GuessContext) -> Guesses:
        logits = case.known_logits()
        return Guesses(case.space.sample(logits, self.num_samples), logits)


@dataclass(frozen=True)
class StraightThrough(Several):
    """Draws from the task-net whose gradient is that of its relaxed answer.   [Implicit §4; Bengio 2013]"""

    def __call__(self, case: GuessContext) -> Guesses:
        logits = case.known_logits()
        relaxed = case.space.relax(logits)
        draws = case.space.sample(logits, self.num_samples).to(relaxed.dtype)
        return Guesses(draws + relaxed - relaxed.detach(), logits)


@dataclass(frozen=True)
class Concrete(Several):
    """Relaxed draws: the task-net's logits with noise, sharpened.

    [Maddison et al. 2017; Jang et al. 2017]
    """

    temperature: float = 0.5

    def __call__(self, case: GuessContext) -> Guesses:
        logits = case.known_logits()
        noise = gumbel if case.space.simplex else logistic
        draws = logits + noise(logits, self.num_samples)
        return Guesses(case.space.relax(draws / self.temperature))


def gumbel(logits: Tensor, num_samples: int) -> Tensor:
    """Noise (K, B, ...) under which the largest logit is a draw of their softmax."""
    return -logits.new_empty(num_samples, *logits.shape).exponential_().log()


def logistic(logits: Tensor, num_samples: int) -> Tensor:
    """Noise (K, B, ...) under which the sign of a logit is a draw of its sigmoid."""
    uniform = torch.rand(num_samples, *logits.shape, dtype=logits.dtype, device=logits.device)
    return torch.logit(uniform, eps=torch.finfo(logits.dtype).eps)


@dataclass(frozen=True)
class Rounded(Guess):
    """The discrete answer nearest to the task-net's."""

    def __call__(self, case: GuessContext) -> Guesses:
        return Guesses(case.space.decode(case.space.relax(case.known_logits())).unsqueeze(0))


@dataclass(frozen=True)
class Minimum(Guess):
    """What a search finds lowest, as the objective reads the energy.   [DVN §3.3, inference samples]"""

    inference: Search

    def __call__(self, case: GuessContext) -> Guesses:
        return case.search(self.inference, case.objective.reading_slope)


@dataclass(frozen=True)
class CostAugmented(Guess):
    """The answer that violates the margin most: the lowest E - cost.   [SPEN eq. 5]"""

    inference: Search

    def __call__(self, case: GuessContext) -> Guesses:
        def violation(energy: Tensor, guess: Tensor) -> Tensor:
            return energy - case.space.cost(guess, case.y)

        return case.search(self.inference, partial(toward, target=violation))


@dataclass(frozen=True)
class Adversarial(Guess):
    """The answer whose quality the energy mistakes most: the highest regression loss.   [DVN §3.3]

    The quality q is a constant in each step, as released: what is lowered has slope (sigmoid(-E) - q) dE/dy.
    """

    inference: Search

    def __call__(self, case: GuessContext) -> Guesses:
        def rightness(slope: Slope) -> Slope:
            def value_and_gradient(guess: Tensor) -> tuple[Tensor, Tensor]:
                energy, gradient = slope(guess)
                quality = case.space.quality(guess, case.y)
                value = -F.binary_cross_entropy_with_logits(-energy, quality, reduction="none")
                return value, over_entries(torch.sigmoid(-energy) - quality, guess) * gradient

            return value_and_gradient

        return case.search(self.inference, rightness)


@dataclass(frozen=True)
class Truth(Guess):
    """The true answer, as a guess of quality 1."""

    def __call__(self, case: GuessContext) -> Guesses:
        return Guesses(case.y.unsqueeze(0))


@dataclass(frozen=True)
class Combined(Guess):
    """The guesses of several sources side by side.   [DVN: minimum, adversarial, truth]

    Or the relaxed answer, the way back to the task-net, and hard samples beside it.   [Implicit §4]
    """

    sources: list[Guess]

    def __call__(self, case: GuessContext) -> Guesses:
        return Guesses(torch.cat([source(case).y for source in self.sources]))
