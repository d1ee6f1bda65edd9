"""Which criterion goes with which energy: a mismatch is refused before any data are read."""

from functools import partial
from typing import Generic, TypeVar

import pytest
import torch
from torch import Tensor, nn

from energies.chain import ChainEnergy
from energies.potentials import ChainPotentials, Potentials
from energies.spaces import TagSequences
from inference.base import Criterion, CriterionPair
from inference.chain.criteria import Likelihood
from inference.gaussian.criteria import CrossEntropy
from lightning_modules.crf_joint import CRFJoint
from lightning_modules.metrics.sequence import SequenceScores
from networks.inputs import Inputs

Kind = TypeVar("Kind")


class Unsaid(ChainEnergy):
    """Its author says little of the potentials."""

    def potentials(self, x: Inputs, mask: Tensor | None) -> Potentials:
        return super().potentials(x, mask)


class Named(Generic[Kind]):
    """A parent that is no criterion."""


class Mine(Named[int], Likelihood):
    """Of a user, with another parent."""


def joint(energy: ChainEnergy, criterion: Criterion) -> CRFJoint:
    adam = partial(torch.optim.Adam, lr=0.05)
    return CRFJoint(energy, criterion, adam, space=TagSequences(4), metric=SequenceScores(), seed=1)


def test_criteria_and_energies_that_say_less_or_more_are_taken() -> None:
    assert Mine().declared_for() == {ChainPotentials}
    joint(ChainEnergy(nn.Linear(3, 4), 4), Mine())
    for criterion in (Mine(), CrossEntropy()):
        joint(Unsaid(nn.Linear(3, 4), 4), criterion)


def test_a_criterion_of_other_potentials_is_refused() -> None:
    for other in (CrossEntropy(), CriterionPair(Likelihood(), CrossEntropy())):
        with pytest.raises(ValueError, match="takes GaussianPotentials, and ChainEnergy has ChainPotentials"):
            joint(ChainEnergy(nn.Linear(3, 4), 4), other)
