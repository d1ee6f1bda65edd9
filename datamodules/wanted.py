"""What a data module reads of the registry, told without torch: a table is planned without importing it."""

from collections.abc import Sequence
from typing import Any

from datamodules.registry import DataSet, data_set
from datamodules.sources import Sources


class Wanted:
    """Sets of the registry.

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


def described(sets: Sequence[DataSet], sources: Sources) -> dict[str, Any]:
    """The Wanted of these sets and places as a config."""
    folder, mirror = sources.given
    arguments = {"sets": {data.name: [*data.files] for data in sets}, "folder": folder, "mirror": mirror}
    return {"class_path": f"{Wanted.__module__}.{Wanted.__qualname__}", "init_args": arguments}
