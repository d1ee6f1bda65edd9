"""Bilevel training: what the task-net minimises, what gradient the energy gets, who moves when."""

import math
import re
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import ConditionedEnergy
from inference import guesses
from inference.bilevel import (
    Bilevel,
    ConjugateGradient,
    Dropped,
    Exact,
    FiniteDifference,
    Identity,
    Neumann,
    Products,
    Solver,
    hypergradient,
    largest_curvature,
    why_stopped,
)
from inference.guesses import Combined, Concrete, Guess, Point, Sampled, StraightThrough, Truth, logistic
from inference.linear import Product, Solution, Vector
from lightning_modules.cross_entropy import CrossEntropy
from lightning_modules.implicit import Implicit
from losses import objectives as losses
from losses.objectives import Contrastive, Margin, Objective, Regression
from test_schemes import MASK, SPACES, Data, Net, Quality, ToyEnergy, adam, fit, weights

THREE, EXACT = Neumann(3), Exact()
SOFT = Combined([Point(), Sampled(4)])
PRIMARY: dict[str, tuple[Objective, Guess]] = {
    "ssvm": (Margin(), Point()),
    "dvn": (Regression(), Combined([Point(), Truth()])),
    "cd": (Contrastive(), SOFT),
    "cd_straight": (Contrastive(), StraightThrough(4)),
    "cd_concrete": (Contrastive(), Concrete(4, temperature=0.5)),
    "cd_hard": (Contrastive(), Sampled(4)),
}


def implicit(
    space: str,
    primary: str = "cd",
    solver: Solver = THREE,
    products: Products = EXACT,
    dropout: float = 0.0,
    **options: Any,
) -> Implicit:
    torch.manual_seed(3)
    kind, shape = SPACES[space]
    objective, guess = PRIMARY[primary]
    settings = {"warm_up": 0, "energy_weight": 0.5} | options
    return Implicit(
        Net(shape, dropout),
        ToyEnergy(shape),
        objective,
        guess,
        adam,
        adam,
        solver,
        products,
        space=kind,
        metric=Quality(kind),
        seed=1,
        **settings,
    )


def test_the_contrastive_loss_is_as_worked_by_hand() -> None:
    true, guess, cost = torch.tensor([1.0]), torch.tensor([[2.0], [0.0]]), torch.tensor([[0.5], [1.0]])
    expected = torch.tensor([0.0, 0.5 - 2 + 1, 1.0 - 0 + 1]).logsumexp(0)
    torch.testing.assert_close(losses.contrastive(true, guess, cost), expected.unsqueeze(0))


def test_the_contrastive_loss_of_one_guess_is_a_softplus_and_never_negative() -> None:
    torch.manual_seed(0)
    true = torch.randn(6, dtype=torch.float64, requires_grad=True)
    guess, cost = torch.randn(1, 6, dtype=torch.float64), torch.rand(1, 6, dtype=torch.float64)
    loss = losses.contrastive(true, guess, cost)
    torch.testing.assert_close(loss, nn.functional.softplus(cost - guess + true)[0])
    assert (loss > 0).all()
    (gradient,) = torch.autograd.grad(loss.sum(), true)
    assert (gradient > 0).all()  # the energy of the truth goes down


def test_guesses_that_are_the_truth_cost_log_of_their_number() -> None:
    true = torch.zeros(3)
    loss = losses.contrastive(true, true.expand(4, 3), torch.zeros(4, 3))
    torch.testing.assert_close(loss, torch.full((3,), 5.0).log())


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("primary", PRIMARY)
def test_bilevel_training_learns_on_every_kind_of_answer(primary: str, space: str, tmp_path: Path) -> None:
    module, before = implicit(space, primary), implicit(space, primary)
    fit(module, Data(space), 8, tmp_path)
    batch = next(iter(Data(space).val_dataloader()))
    answers = module.space.over(batch.mask)

    def supervision(of: Implicit) -> float:
        return answers.supervise(of.task_net(batch.inputs), batch.y).mean().item()

    assert supervision(module) < supervision(before)
    for name in ("explicit", "implicit", "stopped"):
        assert len(module.curves[name]) == 8
        assert float(module.trainer.callback_metrics[f"train/{name}"]) == pytest.approx(
            module.curves[name][-1]
        )


def test_the_energy_rests_while_the_task_net_warms_up(tmp_path: Path) -> None:
    module = implicit("sets", warm_up=2)
    before = weights(module)
    with pytest.warns(UserWarning, match="the energy never learned: warm_up is 2 epochs"):
        fit(module, Data("sets"), 2, tmp_path)
    after = weights(module)
    assert all(torch.equal(before[k], after[k]) for k in before if k.startswith("energy"))
    assert module.steps == {"task": 2 * 2 * 5, "energy": 0}


def test_guesses_without_a_gradient_are_told_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no guess carries a gradient back to the task-net"):
        module = implicit("sets", "cd_hard")
        fit(module, Data("sets"), 1, tmp_path)
    assert module.curves["implicit"] == [0.0]


def test_one_early_stop_in_an_epoch_is_told_with_its_reason(tmp_path: Path) -> None:
    calls: list[Solution] = []

    class Once(Neumann):
        """Fails at the first step of the energy, and at no other."""

        def __call__(self, product: Product, v: Vector, **options: Any) -> Solution:
            found = super().__call__(product, v, **options)
            calls.append(found)
            first = torch.tensor(len(calls) == 1)
            return replace(found, diverged=first, curvature=torch.where(first, 7.5, 0.0))

    with pytest.warns(
        UserWarning, match=r"at 50\.00% of the steps.*H with its damping has a curvature of 7\.5"
    ):
        fit(implicit("sets", solver=Once(3)), Data("sets"), 1, tmp_path)


@pytest.mark.parametrize(
    ("curvature", "says"),
    [
        (7.5, r"a curvature of 7\.5 or more, and the divisor was 1: .* a smaller refresh"),
        (-0.4, r"a negative curvature, -0\.4 or less, .* a damping above 0\.7 times the divisor"),
        (0.0, "is not a finite number"),
    ],
)
def test_why_a_solver_stopped_is_told_with_what_helps(curvature: float, says: str) -> None:
    assert re.search(says, why_stopped(curvature, 1.0, damping=0.3))


@pytest.mark.parametrize("name", ["inner_steps", "refresh"])
def test_settings_that_cannot_be_meant_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0: take 1 or more"):
        implicit("sets", **{name: 0})
    for weight in ("energy_weight", "damping", "warm_up"):
        for value in (-1, math.inf):
            with pytest.raises(ValueError, match=f"{weight} is {value}: take a finite number, 0 or more"):
                implicit("sets", **{weight: value})
    for norm in ("clip_norm", "energy_clip_norm"):
        with pytest.raises(ValueError, match=f"{norm} is -1: take a number above 0"):
            implicit("sets", **{norm: -1})
    with pytest.raises(ValueError, match="steps is 0: take 1 or more"):
        ConjugateGradient(steps=0)
    for option in ({"damping": -5.0}, {"tolerance": math.nan}):
        with pytest.raises(ValueError, match="take a finite number, 0 or more"):
            ConjugateGradient(**option)
    with pytest.raises(ValueError, match=r"step is inf: take a finite number above 0"):
        FiniteDifference(math.inf)


@pytest.mark.filterwarnings("ignore:the energy never learned", "ignore:energy_weight is 0")
@pytest.mark.parametrize("options", [{"energy_weight": 0.0}, {"energy_weight": 0.5, "warm_up": 3}])
def test_without_weight_and_in_warm_up_the_task_net_is_that_of_cross_entropy(
    options: dict[str, Any], tmp_path: Path
) -> None:
    module = implicit("sets", dropout=0.5, **options)
    kind, shape = SPACES["sets"]
    torch.manual_seed(3)
    plain = CrossEntropy(Net(shape, 0.5), adam, task_steps=5, space=kind, metric=Quality(kind), seed=1)
    fit(plain, Data("sets"), 3, tmp_path / "a")
    fit(module, Data("sets"), 3, tmp_path / "b")
    for name, value in plain.task_net.state_dict().items():
        assert torch.equal(value, module.task_net.state_dict()[name])
    assert "warm_up" in options or module.curves["implicit"] == [0, 0, 0]


def test_an_energy_without_weight_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="the implicit gradient is 0"):
        implicit("sets", energy_weight=0.0)


class Still(Implicit):
    """Keeps the gradient the energy was given, and moves nothing."""

    def move(self, part: str, batch: Batch) -> None:
        if part == "energy":
            self.steps["energy"] += 1
            self.hypergradient(batch)
            self.kept = [p.grad.clone() for p in self.energy.parameters() if p.grad is not None]


def test_the_energy_gets_the_total_gradient_at_the_task_net_of_after_its_steps(tmp_path: Path) -> None:
    taught: list[Tensor] = []

    class Compared(Still):
        def move(self, part: str, batch: Batch) -> None:
            super().move(part, batch)
            if part == "task":
                return Implicit.move(self, part, batch)
            assert self.steps["task"] == 5 * self.steps["energy"]
            space = self.space.over(batch.mask)

            def inner(logits: Tensor) -> Tensor:
                of_answer = self.energy(batch.inputs, space.relax(logits))
                return (space.supervise(logits, batch.y) + 0.5 * of_answer).mean()

            def outer(logits: Tensor) -> Tensor:
                answer = space.relax(logits)
                gap = self.energy(batch.inputs, batch.y) - self.energy(batch.inputs, answer)
                return (space.cost(answer, batch.y) + gap).clamp_min(0).mean()

            problem = Bilevel(self.task_net, batch.inputs, inner, outer, [*self.energy.parameters()])
            divisor = 1.1 * largest_curvature(problem, EXACT, iterations=10).clamp_min(1 / 1.1)
            found = hypergradient(problem, Neumann(3), EXACT, divisor=divisor, damping=0.1 * divisor)
            assert any(part.any() for part in found.implicit)
            for given, explicit, bent in zip(self.kept, found.explicit, found.implicit, strict=True):
                torch.testing.assert_close(given, explicit - bent)
            taught.extend(self.kept)

    module = implicit("sets", "ssvm", refresh=1, damping=0.1)
    module.__class__ = Compared
    fit(module, Data("sets"), 1, tmp_path)
    assert any(gradient.any() for gradient in taught)


def test_the_divisor_is_measured_every_so_many_steps_and_raised_where_a_series_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    divisors: list[float] = []
    measured = iter([0.3, 50.0])

    class Seen(Identity):
        def __call__(self, product: Product, v: Vector, **options: Any) -> Solution:
            divisors.append(float(options["divisor"]))
            grown = torch.tensor(4.0 if len(divisors) == 2 else 0.0)
            return replace(super().__call__(product, v, **options), diverged=grown > 0, curvature=grown)

    module = import_module("inference.bilevel.hypergradient")  # its name is also that of a function there
    monkeypatch.setattr(module, "largest_curvature", lambda *_, **__: torch.tensor(next(measured)))
    fit(implicit("sets", solver=Seen(), refresh=3), Data("sets"), 2, tmp_path)
    assert divisors == pytest.approx([1, 1, 4.4, 55])  # 1 at least; 1.1 times what is known


def test_the_gradient_of_the_energy_is_clipped(tmp_path: Path) -> None:
    module = implicit("sets", energy_clip_norm=1e-3)
    module.energy_optimizer = partial(torch.optim.SGD, lr=1.0)
    before = [p.detach().clone() for p in module.energy.parameters()]
    fit(module, Data("sets"), 1, tmp_path)
    moves = [(p - b).square().sum() for p, b in zip(module.energy.parameters(), before, strict=True)]
    assert 1e-3 < float(torch.stack(moves).sum().sqrt()) < 2.001e-3  # two steps of a thousandth


def gradient_of(solver: Solver, products: Products, tmp_path: Path, **options: Any) -> list[Tensor]:
    module = implicit("sets", "ssvm", solver, products, damping=0.0, **options)
    module.__class__ = Still
    fit(module, Data("sets"), 1, tmp_path)
    assert isinstance(module, Still)
    return module.kept


class Halved(ToyEnergy):
    """The same energy, which computes once what it makes of an input, and counts."""

    reads = 0

    def given(self, x: Tensor) -> ConditionedEnergy:
        self.reads += 1
        scores = self.local(x).flatten(1)

        def energy(y: Tensor) -> Tensor:
            y = y.flatten(-self.rank)
            return -(scores * y).sum(-1) - nn.functional.softplus(self.patterns(y)).sum(-1)

        return ConditionedEnergy(energy)


@pytest.mark.parametrize("products", [Exact(), FiniteDifference()])
def test_what_an_energy_makes_of_an_input_is_computed_once_while_it_rests(
    products: Products, tmp_path: Path
) -> None:
    whole, halved = (implicit("tags", products=products, refresh=2) for _ in range(2))
    halved.energy.__class__ = Halved
    fit(whole, Data("tags"), 1, tmp_path / "whole")
    fit(halved, Data("tags"), 1, tmp_path / "halved")
    assert halved.energy.reads == 2 + 2 + 1 + 2  # two batches, each for both parts; the curvature; two trials
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(halved)[name], value, rtol=1e-4, atol=1e-5)


def test_solvers_and_products_agree_on_the_gradient_where_they_should(tmp_path: Path) -> None:
    of = partial(gradient_of, tmp_path=tmp_path)
    short, none = of(Neumann(0), Exact()), of(Dropped(), Exact())
    for same, other in zip(of(Identity(), Exact()), short, strict=True):
        assert torch.equal(same, other)
    for differing, other in zip(of(Neumann(3), Exact()), of(Neumann(3), FiniteDifference()), strict=True):
        torch.testing.assert_close(differing, other, rtol=0.02, atol=1e-5)
    assert any(not torch.allclose(a, b) for a, b in zip(short, none, strict=True))


@pytest.mark.parametrize("solver", [Dropped(), ConjugateGradient(3, damping=1.0)])
def test_any_solver_trains(solver: Solver, tmp_path: Path) -> None:
    module = implicit("tags", solver=solver)
    before = weights(module)
    fit(module, Data("tags"), 1, tmp_path)
    assert not torch.equal(before["energy.patterns.weight"], module.energy.patterns.weight)


def test_a_resumed_run_equals_an_unbroken_one_bit_by_bit(tmp_path: Path) -> None:
    build = partial(implicit, "sets", dropout=0.3, refresh=4, inner_steps=2)
    unbroken = build()
    fit(unbroken, Data("sets"), 6, tmp_path / "a")
    fit(build(), Data("sets"), 3, tmp_path / "b")
    resumed = build()
    torch.rand(100)  # whatever else drew random numbers in between
    fit(resumed, Data("sets"), 6, tmp_path / "b", resume=str(tmp_path / "b" / "after-3.ckpt"))
    for key, value in weights(unbroken).items():
        assert torch.equal(value, weights(resumed)[key]), key
    assert unbroken.curves == resumed.curves


def case(space: str) -> guesses.GuessContext:
    kind, shape = SPACES[space]
    torch.manual_seed(5)
    logits = torch.randn(len(MASK), *shape, requires_grad=True)
    answers = kind.over(MASK if space == "tags" else None)
    return guesses.GuessContext(ToyEnergy(shape), Margin(), answers, torch.empty(0), torch.empty(0), logits)


@pytest.mark.parametrize("space", SPACES)
def test_draws_that_carry_gradients_are_draws_and_have_the_relaxed_answers_gradient(space: str) -> None:
    of = case(space)
    found = StraightThrough(7)(of).y
    discrete = of.space.decode(found.detach())
    torch.testing.assert_close(found.detach(), discrete, atol=1e-6, rtol=0)
    weight = torch.randn_like(found)
    assert of.logits is not None
    (through,) = torch.autograd.grad((found * weight).sum(), of.logits)
    (relaxed,) = torch.autograd.grad((of.space.relax(of.logits) * weight.sum(0)).sum(), of.logits)
    torch.testing.assert_close(through, relaxed)


@pytest.mark.parametrize("space", SPACES)
def test_relaxed_draws_round_to_exact_draws(space: str) -> None:
    of = case(space)
    assert of.logits is not None
    many = Concrete(4000, temperature=0.5)(of).y
    frequency = of.space.decode(many.detach()).mean(0)
    torch.testing.assert_close(frequency, of.space.relax(of.logits.detach()), atol=0.04, rtol=0)
    (gradient,) = torch.autograd.grad(many.square().sum(), of.logits)
    assert gradient.any()


def test_relaxed_draws_reach_rare_labels_in_half_precision() -> None:
    logits = torch.full((1000,), -6.0, dtype=torch.bfloat16)
    torch.manual_seed(0)
    share = (logits + logistic(logits, 1000) > 0).double().mean()
    assert abs(share - 0.00247) < 0.0003  # sigmoid(-6), within six standard errors
