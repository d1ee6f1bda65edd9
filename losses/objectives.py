"""Objectives: how an energy learns from guesses. The first of the three dials.

An objective receives the energy, the space of answers, a batch (x, y) and guesses, and returns one number to
minimise. Where guesses come from is the second dial, in `inference/`.

Each class says what to feed the function above it, which has the formula for one example. Energies are low
for good answers; K guesses an example, B examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from losses.observed import of_observed, over_entries, shared_out

Inputs = Any  # of a batch, handed on to the energy as they are
EnergyFn = Callable[[Inputs, Tensor], Tensor]
Rows = Float[Tensor, " B"]
GuessRows = Float[Tensor, "K B"]
Slope = Callable[[Tensor], tuple[Tensor, Tensor]]  # answers (..., B, *answer) to values (..., B), gradients


class Answers(Protocol):
    """What objectives need of a space of answers."""

    def cost(self, guess: Tensor, y: Tensor) -> Tensor: ...
    def quality(self, guess: Tensor, y: Tensor) -> Tensor: ...
    def log_prob(self, logits: Tensor, y: Tensor) -> Tensor: ...
    def relax(self, logits: Tensor) -> Tensor: ...
    def supervise(self, logits: Tensor, y: Tensor) -> Tensor: ...
    def put_first(self, y: Tensor, guesses: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Guesses:
    """K answers to each example, y (K, B, ...), and the logits (B, ...) of what drew them, if any."""

    y: Tensor
    logits: Tensor | None = None


class Objective(ABC):
    """How an energy learns from guesses, and how those who minimise it afterwards read it.

    `summed`: its loss is the sum over the batch, not the mean.
    """

    summed: ClassVar[bool] = False

    def __call__(
        self,
        energy: EnergyFn,
        space: Answers,
        x: Inputs,
        y: Tensor,
        guesses: Guesses,
        observed: Tensor | None = None,
    ) -> Tensor:
        """The loss of the energy on a batch, a scalar: that of the examples whose answers are known."""
        return self.reduce(self.rows(energy, space, x, y, guesses), observed)

    @abstractmethod
    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        """The loss of each example, (B,), or of each guess to it, (K, B)."""

    def reduce(self, rows: Tensor, observed: Tensor | None) -> Tensor:
        """The sum or the mean of the losses of examples whose answers are known."""
        return of_observed(rows, observed).sum() if self.summed else shared_out(rows, observed).mean()

    def reading(self, energy: Tensor) -> Tensor:
        """What a task-net or a search minimises: the energy itself unless the objective bounds it."""
        return energy

    def reading_slope(self, slope: Slope) -> Slope:
        """Value and gradient of `reading` in an answer, from those of the energy, by the chain rule."""
        return slope


def margin(true_energy: Rows, guess_energy: GuessRows, cost: GuessRows) -> GuessRows:
    """Structured hinge: [cost - E(guess) + E(true)]_+.   [SEAL eq. 6]"""
    return (cost - guess_energy + true_energy).clamp_min(0)


@dataclass(frozen=True)
class Margin(Objective):
    """The truth lies below each guess by the guess's cost.   [SEAL eq. 6]"""

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        rows = energy(x, space.put_first(y, guesses.y))
        return margin(rows[0], rows[1:], space.cost(guesses.y, y))


def regression(guess_energy: GuessRows, quality: GuessRows) -> GuessRows:
    """Teach sigmoid(-E) the quality of each guess, by cross-entropy.

    -q log sigmoid(-E) - (1 - q) log(1 - sigmoid(-E))   [SEAL eq. 7 with its second term mended; DVN eq. 3]
    """
    return F.binary_cross_entropy_with_logits(-guess_energy, quality, reduction="none")


@dataclass(frozen=True)
class Regression(Objective):
    """sigmoid(-E) tells the quality of each guess.   [SEAL eq. 7; DVN]

    The sum is the released reduction; it matters only where gradients are clipped.
    """

    summed = True

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        return regression(energy(x, guesses.y), space.quality(guesses.y, y))

    def reading(self, energy: Tensor) -> Tensor:
        """Minus the value the network predicts, -sigmoid(-E), in (-1, 0).   [SEAL code]"""
        return -torch.sigmoid(-energy)

    def reading_slope(self, slope: Slope) -> Slope:
        """With s = sigmoid(-E), d(-s)/dy = s (1 - s) dE/dy."""

        def bounded(y: Tensor) -> tuple[Tensor, Tensor]:
            energy, gradient = slope(y)
            value = torch.sigmoid(-energy)
            return -value, over_entries((1 - value) * value, y) * gradient

        return bounded


def contrastive(true_energy: Rows, guess_energy: GuessRows, cost: GuessRows) -> Rows:
    """Log sum_k exp(cost_k - E(guess_k) + E(true)), the truth among the guesses at cost 0.

    [Implicit L_CD, with the minus that its print lacks]

    So it is never below 0, and softplus(cost - E(guess) + E(true)), a smooth hinge, for a single guess.
    """
    ahead = cost - guess_energy + true_energy
    return torch.cat([torch.zeros_like(ahead[:1]), ahead]).logsumexp(0)


@dataclass(frozen=True)
class Contrastive(Objective):
    """The truth lies below all guesses together, by their costs, in a smooth way.   [Implicit L_CD]"""

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        rows = energy(x, space.put_first(y, guesses.y))
        return contrastive(rows[0], rows[1:], space.cost(guesses.y, y))


def ranking(true_score: Rows, noise_score: GuessRows) -> Rows:
    """Pick the truth from among K noise answers: -log softmax of its score.

    Scores are -E, less log P_N for noise-contrastive estimation. The truth is in the denominator too, so
    equal scores cost log(K + 1).   [SEAL eq. 8 with its sum begun at k = 0, eq. 9]
    """
    denominator = noise_score.logsumexp(0).logaddexp(true_score)
    return denominator - true_score


@dataclass(frozen=True)
class NCERanking(Objective):
    """The truth ranks above samples of a known noise distribution, whose log-probability is taken off.

    a_k = -E(x, y_k) - log P_N(y_k)   [SEAL eqs. 8, 9]
    """

    summed = True

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        assert guesses.logits is not None, "NCE needs guesses drawn from known logits"
        answers = space.put_first(y, guesses.y)
        score = -energy(x, answers) - space.log_prob(guesses.logits, answers)
        return ranking(score[0], score[1:])


@dataclass(frozen=True)
class Ranking(Objective):
    """The truth ranks above the guesses, however likely they were: NCE without log P_N.

    [SEAL §4.4, ablation]
    """

    summed = True

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        score = -energy(x, space.put_first(y, guesses.y))
        return ranking(score[0], score[1:])
