"""A user's own pictures and masks: drawn here in all formats, files that do not fit, and real horses."""

import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import scripts.train
from datamodules.errors import DataError, DataMismatch, DataNotFound, FormatError
from datamodules.horses import HORSES, Horses
from datamodules.pictures.folder import PictureFolder
from datamodules.pictures.pairs import by_name
from datamodules.readers.pictures import two_valued
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set

SUFFIXES = ("png", "jpg", "bmp", "JPEG")
needs_native = pytest.mark.skipif(Horses().missing() is not None, reason=str(Horses().missing()))


def drawn(size: tuple[int, int], box: tuple[float, ...]) -> tuple[Image.Image, Image.Image]:
    """A bright ellipse on dark ground, and its mask."""
    picture, mask = Image.new("RGB", size, (20, 60, 30)), Image.new("L", size)
    width, height = size
    ellipse = [box[0] * width, box[1] * height, box[2] * width, box[3] * height]
    ImageDraw.Draw(picture).ellipse(ellipse, fill=(230, 180, 40))
    ImageDraw.Draw(mask).ellipse(ellipse, fill=255)
    return picture, mask


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten pictures in `pictures` and `masks`: all formats, of sizes of their own, two of them portraits."""
    draw = np.random.default_rng(0)
    for name in ("pictures", "masks"):
        (tmp_path / name).mkdir()
    for number in range(10):
        size = (60 + number, 45) if number < 8 else (40, 70)
        left, top = draw.uniform(0.05, 0.4, 2)
        picture, mask = drawn(size, (left, top, left + 0.5, top + 0.5))
        suffix = SUFFIXES[number % 4]
        picture.save(tmp_path / "pictures" / f"shape {number}.{suffix}")
        mask.save(tmp_path / "masks" / f"shape {number}.{SUFFIXES[number % 3]}")
    (tmp_path / "pictures" / ".hidden.png").write_bytes(b"")
    (tmp_path / "pictures" / "notes.txt").write_text("not a picture")
    return tmp_path


def pictures(folder: Path, **options: object) -> PictureFolder:
    given = {"pictures": str(folder / "pictures"), "masks": str(folder / "masks"), "size": 16}
    data = PictureFolder(**(given | options))
    data.setup()
    return data


def test_pictures_and_masks_of_all_formats_are_read_at_one_size(folder: Path) -> None:
    data = pictures(folder)
    assert {part: len(split.y) for part, split in data.splits.items()} == {
        "train": 6,
        "validation": 2,
        "test": 2,
    }
    for split in data.splits.values():
        x, y = split.inputs, split.y
        assert (x.dtype, y.dtype) == (torch.uint8, torch.uint8)
        assert x.shape[1:] == (3, 16, 16) and y.shape[1:] == (16, 16)
        bright = (x[:, 0] > 125).to(torch.uint8)  # the ellipse itself
        assert float((bright == y).float().mean()) > 0.97
        assert 0.1 < float(y.float().mean()) < 0.3
    again, other = pictures(folder), pictures(folder, split_seed=1)
    assert again.checksums == data.checksums == other.checksums and len(data.checksums) == 1
    assert torch.equal(again.splits["test"].inputs, data.splits["test"].inputs)
    assert not torch.equal(other.splits["test"].inputs, data.splits["test"].inputs)


@pytest.mark.parametrize(("value", "word"), [(0, "empty"), (255, "full")])
def test_masks_without_an_object_are_refused_if_they_are_all_there_is(
    folder: Path, value: int, word: str
) -> None:
    masks = sorted((folder / "masks").iterdir())
    (folder / "train.txt").write_text("\n".join(path.stem for path in masks[:4]))
    for path in masks[:3]:
        Image.new("L", Image.open(path).size, value).save(path)
    assert len(pictures(folder, train=str(folder / "train.txt")).splits["train"].y) == 4
    Image.new("L", Image.open(masks[3]).size, value).save(masks[3])
    with pytest.raises(DataMismatch, match=f"All 4 masks for training are {word} at 16 x 16 .*masks"):
        pictures(folder, train=str(folder / "train.txt"))


def test_a_picture_is_the_mean_over_areas_and_turned_as_its_camera_says(folder: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (32, 64, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    Image.fromarray(noise).save(folder / "pictures" / "turned.png", exif=exif)
    Image.fromarray((np.arange(64 * 32).reshape(64, 32) < 1024).astype(np.uint8)).save(
        folder / "masks" / "turned.png"
    )
    (folder / "test.txt").write_text("\nturned.png  # one name\n")
    split = pictures(folder, test=str(folder / "test.txt")).splits["test"]
    upright = np.rot90(noise, -1).astype(float)
    means = upright.reshape(16, 4, 16, 2, 3).mean((1, 3)).transpose(2, 0, 1)
    assert np.abs(split.inputs[0].numpy() - means).max() <= 1
    assert split.y[0].sum(1).tolist() == [16] * 8 + [0] * 8


def test_lists_say_which_pictures_are_in_which_part(folder: Path) -> None:
    (folder / "test.txt").write_text("# two\nshape 3\nshape 8.png\n")
    (folder / "train.txt").write_text("shape 0\nshape 1\nshape 2\n")
    whole = pictures(folder, test=str(folder / "test.txt"))
    assert {part: len(split.y) for part, split in whole.splits.items()} == {
        "train": 6,
        "validation": 2,
        "test": 2,
    }
    few = pictures(folder, test=str(folder / "test.txt"), train=str(folder / "train.txt"))
    assert {part: len(split.y) for part, split in few.splits.items()} == {
        "train": 3,
        "validation": 2,
        "test": 2,
    }
    assert torch.equal(few.splits["test"].inputs, whole.splits["test"].inputs)
    everything = pictures(folder, size=24)
    seen = torch.cat([split.inputs for split in everything.splits.values()])
    assert len(seen.unique(dim=0)) == 10  # each in one part


def test_masks_may_be_in_the_folder_of_the_pictures(folder: Path) -> None:
    for path in (folder / "masks").iterdir():
        path.rename(folder / "pictures" / f"{path.stem}_mask{path.suffix}")
    data = pictures(folder, masks=None, mask_suffix="_mask")
    assert len(data.splits["train"].y) == 6
    with pytest.raises(DataMismatch, match=r"both in .*pictures.*--data.masks.*--data.mask_suffix"):
        pictures(folder, masks=None)


def test_a_link_to_a_picture_is_read(folder: Path) -> None:
    picture = folder / "pictures" / "shape 4.png"
    picture.rename(folder / "elsewhere.png")
    picture.symlink_to(folder / "elsewhere.png")
    assert len(pictures(folder).splits["train"].y) == 6


def bomb(path: Path) -> None:
    """A PNG of some hundred bytes that says it has 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def remove_all(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


def of_many_values(path: Path) -> None:
    Image.fromarray(np.arange(64 * 45, dtype=np.uint8).reshape(45, 64)).save(path)


def with_a_border(path: Path) -> None:
    mask = np.zeros((45, 64), np.uint8)
    mask[10:30, 10:30], mask[12:28, 12:28] = 255, 128
    Image.fromarray(mask).save(path)


# What is done to a file of the ten, and what is said then.
FAULTS: dict[str, tuple[str, Callable[[Path], object], type[DataError], str]] = {
    "no mask": (
        "masks/shape 4.jpg",
        os.remove,
        DataMismatch,
        r"pictures/shape 4.png has no mask: .*'shape 4'",
    ),
    "no picture": ("pictures/shape 4.png", os.remove, DataMismatch, r"masks/shape 4.jpg has no picture"),
    "truncated": ("pictures/shape 5.jpg", cut, FormatError, r"shape 5.jpg is damaged or incomplete"),
    "truncated bmp": ("pictures/shape 6.bmp", cut, FormatError, r"shape 6.bmp is damaged or incomplete"),
    "empty": ("pictures/shape 4.png", lambda p: p.write_bytes(b""), FormatError, r"no picture in PNG, JPEG"),
    "text": (
        "masks/shape 4.jpg",
        lambda p: p.write_text("GIF89a"),
        FormatError,
        r"masks/shape 4.jpg: this is no",
    ),
    "bomb": ("pictures/shape 4.png", bomb, FormatError, r"shape 4.png has more than 89,478,485 pixels"),
    "many values": (
        "masks/shape 4.jpg",
        of_many_values,
        FormatError,
        r"a mask has two values.* from 0 to 255",
    ),
    "three values": (
        "masks/shape 3.png",
        with_a_border,
        FormatError,
        r"masks/shape 3.png: a mask has two values",
    ),
    "other shape": (
        "masks/shape 4.jpg",
        lambda p: Image.new("L", (45, 64)).save(p),
        DataMismatch,
        r"shape 4.png has 64 x 45 pixels, its mask .*shape 4.jpg has 45 x 64",
    ),
    "16 bits": (
        "pictures/shape 4.png",
        lambda p: Image.fromarray(np.zeros((45, 64), np.uint16)).save(p),
        FormatError,
        r"shape 4.png has the mode I;16: save it with 8 bits",
    ),
    "another format": (
        "pictures/shape 4.png",
        lambda p: p.rename(p.with_suffix(".tif")),
        FormatError,
        r"shape 4.tif: PNG, JPEG and BMP are read",
    ),
    "two of a name": (
        "pictures/shape 4.png",
        lambda p: p.with_suffix(".bmp").write_bytes(p.read_bytes()),
        DataMismatch,
        r"shape 4.bmp and shape 4.png have one name",
    ),
    "no file": (
        "pictures/shape 4.png",
        lambda p: (p.unlink(), p.mkdir()),
        FormatError,
        r"shape 4.png is no regular file",
    ),
    "a pipe": (
        "pictures/shape 4.png",
        lambda p: (p.unlink(), os.mkfifo(p)),
        FormatError,
        r"shape 4.png is no regular file",
    ),
    "a broken link": (
        "pictures/shape 4.png",
        lambda p: (p.unlink(), p.symlink_to("nowhere.png")),
        FormatError,
        r"shape 4.png is no regular file",
    ),
    "an empty folder": ("masks/shape 4.jpg", remove_all, DataNotFound, r"masks has no pictures in PNG"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_does_not_fit_is_named_in_one_sentence(folder: Path, name: str) -> None:
    file, change, error, says = FAULTS[name]
    assert (folder / file).is_file()
    change(folder / file)
    with pytest.raises(error, match=says) as raised:
        pictures(folder)
    assert "\n" not in str(raised.value) and str(raised.value).endswith(".")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("shape 1\nshape 77\n", r"test.txt, line 2: there is no picture 'shape 77'"),
        ("shape 1\n../masks/shape 2.png\n", r"line 2: there is no picture '../masks/shape 2.png'"),
        ("shape 1\n\nshape 1.jpg\n", r"line 3: 'shape 1.jpg' is in line 1 too"),
        ("# none\n", r"test.txt names no picture"),
        ("shape 0\n", r"'shape 0' is in the lists for validation and test"),
    ],
)
def test_a_list_that_does_not_fit_is_told_with_its_line(folder: Path, content: str, says: str) -> None:
    (folder / "test.txt").write_text(content)
    (folder / "validation.txt").write_text("shape 0\n")
    with pytest.raises(DataMismatch, match=says):
        pictures(folder, test=str(folder / "test.txt"), validation=str(folder / "validation.txt"))


def test_too_few_pictures_are_refused(folder: Path) -> None:
    for number in range(2, 10):
        for path in folder.glob(f"*/shape {number}.*"):
            path.unlink()
    with pytest.raises(DataMismatch, match=r"2 pictures are too few: none is left for validation"):
        pictures(folder)


def test_what_is_not_there_is_told_before_training(tmp_path: Path) -> None:
    assert "Add --data.pictures FOLDER --data.masks FOLDER" in str(PictureFolder().missing())
    there = {"pictures": str(tmp_path), "masks": str(tmp_path)}
    assert "There is no folder" in str(PictureFolder(**(there | {"masks": "no/where"})).missing())
    assert "no/list.txt. Correct --data.test" in str(PictureFolder(**there, test="no/list.txt").missing())


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_a_mask_that_is_in_the_transparency_is_refused(folder: Path, mode: str) -> None:
    cut_out = Image.new("RGBA", (60, 45), (255, 255, 255, 0))
    cut_out.paste((255, 255, 255, 255), (10, 10, 40, 30))
    place = folder / "masks" / "shape 0.png"
    cut_out.convert(mode).save(place, **({"transparency": 0} if mode == "P" else {}))
    with pytest.raises(FormatError, match=r"shape 0.png: this mask has transparent pixels. Save it without"):
        pictures(folder)
    drawn((60, 45), (0.2, 0.2, 0.7, 0.7))[1].convert("RGBA").save(place)
    assert pictures(folder).splits["train"].y.any()


def test_any_two_values_make_a_mask_and_blurred_edges_are_cut() -> None:
    def mask(*values: int) -> np.ndarray:
        return np.array(values, np.uint8).reshape(1, -1)

    for low, high in ((0, 255), (0, 1), (7, 90)):
        assert two_valued(mask(low, high, low), "m").tolist() == [[0, 1, 0]]
    for value, found in ((0, 0), (1, 1), (255, 1)):
        assert two_valued(mask(value, value), "m").tolist() == [[found, found]]
    blurred = np.repeat(mask(0, 255), 50, axis=1)
    blurred[0, 49:51] = 127, 128
    assert two_valued(blurred, "m")[0].tolist() == [0] * 50 + [1] * 50
    for wrong in (mask(128, 128), mask(0, 1, 2), mask(*range(0, 250, 10))):
        with pytest.raises(FormatError, match="a mask has two values"):
            two_valued(wrong, "m")


@pytest.mark.parametrize("values", [(0, 1, 255), (0, 15, 255), (1, 2, 255)])
def test_classes_with_a_border_are_not_taken_for_blur(folder: Path, values: tuple[int, int, int]) -> None:
    place = folder / "masks/shape 0.png"
    with Image.open(place) as picture:
        mask = np.full(picture.size[::-1], values[0], np.uint8)
    mask[5:20, 5:20], mask[5, 5:20] = values[1], values[2]
    Image.fromarray(mask).save(place)
    with pytest.raises(FormatError, match=r"shape 0.png: a mask has two values"):
        pictures(folder)


def test_colours_of_16_bits_are_refused(folder: Path) -> None:
    rows = b"".join(b"\0" + b"\0\1" * 3 * 4 for _ in range(4))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (folder / "masks/shape 0.png").write_bytes(content)
    with pytest.raises(FormatError, match="8 bits a channel"):
        pictures(folder)


def test_a_user_trains_on_a_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "--data.pictures pictures --data.masks masks --data.size 16 --trainer.max_epochs 20".split()
    command = ["--config", "conf/data/folder.yaml", "--config", "conf/scheme/cross_entropy.yaml", *options]
    conf = Path(__file__).resolve().parent.parent / "conf"
    (folder / "conf").symlink_to(conf)
    monkeypatch.chdir(folder)
    assert scripts.train.main([*command, "--run_dir", "run"]) == 0
    assert "test/iou" in capsys.readouterr().out
    rows = (folder / "run" / "metrics.csv").read_text()
    assert "val/iou" in rows
    cut(folder / "pictures" / "shape 5.jpg")
    assert scripts.train.main([*command, "--run_dir", "other"]) != 0
    said = capsys.readouterr().err
    assert "shape 5.jpg is damaged or incomplete" in said and "Traceback" not in said


@needs_native
def test_the_real_horses_are_a_folder_of_pictures(tmp_path: Path) -> None:
    """Extracted to a folder, they are the pictures and masks that the data set of that name has."""
    data = data_set("weizmann_horses")
    with zipfile.ZipFile(Sources().find(data, data.files["train"]) or "") as archive:
        some = [name for name in archive.namelist() if name[-7:-4] <= "040"]
        archive.extractall(tmp_path, some)
    found = PictureFolder(str(tmp_path / "rgb"), str(tmp_path / "figure_ground"), size=32)
    found.setup()
    native = Horses()
    native.setup()
    known = {
        x.numpy().tobytes(): y for s in native.splits.values() for x, y in zip(s.inputs, s.y, strict=True)
    }
    assert len(known) == HORSES - 2  # twins are equal
    mine = [(x, y) for s in found.splits.values() for x, y in zip(s.inputs, s.y, strict=True)]
    assert len(mine) == 40
    assert sum(torch.equal(known[x.numpy().tobytes()], y) for x, y in mine) >= 38  # masks of twins differ


def test_a_file_in_place_of_a_folder_of_new_pictures_is_told(folder: Path) -> None:
    with pytest.raises(DataNotFound, match=r"shape 4\.jpg is a file\. Name the folder of its pictures\."):
        by_name(folder / "masks" / "shape 4.jpg")
