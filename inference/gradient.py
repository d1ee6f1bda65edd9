"""Gradient-based inference: descent on relaxed answers, or on logits.

[SPEN §3.1; DVN §3.2; SEAL code; InfNet+ §3]

Shapes: K starts, B examples; y is (K, B, ...) during the search and (B, ...) in the prediction.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from energies.base import ValueAndGradient
from energies.spaces import AnswerSpace
from inference.base import Inference, Prediction, Status
from losses.amounts import above_zero, below_one, not_negative
from losses.observed import over_entries
from networks.sizes import at_least

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's defaults

Target = Callable[[Tensor, Tensor], Tensor]


class Start(ABC):
    """Where a search begins."""

    @abstractmethod
    def __call__(self, space: AnswerSpace, like: Tensor, logits: Tensor | None) -> Tensor:
        """Starting points (K, B, ...), of the shape and type of `like`; `logits` of a feed-forward net."""


@dataclass(frozen=True)
class Blank(Start):
    """One uninformed start: no label, or all tags equally likely.   [DVN]"""

    def __call__(self, space: AnswerSpace, like: Tensor, logits: Tensor | None) -> Tensor:
        return space.start(like).unsqueeze(0)


@dataclass(frozen=True)
class TruthOrBlank(Start):
    """The truth for a share of the examples, drawn anew each time, otherwise the uninformed start.

    Only guesses to learn from may start there: a prediction has a blank answer in place of the truth.
    [SEAL code, DVN on horses]
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}: take a number from 0 to 1.")

    def __call__(self, space: AnswerSpace, like: Tensor, logits: Tensor | None) -> Tensor:
        drawn = torch.rand(len(like), device=like.device) < self.share
        return torch.where(over_entries(drawn, like), like, space.start(like)).unsqueeze(0)


@dataclass(frozen=True)
class FromNet(Start):
    """One start at the relaxed prediction of a feed-forward net.   [SEAL's SPEN rows]"""

    def __call__(self, space: AnswerSpace, like: Tensor, logits: Tensor | None) -> Tensor:
        if logits is None:
            raise ValueError(
                "the search starts from a net's prediction, and there are no logits: give the scheme a "
                "`guesser`, or the search `logits`."
            )
        return space.relax(logits).to(like.dtype).unsqueeze(0)


@dataclass(frozen=True)
class Uniform(Start):
    """Several starts drawn uniformly; the best result is kept.   [SEAL's NCE + GBI rows]"""

    num_starts: int = 3

    def __post_init__(self) -> None:
        at_least(1, num_starts=self.num_starts)

    def __call__(self, space: AnswerSpace, like: Tensor, logits: Tensor | None) -> Tensor:
        return space.random(like, self.num_starts)


@dataclass(frozen=True)
class GradientInference(Inference):
    """Projected Adam on the answer, for a fixed number of steps; returns the best point of the trajectory.

    The tags of one position are constrained to a simplex, so they share Adam's scale: with separate scales a
    step and its projection could cancel away from the minimum.

    The best point is chosen for each example, over all starts, among the points where the target was
    evaluated. As in the released code, the end point of the last step is none of them. No gradient flows
    through the answer.
    """

    start: Start
    steps: int = 20
    step_size: float = 0.1

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps)
        above_zero(step_size=self.step_size)

    @torch.no_grad()
    def __call__(
        self,
        value_and_gradient: ValueAndGradient,
        space: AnswerSpace,
        like: Tensor,
        logits: Tensor | None = None,
    ) -> Prediction:
        """See Inference."""
        y = self.start(space, like, logits)
        mean, square = torch.zeros_like(y), torch.zeros_like(y)
        lowest = _Lowest()
        for step in range(1, self.steps + 1):
            value, gradient = (found.to(y.dtype) for found in value_and_gradient(y))
            lowest.see(value, y)
            if step == self.steps:
                break  # the next point would not be evaluated
            mean.lerp_(gradient, 1 - BETA1)
            squared = gradient.square()
            if space.simplex:
                squared = squared.mean(-1, keepdim=True).expand_as(squared)
            square.lerp_(squared, 1 - BETA2)
            scale = (square / (1 - BETA2**step)).sqrt_().add_(EPSILON)
            y = space.project(y.addcdiv(mean, scale, value=-self.step_size / (1 - BETA1**step)))
        return lowest.prediction(self.steps)


@dataclass(frozen=True)
class LogitInference(Inference):
    """Descent with momentum on logits z, whose relaxation is the answer; best point of the trajectory.

    z starts uniform in +-`spread`, at nearly equal probabilities. Unlike `GradientInference` it needs no
    projection, since z is unconstrained.   [SPEN for sequences, as in the code of Tu and Gimpel 2019]

    The best point is chosen as in `GradientInference`. No gradient flows through the answer.
    """

    steps: int = 20
    step_size: float = 0.1
    momentum: float = 0.9
    spread: float = 0.1
    num_starts: int = 1

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, num_starts=self.num_starts)
        above_zero(step_size=self.step_size)
        below_one(momentum=self.momentum)
        not_negative(spread=self.spread)

    @torch.no_grad()
    def __call__(
        self,
        value_and_gradient: ValueAndGradient,
        space: AnswerSpace,
        like: Tensor,
        logits: Tensor | None = None,
    ) -> Prediction:
        """See Inference."""
        z = like.new_empty(self.num_starts, *like.shape).uniform_(-self.spread, self.spread)
        push = torch.zeros_like(z)
        lowest = _Lowest()
        for step in range(1, self.steps + 1):
            with torch.enable_grad():
                y = space.relax(z.requires_grad_())
            value, gradient = (found.to(y.dtype) for found in value_and_gradient(y.detach()))
            lowest.see(value, y.detach())
            if step == self.steps:
                break
            (of_logits,) = torch.autograd.grad(y, z, gradient)
            push.mul_(self.momentum).add_(of_logits)
            z = z.detach() - self.step_size * push
        return lowest.prediction(self.steps)


# A config names a search by its class, or gives the fields of GradientInference alone.
Search = GradientInference | Inference


class _Lowest:
    """The best point a search has seen so far, for each start and example; NaN is worse than any number."""

    def __init__(self) -> None:
        self.y: Tensor | None = None
        self.value: Tensor | None = None

    def see(self, value: Tensor, y: Tensor) -> None:
        """Keep the points that are lower than the best so far."""
        if self.y is None or self.value is None:
            self.y, self.value = y, torch.where(value.isnan(), torch.inf, value)
        else:
            better = value < self.value
            self.value = torch.where(better, value, self.value)
            self.y = torch.where(over_entries(better, y), y, self.y)

    def prediction(self, steps: int) -> Prediction:
        """The best point over all starts."""
        assert self.y is not None and self.value is not None, "a search takes at least one step"
        value, which = self.value.min(0)
        best = self.y[which, torch.arange(len(which), device=which.device)]
        return Prediction(best, value, Status.OUT_OF_STEPS, steps)


def composed(of_energy: ValueAndGradient, target: Target) -> ValueAndGradient:
    """Value and gradient of target(E(y), y), by the chain rule.

    Args:
        of_energy: y -> (E, dE/dy).
        target: (E (K, B), y (K, B, ...)) -> (K, B), elementwise in (K, B).
    """

    def of_target(y: Tensor) -> tuple[Tensor, Tensor]:
        energy, gradient = of_energy(y)
        with torch.enable_grad():
            energy, y = energy.detach().requires_grad_(), y.detach().requires_grad_()
            value = target(energy, y)
            by_energy, by_answer = torch.autograd.grad(
                value.sum(), (energy, y), allow_unused=True, materialize_grads=True
            )
        return value.detach(), torch.addcmul(by_answer, over_entries(by_energy, y), gradient)

    return of_target
