"""Guesses where SEAL's released code departs from its paper; used by the table `seal_mlc_released` only."""

from dataclasses import dataclass

from torch import Tensor

from inference.gradient import Search
from inference.guesses import Guess, GuessContext
from losses.objectives import Guesses


@dataclass(frozen=True)
class SquashedPoint(Guess):
    """The task-net's relaxed answer, relaxed once more.   [SEAL code, dynamic margin]"""

    def __call__(self, case: GuessContext) -> Guesses:
        once = case.space.relax(case.known_logits())
        return Guesses(case.space.relax(once).unsqueeze(0))


@dataclass(frozen=True)
class SquashedMinimum(Guess):
    """The lowest E - cost at sigmoid(y) over y in [0, 1], squashed: SPEN cost-augmented as released.

    The cost was detached there: it helps to choose the best point, and moves none.   [SEAL code, SPEN]
    """

    inference: Search

    def __call__(self, case: GuessContext) -> Guesses:
        slope = case.energy.slope(case.x)

        def squashed(y: Tensor) -> tuple[Tensor, Tensor]:
            p = y.sigmoid()
            energy, gradient = slope(p)
            return energy - case.space.cost(p, case.y), gradient * p * (1 - p)

        found = self.inference(squashed, case.space, case.y, case.logits)
        return Guesses(found.y.sigmoid().unsqueeze(0))
