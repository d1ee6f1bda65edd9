"""Makes multi-label ARFF files of any size, for tests and for measuring memory.

python tests/make_mlc.py eurlex-shape.arff --rows 19348 --features 5000 --labels 3993
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def sparse_arff(
    rows: int, features: int, labels: int, *, words: int = 40, tags: float = 3, seed: int = 0
) -> str:
    """Sparse rows with about `words` weighted features and `tags` labels each; every row has a label."""
    draw = np.random.default_rng(seed)
    lines = ["@relation made-up", ""]
    lines += [f"@attribute w{i} numeric" for i in range(features)]
    lines += [f"@attribute tag{i} {{0,1}}" for i in range(labels)]
    lines += ["", "@data"]
    for _ in range(rows):
        on = np.unique(draw.integers(0, features, words))
        tagged = features + np.unique(draw.integers(0, labels, 1 + draw.poisson(tags - 1)))
        cells = [f"{i} {value:.6f}" for i, value in zip(on, draw.random(len(on)), strict=True)]
        lines.append("{" + ",".join([*cells, *(f"{i} 1" for i in tagged)]) + "}")
    return "\n".join(lines) + "\n"


def dense_arff(x: np.ndarray, y: np.ndarray, *, relation: str = "made-up", labels_first: bool = False) -> str:
    """Dense rows of numeric features and {0,1} labels; NaN is written as missing."""
    names = [f"@attribute f{i} numeric" for i in range(x.shape[1])]
    tags = [f"@attribute tag{i} {{0,1}}" for i in range(y.shape[1])]
    rows = []
    for features, labels in zip(x, y, strict=True):
        cells = ["?" if np.isnan(value) else repr(float(value)) for value in features]
        marks = [str(int(value)) for value in labels]
        rows.append(",".join([*marks, *cells] if labels_first else [*cells, *marks]))
    header = [*tags, *names] if labels_first else [*names, *tags]
    return "\n".join([f"@relation '{relation}'", *header, "@data", *rows]) + "\n"


def clus_arff(x: np.ndarray, classes: Sequence[str], declared: str) -> str:
    """Dense rows that end in a class of a hierarchy, as Clus writes them."""
    names = [f"@ATTRIBUTE f{i}   numeric" for i in range(x.shape[1])]
    rows = [",".join([*map(str, row), name]) for row, name in zip(x.tolist(), classes, strict=True)]
    header = ["@RELATION 'made-up'", *names, f"@ATTRIBUTE class   hierarchical {declared}"]
    return "\n".join([*header, "@DATA", *rows]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    for size, default in (("rows", 1000), ("features", 100), ("labels", 20), ("words", 237), ("tags", 5.31)):
        parser.add_argument(f"--{size}", type=type(default), default=default)
    options = vars(parser.parse_args())
    options.pop("target").write_text(sparse_arff(**options))
