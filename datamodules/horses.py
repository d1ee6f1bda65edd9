"""Weizmann horses with their masks: at 32 x 32 in the split of SEAL, and the original pictures in folds.

Shapes: N pictures, S x S pixels.
"""

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from datamodules.base import DeviceData, Split
from datamodules.batches import Transform
from datamodules.errors import DataMismatch, FormatError
from datamodules.pictures.new import with_new
from datamodules.readers.pictures import read_pair
from datamodules.sources.files import Sources
from datamodules.sources.needed import as_config
from datamodules.sources.registry import data_set
from networks.sizes import at_least

PARTS = {"train": "train_idx", "validation": "val_idx", "test": "test_idx"}
SHAPES = {"images": (4, 3), "masks": (3, None)}  # dimensions, channels

HORSES, FOLDS, KEPT = 328, 5, 50  # pictures, folds, pictures kept for validation
VALIDATION = -1  # stands for a fold
BLACK = "rgb/horse318.jpg"  # this picture is black; its grey version is not
TWINS = ((6, 18), (240, 274), (4, 146), (175, 205), (180, 203))  # equal pictures, and three almost equal


class _Published(DeviceData):
    """One file of a set of the registry.

    Args:
        batch_size: pictures of a training batch.
        eval_batch_size: pictures of a validation or test batch.
        seed: draws the order of the training pictures, with the epoch, and the transforms.
        transform: of training batches, such as datamodules.transforms.RandomCrop.
        folder: where data is kept; left out, DATA_DIR or data/.
        mirror: a folder to read data from; left out, DATA_MIRROR or ../shared/data. Empty: none.
    """

    published_as: ClassVar[str]

    def __init__(
        self,
        *,
        batch_size: int = 8,
        eval_batch_size: int = 128,
        seed: int = 0,
        transform: Transform | None = None,
        folder: str | None = None,
        mirror: str | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            transform=transform,
        )
        self.sources = Sources(folder, mirror)

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        return self.sources.missing(data_set(self.published_as))

    def source_files(self) -> dict[str, Any] | None:
        """See DeviceData.source_files."""
        return as_config([data_set(self.published_as)], self.sources)

    def prepare_data(self) -> None:
        """Download what is not here."""
        self.sources.fetch(data_set(self.published_as))

    def content(self) -> tuple[str, bytes]:
        """The name of the file, and its bytes, whose checksum is kept for the record."""
        data = data_set(self.published_as)
        file = data.files["train"]
        return file.name, self.record_checksum(file.name, self.sources.read(data, file))


class Horses32(_Published):
    """Pictures x (N, 3, 32, 32) uint8 with masks y (N, 32, 32) in {0, 1}.   [SEAL §4.4]

    160 pictures to train, 40 to validate, 128 to test.

    Args:
        num_pictures: pictures of the file, checked; 328 as published.
    """

    published_as = "weizmann_horses_32"

    def __init__(self, num_pictures: int = 328, **options: Any) -> None:
        super().__init__(**options)
        self.num_pictures = num_pictures

    def load(self) -> dict[str, Split]:
        """Read the arrays and split them."""
        name, content = self.content()
        arrays = read_arrays(content, where=name)
        if len(arrays["images"]) != self.num_pictures:
            raise DataMismatch(
                f"{name} has {len(arrays['images'])} pictures, the configuration says "
                f"{self.num_pictures}. Set --data.num_pictures {len(arrays['images'])}."
            )
        x = torch.from_numpy(arrays["images"]).movedim(-1, 1).contiguous()
        y = torch.from_numpy(arrays["masks"])
        rows = {part: torch.from_numpy(arrays[name]).long() for part, name in PARTS.items()}
        return with_new(self, {part: Split(x[index], y[index]) for part, index in rows.items()}, x.shape[-1])


def read_arrays(content: bytes, *, where: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file, none of them pickled.

    Raises:
        FormatError: it is no npz file, an array is missing or of another shape, or a mask is not two-valued.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in (*SHAPES, *PARTS.values())}
    except KeyError as error:
        raise FormatError(f"{where}: {error.args[0]}. Get the file again.") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(f"{where}: this is no npz file of plain arrays. Get the file again.") from error
    for name, (dimensions, channels) in SHAPES.items():
        found = arrays[name]
        if found.dtype != np.uint8 or found.ndim != dimensions or (channels and found.shape[-1] != channels):
            raise FormatError(
                f"{where}: {name} are {found.dtype} of shape {found.shape}. Get the file again."
            )
    if arrays["masks"].max(initial=0) > 1:
        raise FormatError(f"{where}: a mask has the value {arrays['masks'].max()}; masks have 0 and 1.")
    return arrays


class Horses(_Published):
    """The original pictures x (N, 3, S, S) uint8, brought to one size, with masks y (N, S, S) in {0, 1}.

    50 pictures are for validation. The other 278 make five folds at random: one is for testing, four are for
    training. Two pairs of pictures are equal and three more almost: both pictures of a pair are always in
    the same part. The paper states neither its folds nor a size.                                [Scaling §6]

    Args:
        size: S, the sides of pictures and masks; see `read_pair`.
        test_fold: 0 to 4; left out, seed 0 takes fold 0, seed 1 the next, and so on modulo 5.
        split_seed: draws the pictures for validation and the folds. It is not the run's seed.
        eval_batch_size: pictures of a validation or test batch.
        seed: draws the order of the training pictures, with the epoch, and the transforms; and may choose the
            test fold.
    """

    published_as = "weizmann_horses"

    def __init__(
        self,
        size: int = 32,
        *,
        test_fold: int | None = None,
        split_seed: int = 0,
        eval_batch_size: int = 64,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(eval_batch_size=eval_batch_size, seed=seed, **options)
        at_least(1, size=size)
        self.size, self.split_seed = size, split_seed
        self.test_fold = seed % FOLDS if test_fold is None else test_fold
        if self.test_fold not in range(FOLDS):
            raise DataMismatch(f"test_fold is {test_fold}: take a fold of 0 to {FOLDS - 1}.")

    def load(self) -> dict[str, Split]:
        """Decode the pictures and split them."""
        name, content = self.content()
        pictures, masks = read_horses(content, range(1, HORSES + 1), self.size, where=name)
        x, y, fold = torch.from_numpy(pictures), torch.from_numpy(masks), horse_folds(self.split_seed)
        chosen = {"validation": fold == VALIDATION, "test": fold == self.test_fold}
        chosen = {"train": ~(chosen["validation"] | chosen["test"]), **chosen}
        return with_new(self, {part: Split(x[rows], y[rows]) for part, rows in chosen.items()}, self.size)


def read_horses(
    content: bytes, numbers: Sequence[int], size: int, *, where: str | Path
) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (N, 3, S, S) and masks (N, S, S) of a zip archive, by the numbers in their names.

    Nothing is unpacked to disk.

    Raises:
        FormatError: this is no such archive, or a member is missing or damaged.
    """
    pictures, masks = [], []
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for number in numbers:
                names = f"rgb/horse{number:03}.jpg", f"figure_ground/horse{number:03}.jpg"
                source = names[0] if names[0] != BLACK else names[0].replace("rgb", "gray")
                places = f"{where}: {source}", f"{where}: {names[1]}"
                picture, mask = (io.BytesIO(archive.read(name)) for name in (source, names[1]))
                one = read_pair(picture, mask, size, where=places)
                pictures.append(one[0])
                masks.append(one[1])
    except KeyError as error:
        raise FormatError(f"{where}: {error.args[0]}. Get the file again.") from None
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, zlib.error) as error:
        raise FormatError(f"{where}: this is no whole zip archive ({error}). Get the file again.") from error
    return np.stack(pictures), np.stack(masks)


def horse_folds(seed: int) -> np.ndarray:
    """The fold (328,) of each horse, 0 to 4, or VALIDATION; the same for both of TWINS.

    Each pair of twins takes two places of a random part, then all other horses take the places left.
    """
    draw = np.random.default_rng(seed)
    shares = [len(part) for part in np.array_split(np.arange(HORSES - KEPT), FOLDS)]
    left = np.array([KEPT, *shares])
    fold = np.full(HORSES, VALIDATION - 1)
    for pair in TWINS:
        part = draw.choice(FOLDS + 1, p=left / left.sum())
        fold[np.array(pair) - 1] = part + VALIDATION
        left[part] -= 2
    fold[fold < VALIDATION] = draw.permutation(np.repeat(np.arange(FOLDS + 1) + VALIDATION, left))
    return fold
