"""Searches of an objective's inference energy: the chain rule in closed form equals autograd bit by bit."""

from dataclasses import replace
from inspect import isabstract

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from energies.base import SumEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.spaces import LabelSets
from inference import gradient
from inference.gradient import Blank, GradientInference, Target, Uniform, composed
from inference.guesses import Adversarial, GuessContext, Minimum
from losses.objectives import Contrastive, Margin, NCERanking, Objective, Ranking, Regression
from losses.released import ReleasedMargin
from networks.mlp import LabelMLP

OBJECTIVES = [Margin(), Regression(), Contrastive(), NCERanking(), Ranking(), ReleasedMargin(1.0)]


def bibtex_shapes() -> GuessContext:
    """The energy of the DVN row on Bibtex's sizes."""
    torch.manual_seed(5)
    energy = SumEnergy(LocalEnergy(LabelMLP(1836, 159, width=150)), LabelMixEnergy(159, 16)).eval()
    x, y = (torch.rand(32, 1836) < 0.04).float(), (torch.rand(32, 159) < 0.02).float()
    return GuessContext(energy, Regression(), LabelSets(159), x, y)


def autograd_target(guess: type[Minimum] | type[Adversarial], case: GuessContext) -> Target:
    """What the guess minimises, as a plain function of energy and answer."""
    if guess is Minimum:
        return lambda energy, _: case.objective.inference_energy(energy)

    def minus_loss(energy: Tensor, answer: Tensor) -> Tensor:
        quality = case.space.quality(answer, case.y).detach()
        return -F.binary_cross_entropy_with_logits(-energy, quality, reduction="none")

    return minus_loss


def test_every_objective_stands_here() -> None:
    kinds = [*Objective.__subclasses__()]
    for kind in kinds:
        kinds += kind.__subclasses__()
    ours = {kind for kind in kinds if not isabstract(kind) and kind.__module__.startswith("losses.")}
    assert {type(o) for o in OBJECTIVES} == ours


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_the_gradient_of_the_inference_energy_is_its_derivative(objective: Objective) -> None:
    case = replace(bibtex_shapes(), objective=objective)
    y = torch.rand(3, 32, 159)
    got = objective.inference_value_and_gradient(case.energy.value_and_gradient(case.x))(y)
    want = composed(case.energy.value_and_gradient(case.x), autograd_target(Minimum, case))(y)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("start", [Blank(), Uniform(2)], ids=["blank", "uniform"])
@pytest.mark.parametrize("guess", [Minimum, Adversarial])
def test_a_search_ends_where_autograd_leads_it(
    guess: type[Minimum] | type[Adversarial], start: gradient.Start
) -> None:
    case, search = bibtex_shapes(), GradientInference(start, steps=20)
    torch.manual_seed(1)
    got = guess(search)(case).y[0]
    torch.manual_seed(1)
    value_and_gradient = composed(case.energy.value_and_gradient(case.x), autograd_target(guess, case))
    assert torch.equal(got, search(value_and_gradient, case.space, case.y).y)


def test_a_search_of_the_inference_energy_builds_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("autograd was asked")

    case, search = bibtex_shapes(), GradientInference(Blank(), steps=3)
    monkeypatch.setattr(torch.autograd, "grad", refuse)
    Minimum(search)(case)
    Adversarial(search)(case)
