"""Horses: the arrays, the networks that read pictures, the energy of a mask, its scores, and training."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import jaccard_score

import scripts.train
from datamodules.errors import FormatError
from datamodules.horses import Horses32, read_arrays
from energies.gaussian import GaussianEnergy
from energies.masks import MaskEnergy
from energies.spaces import PixelMasks
from inference.gaussian.criteria import CrossEntropy
from lightning_modules.metrics.masks import MaskScores
from networks.fcn import FCN, AveragedCrops, pixels
from networks.unet import UNet

HORSES = Horses32()
needs_horses = pytest.mark.skipif(HORSES.missing() is not None, reason=str(HORSES.missing()))


def some_pictures(count: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (count, 3, side, side), generator=draw, dtype=torch.uint8)
    return x, (torch.rand(count, side, side, generator=draw) < 0.3).float()


@needs_horses
def test_the_published_arrays_are_160_40_and_128_pictures_with_two_valued_masks() -> None:
    data = Horses32()
    data.setup()
    assert {part: len(split.y) for part, split in data.splits.items()} == {
        "train": 160,
        "validation": 40,
        "test": 128,
    }
    shares = torch.cat([split.y.float().flatten(1).mean(1) for split in data.splits.values()])
    assert float(shares.mean()) == pytest.approx(0.277, abs=0.005) and float(shares.min()) > 0
    x = data.splits["train"].inputs
    assert x.shape[1:] == (3, 32, 32) and x.dtype == torch.uint8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"masks": np.full((4, 8, 8), 2, np.uint8)}, "a mask has the value 2; masks have 0 and 1"),
        ({"images": np.zeros((4, 8, 8), np.uint8)}, r"images are uint8 of shape \(4, 8, 8\)"),
        ({"masks": np.zeros((4, 8, 8))}, "masks are float64"),
        ({"images": np.array([{}], dtype=object)}, "no npz file of plain arrays"),
        ({"train_idx": None}, "train_idx is not a file in the archive"),
    ],
)
def test_arrays_of_another_kind_are_refused_in_one_sentence(change: dict, says: str) -> None:
    arrays = {"images": np.zeros((4, 8, 8, 3), np.uint8), "masks": np.zeros((4, 8, 8), np.uint8)}
    arrays |= {name: np.arange(1, dtype=np.int32) for name in ("train_idx", "val_idx", "test_idx")} | change
    file = io.BytesIO()
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(FormatError, match=f"mine.npz: .*{says}"):
        read_arrays(file.getvalue(), where="mine.npz")
    with pytest.raises(FormatError, match="no npz file"):
        read_arrays(b"PK\x03\x04 broken", where="mine.npz")


def test_the_fcn_answers_pictures_of_any_size_and_moves_with_them() -> None:
    torch.manual_seed(0)
    net, (x, _) = FCN(width=4), some_pictures(2, 64)
    assert net(x[:, :, :24, :32]).shape == (2, 24, 32)
    torch.testing.assert_close(net(x), net(pixels(x)))  # bytes are read as numbers from 0 to 1
    moved = net(x.roll(4, -1))[:, 24:40, 32:36]  # far from the borders
    torch.testing.assert_close(moved, net(x)[:, 24:40, 28:32])
    with pytest.raises(ValueError, match=r"30 x 64 pixels.*multiples of 4"):
        net(x[:, :, :30])


def test_whole_pictures_are_answered_by_the_mean_over_windows() -> None:
    torch.manual_seed(0)
    net, (x, _) = FCN(width=4), some_pictures(2, 32)
    found = AveragedCrops(net)(x).sigmoid()
    for row, column in ((0, 0), (3, 31), (16, 9)):
        covering = [
            net(x[:, :, top : top + 24, left : left + 24]).sigmoid()[:, row - top, column - left]
            for top in (0, 2, 3, 4, 6, 8)
            for left in (0, 2, 3, 4, 6, 8)
            if 0 <= row - top < 24 and 0 <= column - left < 24
        ]
        torch.testing.assert_close(found[:, row, column], torch.stack(covering).mean(0))
    torch.testing.assert_close(AveragedCrops(net)(x[:, :, :24, :24]), net(x[:, :, :24, :24]))
    with pytest.raises(ValueError, match="do not cover a side of 36 pixels"):
        AveragedCrops(net)(some_pictures(1, 36)[0])


def test_the_energy_of_a_mask_reads_it_as_a_further_channel() -> None:
    torch.manual_seed(0)
    energy, (x, y) = MaskEnergy(8, width=4).eval(), some_pictures(3, 8)
    several = torch.stack([y, 1 - y, torch.rand_like(y)])
    joined = torch.cat([pixels(x), y.unsqueeze(1)], 1)
    h = energy.third(energy.second(energy.first(joined).relu()).relu()).relu()
    by_hand = -energy.head(h.flatten(1)).squeeze(-1)
    torch.testing.assert_close(energy(x, several)[0], by_hand)
    assert energy(x, several).shape == (3, 3)
    assert torch.equal(energy.given(x)(several), energy(x, several))
    values, gradient = energy.value_and_gradient(x)(several)
    assert values.shape == (3, 3) and gradient.shape == several.shape and bool(gradient.any())
    with pytest.raises(ValueError, match="12 x 12 pixels: this energy reads 8 x 8"):
        energy(some_pictures(3, 12)[0], torch.zeros(3, 12, 12))


def test_the_scores_of_masks_agree_with_scikit_learn() -> None:
    torch.manual_seed(0)
    soft, y = torch.rand(6, 8, 8), (torch.rand(6, 8, 8) < 0.4).float()
    metric = MaskScores()
    for rows in (slice(0, 4), slice(4, 6)):
        metric.update(soft[rows], y[rows])
    found = {name: float(value) for name, value in metric.compute().items()}
    pairs = [(t.flatten().numpy() >= 0.5, p.flatten().numpy() >= 0.5) for t, p in zip(y, soft, strict=True)]
    assert found["iou"] == pytest.approx(np.mean([jaccard_score(t, p) for t, p in pairs]))
    assert found["class_iou"] == pytest.approx(
        np.mean([jaccard_score(t, p, average="macro") for t, p in pairs])
    )
    assert found["pixel_accuracy"] == pytest.approx(np.mean([(t == p).mean() for t, p in pairs]))
    assert found["soft_iou"] == pytest.approx(float(PixelMasks().quality(soft, y).mean()))


def test_a_mask_without_the_object_counts_as_right_where_none_is_found() -> None:
    metric = MaskScores()
    metric.update(torch.tensor([[[0.1, 0.2]], [[0.9, 0.2]]]), torch.zeros(2, 1, 2))
    # first: no horse, none found: 1. Second: one of two pixels taken for a horse: 0
    assert float(metric.compute()["iou"]) == 0.5


@needs_horses
@pytest.mark.parametrize("scheme", [("cross_entropy",), ("seal_dynamic", "regression_s")])
def test_schemes_train_on_horses(
    scheme: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parent.parent)
    files = ["data/weizmann_horses_32", f"scheme/{scheme[0]}", *(f"objective/{name}" for name in scheme[1:])]
    configs = [part for file in files for part in ("--config", f"conf/{file}.yaml")]
    short = ["--trainer.max_epochs", "2", "--trainer.limit_train_batches", "4"]
    quick = ["--trainer.limit_val_batches", "1", "--trainer.limit_test_batches", "1"]
    few = ["--data.eval_batch_size", "8", "--run_dir", str(tmp_path / "run")]
    assert scripts.train.main([*configs, *short, *quick, *few]) == 0
    assert (tmp_path / "run" / "record.json").exists()


def test_the_unet_scores_or_embeds_pixels_at_every_scale() -> None:
    torch.manual_seed(0)
    x, y = some_pictures(2, 16)
    unary, embedding = UNet(widths=(4, 8, 8)), UNet(None, widths=(4, 8, 8))
    assert unary(x).shape == (2, 16, 16, 2) and embedding(x).shape == (2, 16, 16, 4)
    assert bool((embedding(x) >= 0).all())
    unary.eval()
    far = x.clone()
    far[:, :, -1, -1] = 255 - far[:, :, -1, -1]
    assert bool((unary(far) != unary(x))[:, 4, 4].any())  # the coarse scales reach across the picture
    energy = GaussianEnergy(unary, embedding)
    loss = CrossEntropy().loss(energy.potentials(x, None), y).mean()
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in energy.parameters())
    with pytest.raises(ValueError, match=r"18 x 16 pixels: a U-Net of 3 scales.*multiples of 4"):
        unary(torch.zeros(1, 3, 18, 16))
