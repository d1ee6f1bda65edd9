"""Energies that are known: exact samples, marginals and best answers, and how near a learnt energy comes.

Features are standard normal. An answer is drawn from P(y | x) ~ exp(-E(x, y)) exactly.

Shapes: B examples, D features, T positions, S tags, L labels, N = 2^L sets.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from energies.base import Energy, SumEnergy
from energies.chain import ChainEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.potentials import ChainPotentials
from inference import chain
from inference.exact import lowest
from inference.interactions import doubly_centred
from networks.sizes import at_least

LARGEST = 12  # labels whose sets are enumerated


class KnownEnergy(ABC):
    """An energy with fixed parameters, and exact answers to questions about it."""

    energy: Energy

    @abstractmethod
    def inputs(self, count: int, draw: torch.Generator) -> Tensor:
        """Features (B, ...) of `count` examples."""

    @abstractmethod
    def sample(self, x: Tensor, draw: torch.Generator) -> Tensor:
        """One answer to each example, drawn from P(y | x)."""

    @abstractmethod
    def marginals(self, x: Tensor) -> Tensor:
        """The probability of each entry of an answer, of the shape of an answer."""

    @abstractmethod
    def regret(self, x: Tensor, y: Tensor) -> Tensor:
        """The expected share of wrong entries under P(y | x) less the least that any answer has, (B,)."""

    @abstractmethod
    def lowest(self, energy: Any, x: Tensor) -> Tensor:  # noqa: ANN401  (the kind that has exact inference)
        """The answer of lowest energy to each example, by exact search in a learnt energy or this one."""

    @abstractmethod
    def factors(self, energy: Any, x: Tensor) -> Tensor:  # noqa: ANN401
        """What is compared of an energy, without what its distribution does not determine: its gauge."""

    def gap(self, x: Tensor, y: Tensor) -> Tensor:
        """The energy of an answer above the lowest one, (B,)."""
        return self.energy(x, y) - self.energy(x, self.lowest(self.energy, x))

    def recovery(self, learnt: Any, x: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """The correlation of learnt and true factors, and |learnt - true| / |true|.

        The correlation does not depend on the scale of the learnt energy.
        """
        found, right = self.factors(learnt, x), self.factors(self.energy, x)
        return (
            F.cosine_similarity(found.flatten(), right.flatten(), dim=0),
            (found - right).norm() / right.norm(),
        )


class KnownChain(KnownEnergy):
    """A chain whose unary scores are linear in the features of a position.

    E(x, y) = - sum_t y_t . (U x_t) - sum_t y_t W y_t+1, with U normal of standard deviation
    `unary` / sqrt(D) and W of `pairwise`. An input has the features of `context` positions on each side too,
    zero beyond the ends; U has no weight for them.

    Gauge: a constant a_i in row i of W, or b_j in column j, is the same as a unary score of the tag at all
    positions but the last, or the first. So W is compared with the means of its rows and columns removed.

    Shapes:
        x: (B, T, (2 context + 1) D).   y: (B, T, S) one-hot.
    """

    energy: ChainEnergy

    def __init__(
        self,
        num_features: int,
        num_tags: int,
        length: int,
        *,
        context: int = 1,
        unary: float = 1.0,
        pairwise: float = 1.0,
        seed: int = 0,
    ) -> None:
        at_least(1, num_features=num_features, num_tags=num_tags, length=length)
        self.num_features, self.length, self.context = num_features, length, context
        draw = torch.Generator().manual_seed(seed)
        net = nn.Linear((2 * context + 1) * num_features, num_tags, bias=False)
        self.energy = ChainEnergy(net, num_tags).requires_grad_(False)
        own = slice(context * num_features, (context + 1) * num_features)
        scores = torch.randn(num_tags, num_features, generator=draw) * unary / num_features**0.5
        net.weight.zero_()[:, own] = scores
        self.energy.pairwise.copy_(pairwise * torch.randn(num_tags, num_tags, generator=draw))

    def inputs(self, count: int, draw: torch.Generator) -> Tensor:
        x = torch.randn(count, self.length, self.num_features, generator=draw)
        padded = F.pad(x, (0, 0, self.context, self.context))
        return torch.cat([padded[:, at : at + self.length] for at in range(2 * self.context + 1)], -1)

    def sample(self, x: Tensor, draw: torch.Generator) -> Tensor:
        (tags,) = chain.sample(self.energy.potentials(x, None), 1, draw, path="reference")
        return F.one_hot(tags, len(self.energy.pairwise))

    def marginals(self, x: Tensor) -> Tensor:
        return chain.marginals(self.energy.potentials(x, None))

    def regret(self, x: Tensor, y: Tensor) -> Tensor:
        marginals = self.marginals(x)
        return (marginals.amax(-1) - (marginals * y).sum(-1)).mean(-1)

    def lowest(self, energy: Energy, x: Tensor) -> Tensor:
        return lowest(energy.given(x))

    def factors(self, energy: Energy, x: Tensor) -> Tensor:
        """W (S, S), its rows and columns centred."""
        return doubly_centred(_chain_of(energy, x).pairwise.detach())


def _chain_of(energy: Energy, x: Tensor) -> ChainPotentials:
    """The potentials of a chain energy, or of a loaded one.

    Raises:
        ValueError: the energy is not a chain.
    """
    potentials = energy.given(x).chain
    if potentials is None:
        raise ValueError(
            f"{type(energy).__name__} is no chain, and a known chain is compared with chains: leave "
            "lightning_modules.metrics.known.AgainstTruth out of trainer.callbacks."
        )
    return potentials


class KnownSets(KnownEnergy):
    """Sets of labels with linear local scores and patterns of labels: P(y | x) from all 2^L sets.

    E(x, y) = - y . (U x) - v . softplus(M y + m), with U normal of standard deviation `local` / sqrt(D), M
    of 1, v of `joint`, and m 0.   [SEAL eq. 2]

    Gauge: a constant of each input. Energies of all sets are compared with their mean over the sets removed.

    Shapes:
        x: (B, D).   y: (B, L), 0 or 1.

    Raises:
        ValueError: more labels than can be enumerated.
    """

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        *,
        num_patterns: int = 8,
        local: float = 1.0,
        joint: float = 1.0,
        seed: int = 0,
    ) -> None:
        at_least(1, num_features=num_features, num_labels=num_labels)
        if num_labels > LARGEST:
            raise ValueError(f"num_labels is {num_labels}: all sets are enumerated, take {LARGEST} or fewer.")
        self.num_features = num_features
        draw = torch.Generator().manual_seed(seed)
        net, mix = nn.Linear(num_features, num_labels, bias=False), LabelMixEnergy(num_labels, num_patterns)
        self.energy = SumEnergy(LocalEnergy(net), mix).requires_grad_(False)
        net.weight.copy_(torch.randn(num_labels, num_features, generator=draw) * local / num_features**0.5)
        mix.patterns.copy_(torch.randn(num_labels, num_patterns, generator=draw))
        mix.weights.copy_(joint * torch.randn(num_patterns, generator=draw))
        self.sets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * num_labels).view(-1, num_labels)

    def inputs(self, count: int, draw: torch.Generator) -> Tensor:
        return torch.randn(count, self.num_features, generator=draw)

    def energies(self, energy: Energy, x: Tensor) -> Tensor:
        """The energies of all sets, (N, B)."""
        sets = self.sets.to(x).unsqueeze(1)
        return energy(x, sets.expand(-1, len(x), -1)).detach()

    def sample(self, x: Tensor, draw: torch.Generator) -> Tensor:
        chances = (-self.energies(self.energy, x)).softmax(0).T
        return self.sets[chances.multinomial(1, generator=draw).squeeze(1)]

    def marginals(self, x: Tensor) -> Tensor:
        return (-self.energies(self.energy, x)).softmax(0).T @ self.sets.to(x)

    def regret(self, x: Tensor, y: Tensor) -> Tensor:
        on = self.marginals(x)
        return (y + on - 2 * y * on - on.minimum(1 - on)).mean(-1)

    def lowest(self, energy: Energy, x: Tensor) -> Tensor:
        return self.sets.to(x)[self.energies(energy, x).argmin(0)]

    def factors(self, energy: Energy, x: Tensor) -> Tensor:
        """The energies of all sets (N, B), their mean over the sets removed."""
        energies = self.energies(energy, x)
        return energies - energies.mean(0)
