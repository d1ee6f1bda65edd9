"""Multi-label classification from ARFF or svmlight files: the sets of the registry, or a user's own.

Shapes: N rows, D features, L labels.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_warn
from scipy.sparse import csr_array, vstack

from datamodules.base import NEW, NO_ROW, DeviceData, Split
from datamodules.errors import DataMismatch, DataNotFound, no_file
from datamodules.readers.arff import ROOT_LABEL, ArffTable, read_arff, read_csv
from datamodules.readers.encode import ENCODINGS, Filler, Matrix, dense
from datamodules.readers.svmlight import read_svmlight
from datamodules.sources.files import Sources, shown, unpack
from datamodules.sources.needed import as_config
from datamodules.sources.registry import DataSet, data_set
from datamodules.splits import PARTS, Rows, by_files, by_folds, fold_files, read_fold_table
from networks.inputs import SparseRows

SCALES = {
    "none": (None, "train"),
    "all": ("range", "all"),
    "train": ("range", "train"),
    "standard_all": ("standard", "all"),
    "standard_train": ("standard", "train"),
}


class MultiLabelData(DeviceData):
    """Feature vectors x (N, D) float32 with label sets y (N, L); rows without a label are dropped.

    Args:
        num_features: D as the network gets it, after encoding.
        num_labels: L.
        name: a set of the registry; with `train`, any name.
        train: a user's own ARFF or .svm file (.xz and .gz too) instead of a set of the registry.
        validation: goes with `train`; left out, a share of the training rows.
        test: goes with `train`; left out, a share of the training rows.
        split: `folds10`: ten folds, six to train, two to validate, two to test. `files`: as the files
            come, and a part without a file is a share of the training rows.
        fold_folder: take the ten folds from files named like Bibtex-fold1.arff (KDIS) in this folder.
        share: how much of the training rows a part without a file gets.
        split_seed: draws those shares. It is not the run's seed: runs are compared on one split.
        encoding: of nominal features. `released`: position in the declaration. `clean`: identifiers dropped,
            of two values yes, true or 1 is 1, a column for each of more. `one_hot`: a column for each value.
        scale: features to [0, 1], fitted on no rows, on `all` rows (as SEAL) or on those for `train`;
            `standard_all` and `standard_train`: to mean 0 and variance 1.
        keep_root: keep the label above a class hierarchy, which every row has (as SEAL).
        batch_size: rows of a training batch.
        eval_batch_size: rows of a validation or test batch.
        seed: draws the order of the training rows, with the epoch.
        sparse: keep the features sparse, as the files have them; takes `scale: none` and no missing values.
        subset: for a set with several subsets, the number of the one to read.
        folder: where data is kept; left out, DATA_DIR or data/.
        mirror: a folder to read data from; left out, DATA_MIRROR or ../shared/data. Empty: none.
    """

    def __init__(
        self,
        num_features: int = 0,
        num_labels: int = 0,
        *,
        name: str = "own",
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        split: Literal["folds10", "files"] = "files",
        fold_folder: str | None = None,
        share: float = 0.2,
        split_seed: int = 0,
        encoding: Literal["released", "clean", "one_hot"] = "clean",
        scale: Literal["none", "all", "train", "standard_all", "standard_train"] = "none",
        keep_root: bool = True,
        batch_size: int = 32,
        eval_batch_size: int = 4096,
        seed: int = 0,
        sparse: bool | None = None,
        subset: int | None = None,
        folder: str | None = None,
        mirror: str | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, seed=seed)
        self.num_features, self.num_labels = num_features, num_labels
        self.dataset = train if name == "own" else name
        self.own = {part: path for part, path in zip(PARTS, (train, validation, test), strict=True) if path}
        self.split, self.fold_folder = split, Path(fold_folder) if fold_folder else None
        self.share, self.split_seed = share, split_seed
        self.encoding, self.scale, self.keep_root = encoding, scale, keep_root
        self.sparse, self.subset = sparse, subset
        self.sources = Sources(folder, mirror)
        if num_features < 1 or num_labels < 1:
            self.load()  # raises an error that names both sizes

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        try:
            if self.fold_folder:
                fold_files(self.fold_folder)
            elif self.own:
                self._own_files()
            else:
                return self.sources.missing(self._registered())
        except DataNotFound as error:
            return str(error)
        return None

    def source_files(self) -> dict[str, Any] | None:
        """See DeviceData.source_files."""
        if self.own or self.fold_folder or self.dataset is None:
            return None
        return as_config([self._registered()], self.sources)

    def prepare_data(self) -> None:
        """Download what is not here."""
        if self._published:
            self.sources.fetch(self._registered())

    def load(self) -> dict[str, Split]:
        """Read, encode, split, drop rows without labels, scale; and compare sizes with the configuration."""
        table, rows = self._read_folds() if self.fold_folder else self._read_files()
        known = len(table.y)
        if self.new:
            name = shown(self.new)
            table = _stack({str(self.dataset): table, f"{name} (--new)": self._read(name, unpack(self.new))})
            rows[NEW] = np.arange(known, len(table.y))
        keep = slice(int(table.labels[0] == ROOT_LABEL and not self.keep_root), None)
        x, y = ENCODINGS[self.encoding](table.x, table.features, known), table.y[:, keep]
        self._check_sizes(x.shape[1], y.shape[1], len(table.features) + len(table.labels))
        self.names = table.labels[keep]
        rows = {part: self._labelled(part, index, y) for part, index in rows.items()}
        if self.sparse:
            whole = self._sparse(x)
            return {
                part: Split(whole.rows(torch.from_numpy(index)), torch.from_numpy(y[index]))
                for part, index in rows.items()
            }
        kind, fitted = SCALES[self.scale]
        fill = Filler(x[:known] if fitted == "all" else x[rows["train"]], scale=kind)
        return {
            part: Split(torch.from_numpy(fill(x[index])), torch.from_numpy(y[index]))
            for part, index in rows.items()
        }

    def _labelled(self, part: str, index: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The rows of a part that are kept; a warning counts the others."""
        kept = self.kept(part, index, y)
        if len(kept) < len(index):
            missing = len(index) - len(kept)
            rank_zero_warn(f"{missing:,} of {len(index):,} rows of {part} have no label and are left out.")
        if not len(kept):
            raise DataMismatch(NO_ROW.format(part))
        return kept

    def _registered(self) -> DataSet:
        if self.dataset is None:
            raise DataNotFound("No data is named. Give a file:  --data.train my-train.arff")
        data = data_set(self.dataset)
        if self.subset is None:
            return data
        part = self._subset()
        if part not in data.files:
            raise DataNotFound(f"{data.name} has no subset {self.subset}. Correct the number.")
        return data.only(part)

    def _subset(self) -> str:
        """The registry's key of the subset: the first is its training file."""
        return "train" if self.subset == 1 else f"subset{self.subset}"

    def _own_files(self) -> dict[str, Path]:
        paths = {part: Path(path) for part, path in self.own.items()}
        for part, path in paths.items():
            if not path.is_file():
                raise DataNotFound(no_file(path, part))
        if "train" not in paths:
            raise DataNotFound("A test or validation file of your own needs --data.train too.")
        return paths

    def _read_files(self) -> tuple[ArffTable, Rows]:
        """The files of the parts, one after the other, and the rows of each part."""
        if self.own:
            paths = self._own_files()
            contents = {str(path): unpack(path) for path in paths.values()}
            lengths_of = {part: str(path) for part, path in paths.items()}
            if len(contents) < len(paths):
                raise DataMismatch(f"Two of {', '.join(paths)} have one file: give a file for each part.")
        else:
            data = self._registered()
            files = {part: data.files[part] for part in PARTS if part in data.files}
            if self.subset is not None:
                files = {"train": data.files[self._subset()]}
            contents = {file.name: self.sources.read(data, file) for file in files.values()}
            lengths_of = {part: file.name for part, file in files.items()}
        tables = {file: self._read(file, content) for file, content in contents.items()}
        lengths = {file: len(table.y) for file, table in tables.items()}
        if self.split == "files":
            parts = {part: lengths[file] for part, file in lengths_of.items()}
            rows = by_files(parts, share=self.share, seed=self.split_seed)
        else:
            rows = by_folds(self._fold_table(lengths))
        return _stack(tables), rows

    def _read_folds(self) -> tuple[ArffTable, Rows]:
        assert self.fold_folder
        tables = {path.name: self._read(path.name, unpack(path)) for path in fold_files(self.fold_folder)}
        fold = np.repeat(np.arange(1, 11), [len(table.y) for table in tables.values()])
        return _stack(tables), by_folds(fold)

    def _fold_table(self, lengths: dict[str, int]) -> np.ndarray:
        data = None if self.own else self._registered()
        if data is None or "folds" not in data.files:
            raise DataNotFound(
                f"{self.dataset} has no table of folds. Set split: files, or give ten files with fold_folder."
            )
        content = self.sources.read(data, data.files["folds"])
        self.record_checksum("folds10.csv", content)
        return read_fold_table(content, lengths, f"{data.name}/folds10.csv")

    @property
    def _published(self) -> bool:
        return not self.own and not self.fold_folder

    def _read(self, name: str, content: bytes) -> ArffTable:
        self.record_checksum(name, content)
        known = self._registered().num_labels if self._published else 0
        num_labels = known or max(self.num_labels, 0)
        suffix = Path(name.removesuffix(".xz").removesuffix(".gz")).suffix.lower()
        if suffix == ".csv" and not self._published:
            return read_csv(content, where=name, num_labels=num_labels)
        if suffix == ".svm":
            if self.num_features < 1 or num_labels < 1:
                raise DataMismatch(
                    f"{name} does not say how many features and labels there are. Give both: "
                    "--data.num_features and --data.num_labels."
                )
            return read_svmlight(content, where=name, num_features=self.num_features, num_labels=num_labels)
        return read_arff(content, where=name, num_labels=num_labels, repeats=self._published)

    def _sparse(self, x: Matrix) -> SparseRows:
        """The features of all rows; they stay sparse only if they need no scaling and none is missing."""
        if not isinstance(x, csr_array) or self.scale != "none" or np.isnan(x.data).any():
            raise DataMismatch(
                f"{self.dataset} cannot stay sparse: that takes features stored sparsely, numeric or "
                "encoded as released, none missing, and scale: none. Set these, or leave out --data.sparse."
            )
        x.sort_indices()
        values, columns, offsets = (torch.from_numpy(part) for part in (x.data, x.indices, x.indptr))
        return SparseRows(values, columns.long(), offsets.long(), x.shape[1])

    def _check_sizes(self, num_features: int, num_labels: int, num_attributes: int) -> None:
        """Refuse other sizes than the configuration's, which may be all that tells labels from features."""
        if (num_features, num_labels) == (self.num_features, self.num_labels):
            return
        if num_labels == self.num_labels and not self._published:
            raise DataMismatch(
                f"{self.dataset} has {num_attributes} attributes, of which {num_labels} are labels "
                f"(--data.num_labels); the others make {num_features} features (encoding: {self.encoding}), "
                f"the configuration says {self.num_features}. Set --data.num_features {num_features}; if "
                "some of these are labels, correct --data.num_labels first."
            )
        raise DataMismatch(
            f"{self.dataset} has {num_features} features (encoding: {self.encoding}) and {num_labels} "
            f"labels, the configuration says {self.num_features} and {self.num_labels}. "
            f"Set --data.num_features {num_features} --data.num_labels {num_labels}."
        )


def _stack(tables: dict[str, ArffTable]) -> ArffTable:
    """The rows of all files, which have to declare the same attributes."""
    (first, table), *others = tables.items()
    for name, other in others:
        mine = [(a.name, a.values) for a in table.features] + list(table.labels)
        its = [(a.name, a.values) for a in other.features] + list(other.labels)
        if mine != its:
            place = next((i for i, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), "the last")
            raise DataMismatch(
                f"{first} and {name} declare different attributes (the first that differs is {place}, "
                "counted from 0, features before labels). All parts need the same header."
            )
    x: Matrix
    if len({isinstance(part.x, csr_array) for part in tables.values()}) > 1:
        x = np.concatenate([dense(part.x) for part in tables.values()])
    elif isinstance(table.x, csr_array):
        x = csr_array(vstack([part.x for part in tables.values()], format="csr"))
    else:
        x = np.concatenate([part.x for part in tables.values()])
    return ArffTable(table.features, table.labels, x, np.concatenate([part.y for part in tables.values()]))
