"""Texts with sets of labels from the Hugging Face hub, or from a folder that `datasets` reads.

The library `datasets` (extra `hf`) is imported when a data set is first read.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datamodules.errors import DataMismatch, DataNotFound, FormatError
from datamodules.readers.texts import LabelledTexts, split_names
from networks.transformer.hub import work_offline_unless_reached
from networks.transformer.weights import INSTALL

NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
STRINGS = ("string", "large_string", "string_view")
OF_ONES_OWN = "Mend it with datasets, save_to_disk, and give the folder: --data.hub.name FOLDER."


@dataclass(frozen=True)
class HubTexts:
    """Where texts and labels of a data set are.

    A row without a label, or with the label -1 that `datasets` writes where it is unknown, has an empty set.

    Args:
        name: its name on the hub; or a folder, of `save_to_disk` or of files that `load_dataset` knows.
        config: its configuration, where it has several.
        revision: a commit or tag of the hub; left out, the newest.
        text: the column of texts.
        labels: the column of labels: names, or numbers that the data set names (ClassLabel), one or several.
    """

    name: str
    config: str | None = None
    revision: str | None = None
    text: str = "text"
    labels: str = "labels"

    def read(self, without: Collection[str] = ()) -> dict[str, LabelledTexts]:
        """The parts train, validation and test that the data set has, but those `without`.

        Raises:
            DataNotFound: the data set is not reached, has none of the parts, or `datasets` is not installed.
            DataMismatch: it has no such column, or one of another type.
            FormatError: an empty text, with its row.
        """
        found = self.fetch()
        named = {part: next((own for own in names if own in found), None) for part, names in NAMES.items()}
        if not any(named.values()):
            raise DataNotFound(
                f"{self.name} has the parts {', '.join(found)}, and none is train, validation or test. "
                f"{OF_ONES_OWN}"
            )
        wanted = {part: own for part, own in named.items() if own and part not in without}
        return {part: self._part(found[own], f"{self.name}/{own}") for part, own in wanted.items()}

    def fetch(self) -> dict[str, Any]:
        """All parts as `datasets` has them, downloaded where they are not here.

        Raises:
            DataNotFound: see `read`.
        """
        try:
            import datasets
        except ImportError:
            raise DataNotFound(
                f"A data set of the hub needs datasets, which is not installed. {INSTALL}"
            ) from None
        datasets.disable_progress_bars()
        folder = Path(self.name)
        if not folder.exists():
            work_offline_unless_reached(self.name, "dataset")
        saved = any((folder / file).is_file() for file in ("dataset_dict.json", "state.json"))
        try:
            found = (
                datasets.load_from_disk(self.name)
                if saved
                else datasets.load_dataset(self.name, self.config, revision=self.revision, **self._csv())
            )
        except Exception as error:  # files of another origin may fail in any way
            reason = " ".join(str(error).split())[:500]
            raise DataNotFound(
                f"The data set {self.name} is not read, neither as a folder nor from the hub ({reason}). "
                "Correct --data.hub.name or --data.hub.config, or give a folder of save_to_disk."
            ) from None
        return found if isinstance(found, dict) else {"train": found}

    def _csv(self) -> dict[str, bool]:
        """For a folder of CSV files: a label may be called None."""
        return {"keep_default_na": False} if any(Path(self.name).rglob("*.csv")) else {}

    def _part(self, data: Any, where: str) -> LabelledTexts:  # noqa: ANN401  (datasets.Dataset)
        for column, option in ((self.text, "text"), (self.labels, "labels")):
            if column not in data.column_names:
                raise DataMismatch(
                    f"{where} has no column {column}, but {', '.join(data.column_names)}. "
                    f"Set --data.hub.{option} to one of them."
                )
        if getattr(data.features[self.text], "dtype", None) not in STRINGS:
            raise DataMismatch(
                f"{where}, column {self.text} holds {data.features[self.text]}, and has to hold texts. "
                "Set --data.hub.text to another column."
            )
        texts = list(data[self.text])
        if not texts:
            raise FormatError(f"{where} has no text. {OF_ONES_OWN}")
        for row, text in enumerate(texts, 1):
            if not (text or "").strip():
                raise FormatError(f"{where}, row {row}: the text is empty. {OF_ONES_OWN}")
        names = _names(data.features[self.labels], f"{where}, column {self.labels}")
        chosen = tuple(_chosen(written, names) for written in data[self.labels])
        return LabelledTexts(tuple(texts), chosen, tuple(range(1, len(texts) + 1)), where, names, OF_ONES_OWN)


def _chosen(written: Any, names: tuple[str, ...] | None) -> tuple[str, ...]:  # noqa: ANN401
    """The names of one row's labels: one, several or none."""
    labels: list[Any] = written if isinstance(written, list) else [written]
    if isinstance(written, str):
        labels = [*split_names(written)]
    known = (label for label in labels if label is not None and label != -1)
    return tuple(names[label] if names else label for label in known)


def _names(feature: Any, where: str) -> tuple[str, ...] | None:  # noqa: ANN401  (a type of datasets)
    """The labels that the data set declares; None where it has their names in each row."""
    one = getattr(feature, "feature", feature)
    if names := getattr(one, "names", None):
        return tuple(names)
    if getattr(one, "dtype", None) in STRINGS:
        return None
    raise DataMismatch(
        f"{where} holds {feature}. It has to hold names of labels, or numbers that the data set names "
        f"(ClassLabel). {OF_ONES_OWN}"
    )
