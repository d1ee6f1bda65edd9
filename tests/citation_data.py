"""The real citations, loaded once, and their word vectors in a small file for every other load."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from datamodules.citations.fields import Citations
from datamodules.readers.vocabulary import UNKNOWN, numbered

CONFIG = yaml.safe_load(Path("conf/data/cora_citations.yaml").read_text())["data"]["init_args"]
FOLDER = tempfile.TemporaryDirectory()


def from_glove(**options: Any) -> Citations:
    """Citations as the config has them, with other options."""
    data = Citations(**CONFIG | {"seed": 0} | options)
    if missing := data.missing():
        pytest.skip(missing)
    return data


@cache
def all_labelled() -> Citations:
    """All 300 labelled, each once, and 1,000 without labels."""
    data = from_glove(num_labelled=300, repeats=1)
    data.setup()
    return data


@cache
def words() -> dict[str, int]:
    """The id of each word."""
    return numbered(word for part in all_labelled().read().values() for word in part.columns[0])


@cache
def vectors() -> str:
    """A file with the word vectors that the citations have from GloVe."""
    tables, path = all_labelled().tables, Path(FOLDER.name) / "vectors.txt"
    rows = {word.lower(): int(tables["rows"][number]) for word, number in words().items()}
    lines = [
        f"{word} {' '.join(map(str, tables['vectors'][row].tolist()))}"
        for word, row in rows.items()
        if row > UNKNOWN
    ]
    path.write_text("\n".join(lines))
    return str(path)


def citations(**options: Any) -> Citations:
    """The same with the small file of vectors."""
    return from_glove(vectors=vectors(), **options)
