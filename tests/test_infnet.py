"""Joint training of an energy and inference networks: what each minimises, who moves when, the phases."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import ConditionedEnergy
from energies.spaces import TagSequences
from inference.networks import InferenceNetworks, Separated, Shared, Single, Stacked
from lightning_modules.infnet import InfNet
from lightning_modules.metrics.changes import TagChanges
from losses.joint import Compound, JointObjective, MarginRescaled, Perceptron, Truncated
from networks.layers import Features
from test_schemes import MASK, SPACES, Data, Net, Quality, ToyEnergy, adam, fit, weights


class Trunk(Features):
    """Features of all entries of an answer."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.size = 4
        self.net = Net((*shape[:-1], self.size))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Head(nn.Module):
    """An affine map of two answers."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.map = nn.Linear(2 * outputs, outputs)

    def forward(self, prediction: Tensor, y: Tensor) -> Tensor:
        return self.map(torch.cat([prediction, y], dim=-1))


def networks(name: str, shape: tuple[int, ...], dropout: float = 0.0) -> InferenceNetworks:
    builders: dict[str, Callable[[], InferenceNetworks]] = {
        "single": lambda: Single(Net(shape, dropout)),
        "separated": lambda: Separated(Net(shape, dropout), Net(shape, dropout)),
        "shared": lambda: Shared(Trunk(shape), shape[-1]),
        "stacked": lambda: Stacked(Net(shape, dropout), Head(shape[-1])),
    }
    return builders[name]()


OBJECTIVES: dict[str, JointObjective] = {
    "margin": MarginRescaled(),
    "truncated": Truncated(),
    "perceptron": Perceptron(),
    "compound": Compound(2.0),
}


def infnet(
    space: str, nets: str = "stacked", objective: str = "compound", dropout: float = 0.0, **options: Any
) -> InfNet:
    torch.manual_seed(3)
    kind, shape = SPACES[space]
    return InfNet(
        networks(nets, shape, dropout),
        ToyEnergy(shape),
        OBJECTIVES[objective],
        adam,
        adam,
        space=kind,
        metric=Quality(kind),
        seed=1,
        **options,
    )


def a_batch(space: str) -> Batch:
    return next(iter(Data(space).val_dataloader()))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(
    ("nets", "objective"),
    [
        ("single", "margin"),
        ("single", "truncated"),
        ("single", "perceptron"),
        ("separated", "compound"),
        ("shared", "compound"),
        ("stacked", "compound"),
    ],
)
def test_each_way_to_build_the_networks_learns_on_every_kind_of_answer(
    nets: str, objective: str, space: str, tmp_path: Path
) -> None:
    build = partial(infnet, space, nets, objective, supervision_weight=5.0)
    module, before = build(), build()
    fit(module, Data(space), 15, tmp_path)
    batch = a_batch(space)
    answers = module.space.over(batch.mask)

    def supervision(of: InfNet) -> float:
        return answers.supervise(of.networks.predict(batch.inputs), batch.y).mean().item()

    assert supervision(module) < supervision(before)


@pytest.mark.parametrize("nets", ["single", "separated", "shared", "stacked"])
def test_energy_steps_leave_the_networks_and_network_steps_the_energy_bit_for_bit(
    nets: str, tmp_path: Path
) -> None:
    class Recorder(InfNet):
        seen: list[tuple[str, set[str]]]

        def move(self, part: str, batch: Batch) -> None:
            before = weights(self)
            super().move(part, batch)
            after = weights(self)
            moved = {k.split(".")[0] for k in before if not torch.equal(before[k], after[k])}
            self.seen = [*getattr(self, "seen", []), (part, moved)]

    torch.manual_seed(3)
    kind, shape = SPACES["tags"]
    objective = MarginRescaled() if nets == "single" else Compound(1.0)
    module = Recorder(
        networks(nets, shape),
        ToyEnergy(shape),
        objective,
        adam,
        adam,
        guess_steps=3,
        space=kind,
        metric=Quality(kind),
    )
    fit(module, Data("tags"), 1, tmp_path)
    assert [part for part, _ in module.seen[:4]] == ["inference"] * 3 + ["energy"]
    owner = {"energy": {"energy"}, "inference": {"networks"}}
    assert all(moved == owner[part] for part, moved in module.seen)


def test_a_small_network_step_lowers_the_energy_of_a_and_raises_what_f_climbs() -> None:
    module = infnet("tags", "separated", supervision_weight=0.0)
    batch, space = a_batch("tags"), SPACES["tags"][0].over(MASK)

    def climbed() -> tuple[float, float]:
        logits = module.networks(batch.inputs, batch.y, space.relax, ("test", "augmented"))
        a, f = (space.relax(logits[role]) for role in ("test", "augmented"))
        energy = module.energy.given(batch.inputs)
        return energy(a).mean().item(), (space.cost(f, batch.y) - energy(f)).mean().item()

    before = climbed()
    loss = module.networks_loss(batch)
    learned = [*module.networks.parameters()]
    gradients = torch.autograd.grad(loss, learned)
    with torch.no_grad():
        for p, gradient in zip(learned, gradients, strict=True):
            p -= 1e-4 * gradient
    after = climbed()
    assert after[0] < before[0] and after[1] > before[1]


def test_a_small_energy_step_widens_the_gap_between_truth_and_guess() -> None:
    module = infnet("tags", "single", "margin")
    batch, space = a_batch("tags"), SPACES["tags"][0].over(MASK)

    def gap() -> float:
        answer = space.relax(module.networks.predict(batch.inputs)).detach()
        return (module.energy(batch.inputs, batch.y) - module.energy(batch.inputs, answer)).mean().item()

    before = gap()
    learned = [*module.energy.parameters()]
    gradients = torch.autograd.grad(module.energy_loss(batch), learned)
    with torch.no_grad():
        for p, gradient in zip(learned, gradients, strict=True):
            p -= 1e-4 * gradient
    assert gap() < before


@pytest.mark.parametrize(("blocked", "reaches"), [(True, False), (False, True)])
def test_the_loss_of_f_reaches_a_only_where_it_is_not_blocked(blocked: bool, reaches: bool) -> None:
    _, shape = SPACES["tags"]
    nets = Stacked(Net(shape), Head(shape[-1]), blocked=blocked)
    batch, space = a_batch("tags"), SPACES["tags"][0].over(MASK)
    logits = nets(batch.inputs, batch.y, space.relax, ("augmented",))["augmented"]
    gradients = torch.autograd.grad(logits.square().sum(), [*nets.test.parameters()], allow_unused=True)
    assert any(g is not None and bool(g.any()) for g in gradients) is reaches


def test_supervision_goes_to_both_networks_unless_they_are_stacked() -> None:
    batch = a_batch("tags")

    def with_and_without(nets: str, **options: Any) -> float:
        some, none = infnet("tags", nets, **options), infnet("tags", nets, supervision_weight=0.0)
        return (some.networks_loss(batch) - none.networks_loss(batch)).item()

    def cross_entropy(nets: str, role: str) -> float:
        module = infnet("tags", nets)
        space = module.space.over(MASK)
        logits = module.networks(batch.inputs, batch.y, space.relax, (role,))[role]
        return space.supervise(logits, batch.y).mean().item()

    both = cross_entropy("separated", "test") + cross_entropy("separated", "augmented")
    assert with_and_without("separated") == pytest.approx(both, rel=1e-4)
    assert with_and_without("stacked") == pytest.approx(cross_entropy("stacked", "test"), rel=1e-4)
    assert with_and_without("separated", supervision_weight=2.0) == pytest.approx(2 * both, rel=1e-4)


class InHalves(ToyEnergy):
    """The same energy, which reads the input apart and counts how often."""

    asked = 0

    def given(self, x: Tensor) -> ConditionedEnergy:
        self.asked += 1
        local = self.local(x).flatten(1)

        def energy(y: Tensor) -> Tensor:
            y = y.flatten(-self.rank)
            return -(local * y).sum(-1) - nn.functional.softplus(self.patterns(y)).sum(-1)

        return ConditionedEnergy(energy)


@pytest.mark.parametrize("watched", [False, True])
def test_all_steps_of_a_batch_share_what_the_energy_makes_of_the_input(watched: bool, tmp_path: Path) -> None:
    def trained(energy: ToyEnergy) -> InfNet:
        energy.load_state_dict(infnet("tags").energy.state_dict())
        module = infnet("tags", guess_steps=3, watch_network=watched)
        module.energy = energy
        fit(module, Data("tags"), 2, tmp_path)
        return module

    shape = SPACES["tags"][1]
    halves, whole = trained(InHalves(shape)), trained(ToyEnergy(shape))
    assert halves.energy.asked == 2 * 2 + 2  # two epochs of two batches; two trials
    for key, value in weights(whole).items():
        assert torch.allclose(value, weights(halves)[key], rtol=1e-5, atol=1e-6), key


def test_what_f_has_alone_may_move_at_a_rate_of_its_own(tmp_path: Path) -> None:
    still = infnet("tags", "stacked", augmented_settings={"lr": 0.0})
    before = weights(still)
    fit(still, Data("tags"), 2, tmp_path)
    rested = {name for name, value in weights(still).items() if torch.equal(value, before[name])}
    assert rested == {"networks.head.map.weight", "networks.head.map.bias"}
    with pytest.raises(ValueError, match=r"augmented_settings has lrr, which .* does not have.* lr,"):
        fit(infnet("tags", "stacked", augmented_settings={"lrr": 0.0}), Data("tags"), 1, tmp_path)


def test_changes_are_counted_where_a_is_right_and_f_differs(tmp_path: Path) -> None:
    shape = SPACES["tags"][1]
    tags = [f"t{number}" for number in range(shape[-1])]
    module = infnet("tags", "separated", changes=TagChanges(tags))
    fit(module, Data("tags"), 3, tmp_path)
    batch = a_batch("tags")
    logits = module.networks(batch.inputs, batch.y, module.space.over(MASK).relax, ("test", "augmented"))
    a, f, true = (scores.argmax(-1) for scores in (logits["test"], logits["augmented"], batch.y))
    changed = MASK & (a == true) & (f != true)
    found = {(tags.index(right), tags.index(wrong)): n for right, wrong, n in module.findings["changes"]}
    pairs = list(zip(a[changed].tolist(), f[changed].tolist(), strict=True))
    assert pairs and found == {pair: pairs.count(pair) for pair in pairs}


@pytest.mark.parametrize(("nets", "answers"), [("shared", 2), ("stacked", 2)])
def test_each_answer_is_relaxed_once_whoever_asks(
    nets: str, answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, relax, batch = [], TagSequences.relax, a_batch("tags")
    monkeypatch.setattr(TagSequences, "relax", lambda space, z: asked.append(z) or relax(space, z))
    infnet("tags", nets).networks_loss(batch)
    assert len(asked) == answers


@pytest.mark.parametrize("nets", ["single", "stacked"])
def test_a_resumed_run_equals_an_unbroken_one_bit_by_bit(nets: str, tmp_path: Path) -> None:
    objective = "margin" if nets == "single" else "compound"
    build = partial(infnet, "tags", nets, objective, dropout=0.3, guess_steps=2, watch_network=True)
    unbroken = build()
    fit(unbroken, Data("tags"), 6, tmp_path / "a")
    fit(build(), Data("tags"), 3, tmp_path / "b")
    resumed = build()
    torch.rand(100)  # whatever else drew random numbers in between
    fit(resumed, Data("tags"), 6, tmp_path / "b", resume=str(tmp_path / "b" / "after-3.ckpt"))
    for key, value in weights(unbroken).items():
        assert torch.equal(value, weights(resumed)[key]), key
    assert unbroken.curves == resumed.curves
    assert len(unbroken.curves["network_gradient"]) == 6


@pytest.mark.parametrize(
    ("nets", "objective", "options", "message"),
    [
        ("separated", "compound", {"phases": ("joint", "tune")}, "Separated trains A together with F"),
        ("single", "perceptron", {"phases": ("joint", "tune")}, "the objective trains A itself"),
        ("single", "margin", {"augmented_settings": {"lr": 0.1}}, "Single has none: leave them out"),
        ("single", "margin", {"phases": ("tune",)}, "begin with `joint`"),
        ("single", "margin", {"guess_steps": 0}, "guess_steps is 0: take 1 or more"),
        ("stacked", "margin", {}, "trains F alone, and Stacked would predict with an untrained A"),
        ("single", "compound", {}, "Single is one network: take networks.Separated"),
        ("single", "perceptron", {"changes": TagChanges(["a"])}, "no F that could differ from A"),
        ("single", "perceptron", {"supervision_weight": -1.0}, "supervision_weight is -1.0: take a finite"),
        ("single", "perceptron", {"clip_norm": 0.0}, "clip_norm is 0.0: take a number above 0"),
    ],
)
def test_objectives_networks_and_phases_that_do_not_fit_are_refused(
    nets: str, objective: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        infnet("tags", nets, objective, **options)


def test_curves_are_means_over_batches_of_what_they_say(tmp_path: Path) -> None:
    torch.manual_seed(3)
    kind, shape = SPACES["tags"]
    rest = partial(torch.optim.SGD, lr=0.0)  # nobody moves, so all can be computed afterwards
    nets, objective = networks("separated", shape), Compound(2.0)
    module = InfNet(
        nets, ToyEnergy(shape), objective, rest, rest, space=kind, metric=Quality(kind), watch_network=True
    )
    fit(module, Data("tags"), 1, tmp_path)
    expected: dict[str, list[float]] = {name: [] for name in module.curves}

    def norm(loss: Tensor, of: nn.Module) -> float:
        slopes = torch.autograd.grad(loss, [*of.parameters()])
        return sum(float(slope.square().sum()) for slope in slopes) ** 0.5

    for batch in Data("tags").train_dataloader():
        space = kind.over(batch.mask)
        logits = nets(batch.inputs, batch.y, space.relax, ("test", "augmented"))
        a, f = space.relax(logits["test"]), space.relax(logits["augmented"])
        of_a, of_f, of_truth = (module.energy(batch.inputs, y) for y in (a, f, batch.y))
        cost = space.cost(f, batch.y)
        hinge = (cost - of_f + of_truth).clamp_min(0).mean()
        descended = hinge + 2 * (of_truth - of_a).clamp_min(0).mean()
        expected["cost_augmented"].append((cost - of_f).mean().item())
        expected["hinge"].append(hinge.item())
        expected["energy_gradient"].append(norm(descended, module.energy))
        expected["network_gradient"].append(norm(module.energy(batch.inputs, a).mean(), nets.predictors()[0]))
    curves = {name: values[0] for name, values in module.curves.items()}
    logged = {name: float(module.trainer.callback_metrics[f"train/{name}"]) for name in expected}
    assert logged == pytest.approx(curves)
    assert curves.keys() >= {"cost_augmented", "hinge", "energy_gradient", "network_gradient"}
    means = {name: sum(values) / len(values) for name, values in expected.items() if values}
    assert {name: curves[name] for name in means} == pytest.approx(means, rel=1e-4)


def test_validation_scores_f_beside_a_and_says_how_far_a_is_ahead(tmp_path: Path) -> None:
    module = infnet("tags", "stacked")
    fit(module, Data("tags"), 2, tmp_path)
    scores = {name: float(value) for name, value in module.trainer.callback_metrics.items()}
    assert scores["val/ahead_quality"] == pytest.approx(
        scores["val/quality"] - scores["val/augmented_quality"]
    )
    batch, space = a_batch("tags"), SPACES["tags"][0].over(MASK)
    logits = module.networks(batch.inputs, batch.y, space.relax, ("augmented",))["augmented"]
    expected = space.quality(space.relax(logits), batch.y).mean().item()
    assert scores["val/augmented_quality"] == pytest.approx(expected, rel=1e-5)


def test_changes_are_counted_where_the_first_is_right() -> None:
    metric = TagChanges(["a", "b", "c"])
    one_hot = torch.eye(3)
    y = one_hot[[0, 0, 1, 2, 1]].unsqueeze(0)
    mask = torch.arange(5).unsqueeze(0) < 4
    first = one_hot[[0, 0, 1, 1, 1]].unsqueeze(0)
    second = one_hot[[1, 1, 2, 0, 0]].unsqueeze(0)
    metric.update(first, second, y, mask)
    metric.update(first, first, y, mask)
    assert metric.found() == [["a", "b", 2], ["b", "c", 1]]
    with pytest.raises(ValueError, match="tags has 2 names, and answers in the data have 3 tags"):
        TagChanges(["a", "b"]).check_answers(y)


@pytest.mark.parametrize(
    ("nets", "trained", "asked"), [("single", 1, 1), ("separated", 2, 1), ("stacked", 1, 1)]
)
def test_sizes_count_what_is_learned_and_what_prediction_needs(nets: str, trained: int, asked: int) -> None:
    objective = "margin" if nets == "single" else "compound"
    module = infnet("tags", nets, objective)
    shape = SPACES["tags"][1]

    def size(net: nn.Module) -> int:
        return sum(p.numel() for p in net.parameters())

    net = size(Net(shape))
    extra = size(Head(shape[-1])) if nets == "stacked" else 0
    assert module.sizes() == {
        "trained_parameters": trained * net + extra + size(ToyEnergy(shape)),
        "inference_parameters": asked * net,
    }
