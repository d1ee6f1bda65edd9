"""Records -> the value of each cell, and whether the paper's claims hold. Needs no torch.

Numbers are in printed units from here on (x100 for F1, say).
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments import starts, store
from experiments.fields import is_number
from experiments.plan.claims import Claim, holds
from experiments.plan.table import Changes, Column, Ratio, Table

NOT_YET = "not yet"
MOST = 9  # tags a side of a table of changes
ENOUGH = 3  # runs before a difference is tested


@dataclass(frozen=True)
class Sample:
    """Mean, sample standard deviation (None below two numbers) and how many numbers there are."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Sample":
        """Summarise numbers."""
        return cls(
            statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values)
        )


@dataclass(frozen=True)
class Cell:
    """One row in one column: our numbers, the paper's, and how many runs are planned."""

    row: str
    column: str
    ours: Sample | None
    paper: Sample | None
    planned: int
    stale: int = 0
    mixed: bool = False  # several kinds of processor, or code that changed during a run
    values: dict[int, float] = field(default_factory=dict)

    def over(self, seeds: Collection[int] | None) -> Sample | None:
        """Our sample, over the given seeds only if there are any given."""
        if seeds is None or not self.values:
            return self.ours
        return Sample.of([self.values[seed] for seed in seeds])

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper.mean

    @property
    def p(self) -> float | None:
        """The p-value of that difference."""
        return None if self.ours is None or self.paper is None else welch(self.ours, self.paper)


@dataclass(frozen=True)
class Verdict:
    """A claim in one column (or across columns): holds, fails, or not yet."""

    claim: Claim
    column: str  # "" across columns
    state: str
    numbers: dict[str, float] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()
    gap: Sample | None = None  # of two rows in one column: first minus second, paired by seed
    paper: bool | None = None
    seeds: tuple[int, ...] | None = None  # if rows have different seeds: those that all have


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

    @property
    def columns(self) -> dict[str, Column]:
        """The columns to draw; a substitute for another column only if it was needed."""
        filled = {column for (_, column), cell in self.cells.items() if cell.ours}
        return {n: c for n, c in self.table.columns.items() if not c.instead_of or n in filled}

    def ratio(self, ratio: Ratio) -> Sample | None:
        """The mean over columns of the ratio of two rows; None if no column has both."""
        pairs = [(self.cells[ratio.of, c].ours, self.cells[ratio.to, c].ours) for c in self.columns]
        found = [above.mean / below.mean for above, below in pairs if above and below and below.mean]
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

    def best(self, column: str) -> str | None:
        """Our best row in a column."""
        sign = 1 if self.table.metric.better == "higher" else -1
        ours = {r: cell.ours.mean * sign for (r, c), cell in self.cells.items() if c == column and cell.ours}
        return max(ours, key=lambda row: ours[row]) if len(ours) > 1 else None


def summarise(table: Table, state: Mapping[str, Any] | None = None) -> Summary:
    """Read the records of a table and judge its claims; `state` is from the table's last start."""
    state = state or {}
    found = store.read_results(table.name)
    cells = {
        (r, c): _cell(table, r, c, found.records, state.get("ids", {}))
        for r in table.rows
        for c in table.columns
    }
    summary = Summary(
        table,
        cells,
        [],
        dict(state.get("missing", {})),
        _failed(table, state.get("ids", {})),
        found.warnings,
        [r for r in found.records if (r["row"], r["column"]) in cells],
    )
    summary.measures.extend(summarise(measure, state) for measure in table.measures)
    shown = summary.columns
    summary.verdicts.extend(
        v for claim in table.claims for v in judge(claim, cells) if not v.column or v.column in shown
    )
    return summary


def _cell(table: Table, row: str, column: str, records: list[store.Record], ids: Mapping[str, str]) -> Cell:
    name, scale = table.metric_name(column), table.metric.scale
    found = ((r, number(r, name)) for r in records if (r["row"], r["column"]) == (row, column))
    own, values = [], {}
    for record, value in found:
        if value is not None:
            own.append(record)
            values[record["seed"]] = value * scale
    mixed = len(starts.processors(own)) > 1 or any(map(starts.changed_code, own))
    stale = sum(ids.get(f"{row}/{column}/{r['seed']}", r["id"]) != r["id"] for r in own)
    planned = max(len(table.seeds), len(own)) if table.has(row, column) else 0
    printed = table.reported.get(row, {}).get(column)
    paper = Sample(printed[0], printed[1], table.reported_runs or 1) if printed else None
    ours = Sample.of(list(values.values())) if values else None
    return Cell(row, column, ours, paper, planned, stale, mixed, values)


def number(record: Mapping[str, Any], name: str) -> float | None:
    """A metric of a record, or another of its numbers, such as its seconds.

    `seconds_per_epoch` is the time of one update a batch. If several parts move, it is the time of an epoch
    times the share of the part with most updates.   [Implicit Table 5]
    """
    if name == "seconds_per_epoch":
        updates = (record.get("updates") or {"all": 1}).values()
        if not record.get("epochs") or not record.get("seconds") or not any(updates):
            return None
        return record["seconds"] / record["epochs"] * max(updates) / sum(updates)
    value = record["metrics"].get(name, record.get(name))
    return float(value) if is_number(value) else None


def judge(claim: Claim, cells: Mapping[tuple[str, str], Cell]) -> list[Verdict]:
    """One verdict per column, or one for the mean over columns."""
    if claim.across == "mean":
        per_column = [{row: cells[row, column] for row in claim.rows} for column in claim.on]
        return [_judge(claim, "", {row: [c[row] for c in per_column] for row in claim.rows})]
    return [_judge(claim, column, {row: [cells[row, column]] for row in claim.rows}) for column in claim.on]


def _judge(claim: Claim, column: str, rows: dict[str, list[Cell]]) -> Verdict:
    printed = _numbers({r: [c.paper for c in cells] for r, cells in rows.items()})
    paper = holds(claim, printed) if len(printed) == len(rows) else None
    if not any(
        cell.planned for cells in rows.values() for cell in cells
    ):  # the paper alone proves nothing here
        return Verdict(claim, column, NOT_YET, lacking=tuple(rows), paper=paper)
    shared = [
        shared_seeds([cell for cell in cells if cell.planned]) for cells in zip(*rows.values(), strict=True)
    ]
    samples = {
        r: [c.over(seeds) if c.planned else c.paper for c, seeds in zip(cells, shared, strict=True)]
        for r, cells in rows.items()
    }
    numbers = _numbers(samples)
    lacking = tuple(row for row in rows if row not in numbers)
    if lacking:
        return Verdict(claim, column, NOT_YET, numbers, lacking, paper=paper)
    gap = gap_between(*(cell for (cell,) in rows.values())) if column and len(rows) == 2 else None
    state = "holds" if holds(claim, numbers) else "fails"
    return Verdict(claim, column, state, numbers, gap=gap, paper=paper, seeds=shared[0] if column else None)


def gap_between(a: Cell, b: Cell) -> Sample | None:
    """The difference a - b, paired by seed: all rows with a seed share split and order of examples."""
    shared = a.values.keys() & b.values.keys()
    return Sample.of([a.values[seed] - b.values[seed] for seed in sorted(shared)]) if shared else None


def shared_seeds(cells: Sequence[Cell]) -> tuple[int, ...] | None:
    """The seeds that all cells have, if they differ: only these are comparable.

    None if all have the same seeds, or share none: then each counts with all its seeds.
    """
    every = [set(cell.values) for cell in cells]
    shared = set.intersection(*every) if every else set()
    return tuple(sorted(shared)) if shared and any(own != shared for own in every) else None


def _numbers(samples: Mapping[str, Sequence[Sample | None]]) -> dict[str, float]:
    return {
        row: statistics.fmean([s.mean for s in found if s])
        for row, found in samples.items()
        if found and all(found)
    }


def welch(a: Sample, b: Sample) -> float | None:
    """Two-sided p of Welch's t-test; None where a side has fewer than three runs or no spread is known."""
    if min(a.count, b.count) < ENOUGH or a.std is None or b.std is None:
        return None
    ours, theirs = a.std / math.sqrt(a.count), b.std / math.sqrt(b.count)
    error = math.hypot(ours, theirs)
    if error == 0:
        return 1.0 if a.mean == b.mean else 0.0
    freedom = 1 / ((ours / error) ** 4 / (a.count - 1) + (theirs / error) ** 4 / (b.count - 1))
    return _two_sided((a.mean - b.mean) / error, freedom)


def paired(gap: Sample) -> float | None:
    """Two-sided p of the paired t-test; None where fewer than three pairs are known."""
    if gap.count < ENOUGH or gap.std is None:
        return None
    if gap.std == 0:
        return 1.0 if gap.mean == 0 else 0.0
    return _two_sided(gap.mean / gap.std * math.sqrt(gap.count), gap.count - 1)


def _two_sided(t: float, freedom: float) -> float:
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(t)))


def _failed(table: Table, ids: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for place, run_id in ids.items():
        left = store.read_json(store.run_dir(run_id) / "progress.json") or {}
        row, _, seed = place.split("/")
        if left.get("state") == "failed" and row in table.rows and int(seed) in table.seeds:
            found[place.replace("/", " / ")] = str(left.get("reason", ""))
    return found
