"""Inference networks in two phases: F is trained with the energy, then A is tuned from it."""

from copy import deepcopy
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from inference.networks import Single
from lightning_modules.infnet import InfNet
from test_infnet import a_batch, infnet
from test_schemes import MASK, Data, Net, weights


class Course(pl.callbacks.Checkpoint):
    """The phase of each epoch, and all weights of the best epoch of `joint`; called after validation."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.highest, self.best = -1.0, dict[str, Tensor]()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, InfNet) and isinstance(pl_module.networks, Single)
        self.phases.append(pl_module.phase)
        quality = float(trainer.callback_metrics["val/quality"])
        if pl_module.phase == "joint" and quality > self.highest:
            self.highest, self.best = quality, weights(pl_module)


def tuned(
    folder: Path, epochs: int = 40, resume: str | None = None, kept: str = "val/quality"
) -> tuple[InfNet, Course]:
    module, course = infnet("tags", "single", "margin", phases=("joint", "tune")), Course()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[
            course,
            pl.callbacks.EarlyStopping("val/quality", mode="max", patience=3),
            pl.callbacks.ModelCheckpoint(
                folder / "best", monitor=kept, mode="max", save_on_train_epoch_end=True
            ),
        ],
        num_sanity_val_steps=0,
    )
    trainer.fit(module, Data("tags"), ckpt_path=resume)
    trainer.save_checkpoint(folder / "last.ckpt")
    return module, course


def test_tuning_starts_a_from_the_best_f_and_leaves_f_and_the_energy_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter, remembered = InfNet.enter, []

    def watched(module: InfNet, phase: str) -> None:
        enter(module, phase)
        remembered.append(len(module.part["inference"].optimizer.state))

    monkeypatch.setattr(InfNet, "enter", watched)
    module, course = tuned(tmp_path)
    assert remembered == [0]
    phases = course.phases
    assert phases == sorted(phases) and set(phases) == {"joint", "tune"}
    first = phases.index("tune")
    assert module.steps["energy"] == 2 * first and module.steps["inference"] == 2 * len(phases)
    nets = module.networks
    assert isinstance(nets, Single) and nets.fixed
    for key, value in nets.before.state_dict().items():
        assert torch.equal(value, course.best[f"networks.net.{key}"])
    for key, value in module.energy.state_dict().items():
        assert torch.equal(value, course.best[f"energy.{key}"])
    moved = [
        not torch.equal(a, b) for a, b in zip(nets.net.parameters(), nets.before.parameters(), strict=True)
    ]
    assert all(moved)


def test_in_tune_a_descends_the_energy_of_its_answer_and_its_supervision() -> None:
    module = infnet("tags", "single", "margin", phases=("joint", "tune"), supervision_weight=3.0)
    module.phase, batch, space = "tune", a_batch("tags"), module.space.over(MASK)
    assert isinstance(module.networks, Single)
    module.networks.fix_augmented()
    nn.init.normal_(module.networks.before.layers[0].weight)  # F is another by now, and plays no part
    logits = module.networks.predict(batch.inputs)
    expected = module.energy(batch.inputs, space.relax(logits)) + 3 * space.supervise(logits, batch.y)
    assert module.networks_loss(batch).item() == pytest.approx(expected.mean().item(), rel=1e-5)


def test_tuning_that_was_broken_off_in_its_first_epoch_starts_from_f_again() -> None:
    nets = Single(Net((4, 3)))
    before = deepcopy(nets.net.state_dict())
    nets.fix_augmented()
    nn.init.normal_(nets.net.layers[0].weight)
    nets.fix_augmented()
    for key, value in nets.net.state_dict().items():
        assert torch.equal(value, before[key])


def test_tuning_wants_a_checkpoint_of_the_best_epoch(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no ModelCheckpoint keeps it: add one with `monitor: val/quality`"):
        tuned(tmp_path, kept="val/augmented_quality")


def test_a_run_that_is_tuned_resumes_in_either_phase_bit_by_bit(tmp_path: Path) -> None:
    unbroken, course = tuned(tmp_path / "a")
    phases = course.phases
    for stop in (1, phases.index("tune") + 1):
        folder = tmp_path / f"b{stop}"
        tuned(folder, epochs=stop)
        resumed, rest = tuned(folder, resume=str(folder / "last.ckpt"))
        assert rest.phases == phases[stop:]
        for a, b in zip(unbroken.parameters(), resumed.parameters(), strict=True):
            assert torch.equal(a, b)
