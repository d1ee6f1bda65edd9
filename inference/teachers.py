"""Teachers: what stands for the truth where the answer of an example is not observed.

Shapes: B examples, K samples, T positions, S tags. Nothing here passes gradients.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from energies.base import Energy, ValueAndGradient
from energies.spaces import AnswerSpace
from losses.objectives import Answers
from losses.observed import over_entries
from networks.inputs import Inputs
from networks.sizes import at_least

SLACK = 1e-3  # a change has to lower the energy by more: rounding lowers nothing


@dataclass(frozen=True)
class Lesson:
    """What an example is to learn: answers y (B, ...), whose are known (B,), and what guesses cost.

    `observed` is None where all are known; the answer is the truth where that was observed.
    """

    y: Tensor
    observed: Bool[Tensor, " B"] | None
    answers: Answers


class Teacher(nn.Module):
    """Answers to the examples whose truth is not observed."""

    @torch.no_grad()
    def forward(
        self,
        space: AnswerSpace,
        x: Inputs,
        y: Tensor,
        logits: Tensor,
        observed: Bool[Tensor, " B"] | None,
        mask: Tensor | None = None,
    ) -> Lesson:
        """The truth y where it is observed, elsewhere the teacher's answer; `logits` are the task-net's."""
        if observed is None:
            return Lesson(y, None, space)
        answer, known = self.answer(space, x, logits, mask)
        taught = torch.where(over_entries(observed, y), y, answer.to(y.dtype))
        return Lesson(taught, observed | known, self.costs(space, x, observed, mask))

    @abstractmethod
    def answer(
        self, space: AnswerSpace, x: Inputs, logits: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Bool[Tensor, " B"]]:
        """A discrete answer to each example, and whether it is good enough to learn from."""

    def costs(
        self, space: AnswerSpace, x: Inputs, observed: Bool[Tensor, " B"], mask: Tensor | None
    ) -> Answers:
        """What guesses cost against the lesson; the costs of the space unless a teacher has its own."""
        return space


class OwnAnswer(Teacher):
    """Self-training: the task-net's own answer, where its mean confidence is at least a threshold.

    The confidence of a position is its largest probability, that of a label or pixel is that of its answer.
    With a threshold of 0 all answers are taken.
    """

    def __init__(self, confidence: float = 0.0) -> None:
        super().__init__()
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence is {confidence}: take a number from 0 to 1.")
        self.confidence = confidence

    def answer(
        self, space: AnswerSpace, x: Inputs, logits: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Bool[Tensor, " B"]]:
        relaxed = space.relax(logits)
        best = space.decode(relaxed)
        if space.simplex:
            sure = (relaxed * best).flatten(1).sum(1) / best.flatten(1).sum(1).clamp_min(1)
        else:
            sure = torch.maximum(relaxed, 1 - relaxed).flatten(1).mean(1)
        return best, sure >= self.confidence


class BestByRules(Teacher):
    """The best of K samples of the task-net by the rules, improved by single changes.

    y' = argmin_k E(x, y_k), and then up to `changes` times another tag at one position that lowers E.
    [SG-SPEN; Implicit §5, citations]

    `rules` is an energy that does not learn, minus a reward. A guess costs how much more energy it has than
    the lesson, for each position, in [0, 1]: Delta = clip((E(x, y') - E(x, y)) / T).

    Tags are one-hot: answers are sequences. The task-net's most likely answer is there beside the K.
    """

    def __init__(self, rules: Energy, *, num_samples: int = 10, changes: int = 0) -> None:
        super().__init__()
        at_least(1, num_samples=num_samples)
        at_least(0, changes=changes)
        self.rules, self.num_samples, self.changes = rules, num_samples, changes

    def answer(
        self, space: AnswerSpace, x: Inputs, logits: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Bool[Tensor, " B"]]:
        likely = space.decode(space.relax(logits)).unsqueeze(0)
        drawn = torch.cat([likely, space.sample(logits, self.num_samples)])
        energy = self.rules.over(mask)
        which = energy.given(x)(drawn).argmin(0)
        best = drawn[which, torch.arange(len(which), device=which.device)]
        if self.changes:
            best = changed(energy.value_and_gradient(x), best, steps=self.changes)
        return best, torch.ones_like(which, dtype=torch.bool)

    def costs(
        self, space: AnswerSpace, x: Inputs, observed: Bool[Tensor, " B"], mask: Tensor | None
    ) -> Answers:
        return CostByRules(space, self.rules, x, observed, mask)


def changed(value_and_gradient: ValueAndGradient, y: Tensor, *, steps: int) -> Tensor:
    """Answers y (B, T, S), one-hot, after up to `steps` changes of one tag, each of which lowers the energy.

    Each change is drawn from those that lower it: a random search without the draws that are refused. Where
    the energy is affine in the tag of each position, its gradient has the effect of every single change. A
    change that does not lower it after all, as may happen elsewhere, is taken back.
    """
    best, proposed = y, y
    value, gradient = torch.full_like(y[:, 0, 0], math.inf), torch.zeros_like(y)
    for step in range(steps + 1):
        new_value, new_gradient = value_and_gradient(proposed)
        lower = new_value < value - (SLACK if step else 0)
        value = torch.where(lower, new_value, value)
        best, gradient = (
            torch.where(over_entries(lower, y), new, old)
            for new, old in ((proposed, best), (new_gradient, gradient))
        )
        if step < steps:
            proposed = _one_change(best, gradient)
    return best


def _one_change(y: Tensor, gradient: Tensor) -> Tensor:
    """A random single change that lowers the energy; the answer itself where none does."""
    gain = (gradient * y).sum(-1, keepdim=True) - gradient  # (B, T, S)
    allowed = (gain > SLACK) & y.any(-1, keepdim=True)
    drawn = torch.rand_like(gain).masked_fill(~allowed, -1).flatten(1)
    score, place = drawn.max(1)
    position, tag = place // y.shape[-1], place % y.shape[-1]
    rows = torch.arange(len(y), device=y.device)
    other = y.clone()
    other[rows, position] = 0
    other[rows, position, tag] = 1
    return torch.where(over_entries(score >= 0, y), other, y)


@dataclass(frozen=True)
class CostByRules:
    """The answers of a space; a guess at an unobserved one costs what it has above the lesson by the rules.

    See `losses.objectives.Answers` and `BestByRules`.
    """

    space: AnswerSpace
    rules: Energy
    x: Inputs
    observed: Tensor
    mask: Tensor | None

    def cost(self, guess: Tensor, y: Tensor) -> Tensor:
        energy = self.rules.over(self.mask).given(self.x)
        above = (energy(guess) - energy(y)) / y.sum((-2, -1)).clamp_min(1)
        return torch.where(self.observed, self.space.cost(guess, y), above.clamp(0, 1))

    def quality(self, guess: Tensor, y: Tensor) -> Tensor:
        return self.space.quality(guess, y)

    def log_prob(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.space.log_prob(logits, y)

    def relax(self, logits: Tensor) -> Tensor:
        return self.space.relax(logits)

    def supervise(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.space.supervise(logits, y)

    def put_first(self, y: Tensor, guesses: Tensor) -> Tensor:
        return self.space.put_first(y, guesses)
