"""SEAL and DVN on pictures: many masks in bounded memory, searches of windows, and eight real horses."""

import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import energies.masks
import scripts.train
from datamodules.batches import Batch, Batches
from datamodules.horses import Horses32
from datamodules.transforms import RandomCrop
from energies.masks import MaskEnergy
from energies.spaces import PixelMasks
from inference.gradient import Blank, GradientInference, TruthOrBlank
from inference.guesses import Adversarial, Combined, GuessContext, Minimum, Perturbed, Sampled, Truth
from lightning_modules.base import Scheme
from lightning_modules.energy_net import EnergyNet
from lightning_modules.metrics.masks import MaskScores
from lightning_modules.seal_dynamic import SealDynamic
from losses.objectives import NCERanking, Objective, Ranking, Regression
from losses.task import EnergyAndSupervision
from networks.fcn import FCN, AveragedCrops, Windows
from scripts.figures import mask_quality

HORSES = Horses32()
needs_horses = pytest.mark.skipif(HORSES.missing() is not None, reason=str(HORSES.missing()))
adam = partial(torch.optim.Adam, lr=2e-3)
STEPS = 4


def pictures(count: int, side: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (count, 3, side, side), generator=draw, dtype=torch.uint8)
    return x, (torch.rand(count, side, side, generator=draw) < 0.3).float()


@pytest.mark.parametrize("free", [0, 200_000])
def test_masks_in_chunks_have_the_value_and_the_gradients_of_all_at_once(
    free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    energy, (x, _) = MaskEnergy(8, width=4).double().train(), pictures(3, 8)
    y = torch.rand(7, 3, 8, 8, dtype=torch.float64).requires_grad_()

    def found() -> list[Tensor]:
        torch.manual_seed(1)  # the same dropout
        rows = energy(x.double() / 255, y)
        return [rows.detach(), *torch.autograd.grad(rows.square().sum(), [y, *energy.parameters()])]

    calls: list[int] = []
    energy.second.register_forward_hook(lambda *_: calls.append(1))
    monkeypatch.setattr(energies.masks, "free_bytes", lambda device: None)
    whole = found()
    assert len(calls) == 1
    monkeypatch.setattr(energies.masks, "free_bytes", lambda device: free)
    for one, other in zip(whole, found(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert len(calls) > 4  # each chunk forwards, and again in the backward pass


def peak(call: Callable[[], object]) -> float:
    """The most memory that tensors made in a call take at a time, in MiB."""
    with profile(profile_memory=True) as profiled:
        call()
    assert profiled.profiler is not None
    events = profiled.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(accumulate(changes)) / 2**20


def test_short_memory_bounds_the_peak_of_many_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    energy, (x, _) = MaskEnergy(16, width=32), pictures(4, 16)
    masks = torch.rand(160, 4, 16, 16)

    def step() -> None:
        energy(x, masks).sum().backward()

    monkeypatch.setattr(energies.masks, "free_bytes", lambda device: None)
    whole = peak(step)
    monkeypatch.setattr(energies.masks, "free_bytes", lambda device: 24 << 20)
    assert whole > 60
    assert peak(step) < 24


class Convolutions(TorchDispatchMode):
    """Counts convolutions and their backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Minimum, Adversarial])
def test_a_search_over_pixels_builds_one_graph_a_step(kind: type[Minimum]) -> None:
    energy, (x, y) = MaskEnergy(8, width=4), pictures(3, 8)
    context = GuessContext(energy, Regression(), PixelMasks(), x, y)
    with Convolutions() as counted:
        kind(GradientInference(Blank(), steps=5))(context)
    # the picture's part of the first layer once; then three layers forwards and backwards a step
    assert (counted.seen["convolution"], counted.seen["convolution_backward"]) == (1 + 3 * 5, 3 * 5)


def test_a_search_starts_at_the_truth_for_a_share_of_the_examples() -> None:
    torch.manual_seed(0)
    y = torch.ones(400, 2, 2)
    start = TruthOrBlank()(PixelMasks(), y, None)
    assert start.shape == (1, 400, 2, 2) and set(start.unique().tolist()) == {0.0, 1.0}
    assert float(start.mean()) == pytest.approx(0.5, abs=0.1)
    assert torch.equal(TruthOrBlank(1.0)(PixelMasks(), y, None)[0], y)
    with pytest.raises(ValueError, match=r"share is 1.5: take a number from 0 to 1"):
        TruthOrBlank(1.5)


def test_each_window_of_a_picture_is_searched_and_their_mean_is_the_prediction() -> None:
    torch.manual_seed(0)
    energy, (x, y) = MaskEnergy(8, width=4), pictures(2, 12)
    search = GradientInference(TruthOrBlank(1.0), steps=STEPS)  # a prediction must not see the truth
    windows = Windows(8, (0, 3, 4))
    scheme = EnergyNet(
        energy, Regression(), Truth(), search, adam, windows=windows, space=PixelMasks(), metric=MaskScores()
    ).eval()
    found = scheme.predict(Batch(x, y))
    covering = []
    for top in windows.offsets:
        for left in windows.offsets:
            cut = x[..., top : top + 8, left : left + 8]
            context = GuessContext(energy, Regression(), PixelMasks(), cut, torch.zeros(2, 8, 8))
            (mask,) = Minimum(GradientInference(Blank(), steps=STEPS))(context).y
            if top <= 5 < top + 8 and left <= 11 < left + 8:
                covering.append(mask[:, 5 - top, 11 - left])
    torch.testing.assert_close(found[:, 5, 11], torch.stack(covering).mean(0))
    assert torch.equal(found, scheme.predict(Batch(x, 1 - y)))
    small = Batch(x[..., :8, :8], y[..., :8, :8])
    assert scheme.predict(small).shape == (2, 8, 8)


def test_the_mean_of_constant_masks_is_that_constant() -> None:
    x, windows = torch.zeros(2, 3, 32, 32), Windows()
    found = windows.mean((torch.full((2, 24, 24), 0.3) for _ in windows.cut(x)), like=x)
    torch.testing.assert_close(found, torch.full((2, 32, 32), 0.3))
    assert sum(1 for _ in windows.cut(x)) == 36


def test_validation_may_search_fewer_windows_than_a_prediction() -> None:
    torch.manual_seed(0)
    x, y = pictures(2, 12)
    search = GradientInference(Blank(), steps=STEPS)
    few, all_of_them = Windows(8, (0, 4)), Windows(8, (0, 3, 4))

    def scheme(windows: Windows, **options: Any) -> EnergyNet:
        parts = (MaskEnergy(8, width=4), Regression(), Truth(), search, adam)
        return EnergyNet(*parts, windows=windows, space=PixelMasks(), metric=MaskScores(), **options)

    both = scheme(all_of_them, validation_windows=few).eval()
    narrow, wide = scheme(few).eval(), scheme(all_of_them).eval()
    seen: list[Tensor] = []

    class Watch(pl.Callback):
        """Keep what is predicted."""

        def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            seen.append(trainer.lightning_module.predict(Batch(x, y)))

        on_test_batch_end = on_validation_batch_end

    for other in (narrow, wide):
        other.energy.load_state_dict(both.energy.state_dict())
    trainer = pl.Trainer(logger=False, enable_progress_bar=False, inference_mode=False, callbacks=[Watch()])
    loader = DataLoader([Batch(x, y)], batch_size=None)
    trainer.validate(both, loader, verbose=False)
    trainer.test(both, loader, verbose=False)
    narrow_mask, wide_mask = narrow.predict(Batch(x, y)), wide.predict(Batch(x, y))
    assert not torch.equal(narrow_mask, wide_mask)
    assert torch.equal(seen[0], narrow_mask) and torch.equal(seen[1], wide_mask)


class Eight(pl.LightningDataModule):
    """Eight real horses."""

    def train_dataloader(self) -> Batches:
        HORSES.setup()
        train = HORSES.splits["train"]
        return Batches(train.inputs[:8], train.y[:8], batch_size=8, seed=0, transform=RandomCrop(24, 24))

    def val_dataloader(self) -> Batches:
        HORSES.setup()
        held_out = HORSES.splits["test"]
        return Batches(held_out.inputs[:8, :, :24, :24], held_out.y[:8, :24, :24], batch_size=8)


def seal(objective: Objective, guess: Perturbed | Sampled, weight: float) -> Scheme:
    net = AveragedCrops(FCN(width=8))
    return SealDynamic(
        net,
        MaskEnergy(width=8),
        objective,
        guess,
        EnergyAndSupervision(weight),
        adam,
        adam,
        inner_steps=2,
        energy_clip_norm=6.0,
        energy_lr_schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=30),
        space=PixelMasks(),
        metric=MaskScores(),
    )


def dvn() -> Scheme:
    search = GradientInference(TruthOrBlank(), steps=STEPS)
    guess = Combined([Minimum(search), Adversarial(search), Truth()])
    answer = GradientInference(Blank(), steps=STEPS)
    return EnergyNet(
        MaskEnergy(width=8), Regression(), guess, answer, adam, space=PixelMasks(), metric=MaskScores()
    )


SCHEMES: dict[str, Callable[[], Scheme]] = {
    "DVN + GBI": dvn,
    "regression-s": lambda: seal(Regression(), Perturbed(4, 0.8553), 5.6e-3),
    "NCE": lambda: seal(NCERanking(), Sampled(6), 1e-4),
    "ranking": lambda: seal(Ranking(), Sampled(6), 1e-4),
}


@needs_horses
@pytest.mark.parametrize("name", SCHEMES)
def test_eight_horses_drive_the_losses_down(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, data = SCHEMES[name](), Eight()
    untrained = deepcopy(module)
    trainer = pl.Trainer(
        max_epochs=40,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        log_every_n_steps=1,
    )
    trainer.fit(module, data)
    (batch,) = data.train_dataloader()
    if isinstance(module, SealDynamic) and isinstance(untrained, SealDynamic):
        assert supervised(module, batch) < supervised(untrained, batch)
        rates = [part.optimizer.param_groups[0]["lr"] for part in module.part.values()]
        assert rates == pytest.approx([2e-3, 2e-4])  # the loss-net has a schedule of its own
        untrained.task_net = module.task_net  # both energies get the guesses of the trained task-net
    assert energy_loss(module, batch) < energy_loss(untrained, batch)


@torch.no_grad()
def supervised(module: SealDynamic, batch: Batch) -> float:
    return float(module.space.supervise(module.task_net(batch.inputs), batch.y).mean())


def energy_loss(module: Scheme, batch: Batch) -> float:
    assert isinstance(module, SealDynamic | EnergyNet)
    torch.manual_seed(5)
    return float(module.eval().energy_loss(batch))


def test_perturbed_masks_are_what_their_names_say() -> None:
    y = torch.zeros(1, 7, 7)
    y[0, 2:5, 2:5] = 1
    assert float(mask_quality.eroded(y, 1).sum()) == 1 and float(mask_quality.dilated(y, 1).sum()) == 25
    assert float((mask_quality.flipped(torch.zeros(1, 100, 100), 0.1)).mean()) == pytest.approx(0.1, abs=0.02)


@needs_horses
def test_the_figure_of_a_finished_run_has_a_point_for_each_perturbation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parent.parent)
    files = ["data/weizmann_horses_32", "scheme/seal_dynamic", "objective/regression"]
    configs = [part for file in files for part in ("--config", f"conf/{file}.yaml")]
    small = ["--net.init_args.net.init_args.width", "4", "--energy.init_args.width", "4"]
    short = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2"]
    run = tmp_path / "run"
    assert scripts.train.main([*configs, *small, *short, "--run_dir", str(run)]) == 0
    assert mask_quality.main([str(run)]) == 0
    found = json.loads((run / "mask_quality.json").read_text())
    points = {(point["kind"], point["strength"]): point for point in found["points"]}
    assert points["truth", 0]["iou"] == 1 and found["pictures"] == 128
    assert points["shift, pixels", 1]["iou"] > points["shift, pixels", 4]["iou"]
    mixed = "mixed with another mask, share"
    assert 1 > points[mixed, 0.25]["iou"] > points[mixed, 1.0]["iou"]
    y = torch.eye(3).unsqueeze(0) * torch.arange(1.0, 5).view(4, 1, 1)
    assert torch.equal(mask_quality.PERTURBATIONS[mixed][0](y, 1.0), y.roll(1, 0))
    assert all(0 < point["reading"] < 1 for point in points.values()) and len(points) == 23
    assert (run / "mask_quality.png").exists() and (run / "mask_quality.svg").exists()
