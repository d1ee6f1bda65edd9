"""Training over kept layers, with two encoders or one and its copy: real stories and topics."""

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer
from torch import nn

import text_parts
import text_world as world

pytest.importorskip("transformers", reason="the extra hf is not installed")

from datamodules.base import DeviceData, Split
from datamodules.text.kept import keep
from datamodules.text.tokens import pieces_of
from energies.base import SumEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.spaces import LabelSets
from experiments.run.cli import TrainCLI
from inference.guesses import Sampled
from lightning_modules.engine.encoder_copy import StopGradientCopy
from lightning_modules.metrics.multilabel import MultiLabelScores
from lightning_modules.seal_dynamic import SealDynamic
from losses.objectives import NCERanking
from losses.task import EnergyAndSupervision
from networks.transformer import Encoder
from scheme_runs import configs

LABELS, STORIES, LAYERS = 90, 24, 5
adam = partial(torch.optim.AdamW, lr=1e-3)


class Stories(DeviceData):
    """Stories as the states of all layers but the last, and their topics; one part for all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(batch_size=8, eval_batch_size=24, seed=0, pool=3)
        self.folder = folder

    def missing(self) -> None:
        """Nothing is."""

    def load(self) -> dict[str, Split]:
        pieces = pieces_of(world.stories(STORIES), world.needs_encoder(), max_pieces=32)
        inputs = pieces.inputs(
            torch.arange(STORIES), kept=keep(pieces, world.MINI, LAYERS, folder=self.folder)
        )
        return dict.fromkeys(("train", "validation", "test"), Split(inputs, world.topics(STORIES)))


def network(**options: Any) -> nn.Module:
    encoder = Encoder(world.MINI, trained="top_layers", num_top=6 - LAYERS, pooling="mean", **options)
    return nn.Sequential(encoder, nn.Linear(encoder.size, LABELS, bias=False))


def scheme(energy_net: nn.Module) -> SealDynamic:
    torch.manual_seed(0)
    energy = SumEnergy(LocalEnergy(energy_net), LabelMixEnergy(LABELS, 4))
    parts: Any = (NCERanking(), Sampled(4), EnergyAndSupervision(energy_weight=1.0), adam, adam)
    space, metric = LabelSets(LABELS), MultiLabelScores(LABELS)
    return SealDynamic(network(), energy, *parts, space=space, metric=metric)


def train(module: SealDynamic, folder: Path, *callbacks: Any, epochs: int = 1) -> None:
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        accelerator="cpu", max_epochs=epochs, default_root_dir=folder, callbacks=[*callbacks], **options
    )
    trainer.fit(module, Stories(folder))


def encoders(module: SealDynamic) -> list[nn.Module]:
    return [
        part
        for net in (module.task_net, module.energy)
        for part in net.modules()
        if isinstance(part, Encoder)
    ]


def test_two_encoders_train_apart_and_a_copy_follows_without_gradient(tmp_path: Path) -> None:
    for callbacks, equal in (((), False), ((StopGradientCopy(),), True)):
        module = scheme(network())
        before = [p.detach().clone() for p in encoders(module)[0].parameters()]
        local = module.energy.get_parameter("joint.patterns").detach().clone()
        train(module, tmp_path, *callbacks)
        own, copy = ([*net.parameters()] for net in encoders(module))
        assert any(not torch.equal(p, b) for p, b in zip(own, before, strict=True))
        assert all(torch.equal(p, c) for p, c in zip(own, copy, strict=True)) == equal
        assert all(c.requires_grad is not equal for c in copy)
        assert all(c.grad is None for c in copy) or not equal
        assert not torch.equal(module.energy.get_parameter("joint.patterns"), local)


def test_frozen_encoders_have_nothing_to_copy() -> None:
    world.needs_encoder()
    module: Any = scheme(Encoder(world.MINI, trained="frozen", pooling="mean"))
    module.task_net, copy = deepcopy(module.energy), StopGradientCopy()
    copy.setup(Trainer(logger=False), module, "fit")
    copy.on_train_start(Trainer(logger=False), module)
    assert copy.weights == ([], [])


def test_an_encoder_over_kept_layers_learns(tmp_path: Path) -> None:
    module = scheme(network())
    train(module, tmp_path, epochs=8)
    batch = next(iter(module.trainer.datamodule.val_dataloader()))  # type: ignore[attr-defined]
    guess = module.eval().task_net(batch.inputs) > 0
    assert (guess == (batch.y > 0)).float().mean() > 0.98


def test_parts_without_the_same_encoders_are_refused(tmp_path: Path) -> None:
    for energy_net in (nn.Linear(3, LABELS), network(marks=True)):
        with pytest.raises(
            ValueError, match=r"copies the encoders of task_net to those of energy: give both"
        ):
            train(scheme(energy_net), tmp_path, StopGradientCopy())


@pytest.mark.skipif(bool(text_parts.missing()), reason=text_parts.missing())
def test_the_encoder_of_an_energy_has_settings_of_its_own(tmp_path: Path) -> None:
    files = ("conf/data/own_text.yaml", "conf/scheme/implicit.yaml", "conf/objective/cd.yaml")
    still = ["--model.warm_up=0", "--model.encoder_settings={lr: 0.0}", "--trainer.max_epochs=1"]
    few = ["--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1"]
    few += ["--trained=top_layers", "--data.kept_layers=4", "--data.pooling=null"]
    few += ["--data.batch_size=2"]
    cli = TrainCLI([*configs(*files), *text_parts.options(), *still, *few], run_dir=str(tmp_path / "run"))
    energy = cli.model.energy
    before = {name: p.detach().clone() for name, p in energy.named_parameters()}
    cli.trainer.fit(cli.model, cli.datamodule)
    inside = {
        id(p) for module in energy.modules() if isinstance(module, Encoder) for p in module.parameters()
    }
    moved = {name: not torch.equal(before[name], p) for name, p in energy.named_parameters()}
    of_encoder = {name: id(p) in inside for name, p in energy.named_parameters()}
    assert any(of_encoder.values()) and not any(moved[name] for name in moved if of_encoder[name])
    assert all(moved[name] for name in moved if not of_encoder[name])
    cli.model.encoder_settings = {"rate": 0.1}
    with pytest.raises(ValueError, match=r"encoder_settings has rate, which Adam does not have"):
        cli.model.parts()
