"""Crops and flips of pictures and their masks, drawn from (seed, epoch, step) alone."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from datamodules.base import DeviceData, Split
from datamodules.batches import Batch, Batches, Transform
from datamodules.transforms import HorizontalFlip, RandomCrop
from energies.spaces import PixelMasks
from lightning_modules.cross_entropy import CrossEntropy
from test_schemes import Quality, adam, weights

HORSES = Path(__file__).resolve().parents[2] / "shared/data/weizmann_horses_32/weizmann_horses_32.npz"
CROP = RandomCrop(24, 20)


def pictures() -> tuple[Tensor, Tensor]:
    """Forty horses, or noise of their size where there are none; the first channel ends with the mask."""
    if HORSES.exists():
        with np.load(HORSES, allow_pickle=False) as file:
            x = torch.from_numpy(file["images"][:40]).permute(0, 3, 1, 2).float() / 255
            return torch.cat(
                [x, torch.from_numpy(file["masks"][:40]).float().unsqueeze(1)], 1
            ), torch.from_numpy(file["masks"][:40])
    draw = torch.Generator().manual_seed(0)
    y = (torch.rand(40, 32, 32, generator=draw) < 0.3).to(torch.uint8)
    return torch.cat([torch.rand(40, 3, 32, 32, generator=draw), y.float().unsqueeze(1)], 1), y


def batches(epoch: int = 0, **options: int) -> list[Batch]:
    loader = Batches(*pictures(), batch_size=8, seed=3, transform=CROP, **options)
    loader.set_epoch(epoch)
    return list(loader)


def test_a_crop_is_a_window_and_a_mask_goes_with_its_picture() -> None:
    x, y = pictures()
    batch = Batch(x, y.float())
    draws = torch.rand(40, 2, generator=torch.Generator().manual_seed(1))
    cropped = RandomCrop(24, 20)(batch, draws)
    assert cropped.y.shape == (40, 24, 20) and cropped.inputs.shape == (40, 4, 24, 20)
    assert torch.equal(cropped.inputs[:, 3], cropped.y)
    for row, (down, right) in enumerate(draws.tolist()):
        top, left = int(down * 9), int(right * 13)
        assert torch.equal(cropped.inputs[row], x[row, :, top : top + 24, left : left + 20])
    corners = [RandomCrop(24, 20)(batch, torch.full((40, 2), value)) for value in (0.0, 1 - 2**-24)]
    assert torch.equal(corners[0].y, batch.y[:, :24, :20]) and torch.equal(corners[1].y, batch.y[:, 8:, 12:])


def test_half_of_the_pictures_are_flipped_with_their_masks() -> None:
    x, y = pictures()
    draws = torch.tensor([[0.2], [0.7]]).repeat(20, 1)
    turned = HorizontalFlip()(Batch(x, y.float()), draws)
    assert torch.equal(turned.inputs[::2], x[::2].flip(-1)) and torch.equal(turned.inputs[1::2], x[1::2])
    assert torch.equal(turned.inputs[:, 3], turned.y)


def test_a_crop_larger_than_the_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="a crop of 40 x 20 does not fit into pictures of 32 x 32: take a"):
        RandomCrop(40, 20)(Batch(*pictures()), torch.zeros(40, 2))


def test_draws_depend_on_seed_epoch_and_step_only() -> None:
    first = batches()
    torch.rand(5)
    again, later = batches(), batches(epoch=1)
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one.inputs, two.inputs) and torch.equal(one.y, two.y)
        assert torch.equal(one.inputs[:, 3], one.y)
    assert not any(torch.equal(one.inputs, two.inputs) for one, two in zip(first, later, strict=True))


def test_two_processes_see_what_one_would() -> None:
    x, y = pictures()
    whole = Batches(x, y, batch_size=8, seed=3, transform=CROP)
    halves = [Batches(x, y, batch_size=4, seed=3, transform=CROP, rank=rank, world_size=2) for rank in (0, 1)]
    for all_of_it, *parts in zip(whole, *halves, strict=True):
        for rank, part in enumerate(parts):
            assert torch.equal(part.inputs, all_of_it.inputs[rank::2])


class Horses(DeviceData):
    """Pictures to learn masks of."""

    def missing(self) -> None:
        """It never is."""

    def load(self) -> dict[str, Split]:
        """The same for each part."""
        return dict.fromkeys(("train", "validation", "test"), Split(*pictures()))


class Killed(Exception):
    """Stands for the end of a process."""


class KillAt(pl.Callback):
    """Ends training after a batch of an epoch; each finished epoch leaves a checkpoint."""

    def __init__(self, folder: Path, epoch: int, batch: int) -> None:
        self.folder, self.place = folder, (epoch, batch)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *batch: Any) -> None:
        if (trainer.current_epoch, batch[-1]) == self.place:
            raise Killed

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        trainer.save_checkpoint(self.folder / f"after_{trainer.current_epoch}.ckpt")


def train(
    folder: Path, epochs: int, resume: Path | None = None, callbacks: list[pl.Callback] | None = None
) -> CrossEntropy:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 1, 3, padding=1), nn.Flatten(1, 2))
    space = PixelMasks()
    module = CrossEntropy(net, adam, space=space, metric=Quality(space), seed=1)
    data = Horses(batch_size=8, eval_batch_size=40, seed=3, transform=CROP)
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", enable_checkpointing=False, callbacks=callbacks, **options
    )
    trainer.fit(module, data, ckpt_path=resume)
    trainer.save_checkpoint(folder / f"{epochs}.ckpt")
    return module


@pytest.mark.filterwarnings("ignore:.*log_every_n_steps.*", "ignore:.*checkpoint.*")
def test_a_resumed_run_with_crops_equals_an_unbroken_one_bit_by_bit(tmp_path: Path) -> None:
    unbroken = train(tmp_path, 4)
    train(tmp_path, 2)
    torch.rand(7)
    resumed = train(tmp_path, 4, tmp_path / "2.ckpt")
    for name, value in weights(unbroken).items():
        assert torch.equal(value, weights(resumed)[name]), name


@pytest.mark.filterwarnings("ignore:.*log_every_n_steps.*", "ignore:.*checkpoint.*")
def test_a_run_killed_within_an_epoch_draws_the_same_crops_again(tmp_path: Path) -> None:
    unbroken = train(tmp_path, 4)
    with pytest.raises(Killed):
        train(tmp_path, 4, callbacks=[KillAt(tmp_path, epoch=2, batch=2)])
    resumed = train(tmp_path, 4, tmp_path / "after_1.ckpt")
    for name, value in weights(unbroken).items():
        assert torch.equal(value, weights(resumed)[name]), name


class Kept(Transform):
    """Keeps what it is given to draw from."""

    num_draws = 1

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, batch: Batch, draws: Tensor) -> Batch:
        """Change nothing."""
        self.seen.append(draws)
        return batch


def test_each_batch_of_an_epoch_has_draws_of_its_own() -> None:
    kept = Kept()
    assert len(list(Batches(*pictures(), batch_size=8, seed=3, transform=kept))) == 5
    assert not any(torch.equal(one, other) for one, other in combinations(kept.seen, 2))
