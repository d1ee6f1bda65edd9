"""Energies over sets of labels.   [SEAL eq. 2; SPEN §3]

Shapes: B examples, D features, L labels, G patterns. y is (..., B, L): bool, or relaxed to [0, 1].
"""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from energies.answers.sets import sum_potentials, sum_rows
from energies.base import ConditionedEnergy, Energy, linear
from networks.inputs import Inputs
from networks.sizes import at_least, match_answers


class LocalEnergy(Energy):
    """Each label on its own: E(x, y) = - sum_i y_i net(x)_i.   [SEAL eq. 2, left]

    `net` maps (B, D) to a potential per label, (B, L).
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Inputs, y: Shaped[Tensor, "... B L"]) -> Float[Tensor, "... B"]:
        return self.given(x)(y)

    def given(self, x: Inputs) -> ConditionedEnergy:
        """The potentials are computed once; dE/dy = -net(x)."""
        return linear(self.net(x), sum_potentials)


class LabelMixEnergy(Energy):
    """How well the labels of a set fit each other, independent of the input.

    E(y) = - v . softplus(M y + m)   [SEAL eq. 2, right; the bias m as released]

    As released, M is Kaiming-uniform, m is 0, and v is normal with variance 2 / G.
    """

    def __init__(self, num_labels: int, num_patterns: int) -> None:
        super().__init__()
        at_least(1, num_labels=num_labels, num_patterns=num_patterns)
        self.patterns = nn.Parameter(torch.empty(num_labels, num_patterns))  # M, a row per label
        self.bias = nn.Parameter(torch.empty(num_patterns))  # m
        self.weights = nn.Parameter(torch.randn(num_patterns) * (2 / num_patterns) ** 0.5)  # v
        self.reset_patterns()

    def check_answers(self, y: Tensor) -> None:
        """Raise ValueError if the data have another number of labels."""
        match_answers(y, num_labels=len(self.patterns))

    def reset_patterns(self) -> None:
        """Reinitialise M and set m to 0."""
        nn.init.kaiming_uniform_(self.patterns.T, nonlinearity="relu")
        nn.init.zeros_(self.bias)

    def forward(self, x: Inputs, y: Shaped[Tensor, "... B L"]) -> Float[Tensor, "... B"]:
        return -(F.softplus(sum_rows(self.patterns, y) + self.bias) @ self.weights)

    def given(self, x: Inputs) -> ConditionedEnergy:
        """dE/dy = - M^T (v * sigmoid(M y + m))."""
        patterns, bias, weights = self.patterns.detach(), self.bias.detach(), self.weights.detach()

        def value_and_gradient(y: Tensor) -> tuple[Tensor, Tensor]:
            z = sum_rows(patterns, y) + bias
            return -(F.softplus(z) @ weights), -((torch.sigmoid(z) * weights) @ patterns.T)

        return ConditionedEnergy(partial(self, x), value_and_gradient)
