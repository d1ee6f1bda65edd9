"""A user's own pictures and masks, in folders.

Shapes: N pictures, S x S pixels.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch

from datamodules.base import DeviceData, Split
from datamodules.batches import Transform
from datamodules.errors import DataMismatch, DataNotFound
from datamodules.pictures.new import with_new
from datamodules.pictures.pairs import Pairs, find_pairs, read_list
from datamodules.readers.pictures import read_pair
from datamodules.sources.files import shown
from datamodules.splits import PARTS, by_names
from networks.sizes import at_least


class PictureFolder(DeviceData):
    """Pictures x (N, 3, S, S) uint8 of any format of FORMATS and any size, with masks y (N, S, S) in {0, 1}.

    A picture and its mask have the same name, the suffix of the file apart. Both are brought to S x S; see
    `read_pair`. Files are only read, never changed.

    Args:
        pictures: the folder of the pictures.
        masks: the folder of the masks; left out, that of the pictures.
        mask_suffix: what the name of a mask has after the name of its picture, such as _mask.
        size: S.
        train: a list of names, one a line, of the pictures for training; left out, all that are in no other
            part.
        validation: likewise; left out, a share of all pictures, drawn from those in no list.
        test: likewise; left out, a share of all pictures, drawn from those in no list.
        share: of the pictures for validation, and for testing, where no list says which.
        split_seed: draws them. It is not the run's seed.
        batch_size: pictures of a training batch.
        eval_batch_size: pictures of a validation or test batch.
        seed: draws the order of the training pictures, with the epoch, and the transforms.
        transform: of training batches, such as datamodules.transforms.HorizontalFlip.
    """

    def __init__(
        self,
        pictures: str | None = None,
        masks: str | None = None,
        *,
        mask_suffix: str = "",
        size: int = 64,
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        share: float = 0.2,
        split_seed: int = 0,
        batch_size: int = 4,
        eval_batch_size: int = 64,
        seed: int = 0,
        transform: Transform | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            transform=transform,
        )
        at_least(16, size=size)
        self.pictures, self.masks, self.mask_suffix = pictures, masks or pictures, mask_suffix
        self.size, self.share, self.split_seed = size, share, split_seed
        lists = dict(zip(PARTS, (train, validation, test), strict=True))
        self.lists = {part: Path(file) for part, file in lists.items() if file}

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        if not self.pictures or not self.masks:
            return "No pictures are given. Add --data.pictures FOLDER --data.masks FOLDER."
        for place in (Path(self.pictures), Path(self.masks)):
            if not place.is_dir():
                return f"There is no folder {shown(place)}. Correct --data.pictures or --data.masks."
        for part, file in self.lists.items():
            if not file.is_file():
                return f"There is no file {shown(file)}. Correct --data.{part}."
        return None

    def load(self) -> dict[str, Split]:
        """Find the pairs, decode them, split them."""
        if reason := self.missing():
            raise DataNotFound(reason)
        pairs = find_pairs(Path(self.pictures or ""), Path(self.masks or ""), self.mask_suffix)
        listed = {part: read_list(file, pairs) for part, file in self.lists.items()}
        rows = by_names([*pairs], listed, share=self.share, seed=self.split_seed)
        x, y = self._decoded(pairs)
        train = y[rows["train"]]
        if train.min() == train.max():
            alike = "full" if train.any() else "empty"
            raise DataMismatch(
                f"All {len(train)} masks for training are {alike} at {self.size} x {self.size} pixels: there "
                f"is no object to learn. Correct the masks in {shown(Path(self.masks or ''))}, the object "
                "white and all else black, or --data.size."
            )
        parts = {part: Split(x[index], y[index]) for part, index in rows.items()}
        return with_new(self, parts, self.size, mask_suffix=self.mask_suffix)

    def _decoded(self, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
        """All pictures and masks; keeps one checksum of all files with their names."""
        found, sums = [], ""
        for picture, mask in pairs.values():
            try:
                with picture.open("rb") as colours, mask.open("rb") as object_:
                    found.append(read_pair(colours, object_, self.size, where=(shown(picture), shown(mask))))
                    for path, file in ((picture, colours), (mask, object_)):
                        file.seek(0)
                        sums += f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n"
            except OSError as error:
                where = shown(Path(error.filename or picture))
                raise DataNotFound(
                    f"{where} cannot be read ({error.strerror}). Correct its rights."
                ) from None
        self.record_checksum("names and sha256 of all pictures and masks", sums.encode())
        x, y = (torch.from_numpy(np.stack(arrays)) for arrays in zip(*found, strict=True))
        return x, y
