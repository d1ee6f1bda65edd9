"""Batch norm rests where answers get gradients or second derivatives are taken, and in parts at rest."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from datamodules.batches import Batches
from energies.base import Energy, SumEnergy
from energies.gaussian import GaussianEnergy
from energies.spaces import PixelMasks
from inference.bilevel import FiniteDifference, Neumann
from inference.gaussian.criteria import CrossEntropy
from inference.guesses import Point
from lightning_modules.crf_stage import CRFStage, Phase
from lightning_modules.implicit import Implicit
from lightning_modules.metrics.masks import MaskScores
from losses.objectives import Contrastive
from networks.layers import batch_norms
from networks.unet import UNet
from test_pictures import some_pictures

WIDTHS = (4, 8)
adam = partial(torch.optim.Adam, lr=0.01)


class NormedEnergy(Energy):
    """A mask is judged by a U-Net that reads it: batch norm in the path from y to E."""

    def __init__(self) -> None:
        super().__init__()
        self.net = UNet(1, 1, WIDTHS)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.net(y.flatten(0, -3).unsqueeze(1)).sum((1, 2)).view(y.shape[:-2])


def statistics(module: nn.Module) -> list[Tensor]:
    return [t.clone() for norm in batch_norms(module) for t in (norm.running_mean, norm.running_var)]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


ENERGIES: dict[str, Callable[[], Energy]] = {
    "field": lambda: GaussianEnergy(UNet(widths=WIDTHS), UNet(None, widths=WIDTHS)),
    "of the answer": NormedEnergy,
    "sum": lambda: SumEnergy(GaussianEnergy(UNet(widths=WIDTHS), UNet(4, widths=WIDTHS)), NormedEnergy()),
}


@pytest.mark.parametrize("kind", ENERGIES)
def test_the_gradient_of_an_answer_knows_nothing_of_the_other_pictures(kind: str) -> None:
    torch.manual_seed(0)
    energy, (x, y) = ENERGIES[kind]().train(), some_pictures(4, 8)
    before = statistics(energy)
    _, together = energy.value_and_gradient(x)(y)
    _, alone = energy.value_and_gradient(x[:1])(y[:1])
    torch.testing.assert_close(together[:1], alone)
    assert equal(statistics(energy), before) and energy.training
    assert all(norm.training for norm in batch_norms(energy))
    energy(x, y)  # an ordinary pass in training reads the batch, and learns its statistics
    assert not equal(statistics(energy), before)


class Data(pl.LightningDataModule):
    """Eight pictures of 8 x 8 pixels."""

    def train_dataloader(self) -> Batches:
        return Batches(*some_pictures(8, 8), batch_size=4, seed=0)

    def val_dataloader(self) -> Batches:
        return Batches(*some_pictures(8, 8), batch_size=8)


class Statistics(pl.Callback):
    """Keeps the statistics of some modules at the end of each epoch."""

    def __init__(self, **modules: nn.Module) -> None:
        self.modules, self.seen = modules, {name: [statistics(m)] for name, m in modules.items()}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for name, module in self.modules.items():
            self.seen[name].append(statistics(module))


def fit(module: pl.LightningModule, folder: Path, watch: Statistics) -> Statistics:
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        callbacks=[watch],
        num_sanity_val_steps=0,
    )
    trainer.fit(module, Data())
    return watch


def common() -> dict[str, Any]:
    return {"space": PixelMasks(), "metric": MaskScores(), "seed": 1}


def test_a_frozen_network_keeps_its_statistics_in_the_other_phases(tmp_path: Path) -> None:
    torch.manual_seed(0)
    unary, embedding = UNet(widths=WIDTHS), UNet(4, widths=WIDTHS)
    energy = GaussianEnergy(unary, embedding)
    turns: list[tuple[Phase, str, str]] = [
        ("unary", "unary", "embedding"),
        ("pairwise", "embedding", "unary"),
    ]
    for phase, moved, still in turns:
        module = CRFStage(energy, CrossEntropy(), adam, adam, adam, phases=(phase,), **common())
        watch = fit(module, tmp_path, Statistics(unary=unary, embedding=embedding))
        assert equal(*watch.seen[still]) and not equal(*watch.seen[moved])
    joint = CRFStage(energy, CrossEntropy(), adam, adam, adam, phases=("joint",), **common())
    watch = fit(joint, tmp_path, Statistics(unary=unary, embedding=embedding))
    assert not equal(*watch.seen["unary"]) and not equal(*watch.seen["embedding"])


def test_second_derivatives_of_a_unet_leave_its_statistics_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net, energy = UNet(1, widths=WIDTHS), NormedEnergy()
    module = Implicit(
        net, energy, Contrastive(), Point(), adam, adam, Neumann(3), FiniteDifference(), warm_up=0, **common()
    )
    found: list[bool] = []
    of_energy = Implicit.hypergradient

    def watched(self: Implicit, batch: Any) -> Tensor:  # noqa: ANN401
        before = statistics(self)
        modes = {norm.training for norm in batch_norms(self)}
        loss = of_energy(self, batch)
        found.append(equal(before, statistics(self)) and modes == {False})
        return loss

    monkeypatch.setattr(Implicit, "hypergradient", watched)
    watch = fit(module, tmp_path, Statistics(net=net, energy=energy))
    assert found == [True, True]
    assert not equal(*watch.seen["net"])  # its own steps learn them
    assert all(norm.training for norm in batch_norms(module))
