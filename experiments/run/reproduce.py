"""A table from its file to its page: plan, run what is left, render."""

import gzip
import hashlib
import json
import lzma
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from experiments import starts, store
from experiments.errors import STOPPED, TableError
from experiments.fields import LARGEST_SEED
from experiments.page import words
from experiments.page.render import render
from experiments.page.state import read_state, state_file
from experiments.page.summary import number, summarise
from experiments.plan.compose import Composed, Layers, modules
from experiments.plan.identity import difference
from experiments.plan.runs import Plan, Run, every_id, layers_of, make_plan
from experiments.plan.spec import read_table, select
from experiments.plan.table import Table
from experiments.run import workers
from experiments.run.board import board
from experiments.run.launch import Launch, adopt_finished, open_to
from experiments.tracking.tables import add_logger, publish, read_logger


@dataclass(frozen=True)
class Selection:
    """The user's selection, as typed: comma-separated names, or nothing for all."""

    table: str
    rows: str | None = None
    columns: str | None = None
    seeds: str | None = None
    jobs: int = 0
    fresh: bool = False
    logger: str | None = None  # a file of conf/logger, for the runs and the table


def plan_of(selection: Selection, console: Console, *, fetch: bool) -> Plan:
    """Read the table, compose its cells, look up what is done, and what data is not here.

    Raises:
        TableError: the table, a reference in its notes or the selection is wrong.
    """
    table, logger = read_table(selection.table), read_logger(selection.logger)
    rows = select("row", selection.rows, [r for r, row in table.rows.items() if not row.cited], table.sweeps)
    columns = select("column", selection.columns, table.columns)
    seeds = _seeds(selection, table)
    words.check_references(summarise(table))
    for warning in store.read_results(table.name).warnings:
        console.print(f"[yellow]{escape(warning)}[/yellow]", highlight=False)
    cells = [layers_of(table, r, c) for r in table.rows for c in columns if table.has(r, c)]
    server = partial(workers.server, sorted({m for layers in cells for m in modules(layers)}))
    if fetch:
        server()  # starts now, so that it imports while this process plans
    jobs = selection.jobs or workers.cores()

    def parse(layers: list[Layers]) -> list[Composed]:
        with console.status(f"composing {len(layers)} cells of {table.name}"):
            return workers.parse_all(server(), layers, jobs)

    plan = make_plan(
        table,
        rows,
        columns,
        seeds,
        parse=parse,
        missing=lambda data: workers.missing_all(server, data, fetch=fetch),
        fresh=selection.fresh,
    )
    if fetch:
        plan.every = every_id(table, parse)
    add_logger(plan, logger)
    return plan


def reproduce(selection: Selection, console: Console) -> int:
    """Run what is left of a table and render it; the exit code."""
    plan = plan_of(selection, console, fetch=True)
    adopt_finished(plan, console.print)
    keep_state(plan)
    old = replaced(plan, fresh=selection.fresh)
    for run in (run for run in plan.todo() if run.id in old):
        console.print(f"when it is done, {run.name} {escape(old[run.id])}", highlight=False, soft_wrap=True)
    try:
        launch = work(plan, selection, console)
    finally:
        summary = render(plan.table, console)
    publish(summary, read_logger(selection.logger), console)
    return tell_failed(launch, console) if launch else STOPPED


def work(plan: Plan, selection: Selection, console: Console) -> Launch | None:
    """Run what is left of a plan; None if Ctrl-C stopped it."""
    store.sweep(store.RESULTS, older=60)  # other processes may be writing these files
    for run in plan.runs:
        store.tidy(store.run_dir(run.id))
    jobs = selection.jobs or workers.cores()
    showing = board(console, plan.table)
    launch = Launch(
        plan, showing, workers.server(), jobs=jobs, threads=workers.threads(), fresh=selection.fresh
    )
    try:
        with showing:
            launch.work()
    except KeyboardInterrupt:
        after = (
            "with FRESH=1 the same command trains all of them again: leave out the rows that are done."
            if selection.fresh
            else "the same command resumes the others from their last epoch."
        )
        console.print(f"\nStopped. Finished runs are kept; {after}")
        return None
    return launch


def tell_failed(launch: Launch, console: Console) -> int:
    """Print where the tracebacks of failed runs are; return the exit code."""
    for run_id in launch.failed:
        console.print(
            f"traceback of {launch.names[run_id]}: {store.run_dir(run_id)}/error.txt",
            style="red",
            highlight=False,
        )
    return 1 if launch.failed or launch.blocked else 0


def dry_run(selection: Selection, console: Console) -> int:
    """Print what would run, in which order, and what is done, failed, waiting or missing."""
    plan = plan_of(selection, console, fetch=False)
    show_plan(plan, console, fresh=selection.fresh)
    if origin := words.elsewhere(summarise(plan.table)):
        console.print(origin, highlight=False, markup=False, soft_wrap=True)
    return 0


def show_plan(plan: Plan, console: Console, *, fresh: bool) -> None:
    """A line for each run, and how many there are of each kind."""
    beside = replaced(plan, fresh=fresh) | lacking(plan) | changed(plan)
    counts: dict[str, int] = {}
    for run in plan.runs:
        state, detail = state_of(plan, run)
        detail = f"{detail} {beside.get(run.id, '')}".strip()
        counts[state] = counts.get(state, 0) + 1
        console.print(
            f"{state:8} {run.id}  {run.name}  [dim]{escape(detail)}[/dim]", highlight=False, soft_wrap=True
        )
    console.print(", ".join(f"{n} {state}" for state, n in counts.items()) or "nothing selected")


def lacking(plan: Plan) -> dict[str, str]:
    """A sentence for each finished run whose record is older than a number that its row is to have, by run.

    These are the numbers of measures that name their rows: what a callback adds does not change a run's id.
    """
    records = {store.place_of(record): record for record in store.read_results(plan.table.name).records}
    partial = [measure for measure in plan.table.measures if len(measure.rows) < len(plan.table.rows)]
    found: dict[str, str] = {}
    for run in (run for run in plan.runs if run.done):
        for row, column in run.places:
            record = records.get((row, column, run.seed), {})
            names = [m.metric_name(column) for m in partial if row in m.rows and record.get("id") == run.id]
            if lost := [name for name in names if number(record, name) is None]:
                found[run.id] = f"its record lacks {', '.join(lost)}: FRESH=1 trains it anew"
    return found


def changed(plan: Plan) -> dict[str, str]:
    """A sentence for each finished run that read a file of the user's own which has changed since, by run."""
    digest = cache(_digest)
    done = {run.id for run in plan.runs if run.done}
    records = [r for r in store.read_results(plan.table.name).records if r["id"] in done]
    return {
        record["id"]: f"{name} has changed since: FRESH=1 trains it anew"
        for record in records
        for name, old in (record.get("data") or {}).items()
        if Path(name).is_file() and digest(Path(name)) != old
    }


def _digest(path: Path) -> str:
    """The sha256 of a file's content, unpacked."""
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    with suppress(OSError, EOFError, lzma.LZMAError), openers.get(path.suffix, open)(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def state_of(plan: Plan, run: Run) -> tuple[str, str]:
    """The state of a run, and details."""
    if run.done:
        return "done", ""
    if reason := plan.reason(run):
        return "missing", reason
    if store.is_held(store.run_dir(run.id)):
        return "running", "in another process"
    by_id = {r.id: r for r in plan.runs}
    needed = [by_id[i].name for i in run.needs.values() if not by_id[i].done]
    left = store.read_json(store.run_dir(run.id) / "progress.json") or {}
    if left.get("state") == "failed":
        return "failed", f"{left.get('reason')} (will be tried again)"
    if needed:
        return "waiting", f"needs {', '.join(needed)}"
    if (store.run_dir(run.id) / "checkpoints" / "last.ckpt").exists():
        return "planned", f"resumes after epoch {left['epoch']}" if "epoch" in left else "resumes"
    return "planned", ""


def replaced(plan: Plan, *, fresh: bool) -> dict[str, str]:
    """A sentence for each remaining run that will replace a record, by run."""
    read = {plan.table.name, *store.tables()} if fresh else {plan.table.name}
    every = {table: store.read_results(table).records for table in sorted(read)}
    own = {store.place_of(record): record for record in every[plan.table.name]}
    ids = {place: record["id"] for place, record in own.items()}
    found = {}
    for run in plan.todo():
        anew = fresh and run.asked
        old = [own[place] for place in open_to(run, ids, anew=anew) if place in own]
        if old:
            copies = [t for t, records in every.items() if anew and any(r["id"] == run.id for r in records)]
            shared = " and ".join(table for table in copies if table != plan.table.name)
            found[run.id] = _replaces(old[0], run) + (f"; its copy in {shared} too" if shared else "")
    return found


def _replaces(record: store.Record, run: Run) -> str:
    """The record that is replaced, and the differences of its config."""
    changes = difference(record.get("config", {}), run.identity) if record["id"] != run.id else []
    more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
    why = f": {'; '.join(changes[:3])}{more}" if changes else ""
    made = f"{record.get('finished', '')} on {starts.processors_of([record])}"
    return f"replaces {record['id']}, made {made}{why}"


def keep_state(plan: Plan) -> None:
    """Remember ids and missing columns for pages drawn without torch."""
    old = read_state(plan.table.name)
    ids = old["ids"] | {f"{r}/{c}/{s}": i for (r, c, s), i in (plan.every | plan.ids).items()}
    seen = {column for _, column, _ in plan.ids}
    columns = plan.table.columns
    here = {c: "" if columns[c].unavailable else why for c, why in plan.missing.items()}
    missing = {c: why for c, why in old["missing"].items() if c not in seen} | here
    text = json.dumps({"missing": missing, "ids": ids}, indent=0, sort_keys=True)
    store.write(state_file(plan.table.name), f"{text}\n")


def _seeds(selection: Selection, table: Table) -> list[int]:
    if not selection.seeds:
        return list(table.seeds)
    try:
        seeds = list(dict.fromkeys(int(seed) for seed in selection.seeds.split(",") if seed.strip()))
    except ValueError:
        seeds = []
    if not seeds or not all(0 <= seed <= LARGEST_SEED for seed in seeds):
        raise TableError(
            f"--seeds {selection.seeds} should be whole numbers with commas, such as 0,1,2, from 0 to "
            f"{LARGEST_SEED}."
        )
    return seeds
