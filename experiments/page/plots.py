"""Figures of a table, as PNG and SVG beside its page. Needs records only, no torch.

`sweep` plots the metric of each row against a value of the row, `columns` it, or that of a measure, against a
value of each column; `curves` plots training curves; `masks` shows answers.
"""

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments import store
from experiments.page import masks
from experiments.page.summary import Summary, number
from experiments.page.verdicts import shared_seeds
from experiments.plan.table import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

SIZE = (5.2, 3.4)  # inches
RULES = ("--", ":", "-.")


def draw(summary: Summary) -> list[Path]:
    """Draw the figures of a table that have finished runs; return the files."""
    return [path for figure in summary.table.figures for path in draw_one(figure, summary)]


def without_curve(summary: Summary) -> list[str]:
    """A sentence for each figure whose curve no finished run of its rows has."""
    said = []
    for figure in (figure for figure in summary.table.figures if figure.kind == "curves"):
        runs = [record for row in figure.rows for record in _records(summary, row, figure.column)]
        known = sorted({curve for record in runs for curve in record.get("curves", {})})
        if known and figure.curve not in known:
            said.append(
                f"{summary.table.file}: the figure {figure.name} is not drawn: no finished run of its rows "
                f"has the curve {figure.curve}. They have {', '.join(known)}."
            )
    return said


def figure_file(table: str, figure: str, kind: str) -> Path:
    """Where a figure is kept."""
    return store.RESULTS / f"{table}_{figure}.{kind}"


def draw_one(figure: Figure, summary: Summary) -> list[Path]:
    """Draw a figure if it has finished runs; return its files."""
    with canvas(figure.name, layout=None if figure.kind == "masks" else "constrained") as (drawing, axes):
        if not KINDS[figure.kind](axes, figure, summary):
            return []
        axes.set(title=_words(figure.title), xlabel=_words(figure.x_label), ylabel=_words(figure.y_label))
        if figure.kind != "masks":
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
        files = [figure_file(summary.table.name, figure.name, kind) for kind in ("png", "svg")]
        for path in files:
            save(drawing, path)
        return files


@contextmanager
def canvas(
    name: str, size: tuple[float, float] = SIZE, layout: Literal["constrained"] | None = "constrained"
) -> "Iterator[tuple[Drawing, Axes]]":
    """An empty figure; without a layout it is saved as large as what is drawn."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = name  # the same records give the same file
    drawing, axes = pyplot.subplots(figsize=size, layout=layout)
    try:
        yield drawing, axes
    finally:
        pyplot.close(drawing)


def save(drawing: "Drawing", path: Path) -> None:
    """Write a figure, PNG or SVG as the path says."""
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with store.replacing(path) as part:
        size = None if drawing.get_layout_engine() else "tight"
        drawing.savefig(part, format=path.suffix[1:], dpi=150, metadata=metadata, bbox_inches=size)


def _sweep(axes: "Axes", figure: Figure, summary: Summary) -> bool:
    """Mean and sample deviation over seeds of each row at its value; other rows as horizontal lines.

    The seeds are those that all these rows have, if they share any.
    """
    cells = {row: summary.cells[row, figure.column] for row in (*figure.values, *figure.lines)}
    seeds = shared_seeds([cell for cell in cells.values() if cell.ours])
    ours = {row: cell.of_seeds(seeds).sample for row, cell in cells.items()}
    points = [(x, ours[row]) for row, x in figure.values.items()]
    known = [(x, found.mean, found.std or 0) for x, found in sorted(points, key=lambda p: p[0]) if found]
    if not known:
        return False
    x, y, spread = zip(*known, strict=True)
    axes.errorbar(x, y, yerr=spread, marker="o", markersize=3, capsize=2, label=_words(figure.label) or None)
    for style, row in zip(RULES, figure.lines, strict=False):
        if found := ours[row]:
            axes.axhline(
                found.mean, color="grey", linestyle=style, label=_words(summary.table.rows[row].label)
            )
    best, _ = max(zip(x, y, strict=True), key=lambda point: summary.table.metric.sign * point[1])
    for style, place, label in (("-", 1, "1"), ("--", best, f"best: {best:g}")):
        axes.axvline(place, color="tab:orange", linestyle=style, linewidth=0.8, label=label)
    axes.set_xscale("log", base=2)
    return True


def _columns(axes: "Axes", figure: Figure, summary: Summary) -> bool:
    """Mean and sample deviation of each row over the columns, each at its number."""
    drawn = False
    if figure.metric:
        summary = next(m for m in summary.measures if m.table.metric.name == figure.metric)
    for index, row in enumerate(figure.rows):
        cells = {x: summary.cells[row, column].sample for column, x in figure.columns.items()}
        if any(cells.values()):
            x = sorted(cells)  # no line goes over a column without runs
            y = [found.mean if (found := cells[at]) else math.nan for at in x]
            spread = [(found.std or 0) if (found := cells[at]) else math.nan for at in x]
            label = _words(summary.table.rows[row].label)
            axes.errorbar(
                x, y, yerr=spread, marker="o", markersize=3, capsize=2, color=f"C{index}", label=label
            )
            drawn = True
    axes.set_xscale(figure.scale)
    axes.set_xticks([*figure.columns.values()], [f"{x:g}" for x in figure.columns.values()])
    axes.minorticks_off()
    return drawn


def _curves(axes: "Axes", figure: Figure, summary: Summary) -> bool:
    """A curve of each row, of one seed or all; a dashed line where the phase of its first seed changes.

    A dagger marks rows with runs of an earlier config, as on the page.
    """
    drawn = False
    for index, row in enumerate(figure.rows):
        name = _words(summary.table.rows[row].label) + (
            "†" if summary.cells[row, figure.column].stale else ""
        )
        found = [r for r in _records(summary, row, figure.column) if r.get("curves", {}).get(figure.curve)]
        for record in found if figure.seeds == "all" else found[:1]:
            values = [value / figure.values.get(row, 1.0) for value in record["curves"][figure.curve]]
            length = _length(record, figure)
            begins = figure.begins * length / (number(record, "epochs") or 1)
            place = [begins + (i + 0.5) * (length - begins) / len(values) for i in range(len(values))]
            label = name if record is found[0] else None
            axes.plot(place, _smooth(values, figure.smooth), color=f"C{index}", label=label)
            drawn = True
        phases = found[0]["curves"].get("phase", []) if found and figure.seeds == "first" else []
        for epoch in range(1, len(phases)):
            if phases[epoch] != phases[epoch - 1]:
                place_of_change = epoch / len(phases) * _length(found[0], figure)
                axes.axvline(place_of_change, color="grey", linestyle="--", linewidth=0.8)
    axes.set_yscale(figure.scale)
    return drawn


def _masks(axes: "Axes", figure: Figure, summary: Summary) -> bool:
    """The answers of each row to the same pictures, each with its IoU."""
    if lines := masks.lines_of(figure, summary):
        masks.paint(axes, lines)
    return bool(lines)


KINDS = {"sweep": _sweep, "columns": _columns, "curves": _curves, "masks": _masks}


def _words(text: object) -> str:
    """Text with escaped dollar signs, so that it has no formula."""
    return str(text).replace("$", r"\$")


def _length(record: dict[str, Any], figure: Figure) -> float:
    """The length of a run on the x axis."""
    if figure.x == "minutes":
        return (number(record, "seconds") or 0) / 60
    return number(record, "epochs") or 1


def _records(summary: Summary, row: str, column: str) -> Iterator[dict[str, Any]]:
    own = [r for r in summary.records if (r["row"], r["column"]) == (row, column)]
    return iter(sorted(own, key=lambda r: r["seed"]))


def _smooth(values: list[float], points: int) -> list[float]:
    """Each point the mean of those around it."""
    half = points // 2
    return [statistics.fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
