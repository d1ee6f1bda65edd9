"""Figures of pairwise interactions in an energy, PNG and SVG; the same input gives the same file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from experiments import store
from experiments.errors import StoreError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAP = "RdBu_r"  # red is positive, white is 0
UNKNOWN = "0.8"  # grey
STEEP = 5.0  # limit of the colours for cross-entropy, whose gradient is infinite at 0
KINDS = ("png", "svg")


def side_by_side(
    place: Path,
    tables: Sequence[tuple[str, str, np.ndarray]],
    *,
    heading: str,
    names: Sequence[str] | None,
    axes_names: tuple[str, str],
) -> list[Path]:
    """Square heat maps side by side, each with a title and a labelled colour bar."""

    def paint(canvas: "Figure") -> None:
        canvas.suptitle(heading, fontsize="medium")
        panels = canvas.subplots(1, len(tables), squeeze=False)[0]
        for panel, (title, measure, table) in zip(panels, tables, strict=True):
            heat(panel, table, measure, top=span(table))
            panel.set(title=title, ylabel=axes_names[0], xlabel=axes_names[1])
            if names:
                panel.set_xticks(range(len(names)), names, fontsize=7, family="monospace")
                panel.set_yticks(range(len(names)), names, fontsize=7, family="monospace")

    return draw(place, paint, size=(5.9 * len(tables), 5.3))


def gradients(
    place: Path,
    surfaces: Sequence[tuple[str, np.ndarray]],
    changes: Sequence[tuple[str, np.ndarray]],
    *,
    heading: str,
    grid: np.ndarray,
) -> list[Path]:
    """Three surfaces over y_i and y_k, the first with its own scale; the effect of y_i, pair by pair."""
    shared = max(float(np.abs(surface).max()) for _, surface in surfaces[1:])
    half = (grid[1] - grid[0]) / 2
    extent = (grid[0] - half, grid[-1] + half, grid[0] - half, grid[-1] + half)

    def paint(canvas: "Figure") -> None:
        canvas.suptitle(heading, fontsize="medium")
        *maps, last = canvas.subplots(2, 2).flat
        for number, (panel, (title, surface)) in enumerate(zip(maps, surfaces, strict=True)):
            top = shared if number else STEEP
            heat(panel, surface, "gradient in $y_k$", top=top, extent=extent)
            levels = np.linspace(-top, top, 13)
            panel.contour(grid, grid, surface, levels=levels, colors="black", linewidths=0.5, alpha=0.5)
            panel.set(title=title, xlabel="$y_k$", ylabel="$y_i$")
        edges = np.histogram_bin_edges(np.concatenate([change for _, change in changes]), bins=40)
        for name, change in changes:
            last.hist(change, bins=edges, alpha=0.6, label=name)
        last.axvline(0, color="black", linewidth=0.8)
        last.set(
            title="(d) what $y_i$ from 0 to 1 does, pair by pair", xlabel="change of the gradient in $y_k$"
        )
        last.set_ylabel("pairs")
        last.legend(fontsize="small")

    return draw(place, paint, size=(9.6, 7.6))


def heat(
    panel: "Axes",
    table: np.ndarray,
    measure: str,
    *,
    top: float,
    extent: tuple[float, float, float, float] | None = None,
) -> None:
    """A heat map, symmetric around 0 up to `top`; unknown values are grey."""
    import matplotlib

    colours = matplotlib.colormaps[MAP].with_extremes(bad=UNKNOWN)
    origin: Literal["lower", "upper"] = "lower" if extent else "upper"
    image = panel.imshow(
        table, cmap=colours, vmin=-top, vmax=top, extent=extent, origin=origin, interpolation="nearest"
    )
    beyond = "both" if np.nanmax(np.abs(table)) > top else "neither"
    panel.figure.colorbar(image, ax=panel, label=measure, extend=beyond, shrink=0.85)


def span(table: np.ndarray) -> float:
    """The 99th percentile of the absolute entries that are not 0, so that outliers do not set the scale."""
    known = np.abs(table[np.isfinite(table) & (table != 0)])
    return float(np.quantile(known, 0.99)) if known.size else 1.0


def draw(
    place: Path, paint: Callable[["Figure"], None], *, size: tuple[float, float], about: str | None = None
) -> list[Path]:
    """Let `paint` fill a canvas, and save it as <place>.png and .svg; `about` is stored as description.

    Raises:
        StoreError: the files cannot be written.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    files = [place.with_suffix(f".{ending}") for ending in KINDS]
    with matplotlib.rc_context({"svg.hashsalt": place.name}):
        canvas = pyplot.figure(figsize=size, layout="constrained")
        try:
            paint(canvas)
            for path in files:
                unsaid = "Date" if path.suffix == ".svg" else "Software"
                metadata = {unsaid: None} | ({"Description": about} if about else {})
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    canvas.savefig(path, dpi=150, metadata=metadata)
                except OSError as error:
                    raise StoreError(store.explain(error, path)) from error
        finally:
            pyplot.close(canvas)
    return files
