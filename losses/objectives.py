"""Objectives: how an energy learns from guesses. The first of the three dials.

An objective receives the energy, the space of answers, a batch (x, y) and guesses, and returns one number to
minimise. Where guesses come from is the second dial, in `inference/`.

The function above each class is the formula for one example; the class computes its arguments. Energies are
low for good answers; K guesses an example, B examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from losses.observed import over_entries, over_observed, zero_unobserved

Inputs = Any  # of a batch; passed to the energy unchanged
EnergyFn = Callable[[Inputs, Tensor], Tensor]
Rows = Float[Tensor, " B"]
GuessRows = Float[Tensor, "K B"]
# Answers (..., B, *answer) to values (..., B), and to gradients of the shape of the answers
ValueAndGradient = Callable[[Tensor], tuple[Tensor, Tensor]]


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
    """K answers to each example, y (K, B, ...), and the logits (B, ...) they were sampled from, if any."""

    y: Tensor
    logits: Tensor | None = None


class Objective(ABC):
    """How an energy learns from guesses, and what inference then minimises."""

    @property
    def summed(self) -> bool:
        """Whether the loss is the sum over the batch, not the mean."""
        return False

    def __call__(
        self,
        energy: EnergyFn,
        space: Answers,
        x: Inputs,
        y: Tensor,
        guesses: Guesses,
        observed: Tensor | None = None,
    ) -> Tensor:
        """The loss of the energy on a batch, a scalar; unobserved answers do not count.

        Raises:
            ValueError: `rows` gives no tensor, or one of another shape than `reduce` takes.
        """
        rows = self.rows(energy, space, x, y, guesses)
        if not isinstance(rows, Tensor):
            raise ValueError(
                f"{type(self).__name__}.rows gives a {type(rows).__name__}: it has to return a tensor, the "
                "loss of each example."
            )
        each = guesses.y.shape[:2]
        if rows.shape not in (each, each[1:]) and type(self).reduce is Objective.reduce:
            raise ValueError(
                f"{type(self).__name__}.rows gives shape {tuple(rows.shape)}: it has to be "
                f"{tuple(each[1:])}, a loss for each example, or {tuple(each)}, one for each guess."
            )
        return self.reduce(rows, observed)

    @abstractmethod
    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        """The loss of each example, (B,), or of each of its guesses, (K, B)."""

    def reduce(self, rows: Tensor, observed: Tensor | None) -> Tensor:
        """The sum or the mean of the losses of the examples whose answers are observed."""
        return zero_unobserved(rows, observed).sum() if self.summed else over_observed(rows, observed).mean()

    def inference_energy(self, energy: Tensor) -> Tensor:
        """What a task-net or a search minimises: the energy, unless the objective bounds it."""
        return energy

    def inference_value_and_gradient(self, value_and_gradient: ValueAndGradient) -> ValueAndGradient:
        """Value and gradient of `inference_energy` in an answer, by the chain rule."""
        return value_and_gradient


def margin(true_energy: Rows, guess_energy: GuessRows, cost: GuessRows) -> GuessRows:
    """Structured hinge: [cost - E(guess) + E(true)]_+.   [SEAL eq. 6]"""
    return (cost - guess_energy + true_energy).clamp_min(0)


@dataclass(frozen=True)
class Margin(Objective):
    """The energy of the truth is lower than that of each guess by the cost of the guess.   [SEAL eq. 6]"""

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        rows = energy(x, space.put_first(y, guesses.y))
        return margin(rows[0], rows[1:], space.cost(guesses.y, y))


def regression(guess_energy: GuessRows, quality: GuessRows) -> GuessRows:
    """Cross-entropy of sigmoid(-E) to the quality q of each guess.

    -q log sigmoid(-E) - (1 - q) log(1 - sigmoid(-E))   [SEAL eq. 7 with its second term corrected; DVN eq. 3]
    """
    return F.binary_cross_entropy_with_logits(-guess_energy, quality, reduction="none")


@dataclass(frozen=True)
class Regression(Objective):
    """sigmoid(-E) predicts the quality of each guess.   [SEAL eq. 7; DVN]

    The released code sums over the batch; that matters only where gradients are clipped. A quality depends on
    the guess: in implicit training, where guesses carry gradients, its gradient is part of the total one.

    Raises:
        ValueError: the true answers have another shape than each of the guesses.
    """

    @property
    def summed(self) -> bool:
        return True

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        if y.shape != guesses.y.shape[1:]:  # a quality would be that of answers broadcast
            raise ValueError(
                f"true answers of shape {tuple(y.shape)} do not fit guesses of shape "
                f"{tuple(guesses.y.shape)}: give {tuple(guesses.y.shape[1:])}."
            )
        return regression(energy(x, guesses.y), space.quality(guesses.y, y))

    def inference_energy(self, energy: Tensor) -> Tensor:
        """Minus the predicted quality, -sigmoid(-E), in (-1, 0).   [SEAL code]"""
        return -torch.sigmoid(-energy)

    def inference_value_and_gradient(self, value_and_gradient: ValueAndGradient) -> ValueAndGradient:
        """With s = sigmoid(-E), d(-s)/dy = s (1 - s) dE/dy."""

        def bounded(y: Tensor) -> tuple[Tensor, Tensor]:
            energy, gradient = value_and_gradient(y)
            value = torch.sigmoid(-energy)
            return -value, over_entries((1 - value) * value, y) * gradient

        return bounded


def contrastive(true_energy: Rows, guess_energy: GuessRows, cost: GuessRows) -> Rows:
    """Log sum_k exp(cost_k - E(guess_k) + E(true)), the truth among the guesses at cost 0.

    [Implicit L_CD, with the minus sign that is missing in the paper]

    It is never below 0. For a single guess it is a smooth hinge, softplus(cost - E(guess) + E(true)).
    """
    ahead = cost - guess_energy + true_energy
    return torch.cat([torch.zeros_like(ahead[:1]), ahead]).logsumexp(0)


@dataclass(frozen=True)
class Contrastive(Objective):
    """The smooth margin: the truth against all guesses together, each with its cost.   [Implicit L_CD]"""

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        rows = energy(x, space.put_first(y, guesses.y))
        return contrastive(rows[0], rows[1:], space.cost(guesses.y, y))


def ranking(true_score: Rows, noise_score: GuessRows) -> Rows:
    """Classify the truth among K noise answers: -log softmax of its score.

    Scores are -E, for noise-contrastive estimation -E - log P_N. The truth is in the denominator too: at
    equal scores the loss is log(K + 1).   [SEAL eq. 8 with the sum from k = 0, eq. 9]
    """
    denominator = noise_score.logsumexp(0).logaddexp(true_score)
    return denominator - true_score


@dataclass(frozen=True)
class Ranked(Objective):
    """The truth is ranked among guesses. The loss sums over the batch; with `reduction: mean` it is the mean.

    The released code sums for label sets and texts. On horses, where gradients are clipped, NCE has the mean.
    """

    reduction: Literal["mean", "sum"] | None = None  # None is the sum; it keeps the ids of older runs

    @property
    def summed(self) -> bool:
        return self.reduction != "mean"


@dataclass(frozen=True)
class NCERanking(Ranked):
    """Noise-contrastive ranking: the truth against samples of a known noise distribution P_N.

    a_k = -E(x, y_k) - log P_N(y_k)   [SEAL eqs. 8, 9]

    Raises:
        ValueError: in the first step, if the guesses were not drawn from logits.
    """

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        if guesses.logits is None:
            raise ValueError(
                "NCERanking needs samples of a known distribution, with its logits: take the guess "
                "inference.guesses.Sampled (--model.guess)."
            )
        answers = space.put_first(y, guesses.y)
        score = -energy(x, answers) - space.log_prob(guesses.logits.detach(), answers)
        return ranking(score[0], score[1:])


@dataclass(frozen=True)
class Ranking(Ranked):
    """The truth against the guesses, without log P_N.   [SEAL code]"""

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        score = -energy(x, space.put_first(y, guesses.y))
        return ranking(score[0], score[1:])
