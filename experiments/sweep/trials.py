"""A trial as a run: the sweep's layers, its fixed options and a point, composed as a cell of a table is."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import store
from experiments.errors import SweepError, suggest
from experiments.fields import is_seed
from experiments.plan import compose, identity
from experiments.plan.runs import Run
from experiments.plan.table import Column, Metric, Table
from experiments.sweep.file import Sweep
from experiments.sweep.points import Point

SEED = "seed_everything"


def table_of(sweep: Sweep) -> Table:
    """The sweep as a table without rows: a trial is placed in it as trial_3 / bibtex / seed 0."""
    column = column_of(sweep)
    return Table(
        name=sweep.name,
        title=sweep.title,
        source={},
        metric=Metric(sweep.metric, digits=4, better="higher" if sweep.goal == "maximize" else "lower"),
        seeds=(0,),
        columns={column: Column(column, column)},
        rows={},
        reported={},
        reported_runs=None,
        claims=(),
        notes=(),
    )


def column_of(sweep: Sweep) -> str:
    """The name of the sweep's data file."""
    data = [Path(name).stem for name in sweep.layers if Path(name).parent.name == "data"]
    return data[0] if data else "data"


def row_of(number: int) -> str:
    """The name of a trial in records."""
    return f"trial_{number}"


def number_of(run: Run) -> int:
    """The trial of a run."""
    return int(run.places[0][0].removeprefix("trial_"))


def layers_of(sweep: Sweep, point: Point) -> compose.Layers:
    """The sources of a trial."""
    values = {key: value for key, value in (sweep.options | point).items() if key != SEED}
    return compose.Layers(sweep.layers, compose.settings_of(values))


def configs_of(sweep: Sweep, points: Sequence[Point], parse: compose.Parse) -> list[dict[str, Any]]:
    """The resolved configs of points.

    Raises:
        SweepError: a config cannot be composed, such as for a parameter that does not exist.
    """
    cells = [layers_of(sweep, point) for point in points]
    found = compose.compose_all({layers: layers for layers in cells}, parse)
    configs = []
    for point, layers in zip(points, cells, strict=True):
        config = found[layers]
        if isinstance(config, str):
            raise SweepError(f"{sweep.at(_culprit(sweep, point, config, parse))}: {_bare(config, layers)}")
        configs.append(config)
    return configs


def _culprit(sweep: Sweep, point: Point, fault: str, parse: compose.Parse) -> str:
    """The parameter that has the fault of a point also without the others, or `command`, or all of them."""
    alone: dict[str, Point] = {"command": {}, **{name: {name: value} for name, value in point.items()}}
    found = parse([layers_of(sweep, one) for one in alone.values()])
    return next((name for name, one in zip(alone, found, strict=True) if one == fault), "parameters")


def _bare(fault: str, layers: compose.Layers) -> str:
    """A fault without its list of files."""
    return fault.removesuffix(compose.files_of(layers))


def run_of(sweep: Sweep, number: int, point: Point, config: Mapping[str, Any]) -> Run:
    """The run of a trial."""
    seed = seed_of(sweep, point)
    filled = compose.fill(dict(config), {compose.SEED: seed})
    kept = identity.identity(filled)
    place = (row_of(number), column_of(sweep))
    return Run(identity.run_id(kept), seed, filled, kept, {}, (number,), [place])


def seed_of(sweep: Sweep, point: Point) -> int:
    """The seed of a trial, 0 unless the sweep sets it."""
    seed = (sweep.options | point).get(SEED, 0)
    seed = int(seed) if isinstance(seed, str) and seed.isdecimal() else seed
    if not is_seed(seed):
        place = sweep.at(SEED if SEED in point else "command")
        raise SweepError(f"{place}: the seed is {seed}; it has to be a whole number, 0 or more.")
    return seed


def refuse_changed(sweep: Sweep, number: int, ran: str | None, today: Run) -> None:
    """Refuse scores of runs that the sweep's files no longer make; `ran` is what trial `number` ran.

    Raises:
        SweepError: today's run of the trial is another one.
    """
    if ran and today.id != ran:
        raise SweepError(
            f"The config files of {sweep.path} have changed since trial {number} ran (run {ran}, today "
            f"{today.id}), so scores do not compare. Undo the change, or save the sweep under another name: "
            "runs that are the same are taken over."
        )


def score_of(sweep: Sweep, record: store.Record) -> float:
    """The sweep's metric in a record.

    Raises:
        SweepError: no validation has logged it.
    """
    score = record["metrics"].get(sweep.metric)
    if score is None:
        raise SweepError(not_logged(sweep, record["metrics"]))
    return float(score)


def not_logged(sweep: Sweep, metrics: Iterable[str]) -> str:
    """A sentence on a metric that validation does not log."""
    names = sorted(name for name in metrics if name.startswith("val/"))
    return f"{sweep.at('metric.name')} is {sweep.metric}, which no validation logs. {suggest('', names)}"
