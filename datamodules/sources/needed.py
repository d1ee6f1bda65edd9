"""The registry's files that a data module reads. Needs no torch, so a table can be planned without it."""

from collections.abc import Sequence
from typing import Any

from datamodules.sources.files import Sources
from datamodules.sources.registry import DataSet, data_set


class SourceFiles:
    """Files of the registry's sets.

    Args:
        sets: the files that are read, by set: train, vectors and so on.
        folder: where data is kept; left out, DATA_DIR or data/.
        mirror: a folder to read data from; left out, DATA_MIRROR or ../shared/data. Empty: none.
    """

    def __init__(
        self, sets: dict[str, list[str]], folder: str | None = None, mirror: str | None = None
    ) -> None:
        self.sets = [data_set(name).only(*parts) for name, parts in sets.items()]
        self.sources = Sources(folder, mirror)

    def missing(self) -> str | None:
        """One sentence on what is not here and how to get it; None when every file is here."""
        return missing(self.sets, self.sources)


def missing(sets: Sequence[DataSet], sources: Sources) -> str | None:
    """One sentence for each set that is not here; None when every file is."""
    return " ".join(reason for data in sets if (reason := sources.missing(data))) or None


def as_config(sets: Sequence[DataSet], sources: Sources) -> dict[str, Any]:
    """The SourceFiles of these sets and folders, as a config."""
    folder, mirror = sources.given
    arguments = {"sets": {data.name: [*data.files] for data in sets}, "folder": folder, "mirror": mirror}
    return {"class_path": f"{SourceFiles.__module__}.{SourceFiles.__qualname__}", "init_args": arguments}
