"""Inference networks in two phases: F is trained with the energy, then A is tuned from it."""

from copy import deepcopy
from pathlib import Path

import pytorch_lightning as pl
import torch

from inference.networks import Single
from lightning_modules.infnet import InfNet
from test_infnet import infnet
from test_schemes import Data


class Course(pl.callbacks.Checkpoint):
    """The phase of each epoch, and the network of the best epoch of `joint`; called after validation."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.highest, self.best = -1.0, {}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, InfNet) and isinstance(pl_module.networks, Single)
        self.phases.append(pl_module.phase)
        quality = float(trainer.callback_metrics["val/quality"])
        if pl_module.phase == "joint" and quality > self.highest:
            self.highest, self.best = quality, deepcopy(pl_module.networks.net.state_dict())


def tuned(folder: Path, epochs: int = 40, resume: str | None = None) -> tuple[InfNet, Course]:
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
                folder / "best", monitor="val/quality", mode="max", save_on_train_epoch_end=True
            ),
        ],
        num_sanity_val_steps=0,
    )
    trainer.fit(module, Data("tags"), ckpt_path=resume)
    trainer.save_checkpoint(folder / "last.ckpt")
    return module, course


def test_tuning_starts_a_from_the_best_f_and_leaves_f_and_the_energy_there(tmp_path: Path) -> None:
    module, course = tuned(tmp_path)
    phases = course.phases
    assert phases == sorted(phases) and set(phases) == {"joint", "tune"}
    first = phases.index("tune")
    assert module.steps["energy"] == 2 * first and module.steps["inference"] == 2 * len(phases)
    nets = module.networks
    assert isinstance(nets, Single) and nets.fixed
    for key, value in nets.before.state_dict().items():
        assert torch.equal(value, course.best[key])
    moved = [
        not torch.equal(a, b) for a, b in zip(nets.net.parameters(), nets.before.parameters(), strict=True)
    ]
    assert all(moved)


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
