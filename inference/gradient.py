"""Gradient-based inference: descent on relaxed answers, or on logits.

[SPEN §3.1; DVN §3.2; SEAL code; InfNet+ §3]

Shapes: K starts, B examples; y is (K, B, ...) during the search and (B, ...) in the prediction.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from energies.base import Slope
from energies.spaces import AnswerSpace
from inference.base import Inference, Prediction, Status
from losses.observed import over_entries
from networks.sizes import at_least

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's defaults

Target = Callable[[Tensor, Tensor], Tensor]


class Start(ABC):
    """Where a search begins."""

    @abstractmethod
    def __call__(self, space: AnswerSpace, like: Tensor, logits: Tensor | None) -> Tensor:
        """Starting points (K, B, ...), of the shape and type of `like`; `logits` are a feed-forward net's."""


@dataclass(frozen=True)
class Blank(Start):
    """One start that knows nothing: no label, or every tag alike.   [DVN]"""

    def __call__(self, space: AnswerSpace, like: Tensor, logits: Tensor | None) -> Tensor:
        return space.start(like).unsqueeze(0)


@dataclass(frozen=True)
class FromNet(Start):
    """One start at the relaxed prediction of a feed-forward net.   [SEAL's SPEN rows]"""

    def __call__(self, space: AnswerSpace, like: Tensor, logits: Tensor | None) -> Tensor:
        if logits is None:
            raise ValueError(
                "the search starts from a net's prediction, but the scheme was given no `guesser`."
            )
        return space.relax(logits).unsqueeze(0)


@dataclass(frozen=True)
class Uniform(Start):
    """Several starts drawn uniformly; the best end is kept.   [SEAL's NCE + GBI rows]"""

    num_starts: int = 3

    def __post_init__(self) -> None:
        at_least(1, num_starts=self.num_starts)

    def __call__(self, space: AnswerSpace, like: Tensor, logits: Tensor | None) -> Tensor:
        return space.random(like, self.num_starts)


@dataclass(frozen=True)
class GradientInference(Inference):
    """Projected Adam on the answer itself, a fixed number of steps, best point of the trajectory.

    Where the feasible set ties entries together (tags of one position), they share Adam's scale: scaled
    apart, a step and the projection after it could cancel away from the minimum.

    The best is taken, per example and over all starts, among the points at which the target was evaluated:
    the last step's end point is no candidate, as released. Gradients are cut: the answer is a constant.
    """

    start: Start
    steps: int = 20
    step_size: float = 0.1

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps)

    @torch.no_grad()
    def __call__(
        self, slope: Slope, space: AnswerSpace, like: Tensor, logits: Tensor | None = None
    ) -> Prediction:
        """Minimise the target whose value and gradient `slope` gives."""
        y = self.start(space, like, logits)
        mean, square = torch.zeros_like(y), torch.zeros_like(y)
        found = _Lowest()
        for step in range(1, self.steps + 1):
            value, gradient = slope(y)
            found.see(value, y)
            if step == self.steps:
                break  # where it would lead is no candidate
            mean.lerp_(gradient, 1 - BETA1)
            squared = gradient.square()
            if space.simplex:
                squared = squared.mean(-1, keepdim=True).expand_as(squared)
            square.lerp_(squared, 1 - BETA2)
            scale = (square / (1 - BETA2**step)).sqrt_().add_(EPSILON)
            y = space.project(y.addcdiv(mean, scale, value=-self.step_size / (1 - BETA1**step)))
        return found.prediction(self.steps)


@dataclass(frozen=True)
class LogitInference(Inference):
    """Descent with momentum on logits z, whose relaxation is the answer; best point of the trajectory.

    z begins uniform in +-`spread`, at nearly equal probabilities. Where `GradientInference` steps over the
    feasible set, z knows no bounds.   [SPEN for sequences, as in the code of Tu and Gimpel 2019]

    The best is taken as there, and gradients are cut as there.
    """

    steps: int = 20
    step_size: float = 0.1
    momentum: float = 0.9
    spread: float = 0.1
    num_starts: int = 1

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, num_starts=self.num_starts)

    @torch.no_grad()
    def __call__(
        self, slope: Slope, space: AnswerSpace, like: Tensor, logits: Tensor | None = None
    ) -> Prediction:
        """Minimise the target whose value and gradient `slope` gives."""
        z = like.new_empty(self.num_starts, *like.shape).uniform_(-self.spread, self.spread)
        push = torch.zeros_like(z)
        found = _Lowest()
        for step in range(1, self.steps + 1):
            with torch.enable_grad():
                y = space.relax(z.requires_grad_())
            value, gradient = slope(y.detach())
            found.see(value, y.detach())
            if step == self.steps:
                break
            (of_logits,) = torch.autograd.grad(y, z, gradient)
            push.mul_(self.momentum).add_(of_logits)
            z = z.detach() - self.step_size * push
        return found.prediction(self.steps)


# How a config may name a search: by its class, or by the fields of GradientInference alone.
Search = GradientInference | Inference


class _Lowest:
    """The best point a search has seen so far, for each start and example."""

    def __init__(self) -> None:
        self.y: Tensor | None = None
        self.value: Tensor | None = None

    def see(self, value: Tensor, y: Tensor) -> None:
        """Take the points that are lower than those before them."""
        if self.y is None or self.value is None:
            self.y, self.value = y, value
        else:
            better = value < self.value
            self.value = torch.where(better, value, self.value)
            self.y = torch.where(over_entries(better, y), y, self.y)

    def prediction(self, steps: int) -> Prediction:
        """The best over all starts."""
        assert self.y is not None and self.value is not None, "a search takes at least one step"
        value, which = self.value.min(0)
        best = self.y[which, torch.arange(len(which), device=which.device)]
        return Prediction(best, value, Status.OUT_OF_STEPS, steps)


def toward(slope: Slope, target: Target) -> Slope:
    """The slope of a function of the energy and the answer, by the chain rule.

    Args:
        slope: y -> (E, dE/dy).
        target: (E (K, B), y (K, B, ...)) -> (K, B), each entry of its own pair alone.
    """

    def value_and_gradient(y: Tensor) -> tuple[Tensor, Tensor]:
        energy, gradient = slope(y)
        with torch.enable_grad():
            energy, y = energy.detach().requires_grad_(), y.detach().requires_grad_()
            value = target(energy, y)
            by_energy, by_answer = torch.autograd.grad(
                value.sum(), (energy, y), allow_unused=True, materialize_grads=True
            )
        return value.detach(), torch.addcmul(by_answer, over_entries(by_energy, y), gradient)

    return value_and_gradient
