"""Horses at 32 x 32 pixels with their masks, in the split of SEAL.

Shapes: N pictures.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datamodules.base import DeviceData, Split
from datamodules.batches import Transform
from datamodules.errors import DataMismatch, FormatError
from datamodules.sources.files import Sources
from datamodules.sources.needed import as_config
from datamodules.sources.registry import data_set

NAME = "weizmann_horses_32"
PARTS = {"train": "train_idx", "validation": "val_idx", "test": "test_idx"}
SHAPES = {"images": (4, 3), "masks": (3, None)}  # dimensions, channels


class Horses32(DeviceData):
    """Pictures x (N, 3, 32, 32) uint8 with masks y (N, 32, 32) in {0, 1}.   [SEAL §4.4]

    160 pictures to train, 40 to validate, 128 to test.

    Args:
        num_pictures: pictures of the file, checked; 328 as published.
        batch_size: pictures of a training batch.
        eval_batch_size: pictures of a validation or test batch.
        seed: draws the order of the training pictures, with the epoch, and the transforms.
        transform: of training batches, such as datamodules.transforms.RandomCrop.
        observed_share: the share of training answers that are known, drawn with the seed; left out, all.
        folder: where data is kept; left out, DATA_DIR or data/.
        mirror: a folder to read data from; left out, DATA_MIRROR or ../shared/data. Empty: none.
    """

    def __init__(
        self,
        num_pictures: int = 328,
        *,
        batch_size: int = 8,
        eval_batch_size: int = 128,
        seed: int = 0,
        transform: Transform | None = None,
        observed_share: float | None = None,
        folder: str | None = None,
        mirror: str | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            transform=transform,
            observed_share=observed_share,
        )
        self.num_pictures, self.sources = num_pictures, Sources(folder, mirror)

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        return self.sources.missing(data_set(NAME))

    def source_files(self) -> dict[str, Any] | None:
        """See DeviceData.source_files."""
        return as_config([data_set(NAME)], self.sources)

    def prepare_data(self) -> None:
        """Download what is not here."""
        self.sources.fetch(data_set(NAME))

    def load(self) -> dict[str, Split]:
        """Read the arrays and split them."""
        data = data_set(NAME)
        file = data.files["train"]
        content = self.record_checksum(file.name, self.sources.read(data, file))
        arrays = read_arrays(content, where=file.name)
        if len(arrays["images"]) != self.num_pictures:
            raise DataMismatch(
                f"{file.name} has {len(arrays['images'])} pictures, the configuration says "
                f"{self.num_pictures}. Set --data.num_pictures {len(arrays['images'])}."
            )
        x = torch.from_numpy(arrays["images"]).movedim(-1, 1).contiguous()
        y = torch.from_numpy(arrays["masks"])
        rows = {part: torch.from_numpy(arrays[name]).long() for part, name in PARTS.items()}
        return {part: Split(x[index], y[index]) for part, index in rows.items()}


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
