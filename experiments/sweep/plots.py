"""The figures of a sweep, SVG beside its page: parallel coordinates, and importance. Needs no torch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import store
from experiments.page.plots import canvas, save
from experiments.sweep.file import Sweep
from experiments.sweep.importance import importance, varied
from experiments.sweep.parameters import Number, Parameter, Whole
from experiments.sweep.study import DONE, PRUNED, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST = 12  # ticks of a choice


def draw(sweep: Sweep, trials: list[Trial]) -> dict[str, Path]:
    """Draw what can be drawn; the files by title."""
    scored = [t for t in trials if t.score is not None and t.state in (DONE, PRUNED)]
    names, shares, files = varied(sweep), importance(sweep, trials), {}
    if len(scored) > 1 and names:
        path = figure_file(sweep.name, "trials")
        with canvas(path.stem, (1.4 * len(names) + 2.2, 3.4)) as (drawing, axes):
            parallel(axes, sweep, names, scored)
            save(drawing, path)
        files["Trials, a line each; the best is thick, pruned ones are dashed"] = path
    if shares:
        path = figure_file(sweep.name, "importance")
        with canvas(path.stem, (5.2, 0.5 * len(shares) + 0.9)) as (drawing, axes):
            bars(axes, shares)
            save(drawing, path)
        files["Importance"] = path
    return files


def figure_file(sweep: str, figure: str) -> Path:
    """Where a figure is kept."""
    return store.RESULTS / f"{sweep}_{figure}.svg"


def parallel(axes: "Axes", sweep: Sweep, names: list[str], trials: list[Trial]) -> None:
    """A vertical axis for each parameter and one for the score; a line for each trial."""
    from matplotlib import colormaps

    scores = [float(t.score or 0.0) for t in trials]
    low, high = min(scores), max(scores)
    better = max if sweep.goal == "maximize" else min
    best = better((s for s, t in zip(scores, trials, strict=True) if t.state == DONE), default=None)
    for trial, score in sorted(zip(trials, scores, strict=True), key=lambda one: one[1] == best):
        height = (score - low) / (high - low) if high > low else 0.5
        line = [*(position(sweep.parameters[name], trial.point[name]) for name in names), height]
        shade = height if sweep.goal == "maximize" else 1 - height
        dashed, thick = trial.state == PRUNED, score == best and trial.state == DONE
        axes.plot(
            range(len(line)),
            line,
            color=colormaps["viridis"](shade),
            linestyle="--" if dashed else "-",
            linewidth=2.5 if thick else 1.0,
            alpha=0.5 if dashed else 0.9,
        )
    for place, name in enumerate(names):
        _ticks(axes, place, ticks(sweep.parameters[name]))
    _ticks(axes, len(names), [(t, f"{low + t * (high - low):.4g}") for t in TICKS])
    axes.set_xticks(range(len(names) + 1), [*short(names).values(), sweep.metric])
    axes.set(yticks=[], ylim=(-0.05, 1.05), xlim=(-0.3, len(names) + 0.45))
    for side in axes.spines.values():
        side.set_visible(False)


def _ticks(axes: "Axes", place: int, labels: list[tuple[float, str]]) -> None:
    axes.axvline(place, color="grey", linewidth=0.8)
    for height, text in labels:
        axes.text(place + 0.03, height, text, fontsize=7, va="center")


def bars(axes: "Axes", shares: dict[str, float]) -> None:
    """A bar for each parameter."""
    names = short([*shares])
    axes.barh([*names.values()][::-1], [*shares.values()][::-1], color="tab:blue")
    axes.set(xlim=(0, 1), xlabel="share of the variance of scores")


def position(parameter: Parameter, found: Any) -> float:  # noqa: ANN401
    """Where a value stands on its axis, from 0 to 1."""
    if isinstance(parameter, Number):
        return parameter.quantile(float(found))
    if isinstance(parameter, Whole):
        return (found - parameter.low) / max(1, parameter.high - parameter.low)
    texts = [json.dumps(one, sort_keys=True) for one in choices(parameter)]
    return texts.index(json.dumps(found, sort_keys=True)) / max(1, len(texts) - 1)


def ticks(parameter: Parameter) -> list[tuple[float, str]]:
    """Heights and texts along an axis."""
    if isinstance(parameter, Number):
        return [(t, f"{parameter.at(min(max(t, 0.01), 0.99)):.3g}") for t in TICKS]
    found = choices(parameter)
    step = 1 + (len(found) - 1) // MOST
    return [(position(parameter, one), value(one)) for one in found[::step]]


def choices(parameter: Parameter) -> list[Any]:
    """The values of a choice or a range of whole numbers, in order."""
    if isinstance(parameter, Whole):
        return parameter.grid()
    return list(getattr(parameter, "values", ()))


def short(names: list[str]) -> dict[str, str]:
    """The end of each dotted name by which it differs from the others."""
    shortened = {}
    for name in names:
        words = name.split(".")
        ends = (".".join(words[-n:]) for n in range(1, len(words) + 1))
        shortened[name] = next(e for e in ends if sum(f".{o}".endswith(f".{e}") for o in names) == 1)
    return shortened


def value(found: object) -> str:
    """A value in a table or on an axis."""
    if isinstance(found, float):
        return f"{found:.4g}"
    return found if isinstance(found, str) else json.dumps(found)
