"""Multi-label classification of texts: the sets of the registry, or a user's own.

Shapes: N texts, L labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import torch

from datamodules.base import NEW, DeviceData, Split
from datamodules.errors import DataMismatch, DataNotFound, FormatError, listed, no_file, quoted, refuse_twice
from datamodules.readers.hub import HubTexts
from datamodules.readers.texts import LabelledTexts, read_csv, read_json_lines, read_line_pairs, read_names
from datamodules.sources.files import Sources, shown, unpack
from datamodules.sources.needed import as_config
from datamodules.sources.registry import DataSet, data_set
from datamodules.splits import PARTS, Rows, by_files
from datamodules.text.kept import keep
from datamodules.text.tokens import pieces_of

READERS = {".csv": read_csv, ".jsonl": read_json_lines}


class MultiLabelTexts(DeviceData):
    """Texts x as word pieces of an encoder, or as states of its kept layers, with label sets y (N, L).

    Texts without a label are dropped. Files are CSV (.csv), JSON lines (.jsonl), or texts line by line beside
    a file of their labels; .xz and .gz too. See `readers.texts`.

    The labels are those of `labels`, or those that a set of the registry or the hub or the header of a CSV
    file names, or all of the training file in alphabetical order. Others are an error.

    Args:
        num_labels: L.
        encoder: whose word pieces these are: a folder, or a name on the Hugging Face hub. See Encoder.
        name: a set of the registry; files of the user take the place of its parts.
        hub: a data set of the Hugging Face hub, or a folder that `datasets` reads; files of the user take the
            place of its parts. Not with the `name` of a set of the registry.
        train: a user's own file for training.
        validation: a user's own file for validation; without any, a share of the training texts.
        test: a user's own file for testing; without any, a share of the training texts.
        train_labels: the labels of `train`, line by line.
        validation_labels: the labels of `validation`, line by line.
        test_labels: the labels of `test`, line by line.
        labels: the names of the labels, in the order of y.
        max_pieces: word pieces of a text that are read at most.
        kept_layers: how many layers of the encoder are computed once and kept; 0: none.
        pooling: how the states of a text are pooled before they are kept; left out, all are kept.
        share: how much of the training texts a part without a file gets.
        split_seed: draws those shares. It is not the run's seed: runs are compared on one split.
        batch_size: texts of a training batch.
        eval_batch_size: texts of a validation or test batch.
        seed: draws the order of the training texts, with the epoch.
        pool: how many batches at a time are sorted by length; left out, 1: none are. See Batches.
        num_train: how many of the training texts are used, drawn with the seed; left out, all.
        folder: where data is kept; left out, DATA_DIR or data/.
        mirror: a folder to read data from; left out, DATA_MIRROR or ../shared/data. Empty: none.
    """

    def __init__(
        self,
        num_labels: int = 0,
        *,
        encoder: str,
        name: str = "own",
        hub: HubTexts | None = None,
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        train_labels: str | None = None,
        validation_labels: str | None = None,
        test_labels: str | None = None,
        labels: list[str] | None = None,
        max_pieces: int = 256,
        kept_layers: int = 0,
        pooling: Literal["first", "mean", "pooler"] | None = None,
        share: float = 0.2,
        split_seed: int = 0,
        batch_size: int = 16,
        eval_batch_size: int = 64,
        seed: int = 0,
        pool: int | None = None,
        num_train: int | None = None,
        folder: str | None = None,
        mirror: str | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            pool=1 if pool is None else pool,
            num_train=num_train,
        )
        self.num_labels, self.encoder, self.dataset, self.labels = num_labels, encoder, name, labels
        self.hub = hub
        refuse_twice("labels", labels or ())
        if hub and self._known:
            raise DataMismatch(
                f"{hub.name} is a data set of the hub and {name} one of the registry: give one of them. "
                "conf/data/own_text.yaml has none."
            )
        given = {"train": train, "validation": validation, "test": test}
        beside = {"train": train_labels, "validation": validation_labels, "test": test_labels}
        self.own = {
            part: _Own(part, Path(path), Path(its) if (its := beside[part]) else None)
            for part, path in given.items()
            if path
        }
        if lost := [part for part, path in beside.items() if path and part not in self.own]:
            raise DataNotFound(f"--data.{lost[0]}_labels needs the texts too: --data.{lost[0]} FILE.")
        self.max_pieces, self.kept_layers, self.pooling = max_pieces, kept_layers, pooling
        self.share, self.split_seed = share, split_seed
        self.sources = Sources(folder, mirror)
        if num_labels < 1:
            self.read()  # raises an error that names the size

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        for own in self.own.values():
            if reason := own.missing():
                return f"{reason} {self._registered().advice}.".removesuffix(" .") if self._known else reason
        if self._known:
            return self.sources.missing(self._registered())
        if self.hub or "train" in self.own:
            return None
        return "No texts are given. Add --data.train FILE, a .csv or .jsonl file, or --data.hub.name NAME."

    def source_files(self) -> dict[str, Any] | None:
        """See DeviceData.source_files."""
        if self.own or self.hub or not self._known:
            return None
        return as_config([self._registered()], self.sources)

    def prepare_data(self) -> None:
        """Download what is not here."""
        if self.hub:
            self.hub.fetch()
        if self._known:
            self.sources.fetch(self._registered())

    def load(self) -> dict[str, Split]:
        """Read and split the texts, drop those without a label, and give them to the encoder's tokenizer."""
        texts, y, rows = self.read()
        rows = {part: self.kept(part, index, y) for part, index in rows.items()}
        if empty := [part for part, index in rows.items() if not len(index)]:
            raise DataMismatch(f"No text with a label is left for {empty[0]}: give more, or another split.")
        first_new = len(texts) - len(rows.get(NEW, ()))
        new = {NEW: rows.pop(NEW) - first_new} if NEW in rows else {}
        splits = self._splits(texts[:first_new], y[:first_new], rows)
        return splits | self._splits(texts[first_new:], y[first_new:], new) if new else splits

    def _splits(self, texts: Sequence[str], y: np.ndarray, rows: Rows) -> dict[str, Split]:
        """The rows of these texts; what is kept of their encoder's layers is one file."""
        pieces = pieces_of(texts, self.encoder, max_pieces=self.max_pieces)
        kept = None
        if self.kept_layers:
            folder, pooling = self.sources.folder, self.pooling
            kept = keep(pieces, self.encoder, self.kept_layers, folder=folder, pooling=pooling)
        return {
            part: Split(pieces.inputs(torch.from_numpy(index), kept=kept), torch.from_numpy(y[index]))
            for part, index in rows.items()
        }

    def read(self) -> tuple[list[str], np.ndarray, Rows]:
        """The texts of all files, one after the other, their label sets (N, L), the rows of each part.

        Raises:
            DataNotFound: a file is not there, or a data set of the hub is not reached.
            FormatError: a file is no such file; the message names it and the line. Or no text has a label.
            DataMismatch: the number of labels is another than in the configuration, or a data set of the hub
                has no such column.
        """
        if reason := self.missing():
            raise DataNotFound(reason)
        hub = self.hub.read(without=self.own) if self.hub else {}
        for part in hub.values():
            self.record_checksum(part.where, repr((part.texts, part.labels, part.declared)).encode())
        parts = {part: read for part in PARTS if (read := self._part(part) or hub.get(part))}
        if "train" not in parts:
            advice = self._registered().advice if self._known else "Add --data.train FILE"
            name = self.hub.name if self.hub else self.dataset
            raise DataNotFound(f"{name} has no texts for training. {advice}.")
        names = self._names(parts)
        if not names:
            raise FormatError(f"{parts['train'].where}: no text has a label. Is it the right column?")
        if len(names) != self.num_labels:
            raise DataMismatch(
                f"{parts['train'].where} has {len(names)} labels, the configuration says {self.num_labels}: "
                f"{listed([quoted(name) for name in names])}. If these are the labels, set --data.num_labels "
                f"{len(names)}; in a column of names they are separated by semicolons."
            )
        self.names = names
        lengths = {part: len(read.texts) for part, read in parts.items()}
        rows = by_files(lengths, share=self.share, seed=self.split_seed)
        if self.new:
            parts[NEW] = self._new(self.new)
            known = sum(lengths.values())
            rows[NEW] = np.arange(known, known + len(parts[NEW].texts))
        y = np.concatenate([part.indicators(names) for part in parts.values()])
        return [text for part in parts.values() for text in part.texts], y, rows

    @property
    def _known(self) -> bool:
        return self.dataset != "own"

    def _registered(self) -> DataSet:
        """The set of the registry, without the parts that files of the user replace."""
        data = data_set(self.dataset)
        kept = {
            part: file for part, file in data.files.items() if part.removesuffix("_labels") not in self.own
        }
        return replace(data, files=kept)

    def _part(self, part: str) -> LabelledTexts | None:
        """The texts of a part; None where it has no file."""
        if part in self.own:
            own = self.own[part]
            contents = [(shown(path), unpack(path)) for path in own.paths]
        else:
            data = self._registered() if self._known else None
            if data is None or part not in data.files:
                return None
            files = [data.files[key] for key in (part, f"{part}_labels") if key in data.files]
            contents = [(file.name, self.sources.read(data, file)) for file in files]
        for name, content in contents:
            self.record_checksum(name, content)
        if len(contents) == 2:
            (texts, first), (labels, second) = contents
            return read_line_pairs(first, second, where=(texts, labels))
        ((name, content),) = contents
        return READERS[_suffix(name)](content, where=name)

    def _new(self, path: Path) -> LabelledTexts:
        name = shown(path)
        if path.is_dir():
            raise DataNotFound(f"{name} (--new) is a folder. Give the file in it.")
        if _suffix(name) not in READERS:
            raise DataNotFound(f"{name} (--new) is neither .csv nor .jsonl. Convert it, or correct --new.")
        content = self.record_checksum(name, unpack(path))
        return READERS[_suffix(name)](content, where=name, unlabelled=True)

    def _names(self, parts: dict[str, LabelledTexts]) -> tuple[str, ...]:
        """The labels in the order of y."""
        if self.labels:
            return tuple(self.labels)
        if self._known and (file := self._registered().files.get("labels")):
            content = self.record_checksum(file.name, self.sources.read(self._registered(), file))
            return read_names(content, where=file.name)
        train = parts["train"]
        for other in parts.values():
            if train.declared and other.declared and train.declared != other.declared:
                raise DataMismatch(
                    f"{train.where} and {other.where} have different columns of labels. All need one header."
                )
        return train.declared or tuple(sorted({name for names in train.labels for name in names}))


@dataclass(frozen=True)
class _Own:
    """A user's own file of a part, and that of its labels if they are apart."""

    part: str
    texts: Path
    labels: Path | None

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.texts, self.labels) if path]

    def missing(self) -> str | None:
        """One sentence on what is wrong with the paths."""
        for path, option in zip(self.paths, (self.part, f"{self.part}_labels"), strict=False):
            if not path.is_file():
                return no_file(shown(path), option)
        if not self.labels and _suffix(str(self.texts)) not in READERS:
            return (
                f"{shown(self.texts)} is neither .csv nor .jsonl. With texts line by line give labels too: "
                f"--data.{self.part}_labels FILE."
            )
        return None


def _suffix(name: str) -> str:
    return PurePath(name.removesuffix(".xz").removesuffix(".gz")).suffix.lower()
