"""The code of docs/own_loop.md runs, and every method that it names trains there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from energies.spaces import TagSequences
from energies.tag_lm import TagLMEnergy
from inference.bilevel import Dropped, Exact, hypergradient
from inference.gradient import Blank, GradientInference
from inference.guesses import (
    Adversarial,
    Combined,
    CostAugmented,
    GuessContext,
    Minimum,
    Point,
    Sampled,
    Truth,
)
from losses.objectives import Margin, NCERanking, Ranking, Regression
from losses.task import EnergyAndSupervision

PAGE = (Path(__file__).parents[1] / "docs" / "own_loop.md").read_text()
LOSS_NET, BILEVEL = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
METHODS = re.findall(r"^\| [^|]+ \| `([^`]+\(\))` \| `([^`]+)` \|$", PAGE, re.MULTILINE)
PARTS = (Adversarial, Combined, CostAugmented, Margin, Minimum, NCERanking, Point, Ranking, Regression)
NAMES: dict[str, Any] = {part.__name__: part for part in (*PARTS, Sampled, Truth)} | {"num_samples": 4}


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, "docs/own_loop.md", "exec"), names)
    return names


@pytest.fixture(scope="module")
def loss_net() -> dict[str, Any]:
    torch.manual_seed(0)
    return run(LOSS_NET)


def test_the_task_net_learns_from_energy_and_labels_and_a_search_lowers_the_energy(
    loss_net: dict[str, Any],
) -> None:
    energy, x, y = loss_net["energy"], loss_net["x"], loss_net["y"]
    answer, found = loss_net["answer"], loss_net["found"]
    assert answer.shape == found.shape == (512, 20)
    assert torch.nn.functional.binary_cross_entropy(answer, y) < 0.6 < 0.693  # of an answer of 0.5
    with torch.no_grad():
        assert (energy(x, found) <= energy(x, torch.zeros_like(y))).all()


def test_the_page_names_six_methods() -> None:
    assert len(METHODS) == 6


@pytest.mark.parametrize(("objective", "guess"), METHODS)
def test_each_method_lowers_its_loss_on_a_batch(loss_net: dict[str, Any], objective: str, guess: str) -> None:
    names = NAMES | {"search": GradientInference(Blank(), steps=5)}
    of, source = eval(objective, names), eval(guess, names)
    energy, task_net, space = loss_net["energy"], loss_net["task_net"], loss_net["space"]
    x, y = loss_net["x"][:32], loss_net["y"][:32]
    with torch.no_grad():
        guesses = source(GuessContext(energy, of, space, x, y, task_net(x)))
    optimizer = torch.optim.Adam(energy.parameters(), lr=1e-3)
    losses = [step(lambda: of(energy, space, x, y, guesses), optimizer) for _ in range(20)]
    assert losses[-1] < losses[0]
    task_loss = EnergyAndSupervision(energy_weight=0.1)

    def of_task() -> Tensor:
        return task_loss(lambda x, y: of.inference_energy(energy(x, y)), space, x, y, task_net(x))

    optimizer = torch.optim.Adam(task_net.parameters(), lr=1e-3)
    losses = [step(of_task, optimizer) for _ in range(20)]
    assert losses[-1] < losses[0]


def step(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    value = loss()
    value.backward()
    optimizer.step()
    return value.item()


def test_tags_take_the_mask_of_each_batch_as_the_page_says() -> None:
    net, energy, space = nn.Linear(6, 4), TagLMEnergy(4, width=8), TagSequences(4)
    x, mask = torch.randn(5, 7, 6), torch.arange(7) < torch.tensor([[7], [3], [5], [1], [6]])
    y = torch.nn.functional.one_hot(torch.randint(4, (5, 7)), 4) * mask.unsqueeze(-1).float()
    over, of = energy.over(mask), space.over(mask)
    with torch.no_grad():
        guesses = Sampled(4)(GuessContext(over, NCERanking(), of, x, y, net(x)))
    optimizer = torch.optim.Adam(energy.parameters(), lr=1e-2)
    losses = [step(lambda: NCERanking()(over, of, x, y, guesses), optimizer) for _ in range(20)]
    assert losses[-1] < losses[0]


def test_wrong_labels_weigh_less_in_the_end() -> None:
    names = run(BILEVEL)
    weight = names["weight"].detach().sigmoid()
    assert not names["found"].diverged
    assert weight[:50].mean() < 0.3 < 0.5 < weight[50:].mean()


def test_without_the_implicit_term_an_outer_loss_that_does_not_name_phi_gives_zeros() -> None:
    problem = run(BILEVEL.replace("range(20)", "range(1)"))["problem"]
    found = hypergradient(problem, Dropped(), Exact(), divisor=1.0)
    assert found.loss == problem.outer(problem.net(problem.x))
    assert len(found.gradient) == 1 and torch.equal(found.gradient[0], torch.zeros(200))
