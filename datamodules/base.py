"""Data modules whose splits are kept as tensors on the trainer's device."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor

from datamodules.batches import Batch, Batches, Transform
from datamodules.errors import DataMismatch
from networks.inputs import rows_of

NEW = "new"  # the part of a file that training never saw
NO_ROW = "No row is left for {}: give more rows, or another split."


@dataclass
class Split:
    """Inputs and answers y (N, ...) of one part of the data; `mask` and `observed` as in Batch.

    Inputs that have a mask of their own give the mask.
    """

    inputs: Any  # as in Batch
    y: Tensor
    mask: Tensor | None = None
    observed: Tensor | None = None

    def __post_init__(self) -> None:
        own = getattr(self.inputs, "mask", None)
        self.mask = self.mask if own is None else own

    def to(self, device: torch.device) -> "Split":
        """The same on a device."""
        mask, observed = (None if part is None else part.to(device) for part in (self.mask, self.observed))
        return Split(self.inputs.to(device), self.y.to(device), mask, observed)


class DeviceData(LightningDataModule, ABC):
    """Three splits as tensors on the device; the order of training batches depends on (seed, epoch).

    With `pool` above 1 the training sentences of a batch have similar lengths: see Batches. A `transform`
    changes training batches: see `transforms`.

    `names`, where the data has some, are those of the labels or tags, in the order of y. With `every_row`
    validation and test keep rows without a label, which can be predicted but not judged. A file `new` of
    further examples becomes a part of that name, where the data can read one: all else is fitted, numbered
    and drawn as without it. Where each example is a file, `new` is their folder, and `new_files` are they.

    With `num_train` only that many of the training examples stay, drawn with the seed; those of a smaller
    number are among those of a larger one.

    With several processes, each trains on its share of every permutation. Each process sees all of validation
    and test, so the numbers are those of one process.
    """

    names: Sequence[str] = ()
    every_row = False
    new: Path | None = None
    new_files: Sequence[Path] = ()

    def __init__(
        self,
        *,
        batch_size: int,
        eval_batch_size: int,
        seed: int,
        pool: int = 1,
        num_train: int | None = None,
        transform: Transform | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            if size < 1:
                raise DataMismatch(f"{name} is {size}: take 1 or more.")
        self.batch_size, self.eval_batch_size, self.seed = batch_size, eval_batch_size, seed
        self.pool, self.transform, self.num_train = pool, transform, num_train
        self.splits: dict[str, Split] = {}
        self.checksums: dict[str, str] = {}  # sha256 of each file that was read, by name
        self.tables: dict[str, Tensor] = {}  # of the vocabulary, for networks that ask for them

    def record_checksum(self, name: str, content: bytes) -> bytes:
        """Keep the checksum of a file for the record, by a name of its own; return the file's content."""
        checksum = sha256(content).hexdigest()
        assert self.checksums.setdefault(name, checksum) == checksum, f"two files have the name {name}"
        return content

    def kept(self, part: str, rows: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Those of these rows of a part that have a label; with `every_row` all, but for training."""
        return rows if self.every_row and part != "train" else rows[y[rows].any(1)]

    @abstractmethod
    def load(self) -> dict[str, Split]:
        """The splits train, validation and test."""

    @abstractmethod
    def missing(self) -> str | None:
        """One sentence on which data is not here and how to get it; None when all of it is here."""

    def source_files(self) -> dict[str, Any] | None:
        """The config of an object with the same `missing` that needs no torch; None if there is none.

        It depends on the arguments of this module alone, not on which files are here.
        """
        return None

    def setup(self, stage: str | None = None) -> None:
        """Load once, and put everything on the trainer's device."""
        if not self.splits:
            self.splits = self.load()
            for part, split in self.splits.items():
                if not len(split.inputs):
                    raise DataMismatch(NO_ROW.format(part))
            if self.num_train is not None:
                self.splits["train"] = drawn_rows(self.splits["train"], self.num_train, self.seed)
        device = self.trainer.strategy.root_device if self.trainer else torch.device("cpu")
        self.splits = {part: split.to(device) for part, split in self.splits.items()}

    def train_dataloader(self) -> Batches:
        """The training split in an order that depends on the seed and the epoch only."""
        split, trainer = self.splits["train"], self.trainer
        rank, world_size = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        return Batches(
            split.inputs,
            split.y,
            mask=split.mask,
            observed=split.observed,
            batch_size=self.batch_size,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            pool=self.pool,
            transform=self.transform,
        )

    def val_dataloader(self) -> Batches:
        """The validation split in a fixed order."""
        return self._in_order("validation")

    def test_dataloader(self) -> Batches:
        """The test split in a fixed order."""
        return self._in_order("test")

    def new_dataloader(self) -> Batches:
        """The examples of the file `new` in a fixed order."""
        return self._in_order(NEW)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Nothing is moved: the batch was cut on the device."""
        return batch if batch.inputs.device == device else batch.to(device)

    def _in_order(self, part: str) -> Batches:
        split = self.splits[part]
        return Batches(split.inputs, split.y, mask=split.mask, batch_size=self.eval_batch_size)


def drawn_rows(split: Split, count: int, seed: int) -> Split:
    """A random choice of `count` examples, in their order.

    Raises:
        DataMismatch: there are not so many, or it is no number above 0.
    """
    if not 0 < count <= len(split.y):
        raise DataMismatch(f"num_train is {count}: take 1 to {len(split.y):,}, the examples for training.")
    order = torch.randperm(len(split.y), generator=torch.Generator().manual_seed(seed))
    index = order[:count].sort().values
    inputs, y = rows_of(split.inputs, index), split.y[index]
    mask, observed = (None if part is None else part[index] for part in (split.mask, split.observed))
    if mask is not None:  # sequences end with the longest that is left
        longest = int(mask.sum(1).max())
        y, mask = y[:, :longest], mask[:, :longest]
    return Split(inputs, y, mask, observed)
