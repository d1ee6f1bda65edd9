"""Answers of a table's rows to the first test pictures, drawn from its records; with the pictures, if wanted.

    python -m scripts.figures.masks seal_horses               # the table's figures of masks, in results/
    python -m scripts.figures.masks seal_horses --with-data   # picture and truth in front, in runs/figures/

A picture's IoU with the truth, x 100, stands below each answer. Pictures of data sets do not belong in the
repository, so figures that show them are kept in a folder that git ignores.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from datamodules.base import DeviceData
from datamodules.errors import DataError
from experiments import store
from experiments.errors import UserError
from experiments.page import masks, plots
from experiments.page.summary import Summary, summarise
from experiments.plan.spec import read_table
from experiments.plan.table import Figure
from scripts.options import refused


def main(arguments: list[str] | None = None) -> int:
    """Parse, draw, print the paths."""
    parser = argparse.ArgumentParser(prog="python -m scripts.figures.masks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("table", help="a table that has figures of masks")
    parser.add_argument("--with-data", action="store_true", help="show pictures and true masks too")
    parser.add_argument("--out", type=Path, help="the folder of figures with data (default: runs/figures)")
    given = parser.parse_args(arguments)
    try:
        files = draw(given.table, given.out or store.RUNS / "figures" if given.with_data else None)
    except (UserError, DataError) as error:
        return refused(error)
    Console(highlight=False, soft_wrap=True).print("\n".join(map(str, files)))
    return 0


def draw(name: str, folder: Path | None) -> list[Path]:
    """Draw a table's figures of masks; in a folder, with the pictures.

    Raises:
        UserError: the table names no such figure, or none of its records keeps answers.
        DataError: the data are not here.
    """
    table = read_table(name)
    figures = [figure for figure in table.figures if figure.kind == "masks"]
    if not figures:
        raise UserError(f"{name} names no figure of kind masks. Add one under `figures` in its file.")
    summary = summarise(table)
    if folder is None:
        files = [path for figure in figures for path in plots.draw_one(figure, summary)]
    else:
        files = [path for figure in figures for path in with_data(figure, summary, folder)]
    if not files:
        raise UserError(
            f"no record of {name} keeps answers. Train a run:  python -m scripts.reproduce {name}"
        )
    return files


def with_data(figure: Figure, summary: Summary, folder: Path) -> list[Path]:
    """A figure with two lines before the answers: the pictures, and their true masks."""
    records = masks.of_one_seed(figure, summary)
    if not records:
        return []
    answers = masks.lines_of(figure, summary)
    pictures, truth = first_pictures(next(iter(records.values())), len(answers[0][1]))
    lines: list[masks.Line] = [("picture", pictures, None), ("truth", truth, None), *answers]
    files = [folder / f"{summary.table.name}_{figure.name}.{kind}" for kind in ("png", "svg")]
    with plots.canvas(figure.name, layout=None) as (drawing, axes):
        masks.paint(axes, lines)
        axes.set(title=figure.title)
        for path in files:
            plots.save(drawing, path)
    return files


def first_pictures(record: dict[str, Any], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first test pictures (N, H, W, 3) of a record's data, and their masks (N, H, W).

    Raises:
        UserError: the record has no config, or its data are no pictures with masks.
        DataError: the data are not here.
    """
    from pytorch_lightning.cli import instantiate_class

    config = record.get("config", {}).get("data", {})
    if "class_path" not in config:
        raise UserError(f"the record of {record['id']} does not say its data. Run the table again.")
    arguments = {k: v for k, v in config.get("init_args", {}).items() if k != "transform"}
    data = instantiate_class((), {"class_path": config["class_path"], "init_args": arguments})
    assert isinstance(data, DeviceData)
    data.prepare_data()
    data.setup()
    test = data.splits["test"]
    return test.inputs[:count].movedim(1, -1).numpy(), test.y[:count].numpy()


if __name__ == "__main__":
    sys.exit(main())
