"""Objectives of joint training: the energy minimises, the networks maximise.   [InfNet+ eqs. 4-6]

There are up to two networks, each with a role: the `augmented` one, F, looks for answers of low energy and
high cost; the `test` one, A, for answers of low energy, and is the one that predicts.

Shapes: B examples.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from losses.amounts import not_negative
from losses.observed import mean

Role = Literal["augmented", "test"]
ROLES: tuple[Role, ...] = ("augmented", "test")

Rows = Float[Tensor, " B"]
Scalar = Float[Tensor, ""]


@dataclass(frozen=True)
class RoleEnergies:
    """The energy (B,) of each role's answer, the cost (B,) of F's answer, the energy (B,) of the truth."""

    guess: dict[Role, Rows]
    cost: dict[Role, Rows]
    true: Rows | None = None  # None where no loss needs it
    observed: Bool[Tensor, " B"] | None = None  # where the truth is observed; None: everywhere

    def violation(self, role: Role) -> Rows:
        """Cost - E(F) for F, -E(A) for A."""
        return self.cost[role] - self.guess[role] if role == "augmented" else -self.guess[role]


class JointObjective(ABC):
    """A weighted sum of hinges, one for each role in `weights`.

    The margin of F's hinge is the cost of its answer; A's hinge has no margin. The energy minimises the
    hinges. The networks maximise what is inside the hinges, so their gradient is not 0 where the margin is
    met.
    """

    networks_see_truth = False  # whether their loss needs the energy of the truth

    @property
    @abstractmethod
    def weights(self) -> dict[Role, float]:
        """The weight of each role's hinge; a role without a weight has no network to train."""

    def energy_loss(self, energies: RoleEnergies) -> Scalar:
        """What the energy minimises: the weighted sum of mean hinges."""
        return self.weighted(self.hinges(energies))

    def network_loss(self, energies: RoleEnergies) -> Scalar:
        """What the networks minimise: minus the weighted sum of mean violations, of roles with a guess."""
        return -self.weighted(
            {role: self.violation(role, energies) for role in self.weights if role in energies.guess}
        )

    def weighted(self, terms: dict[Role, Scalar]) -> Scalar:
        """The weighted sum of these roles' terms."""
        return reduce(torch.add, [self.weights[role] * term for role, term in terms.items()])

    def hinges(self, energies: RoleEnergies) -> dict[Role, Scalar]:
        """The mean hinge of each role."""
        return {role: self.hinge(role, energies) for role in self.weights}

    def hinge(self, role: Role, energies: RoleEnergies) -> Scalar:
        """Mean of [cost - E(F) + E(y)]_+, or of [E(y) - E(A)]_+.   [InfNet+ eqs. 4, 6; l_0 for F]"""
        assert energies.true is not None, "hinges need the energy of the truth"
        return mean((energies.violation(role) + energies.true).clamp_min(0), energies.observed)

    def violation(self, role: Role, energies: RoleEnergies) -> Scalar:
        """What the network of a role maximises: the mean of cost - E(F), or of -E(A).   [InfNet+ §4.1; l_1]

        It is not clamped at 0. That of A does not depend on the truth, so its mean is over all examples.
        """
        return mean(energies.violation(role), energies.observed if role == "augmented" else None)


@dataclass(frozen=True)
class MarginRescaled(JointObjective):
    """F alone: mean [cost - E(F) + E(y)]_+.   [InfNet+ eq. 4, §4.1]"""

    @property
    def weights(self) -> dict[Role, float]:
        return {"augmented": 1.0}


@dataclass(frozen=True)
class Truncated(MarginRescaled):
    """F alone, which maximises the hinge itself; its gradient is 0 where the margin is met.

    [Tu and Gimpel 2018; InfNet+ Table 1, "zero trunc."]
    """

    networks_see_truth = True

    def network_loss(self, energies: RoleEnergies) -> Scalar:
        return -self.energy_loss(energies)


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
        not_negative(perceptron_weight=self.perceptron_weight)

    @property
    def weights(self) -> dict[Role, float]:
        return {"augmented": 1.0, "test": self.perceptron_weight}
