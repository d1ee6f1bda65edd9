"""Backward passes and steps go straight to torch, unless something of Lightning's listens to them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import MixedPrecision

from lightning_modules.engine.steps import are_plain
from lightning_modules.implicit import Implicit
from lightning_modules.seal_dynamic import SealDynamic
from scripts.peers.bare import CD, NCE, Loop

HOOKS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")


class Listener(pl.Callback):
    """Counts the calls of one hook."""

    def __init__(self, hook: str) -> None:
        self.calls = 0
        setattr(self, hook, self.count)

    def count(self, *_: Any) -> None:
        self.calls += 1


def trained(
    loop: type[Loop], folder: Path, *callbacks: pl.Callback, **options: Any
) -> tuple[Any, pl.Trainer]:
    module = loop().module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    length: dict[str, Any] = {"max_epochs": 1, "limit_train_batches": 2}
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[*callbacks],
        default_root_dir=folder,
        enable_checkpointing=False,
        **(quiet | length | options),
    )
    trainer.fit(module, loop().data())
    return module, trainer


@pytest.mark.parametrize("loop", [NCE, CD])
def test_the_straight_way_takes_the_same_steps(loop: type[Loop], tmp_path: Path) -> None:
    straight, counted = trained(loop, tmp_path)
    listener = Listener("on_after_backward")
    watched, counted_too = trained(loop, tmp_path, listener)
    assert straight.steps_are_plain and not watched.steps_are_plain
    assert isinstance(straight, SealDynamic | Implicit) and listener.calls > 0
    assert counted.global_step == counted_too.global_step == sum(straight.steps.values()) > 0
    for p, q in zip(straight.parameters(), watched.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_callback_is_heard_at_every_step(hook: str, tmp_path: Path) -> None:
    listener = Listener(hook)
    module, _ = trained(NCE, tmp_path, listener)
    assert listener.calls == sum(module.steps.values())


@pytest.mark.parametrize("name", [*HOOKS, "backward"])
def test_a_hook_of_the_module_is_heard(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = getattr(pl.LightningModule, name)

    def heard(self: pl.LightningModule, *args: Any, **options: Any) -> None:
        calls.append(name)
        original(self, *args, **options)

    monkeypatch.setattr(SealDynamic, name, heard, raising=False)
    module, _ = trained(NCE, tmp_path)
    assert len(calls) == sum(module.steps.values())


@pytest.mark.parametrize(
    "options", [{"profiler": "simple"}, {"precision": "bf16-mixed"}, {"strategy": "ddp"}]
)
def test_a_profiler_another_precision_or_several_devices_take_lightnings_way(
    options: dict[str, Any], tmp_path: Path
) -> None:
    build = partial(pl.Trainer, accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path)
    seen = []
    for trainer in (build(), build(**options)):
        trainer.strategy.connect(NCE().module())
        seen.append(are_plain(trainer))
    assert seen == [True, False]


@pytest.mark.parametrize("loop", [NCE, CD])
def test_mixed_precision_trains_and_goes_back_outside_autocast(loop: type[Loop], tmp_path: Path) -> None:
    seen = []

    class Asking(pl.Callback):
        def on_after_backward(self, *_: Any) -> None:
            seen.append(torch.is_autocast_enabled("cpu"))

    module, trainer = trained(loop, tmp_path, Asking(), precision="bf16-mixed")
    assert trainer.precision == "bf16-mixed" and len(seen) > 0 and not any(seen)
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in module.parameters())


def test_a_precision_that_scales_losses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"scales losses.*take bf16-mixed"):
        trained(NCE, tmp_path, plugins=[MixedPrecision("16-mixed", "cpu")])


def test_training_that_ends_within_an_epoch_logs_its_speed(tmp_path: Path) -> None:
    _, trainer = trained(NCE, tmp_path, max_epochs=5, limit_train_batches=4, max_steps=6)
    assert trainer.current_epoch < 5 and trainer.callback_metrics["train/examples_per_second"] > 0


def test_frozen_parameters_are_not_counted_as_trained() -> None:
    module = NCE().module()
    whole = module.sizes()["trained_parameters"]
    layer = next(m for m in module.task_net.modules() if isinstance(m, torch.nn.Linear))
    layer.requires_grad_(False)
    frozen = sum(p.numel() for p in layer.parameters())
    assert module.sizes()["trained_parameters"] == whole - frozen
