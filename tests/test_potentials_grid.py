"""Every scheme of CRFs and every scaling on every kind of potentials."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from torch import Tensor, nn
from torchmetrics import Metric

from datamodules.batches import Batches
from energies.base import StructuredEnergy
from energies.chain import ChainEnergy
from energies.gaussian import GaussianEnergy
from energies.potentials import Potentials
from energies.scaling import FixedAlpha, HardTemperature, Offline, Online, Regularised, Scaling, Temperature
from energies.spaces import AnswerSpace, PixelMasks, TagSequences
from inference.base import Criterion
from inference.chain.criteria import MarginalCrossEntropy
from inference.gaussian.criteria import CrossEntropy
from lightning_modules.crf_joint import CRFJoint
from lightning_modules.crf_scaled import CRFScaled
from lightning_modules.crf_stage import CRFStage

N, D = 8, 6
SCALINGS: dict[str, Callable[[], Scaling]] = {
    "fixed": partial(FixedAlpha, 0.5),
    "online": partial(Online, subset=6, reach=3),
    "offline": partial(Offline, 2.0),
    "regularised": partial(Regularised, 1.0, 0.1),
    "temperature": partial(Temperature, 0.5),
    "hard_temperature": partial(HardTemperature, 2.0),
}
adam = partial(torch.optim.Adam, lr=0.05)


class Quality(Metric):
    """Mean quality of the decoded predictions."""

    def __init__(self, space: AnswerSpace) -> None:
        super().__init__()
        self.space = space
        self.add_state("total", torch.zeros(()), "sum")
        self.add_state("count", torch.zeros(()), "sum")

    def update(self, relaxed: Tensor, y: Tensor, mask: Tensor | None = None) -> None:
        space = self.space.over(mask)
        self.total += space.quality(space.decode(relaxed), y).sum()
        self.count += len(y)

    def compute(self) -> dict[str, Tensor]:
        return {"quality": self.total / self.count}


class Data(pl.LightningDataModule):
    """Eight inputs with noise, and the answers that follow from them."""

    def __init__(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> None:
        super().__init__()
        self.x, self.y, self.mask = x, y, mask

    def train_dataloader(self) -> Batches:
        return Batches(self.x, self.y, batch_size=4, seed=0, mask=self.mask)

    def val_dataloader(self) -> Batches:
        return Batches(self.x, self.y, batch_size=N, mask=self.mask)


def chain() -> tuple[StructuredEnergy, Criterion, AnswerSpace, Data]:
    """Sequences of five tags of four kinds."""
    tags = torch.randint(4, (N, 5)).cummax(1).values
    y = nn.functional.one_hot(tags, 4)
    x = torch.cat([y, torch.zeros(N, 5, D - 4)], -1) + torch.randn(N, 5, D)
    return (
        ChainEnergy(nn.Linear(D, 4), 4),
        MarginalCrossEntropy(),
        TagSequences(4),
        Data(x, y, torch.ones(N, 5, dtype=torch.bool)),
    )


def gaussian() -> tuple[StructuredEnergy, Criterion, AnswerSpace, Data]:
    """Pictures of 4 x 5 pixels, half of them foreground; noise hides which."""
    y = (torch.arange(5) < torch.randint(1, 5, (N, 1, 1))).float().expand(N, 4, 5).contiguous()
    x = (2 * y - 1).unsqueeze(-1) * torch.ones(D) + 2 * torch.randn(N, 4, 5, D)
    embedding = nn.Sequential(nn.Linear(D, 3), nn.ReLU())
    return GaussianEnergy(nn.Linear(D, 2), embedding), CrossEntropy(), PixelMasks(), Data(x, y)


KINDS = {"chain": chain, "gaussian": gaussian}


def losses_of(scheme: str, kind: str, folder: Path) -> dict[str, list[float]]:
    """The mean loss of each part that moved, epoch by epoch."""
    torch.manual_seed(3)
    energy, criterion, space, data = KINDS[kind]()
    common: dict[str, Any] = {"space": space, "metric": Quality(space), "seed": 1}
    callbacks: list[pl.Callback] = [curves := Curves()]
    module: pl.LightningModule
    if scheme == "joint":
        module = CRFJoint(energy, criterion, adam, **common)
    elif scheme == "stage":
        module = CRFStage(energy, criterion, adam, adam, adam, **common)
        callbacks.append(EarlyStopping("val/quality", mode="max", patience=3, min_delta=2.0))
    else:
        module = CRFScaled(energy, criterion, SCALINGS[scheme](), adam, **common)
    trainer = pl.Trainer(
        max_epochs=12,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        callbacks=callbacks,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, data)
    return curves.losses


class Curves(pl.Callback):
    """Keeps the losses that each epoch logs."""

    def __init__(self) -> None:
        self.losses: dict[str, list[float]] = {}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for name, value in trainer.callback_metrics.items():
            if name.endswith("_loss"):
                self.losses.setdefault(name, []).append(float(value))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["joint", *SCALINGS])
def test_each_scheme_drives_the_loss_of_each_kind_of_potentials_down(
    scheme: str, kind: str, tmp_path: Path
) -> None:
    (losses,) = losses_of(scheme, kind, tmp_path).values()
    assert sum(losses[-3:]) / 3 < 0.8 * losses[0]


@pytest.mark.parametrize("kind", KINDS)
def test_each_phase_drives_the_loss_of_each_kind_of_potentials_down(kind: str, tmp_path: Path) -> None:
    losses = losses_of("stage", kind, tmp_path)
    assert len(losses) == 3
    for part, curve in losses.items():
        moved = [value for value, before in zip(curve, [None, *curve], strict=False) if value != before]
        assert moved[-1] < moved[0], part


@pytest.mark.parametrize("kind", KINDS)
def test_the_parameters_of_an_energy_are_its_unary_and_its_other_ones(kind: str) -> None:
    energy = KINDS[kind]()[0]
    named = [*energy.unary_parameters(), *energy.pairwise_parameters()]
    assert len(named) == len({*named}) and {*named} == {*energy.parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_potentials_keeps_the_promises_of_the_protocol(kind: str) -> None:
    energy, criterion, _, data = KINDS[kind]()
    p: Potentials = energy.potentials(data.x, None)
    y = data.y.float()
    loss = criterion.loss(p, y)
    assert loss.shape == (N,)
    few = torch.tensor([5, 0])
    torch.testing.assert_close(criterion.loss(p.rows(few), y[few]), loss[few])
    torch.testing.assert_close(p.repeat(3).score(y.repeat(3, *[1] * (y.dim() - 1))), p.score(y).repeat(3))
    louder = p.times(2.0, 4.0)
    torch.testing.assert_close(louder.unary_norm(), 2 * p.unary_norm())
    torch.testing.assert_close(louder.pairwise_norm(), 4 * p.pairwise_norm())
    torch.testing.assert_close(p.times(2.0).logits(), 2 * p.logits())
    offline = Offline(3.0)(p)
    torch.testing.assert_close(offline.unary_norm(), torch.full((N,), 3.0))
    torch.testing.assert_close(
        offline.pairwise_norm() / offline.pairwise_unit, torch.ones_like(p.pairwise_norm())
    )
    assert criterion.predict(offline).shape == data.y.shape
