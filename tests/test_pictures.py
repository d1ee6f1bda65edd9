"""Horses: the arrays, the networks that read pictures, the energy of a mask, its scores, and training."""

import io
import zipfile
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score

import scripts.train
from datamodules.errors import DataMismatch, FormatError
from datamodules.horses import TWINS, VALIDATION, Horses, Horses32, horse_folds, read_arrays, read_horses
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from energies.gaussian import GaussianEnergy
from energies.masks import MaskEnergy
from energies.spaces import PixelMasks
from experiments.errors import UserError
from finished_runs import runner
from inference import gaussian
from inference.gaussian.criteria import CrossEntropy
from lightning_modules.metrics.masks import MaskScores
from networks.fcn import FCN, AveragedCrops, Windows, pixels
from networks.unet import UNet
from scripts.figures import masks as figure_of_masks
from scripts.figures import similarity
from scripts.finished.run import finished

HORSES = Horses32()
needs_horses = pytest.mark.skipif(HORSES.missing() is not None, reason=str(HORSES.missing()))
needs_native = pytest.mark.skipif(Horses().missing() is not None, reason=str(Horses().missing()))


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


@needs_native
def test_the_original_pictures_make_five_folds_and_a_part_for_validation() -> None:
    parts: dict[int, dict[str, torch.Tensor]] = {}
    for seed in (0, 6):
        data = Horses(seed=seed)
        data.setup()
        assert {part: len(split.y) for part, split in data.splits.items()} == {
            "train": 222,
            "validation": 50,
            "test": 56,
        }
        parts[data.test_fold] = {part: split.inputs for part, split in data.splits.items()}
        for split in data.splits.values():
            assert split.inputs.dtype == split.y.dtype == torch.uint8
            assert split.inputs.shape[1:] == (3, 32, 32) and set(split.y.unique().tolist()) == {0, 1}
    assert [*parts] == [0, 1]  # seed modulo 5
    assert torch.equal(parts[0]["validation"], parts[1]["validation"])
    shares = torch.cat([split.y.float().flatten(1).mean(1) for split in data.splits.values()])
    assert float(shares.mean()) == pytest.approx(0.252, abs=0.001)  # as the README of the data has it
    assert min(float(x.float().std()) for x in parts[0].values() for x in x) > 10  # none is black


@needs_native
def test_the_original_pictures_are_those_of_the_archive(tmp_path: Path) -> None:
    """Horse 318 by hand, with its grey picture in place of the black one, at a size of its own."""
    data = data_set("weizmann_horses")
    content = Sources().read(data, data.files["train"])
    x, y = read_horses(content, [317, 318], 16, where="horses.zip")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        grey = Image.open(archive.open("gray/horse318.jpg"))
        mask = np.asarray(Image.open(archive.open("figure_ground/horse318.jpg"))) > 127
    assert np.array_equal(x[1], np.stack([np.asarray(grey.resize((16, 16), Image.Resampling.BOX))] * 3))
    rows, columns = (((np.arange(16) + 0.5) * side / 16).astype(int) for side in mask.shape)
    assert np.array_equal(y[1], mask[rows][:, columns])
    with pytest.raises(FormatError, match=r"horses.zip: .*horse329.jpg.* Get the file again"):
        read_horses(content, [329], 16, where="horses.zip")
    with pytest.raises(FormatError, match="this is no whole zip archive"):
        read_horses(content[:1000], [1], 16, where="horses.zip")


@pytest.mark.parametrize("seed", range(20))
def test_twins_are_never_in_two_parts(seed: int) -> None:
    fold = horse_folds(seed)
    assert all(fold[one - 1] == fold[other - 1] for one, other in TWINS)
    found, counts = np.unique(fold, return_counts=True)
    assert found.tolist() == [VALIDATION, 0, 1, 2, 3, 4] and counts.tolist() == [50, 56, 56, 56, 55, 55]
    assert np.array_equal(fold, horse_folds(seed)) and not np.array_equal(fold, horse_folds(seed + 1))


def test_the_split_of_the_tables_stays() -> None:
    assert np.flatnonzero(horse_folds(0) == VALIDATION)[:6].tolist() == [1, 3, 12, 14, 20, 24]
    with pytest.raises(DataMismatch, match="test_fold is 5: take a fold of 0 to 4"):
        Horses(test_fold=5)


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
def test_a_network_trains_on_horses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parent.parent)
    files = ["data/weizmann_horses_32", "scheme/cross_entropy"]
    configs = [part for file in files for part in ("--config", f"conf/{file}.yaml")]
    short = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2"]
    quick = ["--trainer.limit_val_batches", "1", "--trainer.limit_test_batches", "1"]
    few = ["--data.eval_batch_size", "2", "--run_dir", str(tmp_path / "run")]
    assert scripts.train.main([*configs, *short, *quick, *few]) == 0
    assert (tmp_path / "run" / "record.json").exists()


@pytest.mark.parametrize(
    "build",
    [
        lambda: FCN(width=0),
        lambda: Windows(size=0),
        lambda: UNet(0),
        lambda: UNet(channels=0),
        lambda: UNet(widths=()),
        lambda: UNet(widths=(16, 0)),
    ],
)
def test_a_network_of_no_size_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"^[\w.]+ is 0: take 1 or more\.$"):
        build()


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


def test_the_first_answers_are_kept_packed_with_their_iou() -> None:
    torch.manual_seed(0)
    soft, y = torch.rand(11, 6, 10), (torch.rand(11, 6, 10) < 0.4).float()
    metric = MaskScores()
    for rows in (slice(0, 3), slice(3, 9), slice(9, 11)):
        metric.update(soft[rows], y[rows])
    kept = metric.examples()
    assert (kept["height"], kept["width"], len(kept["iou"])) == (6, 10, 8)
    bits = np.unpackbits(np.frombuffer(b64decode(kept["bits"]), np.uint8), count=8 * 60)
    assert np.array_equal(bits.reshape(8, 6, 10), (soft[:8] >= 0.5).numpy())
    by_hand = [jaccard_score(t.flatten(), p.flatten() >= 0.5) for t, p in zip(y[:8], soft[:8], strict=True)]
    assert kept["iou"] == pytest.approx(by_hand, abs=1e-4)
    metric.reset()
    assert metric.examples() == {}
    metric.update(
        torch.rand(3, 150, 100), torch.ones(3, 150, 100)
    )  # two of these have 32,768 pixels or fewer
    assert len(metric.examples()["iou"]) == 2


@needs_native
def test_a_figure_of_masks_with_data_shows_the_pictures_of_its_runs(tmp_path: Path) -> None:
    """The pictures, truths and IoUs of a table's figure belong together."""
    data = Horses(test_fold=1)
    record = {"id": "a", "config": {"data": {"class_path": "datamodules.horses.Horses"}}}
    record["config"]["data"]["init_args"] = {"test_fold": 1, "transform": {"class_path": "unused"}}
    data.setup()
    pictures, truth = figure_of_masks.first_pictures(record, 8)
    assert pictures.shape == (8, 32, 32, 3) and np.array_equal(truth, data.splits["test"].y[:8].numpy())
    assert np.array_equal(pictures[3].transpose(2, 0, 1), data.splits["test"].inputs[3].numpy())
    with pytest.raises(UserError, match="does not say its data"):
        figure_of_masks.first_pictures({"id": "a"}, 8)


def test_a_table_without_a_figure_of_masks_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert figure_of_masks.main(["quickstart", "--with-data"]) == 2
    assert "quickstart names no figure of kind masks" in capsys.readouterr().err


@needs_native
def test_similarities_are_drawn_of_the_surest_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = ("data/weizmann_horses", "scheme/crf_joint", "objective/gaussian_ce")
    small = {"energy.init_args.unary_net.init_args.widths": [4, 8], "trainer.limit_test_batches": 1}
    small |= {"energy.init_args.embedding_net.init_args.widths": [4, 8], "trainer.limit_val_batches": 1}
    folder = runner(tmp_path)(*layers, **small)
    tables: list[np.ndarray] = []
    monkeypatch.setattr(similarity, "heat", lambda _, table, *rest, **named: tables.append(table))
    files = similarity.similarity(folder, 0, tmp_path / "similarity")
    assert all(file.exists() for file in files)
    scheme, data = finished(folder)
    with torch.no_grad():
        p = scheme.energy.potentials(data.splits["test"].inputs[:1], None).definite()
        sure = p.logits_of(gaussian.mode(p))[0]
        similar = torch.einsum("ijd,hwd->ijhw", p.embedding[0], p.embedding[0]).flatten(0, 1)
    for table, place in zip(tables, (sure.argmax(), sure.argmin()), strict=True):
        np.testing.assert_allclose(table, similar[int(place)].numpy(), rtol=1e-4, atol=1e-5)
