"""Objectives of joint training: the energy descends what the inference networks climb.   [InfNet+ eqs. 4-6]

There are up to two networks, each with a role: the `augmented` one, F, looks for answers of low energy and
high cost; the `test` one, A, for answers of low energy, and is the one that predicts.

Shapes: B examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from losses import energy as losses

Role = Literal["augmented", "test"]
ROLES: tuple[Role, ...] = ("augmented", "test")


@dataclass(frozen=True)
class Played:
    """Energies (B,) of each role's answer, the costs (B,) of these, and the energy (B,) of the truth."""

    guess: dict[Role, Tensor]
    cost: dict[Role, Tensor]
    true: Tensor | None = None  # where nobody asks for it

    def of(self, role: Role) -> tuple[Tensor, Tensor]:
        """Energy and cost of a role's answer, as one guess an example, (1, B)."""
        return self.guess[role].unsqueeze(0), self.cost[role].unsqueeze(0)


class JointObjective(ABC):
    """A sum over roles of hinges; `weights` has the roles that play.

    The hinge of F has its cost as a margin, that of A has none. The energy always descends hinges. The
    networks climb what is inside of them, so that an answer whose margin is met still moves.
    """

    networks_see_truth = False  # whether their loss needs the energy of the truth

    @property
    @abstractmethod
    def weights(self) -> dict[Role, float]:
        """What each role's hinge counts; a role that is not here has no network to train."""

    def energy_loss(self, played: Played) -> Tensor:
        """What the energy minimises: the weighted sum of mean hinges."""
        return _total(weight * self.hinge(role, played) for role, weight in self.weights.items())

    def network_loss(self, played: Played) -> Tensor:
        """What the networks minimise: minus the weighted sum of mean violations."""
        return -_total(weight * self.violation(role, played) for role, weight in self.weights.items())

    def hinge(self, role: Role, played: Played) -> Tensor:
        """The mean hinge of a role, a scalar.   [InfNet+ l_0 for F]"""
        assert played.true is not None, "hinges need the energy of the truth"
        guess, cost = played.of(role)
        return (
            losses.margin(played.true, guess, cost)
            if role == "augmented"
            else losses.perceptron(played.true, guess)
        )

    def violation(self, role: Role, played: Played) -> Tensor:
        """What the network of a role climbs, a scalar.   [InfNet+ l_1 for F]"""
        guess, cost = played.of(role)
        return losses.violation(guess, cost if role == "augmented" else torch.zeros_like(cost))


@dataclass(frozen=True)
class MarginRescaled(JointObjective):
    """F alone: mean [cost - E(F) + E(y)]_+.   [InfNet+ eq. 4, §4.1]"""

    @property
    def weights(self) -> dict[Role, float]:
        return {"augmented": 1.0}


@dataclass(frozen=True)
class Truncated(MarginRescaled):
    """F alone, and it climbs the hinge itself, which is flat where the margin is met.

    [Tu and Gimpel 2018; InfNet+ Table 1, "zero trunc."]
    """

    networks_see_truth = True

    def network_loss(self, played: Played) -> Tensor:
        return -self.energy_loss(played)


@dataclass(frozen=True)
class Perceptron(JointObjective):
    """A alone: mean [E(y) - E(A)]_+.   [InfNet+ Table 1, "perceptron"]"""

    @property
    def weights(self) -> dict[Role, float]:
        return {"test": 1.0}


@dataclass(frozen=True)
class Compound(JointObjective):
    """Both: the margin-rescaled hinge of F plus lambda times the perceptron hinge of A.   [InfNet+ eq. 6]"""

    perceptron_weight: float = 1.0  # lambda

    def __post_init__(self) -> None:
        if not self.perceptron_weight >= 0:
            raise ValueError(f"perceptron_weight is {self.perceptron_weight}: take 0 or more.")

    @property
    def weights(self) -> dict[Role, float]:
        return {"augmented": 1.0, "test": self.perceptron_weight}


def _total(terms: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, terms)
