"""A table and a selection from it -> runs with their ids and states."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from experiments import store
from experiments.errors import ConfigError
from experiments.plan import compose, identity
from experiments.plan.order import in_order
from experiments.plan.table import Table
from experiments.store import Place

Missing = Callable[[dict[str, dict[str, Any]]], dict[str, str]]  # data configs by column -> reasons


@dataclass
class Run:
    """One config with one seed; `places` are the (row, column) cells that share it."""

    id: str
    seed: int
    config: dict[str, Any]
    identity: dict[str, Any]
    needs: dict[str, str]  # row -> id of its run
    rank: tuple[int, ...]
    places: list[tuple[str, str]]
    asked: bool = True  # False: planned only because another run needs it
    done: bool = False

    @property
    def name(self) -> str:
        """A readable name."""
        row, column = self.places[0]
        return f"{row} / {column} / seed {self.seed}"

    def filled(self) -> dict[str, Any]:
        """Its config with folders and checkpoints filled in."""
        paths = {compose.needed(row): str(store.checkpoint(i)) for row, i in self.needs.items()}
        return compose.fill(self.config, {compose.RUN_DIR: str(store.run_dir(self.id)), **paths})


@dataclass
class Plan:
    """The runs of a selection, in order, and the columns whose data is missing."""

    table: Table
    runs: list[Run]
    ids: dict[Place, str]
    missing: dict[str, str] = field(default_factory=dict)
    every: dict[Place, str] = field(default_factory=dict)  # ids of the whole table, for its page

    def todo(self) -> list[Run]:
        """The runs that are not done and have their data."""
        return [r for r in self.runs if not r.done and not self.reason(r)]

    def reason(self, run: Run) -> str | None:
        """Why the data of a run is missing; None if it is here."""
        reasons = [self.missing.get(column) for _, column in run.places]
        return reasons[0] if all(reasons) else None


def layers_of(table: Table, row: str, column: str) -> compose.Layers:
    """The sources of one cell."""
    spec = table.rows[row]
    return compose.Layers(table.layers(row, column), compose.settings_of(spec.set), tuple(spec.needs.items()))


def make_plan(
    table: Table,
    rows: list[str],
    columns: list[str],
    seeds: list[int],
    *,
    parse: compose.Parse,
    missing: Missing,
    fresh: bool = False,
) -> Plan:
    """Compose the selected cells and those they need, name their runs, and look up which are done.

    With `fresh`, no selected run counts as done.
    """
    cells = [(row, column) for row in rows for column in columns if table.has(row, column)]
    asked = set(cells)
    for row, column in cells:  # grows during the loop
        for needed in table.rows[row].needs.values():
            if (needed, column) not in cells:
                if not table.has(needed, column):
                    raise ConfigError(
                        f"{row} needs {needed}, which table {table.name} does not have in {column}."
                    )
                cells.append((needed, column))
    configs = _configs(table, cells, parse)
    runs = _runs(table, configs, asked, seeds)
    plan = Plan(table, runs, {(*p, r.seed): r.id for r in runs for p in r.places})
    _look_up(plan, fresh=fresh)
    waiting = {column for r in plan.runs if not r.done for _, column in r.places}
    data = {c: config["data"] for (_, c), config in configs.items() if c in waiting and config.get("data")}
    plan.missing = missing(data) if data else {}
    plan.runs = [run for run in plan.runs if not _stands_by(plan, run, columns)]
    return plan


def every_id(table: Table, parse: compose.Parse) -> dict[Place, str]:
    """The run of each cell of a table, for its seeds and those recorded; without cells of a faulty config."""
    cells = [(row, column) for row in table.rows for column in table.columns if table.has(row, column)]
    found = compose.compose_all({cell: layers_of(table, *cell) for cell in cells}, parse)
    configs = {cell: config for cell, config in found.items() if not isinstance(config, str)}

    def sound(row: str, column: str) -> bool:
        needed = table.rows[row].needs.values()
        return (row, column) in configs and all(sound(other, column) for other in needed)

    configs = {cell: config for cell, config in configs.items() if sound(*cell)}
    seeds = sorted({*table.seeds, *(seed for _, _, seed in store.places(table.name))})
    return {(*place, r.seed): r.id for r in _runs(table, configs, set(), seeds) for place in r.places}


def _stands_by(plan: Plan, run: Run, columns: list[str]) -> bool:
    """Whether all columns of a run are substitutes for columns whose data is here."""
    others = [plan.table.columns[column].instead_of for _, column in run.places]
    return all(other in columns and other not in plan.missing for other in others)


def _configs(
    table: Table, cells: list[tuple[str, str]], parse: compose.Parse
) -> dict[tuple[str, str], dict[str, Any]]:
    found = compose.compose_all({cell: layers_of(table, *cell) for cell in cells}, parse)
    for (row, column), config in found.items():
        if isinstance(config, str):
            raise ConfigError(f"Row {row}, column {column} of table {table.name}: {config}")
    return {cell: config for cell, config in found.items() if not isinstance(config, str)}


def _runs(
    table: Table,
    configs: dict[tuple[str, str], dict[str, Any]],
    asked: set[tuple[str, str]],
    seeds: list[int],
) -> list[Run]:
    by_id: dict[str, Run] = {}
    ids: dict[Place, str] = {}

    def name(row: str, column: str, seed: int) -> str:
        if (row, column, seed) in ids:
            return ids[row, column, seed]
        needs = {needed: name(needed, column, seed) for needed in table.rows[row].needs.values()}
        config = compose.fill(configs[row, column], {compose.SEED: seed})
        kept = identity.identity(compose.fill(config, {compose.needed(r): i for r, i in needs.items()}))
        run_id = ids[row, column, seed] = identity.run_id(kept)
        rank = (seeds.index(seed), list(table.columns).index(column), list(table.rows).index(row))
        run = by_id.setdefault(run_id, Run(run_id, seed, config, kept, needs, rank, [], asked=False))
        run.places.append((row, column))
        run.asked |= (row, column) in asked
        return run_id

    for seed in seeds:
        for row, column in configs:
            name(row, column, seed)
    return list(by_id.values())


def _look_up(plan: Plan, *, fresh: bool) -> None:
    """Mark finished runs. A needed run must have its checkpoint; drop needed runs that no run waits for."""
    known = store.finished()
    for run in plan.runs:
        run.done = run.id in known or store.read_record(run.id) is not None
        run.done &= not (fresh and run.asked)
    by_id = {run.id: run for run in plan.runs}
    wanted = {run.id for run in plan.runs if run.asked}
    todo = [run for run in plan.runs if run.asked and not run.done]
    while todo:
        for needed in (by_id[i] for i in todo.pop().needs.values()):
            wanted.add(needed.id)
            if not store.has_finished(needed.id):
                needed.done = False
            if not needed.done:
                todo.append(needed)
    seconds = _seconds(plan, known)
    plan.runs = in_order([run for run in plan.runs if run.id in wanted], seconds)


def _seconds(plan: Plan, known: dict[str, store.Record]) -> dict[str, float]:
    spent: dict[tuple[str, str], float] = {}
    for record in known.values():
        spent[record["row"], record["column"]] = float(record.get("seconds") or 0)
    return {run.id: spent[run.places[0]] for run in plan.runs if run.places[0] in spent}
