"""Records -> the value of each cell, and whether the paper's claims hold. Needs no torch.

Numbers are in printed units from here on (x100 for F1, say).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

from experiments import starts, store
from experiments.errors import suggest
from experiments.fields import is_number
from experiments.page import repeats
from experiments.page.intervals import Sample
from experiments.page.scores import derived
from experiments.page.verdicts import Cell, Verdict, controlled, judge, starred
from experiments.plan.table import Changes, Column, Ratio, Row, Table

MOST = 9  # tags a side of a table of changes


@dataclass(frozen=True)
class Summary:
    """All that a page or a terminal table shows."""

    table: Table
    cells: dict[tuple[str, str], Cell]
    verdicts: list[Verdict]
    missing: dict[str, str]
    failed: dict[str, str]
    warnings: list[str]
    records: list[store.Record]
    measures: "list[Summary]" = field(default_factory=list)
    scores: "list[Summary]" = field(default_factory=list)

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that count; a substitute for another column only if it was needed."""
        filled = {column for (_, column), cell in self.cells.items() if cell.ours}
        return {n: c for n, c in self.table.columns.items() if not c.instead_of or n in filled}

    @property
    def drawn(self) -> tuple[dict[str, Row], dict[str, Column]]:
        """The rows and columns to draw: none of finished runs that all lack the metric, no empty row."""
        filled = {column for (_, column), cell in self.cells.items() if cell.ours}
        without = {column for (_, column), cell in self.cells.items() if cell.finished} - filled
        columns = {n: c for n, c in self.columns.items() if n not in without} or self.columns
        told = {row for (row, column), cell in self.cells.items() if column in columns and cell.told}
        return {n: r for n, r in self.table.rows.items() if n in told}, columns

    def ratio(self, ratio: Ratio, *, printed: bool = False) -> Sample | None:
        """The mean over our columns of a ratio of rows, ours or the paper's; None if no column has both."""
        pairs = [(self.cells[ratio.of, c], self.cells[ratio.to, c]) for c in self.columns]
        both = [pair for pair in pairs if all(cell.ours for cell in pair)]
        samples = [[cell.paper if printed else cell.ours for cell in pair] for pair in both]
        found = [above.mean / below.mean for above, below in samples if above and below and below.mean]
        return Sample.of(found) if found else None

    def changes(self, changes: Changes) -> tuple[list[str], list[str], dict[tuple[str, str], float]]:
        """The most frequent tags on each side, and the count of each change, a mean over runs."""
        cell = (changes.row, changes.column)
        runs = [
            r["findings"]["changes"]
            for r in self.records
            if (r["row"], r["column"]) == cell and "changes" in r.get("findings", {})
        ]
        counts: dict[tuple[str, str], float] = {}
        for before, after, times in (change for run in runs for change in run):
            counts[before, after] = counts.get((before, after), 0) + times / len(runs)
        sides: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for pair, times in counts.items():
            for side, tag in zip(sides, pair, strict=True):
                side[tag] = side.get(tag, 0) + times
        before, after = (sorted(side, key=lambda tag: -side[tag])[:MOST] for side in sides)
        return before, after, counts

    def without_metric(self) -> list[str]:
        """A sentence for each metric that no finished run of its columns has."""
        known = sorted({name for record in self.records for name in record["metrics"]})
        runs: dict[str, list[store.Record]] = {}
        for record in self.records:
            runs.setdefault(self.table.metric_name(record["column"]), []).append(record)
        return [
            f"{self.table.file}: no finished run has the metric {name}. {suggest(name, known)}"
            for name, of_name in runs.items()
            if known and not any(name in r["metrics"] or number(r, name) is not None for r in of_name)
        ]

    @cached_property
    def seconds(self) -> dict[tuple[str, str], float]:
        """The median time of a finished run on a CPU core, for each cell that has one."""
        timed: dict[tuple[str, str], list[float]] = {}
        for record in self.records:
            if record.get("device") == "cpu" and record.get("seconds") is not None:
                timed.setdefault((record["row"], record["column"]), []).append(record["seconds"])
        return {place: median(times) for place, times in timed.items()}

    def best(self, column: str) -> list[str]:
        """Our best rows in a column over the seeds that all its rows have, floors left out.

        Rows are as good if their means print the same. None is best by one seed where some row has more.
        """
        own = [cell for (r, c), cell in self.cells.items() if c == column and not self.table.rows[r].floor]
        own = [cell for cell in own if cell.ours]
        shared = set.intersection(*(set(cell.values) for cell in own)) if len(own) > 1 else set()
        if not shared or len(shared) < min(2, max(len(cell.values) for cell in own)):
            return []
        means = {cell.row: fmean(cell.values[s] for s in shared) for cell in own}
        ours = {
            row: round(mean * self.table.metric.sign, self.table.metric.digits) for row, mean in means.items()
        }
        return [row for row in ours if ours[row] == max(ours.values())]


def summarise(table: Table, state: Mapping[str, Any] | None = None) -> Summary:
    """Read the records of a table and judge its claims; `state` is from the table's last start."""
    state = state or {}
    found = store.read_results(table.name)
    summary = view_of(table, state, found)
    summary.measures.extend(view_of(measure, state, found) for measure in table.measures)
    summary.measures.extend(view_of(table, state, found) for table in _unseen(table, found.records))
    summary.scores.extend(view_of(score, state, found) for score in table.scores)
    for views in ((summary, *summary.measures), *((score,) for score in summary.scores)):
        judged = controlled([verdict for view in views for verdict in view.verdicts])
        planned = controlled([verdict for view in views for verdict in _verdicts(view, as_planned=True)])
        judged = [replace(v, planned=other.state) for v, other in zip(judged, planned, strict=True)]
        for view in views:
            view.verdicts[:], judged = judged[: len(view.verdicts)], judged[len(view.verdicts) :]
    return summary


def view_of(table: Table, state: Mapping[str, Any], found: store.Records) -> Summary:
    """The cells of one metric, with verdicts that do not know of each other yet."""
    usual = {c: usual_data(r for r in found.records if r["column"] == c) for c in table.columns}
    cells = {
        (r, c): _cell(table, r, c, found.records, state.get("ids", {}), usual[c])
        for r in table.rows
        for c in table.columns
    }
    summary = Summary(
        table,
        _over_floors(table, starred(cells)),
        [],
        dict(state.get("missing", {})),
        _failed(table, state.get("ids", {}), {record["id"] for record in found.records}),
        found.warnings,
        [r for r in found.records if (r["row"], r["column"]) in cells],
    )
    summary.verdicts.extend(_verdicts(summary))
    return summary


def _verdicts(summary: Summary, *, as_planned: bool = False) -> list[Verdict]:
    """The verdicts on all claims; `as_planned` without the runs that were added to the plan's."""
    table, cells, shown = summary.table, summary.cells, summary.columns
    if as_planned:
        cells = {place: cell.as_planned(table.seeds) for place, cell in cells.items()}
    found = (verdict for claim in table.claims for verdict in judge(claim, cells, table.metric))
    return [verdict for verdict in found if not verdict.column or verdict.column in shown]


def _unseen(table: Table, records: list[store.Record]) -> list[Table]:
    """The table on test examples whose inputs training lacks, in columns that have others too."""
    tested = [c for c in table.columns if table.metric_name(c).startswith("test/")]
    names = {c: table.metric_name(c).replace("test/", "test_unseen/", 1) for c in tested}
    run = {r["column"] for r in records}
    told = {r["column"] for r in records if names.get(r["column"]) in r["metrics"]}
    if told and table.metric.in_points:  # speeds have no such twin
        told |= {c for c in run & names.keys() if repeats.note(table.columns[c])}
    columns = {c: replace(column, metric=names[c]) for c, column in table.columns.items() if c in told}
    title = "The same without test examples whose inputs are training inputs"
    return [replace(table.bare(), title=title, columns=columns)] if columns else []


def _over_floors(table: Table, cells: dict[tuple[str, str], Cell]) -> dict[tuple[str, str], Cell]:
    """Mark the cells that are below the floor of their column: ours, and cited ones."""
    floors = [cells[place] for place in cells if table.rows[place[0]].floor and table.metric.in_points]
    found = {cell.column: cell.ours.mean for cell in floors if cell.ours}

    def below(cell: Cell) -> bool:
        shown = cell.paper if table.rows[cell.row].cited else cell.ours
        return shown is not None and cell.column in found and shown.mean < found[cell.column]

    return {place: replace(cell, below=below(cell)) for place, cell in cells.items()}


def _cell(
    table: Table,
    row: str,
    column: str,
    records: list[store.Record],
    ids: Mapping[str, str],
    usual: Mapping[str, str],
) -> Cell:
    name, scale = table.metric_name(column), table.metric.scale
    finished = [r for r in records if (r["row"], r["column"]) == (row, column)]
    own, values = [], {}
    for record in finished:
        value = number(record, name)
        if value is not None:
            own.append(record)
            values[record["seed"]] = value * scale
    mixed = len(starts.processors(own)) > 1 or any(map(starts.changed_code, own))
    stale = sum(ids.get(f"{row}/{column}/{r['seed']}", r["id"]) != r["id"] for r in own)
    planned = len(table.seeds) if table.has(row, column) else 0
    printed = table.reported.get(row, {}).get(column)
    paper = Sample(printed[0], printed[1], table.reported_runs or 1) if printed else None
    ours = Sample.of(list(values.values())) if values else None
    other = any(usual[name] != checksum for r in own for name, checksum in (r.get("data") or {}).items())
    return Cell(
        row, column, ours, paper, planned, stale, mixed, other, values, finished={r["seed"] for r in finished}
    )


def usual_data(records: Iterable[store.Record]) -> dict[str, str]:
    """The checksum of each file that most of these runs have read."""
    found: dict[str, Counter[str]] = {}
    for record in records:
        for name, checksum in (record.get("data") or {}).items():
            found.setdefault(name, Counter())[checksum] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in found.items()}


def number(record: Mapping[str, Any], name: str) -> float | None:
    """A metric of a record, or another of its numbers, such as its seconds.

    `curves.implicit` is the mean of a training curve, `after.energy_f1` the last value of one with
    a value an epoch, less that of the chosen epoch; `a per b` is the ratio of two numbers.

    `seconds_per_epoch` is the time of one update a batch. If several parts move, it is the time of an epoch
    times the share of the part with most updates.   [Implicit Table 5]
    """
    if " per " in name:
        above, below = (number(record, part) for part in name.split(" per "))
        return above / below if above is not None and below else None
    if name.startswith("curves."):
        curve = [v for v in record.get("curves", {}).get(name.removeprefix("curves."), []) if is_number(v)]
        return fmean(curve) if curve else None
    if name.startswith("after."):
        curve = record.get("curves", {}).get(name.removeprefix("after."), [])
        last, chosen = record["epochs"] - 1, record["best_epoch"]
        whole = len(curve) == last + 1 and is_number(curve[last]) and is_number(curve[chosen])
        return curve[last] - curve[chosen] if whole else None
    if name == "seconds_per_epoch":
        updates = (record.get("updates") or {"all": 1}).values()
        if not record.get("epochs") or not record.get("seconds") or not any(updates):
            return None
        return record["seconds"] / record["epochs"] * max(updates) / sum(updates)
    value = record["metrics"].get(name, record.get(name))
    value = value if is_number(value) else derived(record, name)
    return None if value is None else float(value)


def _failed(table: Table, ids: Mapping[str, str], done: Collection[str]) -> dict[str, str]:
    found = {}
    for place, run_id in ids.items():
        left = store.read_json(store.run_dir(run_id) / "progress.json") or {}
        row, _, seed = place.split("/")
        if (
            run_id not in done
            and left.get("state") == "failed"
            and row in table.rows
            and int(seed) in table.seeds
        ):
            found[place.replace("/", " / ")] = str(left.get("reason", ""))
    return found
