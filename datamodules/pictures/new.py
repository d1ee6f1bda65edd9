"""Pictures that training never saw, in a folder, without masks.

Shapes: N pictures, S x S pixels.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from datamodules.base import NEW, DeviceData, Split
from datamodules.errors import DataNotFound
from datamodules.pictures.pairs import by_name
from datamodules.readers.pictures import read_picture
from datamodules.sources.files import shown

Parts = dict[str, Split]


def with_new(data: DeviceData, parts: Parts, size: int, *, mask_suffix: str = "") -> Parts:
    """These parts, and that of a folder of new pictures if there is one.

    With `mask_suffix` a file whose name ends in it is a mask, and left out.
    """
    if not data.new:
        return parts
    found = by_name(data.new)
    data.new_files = [p for name, p in found.items() if not (mask_suffix and name.endswith(mask_suffix))]
    if not data.new_files:
        raise DataNotFound(f"The folder {shown(data.new)} has masks alone. Correct the path.")
    return parts | {NEW: read_new(data.new_files, size)}


def read_new(files: Sequence[Path], size: int) -> Split:
    """Pictures x (N, 3, S, S) as training read its own; their masks, which nobody knows, are empty."""
    found = []
    for path in files:
        try:
            with path.open("rb") as file:
                found.append(read_picture(file, size, where=shown(path)))
        except OSError as error:
            raise DataNotFound(
                f"{shown(path)} cannot be read ({error.strerror}). Correct its rights."
            ) from None
    return Split(torch.from_numpy(np.stack(found)), torch.zeros(len(found), size, size, dtype=torch.uint8))
