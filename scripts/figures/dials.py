"""The figure of the README: the rows of each choice on one data set, beside cross-entropy.

python -m scripts.figures.dials

Numbers come from the committed records; docs/dials.svg and .png are written, with the numbers inside.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.errors import UserError
from experiments.page.summary import summarise
from experiments.plan.spec import read_table
from scripts.figures.axes import draw
from scripts.options import alone, refused

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACE = Path("docs/dials")
COLUMN = "bibtex"
DIALS = (  # the varied choice, the fixed ones, table, its row of cross-entropy, rows with their labels
    (
        "objective",
        "how the energy learns from guesses\n(SEAL-dynamic)",
        "seal_mlc",
        "ce_matched",
        {
            "dynamic_margin": "margin",
            "dynamic_regression": "regression",
            "dynamic_regression_s": "regression-s",
            "dynamic_nce": "NCE",
            "dynamic_ranking": "ranking",
        },
    ),
    (
        "guess",
        "where answers come from\n(inference networks, compound objective)",
        "infnet_mlc",
        "ce_adam",
        {"separated": "separated", "shared": "shared", "stacked": "stacked"},
    ),
    (
        "schedule",
        "which part learns when\n(regression objective)",
        "seal_mlc",
        "ce",
        {"dvn_gbi": "energy only", "static_regression": "static", "dynamic_regression": "dynamic"},
    ),
)
Point = tuple[float, float | None, float | None]  # our mean, its deviation over seeds, the paper's mean


def points(table: str, rows: list[str]) -> dict[str, Point]:
    """The numbers of these rows, rounded to the digits of the table."""
    summary = summarise(read_table(table))
    digits = summary.table.metric.digits
    found: dict[str, Point] = {}
    for row in rows:
        cell = summary.cells[row, COLUMN]
        if cell.ours is None:
            raise UserError(f"{table} has no finished run of {row} in {COLUMN}: make reproduce TABLE={table}")
        paper = round(cell.paper.mean, digits) if cell.paper else None
        spread = None if cell.ours.std is None else round(cell.ours.std, digits)
        found[row] = (round(cell.ours.mean, digits), spread, paper)
    return found


def numbers() -> dict[str, dict[str, Point]]:
    """All numbers of the figure, by choice and row."""
    return {dial: points(table, [control, *rows]) for dial, _, table, control, rows in DIALS}


def paint(canvas: "Figure") -> None:
    """A panel for each choice, on one axis."""
    every = numbers()
    panels = canvas.subplots(1, len(DIALS), sharex=True)
    for panel, (dial, stays, _, control, rows) in zip(panels, DIALS, strict=True):
        middle, around, _ = every[dial].pop(control)
        panel.axvline(middle, color="0.5", linestyle="--", linewidth=1, label="cross-entropy, ± over seeds")
        panel.axvspan(middle - (around or 0), middle + (around or 0), color="0.9", zorder=0)
        for height, (mean, spread, paper) in enumerate(every[dial].values()):
            bar = {"fmt": "o", "color": "tab:blue", "markersize": 5, "capsize": 2}
            panel.errorbar(mean, height, xerr=spread, label="" if height else "ours, ± over seeds", **bar)
            if paper is not None:
                panel.plot(paper, height, "D", mec="tab:orange", mfc="none", label="" if height else "paper")
        panel.set_yticks(range(len(rows)), list(rows.values()))
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.set_title(f"$\\bf{{{dial}}}$\n{stays}", fontsize=9)
        panel.set_xlabel("example F1, Bibtex")
        panel.grid(axis="x", alpha=0.3)
    canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)


def main() -> int:
    """Draw, print the paths."""
    try:
        files = draw(PLACE, paint, size=(9.6, 2.9), about=json.dumps(numbers()))
    except UserError as error:
        return refused(error)
    Console().print(" and ".join(map(str, files)), highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
