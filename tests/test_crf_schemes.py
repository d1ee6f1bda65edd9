"""Schemes of CRFs: what moves when, what online scaling chooses, exact resume in the middle of anything."""

import json
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.cli import ReduceLROnPlateau
from torch import Tensor, nn

from datamodules.batches import Batch, Batches
from datamodules.ocr import OCRLetters
from energies.chain import ChainEnergy
from energies.scaling import FixedAlpha, HardTemperature, Offline, Online, Regularised, Scaling, Temperature
from energies.spaces import TagSequences
from finished_runs import runner
from inference.chain.criteria import (
    Criterion,
    Likelihood,
    MarginalCrossEntropy,
    MeanFieldCrossEntropy,
    StructuredSVM,
)
from lightning_modules.base import Scheme
from lightning_modules.crf import CRFScheme
from lightning_modules.crf_joint import CRFJoint
from lightning_modules.crf_scaled import CRFScaled
from lightning_modules.crf_stage import CRFStage
from lightning_modules.cross_entropy import CrossEntropy
from lightning_modules.metrics.sequence import SequenceScores
from networks.inputs import Sequences
from networks.pretrained import read_checkpoint

LETTERS = OCRLetters().missing()
N, T, D, S = 8, 5, 6, 4
LENGTHS = torch.tensor([5, 3, 4, 1, 5, 2, 5, 4])
adam, sgd = partial(torch.optim.Adam, lr=0.05), partial(torch.optim.SGD, lr=0.1)
CRITERIA = [Likelihood(), MarginalCrossEntropy(), StructuredSVM(), MeanFieldCrossEntropy()]
SCALINGS: dict[str, Callable[[], Scaling]] = {
    "fixed": partial(FixedAlpha, 0.5),
    "online": partial(Online, subset=6),
    "offline": partial(Offline, 2.0),
    "regularised": partial(Regularised, 1.0, 0.1),
    "temperature": partial(Temperature, 0.5),
    "hard_temperature": partial(HardTemperature, 2.0),
}


class Data(pl.LightningDataModule):
    """Eight sequences whose tags follow from the input and, in part, from the tag before."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(7)
        self.mask = torch.arange(T) < LENGTHS.unsqueeze(1)
        self.x = torch.randn(N, T, D, generator=draw, dtype=dtype) * self.mask.unsqueeze(-1)
        tags = self.x[..., :S].argmax(-1)
        tags[:, 1:] = torch.where(self.x[:, 1:, S] > 0, (tags[:, :-1] + 1) % S, tags[:, 1:])
        self.y = nn.functional.one_hot(tags, S) * self.mask.unsqueeze(-1)

    def train_dataloader(self) -> Batches:
        return Batches(Sequences(self.x, self.mask), self.y, batch_size=4, seed=0)

    def val_dataloader(self) -> Batches:
        return Batches(Sequences(self.x, self.mask), self.y, batch_size=N)

    test_dataloader = val_dataloader


class Values(nn.Module):
    """What stands at each position."""

    def forward(self, x: Sequences) -> Tensor:
        return x.values


def net() -> nn.Sequential:
    return nn.Sequential(Values(), nn.Linear(D, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, S, bias=False))


def scheme(name: str, criterion: Criterion = CRITERIA[1], **options: Any) -> CRFScheme:
    """A small scheme by name, built the same each time."""
    torch.manual_seed(3)
    energy = ChainEnergy(net(), S, ends=True)
    common = {"space": TagSequences(S), "metric": SequenceScores(), "seed": 1} | options
    if name == "joint":
        return CRFJoint(energy, criterion, adam, **common)
    if name == "stage":
        return CRFStage(energy, criterion, adam, adam, sgd, **common)
    return CRFScaled(energy, criterion, SCALINGS[name](), adam, **common)


class Watch(pl.callbacks.Checkpoint):
    """Keeps the logs and the weights each epoch ends with."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self.weights: list[dict[str, Tensor]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.epochs.append({k: float(v) for k, v in trainer.callback_metrics.items()})
        self.weights.append(weights(pl_module))


def weights(module: pl.LightningModule) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in module.state_dict().items()}


def stopper(patience: int = 2) -> EarlyStopping:
    """Ends a phase after its third epoch: nothing improves by a whole point."""
    return EarlyStopping(monitor="val/word_accuracy", mode="max", patience=patience, min_delta=1.0)


def fit(
    module: Scheme,
    epochs: int,
    folder: Path,
    *,
    resume: str | None = None,
    stop: EarlyStopping | None = None,
    data: Data | None = None,
) -> tuple[pl.Trainer, Watch]:
    watch = Watch()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[watch, stop] if stop else [watch],
        num_sanity_val_steps=0,
    )
    trainer.fit(module, data or Data(), ckpt_path=resume, weights_only=True)
    trainer.save_checkpoint(folder / f"after-{epochs}.ckpt")
    module.eval()
    return trainer, watch


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("name", ["joint", *SCALINGS])
def test_each_scheme_drives_its_loss_down(name: str, criterion: Criterion, tmp_path: Path) -> None:
    module = scheme(name, criterion)
    losses = [e["train/energy_loss"] for e in fit(module, 15, tmp_path)[1].epochs]
    assert sum(losses[-3:]) / 3 < 0.8 * losses[0]


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda c: type(c).__name__)
def test_each_phase_of_a_stage_run_drives_its_loss_down(criterion: Criterion, tmp_path: Path) -> None:
    watch = fit(scheme("stage", criterion), 18, tmp_path, stop=stopper(5))[1]
    for part, phase in {"unary": slice(0, 6), "pairwise": slice(6, 12), "joint": slice(12, 18)}.items():
        losses = [e[f"train/{part}_loss"] for e in watch.epochs[phase]]
        assert losses[-1] < losses[0], part


def test_a_phase_moves_its_own_part_only(tmp_path: Path) -> None:
    module = scheme("stage")
    before = weights(module)
    trainer, watch = fit(module, 30, tmp_path, stop=stopper())
    assert trainer.current_epoch == 9  # the last phase ends the run
    assert module.curves["phase"] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert module.steps == {"unary": 6, "pairwise": 6, "joint": 6}
    for epoch, after in enumerate(watch.weights):
        moved = {key.split(".")[1] for key in before if not torch.equal(before[key], after[key])}
        tables = {"pairwise", "start", "end"}
        assert moved == [{"net"}, tables, {"net", *tables}][epoch // 3]
        before = after


def test_each_phase_has_its_own_learning_rate_schedule(tmp_path: Path) -> None:
    plateau = partial(ReduceLROnPlateau, monitor="val/word_accuracy", mode="max", patience=1, threshold=1.0)
    module = scheme("stage", lr_schedule=partial(plateau, threshold_mode="abs"))
    fit(module, 4, tmp_path, stop=stopper())  # the first phase, and one epoch of the second
    rates = [optimizer.param_groups[0]["lr"] for optimizer in module.optimizers()]
    assert rates == pytest.approx([0.005, 0.05, 0.1])


def test_the_first_phase_predicts_by_the_network_alone_and_its_checkpoint_too(tmp_path: Path) -> None:
    module = scheme("stage")
    trainer, watch = fit(module, 3, tmp_path, stop=stopper())
    batch = next(iter(Data().val_dataloader()))
    unary = (module.energy.net(batch.inputs).softmax(-1) * batch.mask.unsqueeze(-1)).detach()
    torch.testing.assert_close(module.predict(batch), unary)
    fit(later := scheme("stage"), 9, tmp_path, stop=stopper())
    assert not torch.allclose(later.predict(batch), unary, atol=1e-3)
    scores = trainer.test(later, Data(), str(tmp_path / "after-3.ckpt"), weights_only=True, verbose=False)
    torch.testing.assert_close(later.predict(batch), unary)
    assert scores[0]["test/word_accuracy"] == pytest.approx(watch.epochs[-1]["val/word_accuracy"])


@pytest.mark.skipif(LETTERS is not None, reason=str(LETTERS))
def test_a_stage_run_is_tested_with_its_last_phase_though_an_earlier_one_scored_as_well(
    tmp_path: Path,
) -> None:
    still = {f"model.init_args.{phase}_optimizer.init_args.lr": 0.0 for phase in ("pairwise", "joint")}
    few = {
        "stop.patience": 1,
        "stop.min_delta": 1.0,
        "trainer.max_epochs": 9,
        "trainer.limit_train_batches": 2,
    }
    folder = runner(tmp_path)("data/ocr", "scheme/crf_stage", "objective/marginal_ce", **still, **few)
    record = json.loads((folder / "record.json").read_text())
    assert record["curves"]["phase"] == [0, 0, 1, 1, 2, 2] and record["best_epoch"] == 4
    assert read_checkpoint(folder / "checkpoints" / "best.ckpt")["phase"] == "joint"
    assert sorted(file.name for file in (folder / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]


def test_the_first_phase_alone_is_training_by_cross_entropy(tmp_path: Path) -> None:
    plateau = partial(ReduceLROnPlateau, monitor="val/word_accuracy", mode="max", patience=0, threshold=1.0)
    alone = scheme("stage", phases=("unary",), lr_schedule=plateau)
    plain = CrossEntropy(
        alone.energy.net, adam, space=TagSequences(S), metric=SequenceScores(), seed=1, lr_schedule=plateau
    )
    plain.task_net = deepcopy(alone.energy.net)
    trainer, _ = fit(alone, 20, tmp_path, stop=stopper())
    assert trainer.current_epoch == 3 and "phase" not in alone.curves
    fit(plain, 3, tmp_path)
    for one, other in zip(alone.energy.net.parameters(), plain.task_net.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_stage_run_without_a_stop_rule_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no EarlyStopping callback to end its phases.*conf/data/ocr"):
        fit(scheme("stage"), 1, tmp_path)


@pytest.mark.parametrize("broken", [2, 3, 4, 6, 7])
def test_a_stage_run_resumes_in_the_middle_of_any_phase_bit_by_bit(broken: int, tmp_path: Path) -> None:
    plateau = partial(ReduceLROnPlateau, monitor="val/word_accuracy", mode="max", patience=0)
    unbroken, resumed = (scheme("stage", lr_schedule=plateau) for _ in range(2))
    fit(unbroken, 20, tmp_path / "a", stop=stopper())
    fit(scheme("stage", lr_schedule=plateau), broken, tmp_path / "b", stop=stopper())
    torch.rand(10)
    kept = str(tmp_path / "b" / f"after-{broken}.ckpt")
    trainer, _ = fit(resumed, 20, tmp_path / "b", resume=kept, stop=stopper())
    assert trainer.current_epoch == 9
    same(unbroken, resumed)


@pytest.mark.parametrize("name", ["joint", *SCALINGS])
def test_a_resumed_run_equals_an_unbroken_one_bit_by_bit(name: str, tmp_path: Path) -> None:
    unbroken, resumed = scheme(name), scheme(name)
    fit(unbroken, 6, tmp_path / "a")
    fit(scheme(name), 3, tmp_path / "b")
    torch.rand(10)
    fit(resumed, 6, tmp_path / "b", resume=str(tmp_path / "b" / "after-3.ckpt"))
    same(unbroken, resumed)


def same(one: CRFScheme, other: CRFScheme) -> None:
    for key, value in weights(one).items():
        assert torch.equal(value, weights(other)[key]), key
    assert one.steps == other.steps and one.curves == other.curves


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda c: type(c).__name__)
def test_online_scaling_finds_the_least_loss_of_the_grid(criterion: Criterion, tmp_path: Path) -> None:
    module = scheme("online", criterion)
    assert isinstance(module, CRFScaled) and isinstance(module.scaling, Online)
    module.scaling.subset = N  # all: the losses can be counted anew
    fit(module, 3, tmp_path)
    module.eval()
    data, online = Data().train_dataloader(), module.scaling
    batch = data.rows(torch.arange(N))
    grid = [2.0**t for t in range(-8, 9)]
    with torch.no_grad():
        p = module.energy.potentials(batch.inputs, batch.mask)
        losses = [criterion.loss(FixedAlpha(alpha)(p), batch.y).mean().item() for alpha in grid]
    assert module.mean_losses(module.subset(data)).tolist() == pytest.approx(losses, rel=1e-5)
    assert losses[grid.index(online.alpha.item())] == pytest.approx(min(losses), rel=1e-5)


class Searches(CRFScaled):
    """Notes alpha before each search, the losses it found, and alpha afterwards."""

    def choose_alpha(self, data: Batches) -> None:
        before, training = self.scaling.alpha.item(), self.training
        super().choose_alpha(data)
        assert self.training == training
        self.eval()
        with torch.no_grad():
            losses = self.mean_losses(self.subset(data))
        self.train(training)
        self.seen = [*getattr(self, "seen", []), (before, losses, self.scaling.alpha.item())]

    def subset(self, data: Batches) -> Iterator[Batch]:
        found = [*super().subset(data)]
        rows = {tuple(row) for batch in found for row in batch.inputs.values.flatten(1).tolist()}
        self.drawn = [*getattr(self, "drawn", []), rows]
        return iter(found)


def test_an_online_step_never_raises_the_loss_of_its_subset(tmp_path: Path) -> None:
    torch.manual_seed(3)
    common = {"space": TagSequences(S), "metric": SequenceScores()}
    module = Searches(ChainEnergy(net(), S), MarginalCrossEntropy(), Online(5), adam, **common)
    fit(module, 6, tmp_path)
    grid = [2.0**t for t in range(-8, 9)]
    for before, losses, after in module.seen:
        assert losses[grid.index(after)] <= losses[grid.index(before)]
    assert [after for *_, after in module.seen] == module.curves["alpha"]
    assert not torch.equal(module.seen[0][1], module.seen[1][1])


def test_the_subset_is_new_each_epoch_and_evaluation_moves_no_alpha(tmp_path: Path) -> None:
    module = scheme("online")
    module.__class__ = Searches
    assert isinstance(module, Searches) and isinstance(module.scaling, Online)
    trainer, _ = fit(module, 2, tmp_path)
    first, again, second, _ = module.drawn  # chosen by, then read once more above
    assert first == again != second and len(first) == 6
    module.scaling.alpha.fill_(8.0)
    trainer.test(module, Data(), verbose=False)
    trainer.validate(module, Data(), verbose=False)
    assert module.scaling.alpha.item() == 8


def test_scaling_by_alpha_is_a_larger_start_and_a_larger_rate_of_the_last_layer(tmp_path: Path) -> None:
    """[Scaling C]: alpha times U under SGD is V times alpha with learning rate alpha^2 eta."""
    alpha, rate, data = 3.0, 0.05, Data(torch.float64)
    common: dict[str, Any] = {"space": TagSequences(S), "metric": SequenceScores(), "clip_norm": None}

    def chain() -> ChainEnergy:
        torch.manual_seed(5)
        return ChainEnergy(net(), S).double()

    scaled = CRFScaled(chain(), Likelihood(), FixedAlpha(alpha), partial(torch.optim.SGD, lr=rate), **common)
    louder = chain()
    last = louder.net[-1].weight

    def optimizer(params: Iterable[Tensor]) -> torch.optim.Optimizer:
        groups = [{"params": [p], "lr": alpha**2 * rate if p is last else rate} for p in params]
        return torch.optim.SGD(groups, lr=rate)

    with torch.no_grad():
        last *= alpha
    joint = CRFJoint(louder, Likelihood(), optimizer, **common)
    for module in (scaled, joint):
        fit(module, 4, tmp_path, data=data)
    for (key, one), other in zip(scaled.energy.named_parameters(), louder.parameters(), strict=True):
        factor = alpha if other is last else 1.0
        torch.testing.assert_close(factor * one, other, msg=key)
    torch.testing.assert_close(scaled.curves["ratio"], joint.curves["ratio"])


def test_the_ratio_is_that_of_the_norms_at_each_step(tmp_path: Path) -> None:
    torch.manual_seed(3)
    common = {"space": TagSequences(S), "metric": SequenceScores()}
    still = partial(torch.optim.SGD, lr=0.0)
    chain = ChainEnergy(nn.Sequential(Values(), nn.Linear(D, S)), S)
    module = CRFScaled(chain, Likelihood(), FixedAlpha(0.5), still, **common)
    data = Data()
    fit(module, 2, tmp_path, data=data)
    seen, loader = [], data.train_dataloader()
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            sizes = 0.5 * module.energy.net(batch.inputs).abs().mean(-1)
            loudness = torch.stack([u[m].mean() for u, m in zip(sizes, batch.mask, strict=True)]).mean()
            seen.append((loudness / module.energy.pairwise.abs().mean()).item())
    assert module.curves["ratio"] == pytest.approx(seen)  # an epoch of two batches has no more pieces


@pytest.mark.parametrize("name", ["joint", "online", "stage"])
def test_a_checkpoint_holds_no_code_and_the_curves(name: str, tmp_path: Path) -> None:
    module = scheme(name)
    fit(module, 1, tmp_path, stop=stopper())
    content = torch.load(tmp_path / "after-1.ckpt", weights_only=True)
    assert content["scheme_curves"] == module.curves and module.curves
