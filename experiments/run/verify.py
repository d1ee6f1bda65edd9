"""Train finished cells again in a separate folder and compare them with their records, which are kept.

The folder is named after the commit, so that a stopped check resumes. With uncommitted changes there is no
such name, and each check starts again.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from experiments import record, starts, store
from experiments.errors import STOPPED, TableError
from experiments.page import words
from experiments.page.summary import number, summarise
from experiments.page.verdicts import Cell
from experiments.plan.runs import Plan
from experiments.plan.spec import read_table
from experiments.plan.table import Table
from experiments.run.reproduce import Selection, plan_of, show_plan, tell_failed, work

BITWISE, NOISE, DIFFERENT = "bitwise", "within the noise of a seed", "different"
MISSING = "not trained here"
CHECKS = Path("verify")  # in runs/

Records = dict[store.Place, store.Record]


@dataclass(frozen=True)
class Compared:
    """A recorded run and the same run trained here, in the table's printed numbers."""

    committed: float | None
    here: float | None
    verdict: str
    noise: str = ""


@dataclass
class Chosen:
    """The selected cells: those to verify, and those without a record of the current config."""

    places: list[store.Place] = field(default_factory=list)
    stale: list[store.Place] = field(default_factory=list)
    unfinished: list[store.Place] = field(default_factory=list)


def verify(selection: Selection, console: Console, *, dry: bool = False) -> int:
    """Train the selected recorded runs again, and compare; return the exit code."""
    table = read_table(selection.table)
    summary, committed = summarise(table), _records(table)
    for warning in summary.warnings:
        console.print(warning, style="yellow", highlight=False, markup=False, soft_wrap=True)
    folder = store.RUNS / CHECKS / _code(console)
    with store.inside(folder):
        plan = plan_of(selection, console, fetch=not dry)
        chosen = choose(plan, committed)
        _tell_left_out(chosen, console)
        if not chosen.places:
            raise TableError(
                f"No selected cell has a record of the current config in results/{table.name}.jsonl, to "
                f"compare with. Train it with:  {table.command}"
            )
        if dry:
            show_plan(plan, console, fresh=selection.fresh)
            return 0
        launch = work(plan, selection, console)
        failed = tell_failed(launch, console) if launch else STOPPED
        here = _records(table)
    for column, why in plan.missing.items():
        console.print(f"{column}: {escape(why)}", style="yellow", highlight=False, soft_wrap=True)
    counts = _tell(table, summary.cells, committed, here, chosen.places, console)
    for name, records in (("committed", committed), ("here", here)):
        made = [records[place] for place in chosen.places if place in records]
        by = f"made on {starts.processors_of(made)}; commits {starts.commits_of(made)}"
        console.print(f"{name}: {by}", highlight=False, soft_wrap=True)
    console.print(f"records of this check: {folder}/results/{table.name}.jsonl", style="dim", soft_wrap=True)
    return failed or int(bool(counts.keys() - {BITWISE, NOISE}))


def _tell(
    table: Table,
    cells: Mapping[tuple[str, str], Cell],
    committed: Records,
    here: Records,
    places: list[store.Place],
    console: Console,
) -> Counter[str]:
    """A line for each run, and how many there are of each verdict."""
    counts: Counter[str] = Counter()
    for place in places:
        found = compare(table, cells[place[:2]], committed[place], here.get(place))
        counts[found.verdict] += 1
        console.print(f"{_name(place)}: {_line(table, found)}", highlight=False, soft_wrap=True)
    order = (BITWISE, NOISE, DIFFERENT, MISSING)
    console.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in order if counts[verdict]))
    return counts


def choose(plan: Plan, committed: Records) -> Chosen:
    """Keep in the plan the selected runs that have a record of the same config, and the runs they need."""
    chosen, keep = Chosen(), []
    for run in (run for run in plan.runs if run.asked):
        for place in ((*place, run.seed) for place in run.places):
            if place not in committed:
                chosen.unfinished.append(place)
            elif committed[place]["id"] != run.id:
                chosen.stale.append(place)
            else:
                chosen.places.append(place)
                keep.append(run.id)
    needs = {run.id: run.needs.values() for run in plan.runs}
    for run_id in keep:  # grows during the loop
        keep.extend(needed for needed in needs[run_id] if needed not in keep)
    plan.runs = [run for run in plan.runs if run.id in keep]
    rows, columns = list(plan.table.rows), list(plan.table.columns)
    chosen.places.sort(key=lambda place: (rows.index(place[0]), columns.index(place[1]), place[2]))
    return chosen


def compare(table: Table, cell: Cell, old: store.Record, new: store.Record | None) -> Compared:
    """Compare one run with its record.

    Bitwise: each metric and each curve of the record is the same, except speeds. Within the noise of a
    seed: the table's number differs by at most one sample standard deviation over the seeds of its cell.
    """
    before = _printed(table, cell, old)
    if new is None:
        return Compared(before, None, MISSING)
    after = _printed(table, cell, new)
    others = [name for part in ("metrics", "curves") for name in _differ(old.get(part), new.get(part))]
    if before == after and not others:
        return Compared(before, after, BITWISE)
    spread = cell.ours.std if cell.ours else None
    why = "one seed is on record, so its noise is not known"
    if spread is not None:
        why = f"{words.number(table, spread)} over {len(cell.values)} seeds"
    if before == after:
        why += f"; not the same: {', '.join(others)}"
    if None in (before, after, spread) or abs(after - before) > spread:  # type: ignore[operator]  # of None
        return Compared(before, after, DIFFERENT, why)
    return Compared(before, after, NOISE, why)


def _printed(table: Table, cell: Cell, found: store.Record) -> float | None:
    value = number(found, table.metric_name(cell.column))
    return None if value is None else value * table.metric.scale


def _differ(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> list[str]:
    """The recorded values that differ now; new values are ignored."""
    found = (name for name, value in (old or {}).items() if (new or {}).get(name) != value)
    return [name for name in found if not name.endswith("_per_second")]


def _line(table: Table, found: Compared) -> str:
    before, after = ("-" if n is None else words.number(table, n) for n in (found.committed, found.here))
    gap = ""
    if found.committed is not None and found.here is not None:
        gap = f", difference {words.number(table, found.here - found.committed, sign=True)}"
    noise = f" ({found.noise})" if found.noise else ""
    return f"committed {before}, here {after}{gap}: {found.verdict}{noise}"


def _tell_left_out(chosen: Chosen, console: Console) -> None:
    for why, places in (("not finished", chosen.unfinished), ("made with an earlier config", chosen.stale)):
        if places:
            console.print(f"left out, {why}: {'; '.join(map(_name, places))}", style="dim", soft_wrap=True)


def _records(table: Table) -> Records:
    return {store.place_of(found): found for found in store.read_results(table.name).records}


def _name(place: store.Place) -> str:
    row, column, seed = place
    return f"{row} / {column} / seed {seed}"


def _code(console: Console) -> str:
    """The name of the current code, or of this check if the code has no commit."""
    made = record.source()
    if made["commit"] and not made["dirty"]:
        return made["commit"][:12]
    state = (
        "The code has changes that are not committed" if made["commit"] else "The code is in no git checkout"
    )
    console.print(f"{state}: a stopped check starts again.", style="yellow", soft_wrap=True)
    return f"{(made['commit'] or 'unknown')[:12]}+{record.now().replace(':', '')}"
