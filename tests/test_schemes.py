"""Schemes: every scheme on every kind of answer, who moves when, and exact resume."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from datamodules.batches import Batch, Batches
from energies.base import Energy
from energies.spaces import AnswerSpace, LabelSets, PixelMasks, TagSequences
from inference.gradient import Blank, GradientInference
from inference.guesses import Adversarial, Combined, CostAugmented, Minimum, Perturbed, Point, Sampled, Truth
from lightning_modules.base import Scheme
from lightning_modules.cross_entropy import CrossEntropy
from lightning_modules.energy_net import EnergyNet
from lightning_modules.engine.bookkeeping import EVALUATION, Diverged
from lightning_modules.seal_dynamic import SealDynamic
from lightning_modules.seal_static import SealStatic
from losses.objectives import Margin, NCERanking, Ranking, Regression
from losses.released import CostAugmentedTask
from losses.task import EnergyAndSupervision
from networks.mlp import CostAugmentedHead

N, D = 8, 6
adam = partial(torch.optim.Adam, lr=0.02)


class Quality(Metric):
    """Mean quality of decoded answers."""

    total: Tensor
    count: Tensor

    def __init__(self, space: AnswerSpace) -> None:
        super().__init__()
        self.space = space
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, guess: Tensor, y: Tensor, mask: Tensor | None = None) -> None:
        self.total += self.space.over(mask).quality(guess, y).sum()
        self.count += len(y)

    def compute(self) -> dict[str, Tensor]:
        return {"quality": self.total / self.count}


class Net(nn.Module):
    """Features to logits of any shape."""

    def __init__(self, shape: tuple[int, ...], dropout: float = 0.0) -> None:
        super().__init__()
        size = int(torch.Size(shape).numel())
        self.layers = nn.Sequential(nn.Linear(D, 16), nn.Softplus(), nn.Dropout(dropout), nn.Linear(16, size))
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).unflatten(-1, self.shape)


class ToyEnergy(Energy):
    """Minus the product with a net's output, plus a pattern term over all entries of the answer."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.local, self.rank = Net(shape), len(shape)
        self.patterns = nn.Linear(int(torch.Size(shape).numel()), 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y = y.to(x.dtype).flatten(-self.rank)
        return -(self.local(x).flatten(1) * y).sum(-1) - nn.functional.softplus(self.patterns(y)).sum(-1)


MASK = torch.tensor([[True, True, True], [True, False, True]]).repeat(N // 2, 1)  # this net knows one length
SPACES: dict[str, tuple[AnswerSpace, tuple[int, ...]]] = {
    "sets": (LabelSets(5), (5,)),
    "tags": (TagSequences(4), (3, 4)),
    "masks": (PixelMasks(), (2, 3)),
}


class Data(pl.LightningDataModule):
    """Eight examples of a kind of answer."""

    def __init__(self, space: str, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.seed, self.inputs = seed, torch.randn(N, D)
        kind, shape = SPACES[space]
        self.mask = MASK if isinstance(kind, TagSequences) else None
        answers = kind.over(self.mask)
        self.y = answers.decode(answers.relax(Net(shape)(3 * self.inputs)))
        if space != "tags":
            self.y.flatten(1)[:, 0] = 1  # no empty answer

    def train_dataloader(self) -> Batches:
        return Batches(self.inputs, self.y, batch_size=4, seed=self.seed, mask=self.mask)

    def val_dataloader(self) -> Batches:
        return Batches(self.inputs, self.y, batch_size=N, mask=self.mask)


SEARCH = GradientInference(Blank(), steps=5, step_size=0.1)
DVN = Combined([Minimum(SEARCH), Adversarial(SEARCH), Truth()])
Build = Callable[[str], Scheme]


def scheme(name: str, space: str, dropout: float = 0.0, **options: Any) -> Scheme:
    """A small scheme by name, built the same each time."""
    torch.manual_seed(3)
    kind, shape = SPACES[space]
    common = {"space": kind, "metric": Quality(kind), "seed": 1} | options
    net, energy = Net(shape, dropout), ToyEnergy(shape)
    with_task = {"task_loss": EnergyAndSupervision(0.1), "task_optimizer": adam}
    dynamic = partial(SealDynamic, net, energy, energy_optimizer=adam, **with_task, **common)
    builders: dict[str, Callable[[], Scheme]] = {
        "cross_entropy": lambda: CrossEntropy(net, adam, **common),
        "static": lambda: SealStatic(net, energy, Regression(), **with_task, **common),
        "dynamic_margin": lambda: dynamic(objective=Margin(), guess=Point(), inner="task", inner_steps=2),
        "dynamic_regression": lambda: dynamic(objective=Regression(), guess=Point(), inner_steps=2),
        "dynamic_regression_s": lambda: dynamic(
            objective=Regression(), guess=Perturbed(4, 0.5), outer_steps=2
        ),
        "dynamic_nce": lambda: dynamic(
            objective=NCERanking(), guess=Sampled(6), inner_steps=3, outer_steps=2
        ),
        "dynamic_ranking": lambda: dynamic(objective=Ranking(), guess=Sampled(6)),
        "spen": lambda: EnergyNet(energy, Margin(), CostAugmented(SEARCH), SEARCH, adam, **common),
        "dvn": lambda: EnergyNet(energy, Regression(), DVN, SEARCH, adam, **common),
        "nce": lambda: EnergyNet(energy, NCERanking(), Sampled(6), SEARCH, adam, guesser=net, **common),
    }
    return builders[name]()


SCHEMES = [
    "cross_entropy",
    "static",
    "dynamic_margin",
    "dynamic_regression",
    "dynamic_regression_s",
    "dynamic_nce",
    "dynamic_ranking",
    "spen",
    "dvn",
    "nce",
]


class Watch(pl.callbacks.Checkpoint):
    """Keeps the losses of each epoch; a `Checkpoint` only to be called after the scheme has logged them."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.epochs.append({k: float(v) for k, v in trainer.callback_metrics.items() if "loss" in k})


def fit(module: Scheme, data: Data, epochs: int, folder: Path, resume: str | None = None) -> Watch:
    watch = Watch()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[watch],
        inference_mode=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, data, ckpt_path=resume)
    trainer.save_checkpoint(folder / f"after-{epochs}.ckpt")
    return watch


def weights(module: Scheme) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in module.state_dict().items()}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", SCHEMES)
def test_each_scheme_drives_its_losses_down_on_every_kind_of_answer(
    name: str, space: str, tmp_path: Path
) -> None:
    module = scheme(name, space)
    losses = fit(module, Data(space), 25, tmp_path).epochs
    first, last = losses[0], {k: sum(e[k] for e in losses[-3:]) / 3 for k in losses[0]}
    part = f"train/{next(iter(module.part))}_loss"
    assert last[part] < first[part]
    if name.startswith("dynamic"):
        before = scheme(name, space)
        batch = next(iter(Data(space).val_dataloader()))
        answers = module.space.over(batch.mask)
        gain = answers.supervise(before.task_net(batch.inputs), batch.y) - answers.supervise(
            module.task_net(batch.inputs), batch.y
        )
        assert gain.mean() > 0


@pytest.mark.parametrize("name", ["dynamic_nce", "dvn", "static"])
def test_a_resumed_run_equals_an_unbroken_one_bit_by_bit(name: str, tmp_path: Path) -> None:
    unbroken = scheme(name, "sets", dropout=0.3)
    fit(unbroken, Data("sets"), 6, tmp_path / "a")
    fit(scheme(name, "sets", dropout=0.3), Data("sets"), 3, tmp_path / "b")
    resumed = scheme(name, "sets", dropout=0.3)
    torch.rand(100)  # whatever else drew random numbers in between
    fit(resumed, Data("sets"), 6, tmp_path / "b", resume=str(tmp_path / "b" / "after-3.ckpt"))
    for key, value in weights(unbroken).items():
        assert torch.equal(value, weights(resumed)[key]), key
    assert unbroken.steps == resumed.steps


def test_a_checkpoint_holds_no_code(tmp_path: Path) -> None:
    fit(scheme("dynamic_nce", "sets"), Data("sets"), 1, tmp_path)
    content = torch.load(tmp_path / "after-1.ckpt", weights_only=True)
    assert content["scheme_steps"] == {"task": 4, "energy": 12}


class Recorder(SealDynamic):
    """Notes after each step which part moved."""

    def move(self, part: str, batch: Batch) -> None:
        before = weights(self)
        super().move(part, batch)
        after = weights(self)
        moved = {k.split(".")[0] for k in before if not torch.equal(before[k], after[k])}
        self.seen = [*getattr(self, "seen", []), (part, moved)]


@pytest.mark.parametrize("inner", ["energy", "task"])
def test_only_the_part_whose_turn_it_is_moves_and_turns_are_counted(inner: str, tmp_path: Path) -> None:
    kind, shape = SPACES["sets"]
    module = Recorder(
        Net(shape),
        ToyEnergy(shape),
        NCERanking(),
        Sampled(4),
        EnergyAndSupervision(1.0),
        adam,
        adam,
        inner=inner,
        inner_steps=3,
        outer_steps=2,
        space=kind,
        metric=Quality(kind),
    )
    fit(module, Data("sets"), 1, tmp_path)
    outer = {"energy": "task", "task": "energy"}[inner]
    batches = 2
    assert module.steps == {inner: batches * 2 * 3, outer: batches * 2}
    assert [part for part, _ in module.seen[:4]] == [inner] * 3 + [outer]
    owner = {"energy": {"energy"}, "task": {"task_net"}}
    assert all(moved == owner[part] for part, moved in module.seen)


def test_evaluation_draws_alike_in_all_processes_and_training_does_not() -> None:
    module, draws = scheme("nce", "sets"), []
    for rank in (0, 1):
        with patch.object(Scheme, "global_rank", rank):
            for part in (EVALUATION, 0):
                module.draw_from(part, 0)
                draws.append(float(torch.rand(())))
    assert draws[0] == draws[2] and draws[1] != draws[3]


def test_what_was_frozen_stays_frozen(tmp_path: Path) -> None:
    module = scheme("dynamic_nce", "sets")
    module.energy.local.requires_grad_(False)
    before = weights(module)
    fit(module, Data("sets"), 2, tmp_path)
    moved = {key for key, value in weights(module).items() if not torch.equal(value, before[key])}
    assert not any(key.startswith("energy.local") for key in moved)
    assert any(key.startswith("energy.patterns") for key in moved)


@pytest.mark.parametrize("name", ["static", "dynamic_margin"])
def test_what_a_task_loss_learns_moves_with_the_task_net(name: str, tmp_path: Path) -> None:
    module = scheme(name, "sets")
    module.task_terms = CostAugmentedTask(CostAugmentedHead(5), energy_weight=0.1)
    before = weights(module)
    fit(module, Data("sets"), 1, tmp_path)
    moved = {key for key, value in weights(module).items() if not torch.equal(value, before[key])}
    assert {"task_terms.head.inner.weight", "task_net.layers.0.weight"} <= moved


def test_a_schedule_by_epochs_moves_the_rate_of_the_main_part(tmp_path: Path) -> None:
    by_epochs = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.1)
    module = scheme("dynamic_nce", "sets", lr_schedule=by_epochs)
    fit(module, Data("sets"), 3, tmp_path)
    rates = [optimizer.param_groups[0]["lr"] for optimizer in module.optimizers()]
    assert rates == pytest.approx([0.02 * 0.1**3, 0.02])


def test_no_weight_on_the_energy_leaves_the_curve_of_cross_entropy(tmp_path: Path) -> None:
    kind, shape = SPACES["sets"]

    def task_curve(build: Callable[[nn.Module], Scheme]) -> tuple[list[float], dict[str, Tensor]]:
        torch.manual_seed(11)
        module = build(Net(shape, dropout=0.5))
        curve = [e["train/task_loss"] for e in fit(module, Data("sets"), 4, tmp_path).epochs]
        return curve, {k: v for k, v in weights(module).items() if k.startswith("task_net")}

    common = {"space": kind, "metric": Quality(kind), "seed": 5}
    plain = task_curve(lambda net: CrossEntropy(net, adam, task_steps=2, **common))
    dynamic = task_curve(
        lambda net: SealDynamic(
            net,
            ToyEnergy(shape),
            NCERanking(),
            Sampled(4),
            EnergyAndSupervision(0.0),
            adam,
            adam,
            inner_steps=3,
            outer_steps=2,
            **common,
        )
    )
    assert plain[0] == dynamic[0]
    assert all(torch.equal(plain[1][k], dynamic[1][k]) for k in plain[1])


def test_the_order_of_batches_is_new_each_epoch_and_the_same_each_run() -> None:
    loader, again = Data("sets").train_dataloader(), Data("sets").train_dataloader()
    orders: list[Tensor] = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        again.set_epoch(epoch)
        orders.append(torch.cat([b.inputs for b in loader]))
        assert torch.equal(orders[-1], torch.cat([b.inputs for b in again]))
    assert not torch.equal(*orders)


@pytest.fixture
def poisoned() -> Iterator[Data]:
    data = Data("sets")
    data.inputs[0] = float("nan")
    yield data


def test_a_diverged_run_says_which_part_and_what_to_do(poisoned: Data, tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"the task loss is nan in epoch 0.*task_optimizer"):
        fit(scheme("cross_entropy", "sets"), poisoned, 2, tmp_path)
    later = Data("sets")
    first = next(iter(later.train_dataloader())).inputs
    later.inputs[~torch.isin(later.inputs[:, 0], first[:, 0])] = float("nan")
    with pytest.raises(Diverged, match=r"Lower \S+energy_optimizer\S+ or \S+task_optimizer\S+, or look"):
        fit(scheme("dynamic_regression", "sets"), later, 2, tmp_path)


def test_an_energy_that_is_nan_before_it_learns_is_no_matter_of_rates(poisoned: Data, tmp_path: Path) -> None:
    poisoned.inputs[:] = float("nan")
    with pytest.raises(
        ValueError, match=r"is NaN for true answers before anything .* Look for NaN in the inputs"
    ):
        fit(scheme("dynamic_regression", "sets"), poisoned, 2, tmp_path)


class Norms(SealDynamic):
    """Notes the size of each step's gradient."""

    def move(self, part: str, batch: Batch) -> None:
        super().move(part, batch)
        net = {"task": self.task_net, "energy": self.energy}[part]
        norm = sum(float(p.grad.norm()) for p in net.parameters() if p.grad is not None)
        self.seen = [*getattr(self, "seen", []), (part, norm)]


def test_only_the_predicting_part_is_clipped(tmp_path: Path) -> None:
    kind, shape = SPACES["sets"]
    task_loss, common = EnergyAndSupervision(1.0), {"space": kind, "metric": Quality(kind), "clip_norm": 1e-9}
    module = Norms(Net(shape), ToyEnergy(shape), NCERanking(), Sampled(4), task_loss, adam, adam, **common)
    fit(module, Data("sets"), 1, tmp_path)
    norms = {part: [norm for p, norm in module.seen if p == part] for part in ("task", "energy")}
    assert max(norms["task"]) < 1e-8 < min(norms["energy"])
