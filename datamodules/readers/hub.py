"""Texts with sets of labels from the Hugging Face hub, or from a folder that `datasets` reads.

The library `datasets` (extra `hf`) is imported when a data set is first read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datamodules.errors import DataMismatch, DataNotFound, FormatError
from datamodules.readers.texts import LabelledTexts
from datamodules.splits import PARTS
from networks.transformer.weights import INSTALL

NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


@dataclass(frozen=True)
class HubTexts:
    """Where texts and labels of a data set are.

    Args:
        name: its name on the hub; or a folder, of `save_to_disk` or of files that `load_dataset` knows.
        config: its configuration, where it has several.
        text: the column of texts.
        labels: the column of labels: names, or numbers that the data set names (ClassLabel), one or several.
    """

    name: str
    config: str | None = None
    text: str = "text"
    labels: str = "labels"

    def read(self) -> dict[str, LabelledTexts]:
        """The parts train, validation and test that the data set has.

        Raises:
            DataNotFound: the data set is not reached, or `datasets` is not installed.
            DataMismatch: it has no such column, or one of another type.
            FormatError: an empty text, with its row.
        """
        found = _loaded(self.name, self.config)
        parts = {part: found[own] for part in PARTS for own in NAMES[part] if own in found}
        return {part: self._part(data, f"{self.name}/{part}") for part, data in parts.items()}

    def _part(self, data: Any, where: str) -> LabelledTexts:  # noqa: ANN401  (datasets.Dataset)
        for column, option in ((self.text, "text"), (self.labels, "labels")):
            if column not in data.column_names:
                raise DataMismatch(
                    f"{where} has no column {column}, but {', '.join(data.column_names)}. "
                    f"Set --data.hub.{option} to one of them."
                )
        texts, written = list(data[self.text]), list(data[self.labels])
        if not texts:
            raise FormatError(f"{where} has no text. Take another data set.")
        for row, text in enumerate(texts, 1):
            if not isinstance(text, str) or not text.strip():
                raise FormatError(f"{where}, row {row}: the text is empty. Take this row out.")
        names = _names(data.features[self.labels], f"{where}, column {self.labels}")
        sets = written if isinstance(written[0], list) else [[one] for one in written]
        chosen = tuple(tuple(names[one] if names else one for one in labels) for labels in sets)
        return LabelledTexts(tuple(texts), chosen, tuple(range(1, len(texts) + 1)), where, names)


def _names(feature: Any, where: str) -> tuple[str, ...] | None:  # noqa: ANN401  (a type of datasets)
    """The labels that the data set declares; None where it has their names in each row."""
    one = getattr(feature, "feature", feature)
    if names := getattr(one, "names", None):
        return tuple(names)
    if getattr(one, "dtype", None) == "string":
        return None
    raise DataMismatch(
        f"{where} holds {feature}. It has to hold names of labels, or numbers that the data set names "
        "(ClassLabel). Cast it, and give the folder that save_to_disk writes."
    )


def _loaded(name: str, config: str | None) -> dict[str, Any]:
    try:
        import datasets
    except ImportError:
        raise DataNotFound(
            f"A data set of the hub needs datasets, which is not installed. {INSTALL}"
        ) from None
    datasets.disable_progress_bars()
    folder = Path(name)
    saved = any((folder / file).is_file() for file in ("dataset_dict.json", "state.json"))
    try:
        found = datasets.load_from_disk(name) if saved else datasets.load_dataset(name, config)
    except Exception as error:  # files of another origin may fail in any way
        reason = " ".join(str(error).split())[:200]
        raise DataNotFound(
            f"The data set {name} is not read, neither as a folder nor from the hub ({reason}). "
            "Correct --data.hub.name, or give a folder that datasets.save_to_disk has written."
        ) from None
    return found if isinstance(found, dict) else {"train": found}
