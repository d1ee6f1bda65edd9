"""Guesses where SEAL's released code departs from its paper; used by the table `seal_mlc_released` only."""

from dataclasses import dataclass

from torch import Tensor

from inference.gradient import Search
from inference.guesses import Guess, GuessContext
from losses.objectives import Guesses


@dataclass(frozen=True)
class SquashedPoint(Guess):
    """The relaxed answer of the task-net, relaxed a second time.   [SEAL code, dynamic margin]"""

    def __call__(self, context: GuessContext) -> Guesses:
        once = context.space.relax(context.required_logits())
        return Guesses(context.space.relax(once).unsqueeze(0))


@dataclass(frozen=True)
class SquashedMinimum(Guess):
    """The lowest E - cost at sigmoid(y) over y in [0, 1], squashed: SPEN cost-augmented as released.

    The cost was detached in that code: it counts in the choice of the best point but adds no gradient.
    [SEAL code, SPEN]
    """

    inference: Search

    def __call__(self, context: GuessContext) -> Guesses:
        value_and_gradient = context.energy.value_and_gradient(context.x)

        def squashed(y: Tensor) -> tuple[Tensor, Tensor]:
            p = y.sigmoid()
            energy, gradient = value_and_gradient(p)
            return energy - context.space.cost(p, context.y), gradient * p * (1 - p)

        found = self.inference(squashed, context.space, context.y, context.logits)
        return Guesses(found.y.sigmoid().unsqueeze(0))
