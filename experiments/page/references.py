"""Numbers in prose that are drawn from records, so that they cannot go stale. Needs records only.

A note of a table, or a page of prose, may hold references in braces:

    {bibtex/dynamic_nce - ce}                    a mean over seeds, or a sum of rows, as a claim would have it
    {bibtex/low(cd - ssvm)}, high, interval      the ends of its 95 % interval, or both
    {bibtex/std(cd)}, least, most, count         of the runs of one row
    {bibtex/cd[0]}                               the run of one seed
    {bibtex/paper(cd - ssvm)}                    of the paper's numbers
    {bibtex/verdict(cd > ssvm)}                  what this page finds about a claim: holds, level, ...
    {seal_mlc/bibtex/ce @ test/map : .1f}        of another table, by another metric, with a format

`@ val` is each column's own metric on validation. Without a format a number has the metric's digits.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from experiments import store
from experiments.errors import TableError, suggest
from experiments.page.state import read_state
from experiments.page.summary import Summary, number, summarise, view_of
from experiments.page.verdicts import ENOUGH, Cell, Part, judge, shared_seeds
from experiments.plan.claims import Claim, ClaimError, value
from experiments.plan.spec import read_table

REFERENCE = re.compile(r"\{([^{}]*)\}")
FORM = re.compile(r"\+?\.\d[f]")
ABSENT = "(not run)"
OF_RUNS: dict[str, Callable[[Cell], float | None]] = {
    "std": lambda cell: cell.ours.std if cell.ours else None,
    "least": lambda cell: min(cell.values.values(), default=None),
    "most": lambda cell: max(cell.values.values(), default=None),
    "count": lambda cell: float(len(cell.values)),
}
KNOWN = (*OF_RUNS, "low", "high", "interval", "paper", "verdict")

T = TypeVar("T")


class _Fault(ValueError):
    """What is wrong with a reference."""


class _Absent(ValueError):
    """The runs of a reference are missing."""


@dataclass
class References:
    """Fills references in; `own` is the table that a reference without a table means."""

    own: Summary | None = None
    _read: dict[str, Summary] = field(default_factory=dict)
    _views: dict[tuple[str, str], Summary] = field(default_factory=dict)

    def fill(self, text: str, file: Path | None = None) -> str:
        """The text with each reference replaced; "(not run)" where runs are missing.

        Raises:
            TableError: a reference cannot be read; the message names file and line.
        """
        return REFERENCE.sub(lambda found: self._found(found[1], file), text)

    def _found(self, reference: str, file: Path | None) -> str:
        try:
            return self._value(reference)
        except _Absent:
            return ABSENT
        except (_Fault, ClaimError, SyntaxError) as error:
            why = "cannot be read" if isinstance(error, SyntaxError) else str(error)
            raise TableError(
                f"{self._place(reference, file)}: the reference {{{reference}}}: {why}. "
                "Write it like {column/row} or {column/row - other : .1f}; docs/adding.md lists the forms."
            ) from None

    def _place(self, reference: str, file: Path | None) -> str:
        file = file or (self.own.table.file if self.own else Path("text"))
        lines = file.read_text().splitlines() if file.exists() else []
        return f"{file}:{next((i for i, line in enumerate(lines, 1) if reference in line), 1)}"

    def _value(self, reference: str) -> str:
        place, _, form = reference.partition(":")
        place, _, metric = place.partition("@")
        form, metric = form.strip(), metric.strip()
        if form and not FORM.fullmatch(form):
            raise _Fault(f"the format {form!r} is none of .0f, .1f, +.2f and the like")
        parts = [part.strip() for part in place.split("/")]
        if len(parts) not in (2, 3) or not all(parts):
            raise _Fault("a place is column/row, or table/column/row")
        *tables, column, what = parts
        summary = self.of(*tables)
        if column not in summary.table.columns:
            raise _Fault(f"no column {column!r}. {suggest(column, summary.table.columns)}".rstrip("."))
        return _Evaluation(self._view(summary, metric), summary, column, form).text(what)

    def of(self, table: str = "") -> Summary:
        """What the records say of a table; each is read once."""
        if self.own and table in ("", self.own.table.name):
            return self.own
        if not table:
            raise _Fault("it names no table")
        if table not in self._read:
            self._read[table] = summarise(read_table(table), read_state(table))
        return self._read[table]

    def _view(self, summary: Summary, name: str) -> Summary:
        """The same cells by another metric."""
        table = summary.table
        if not name:
            return summary
        if (table.name, name) not in self._views:
            self._check_metric(summary, name)
            known = {v.table.metric.name: v.table.metric for v in (*summary.measures, *summary.scores)}
            scale = table.metric.scale if name.startswith(("test/", "val")) else 1.0
            own = {c: table.metric_name(c).replace("test/", "val/", 1) for c in table.columns}
            other = replace(
                table,
                metric=known.get(name) or replace(table.metric, name=name, scale=scale),
                columns={
                    c: replace(column, metric=own[c] if name == "val" else name)
                    for c, column in table.columns.items()
                },
                reported={},
                claims=(),
            )
            self._views[table.name, name] = view_of(other, {}, store.Records(summary.records))
        return self._views[table.name, name]

    def _check_metric(self, summary: Summary, name: str) -> None:
        """Refuse a metric that resembles those of the runs and is none."""
        if name == "val" or any(number(record, name) is not None for record in summary.records):
            return
        near = suggest(name, sorted({known for record in summary.records for known in record["metrics"]}))
        if near.startswith("Did"):
            raise _Fault(f"no run has the metric {name!r}. {near}".rstrip("."))


@dataclass(frozen=True)
class _Evaluation(ast.NodeTransformer):
    """One expression over the rows of one column."""

    summary: Summary  # by the metric of the reference
    page: Summary  # by the table's own, with verdicts
    column: str
    form: str

    def text(self, what: str) -> str:
        node = ast.parse(what, mode="eval").body
        match node:
            case ast.Call(func=ast.Name(id="verdict"), args=[claim]):
                return self._verdict(ast.unparse(claim))
            case ast.Call(func=ast.Name(id="interval"), args=[terms]):
                part = self._judged(terms)
                low, high = (self._number(end, sign="+") for end in _there(part.interval))
                few = " (two seeds)" if part.estimate.count < ENOUGH else ""
                return f"[{low}, {high}]{few}"
            case ast.Call(func=ast.Name(id="count"), args=[ast.Name()]):
                return f"{self._number_of(node):.0f}"
        return self._number(self._number_of(node))

    def _number(self, found: float, sign: str = "") -> str:
        form = self.form or f".{self.summary.table.metric.digits}f"
        said = f"{found:{form if form.startswith('+') else sign + form}}"
        return said if float(said) else said.replace("-", "")

    def _number_of(self, node: ast.expr) -> float:
        node = self.visit(node)  # calls and single runs become numbers
        names = self._rows(node)
        cells = {name: self.summary.cells[name, self.column] for name in names}
        seeds = shared_seeds([cell for cell in cells.values() if cell.planned])
        samples = {name: cell.of_seeds(seeds).sample for name, cell in cells.items()}
        return value(node, {name: _there(sample).mean for name, sample in samples.items()})

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(func=ast.Name(id="paper"), args=[terms]):
                cells = {name: self.page.cells[name, self.column].paper for name in self._rows(terms)}
                return ast.Constant(value(terms, {name: _there(found).mean for name, found in cells.items()}))
            case ast.Call(func=ast.Name(id="low" | "high" as end), args=[terms]):
                return ast.Constant(_there(self._judged(terms).interval)[end == "high"])
            case ast.Call(func=ast.Name(id=name), args=[ast.Name() as row]) if name in OF_RUNS:
                return ast.Constant(float(_there(OF_RUNS[name](self._cell(row)))))
            case ast.Call(func=ast.Name(id="min" | "max")):
                return self.generic_visit(node)  # type: ignore[return-value]
        raise _Fault(f"`{ast.unparse(node)}` is none of {', '.join(KNOWN)}")

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        match node:
            case ast.Subscript(value=ast.Name() as row, slice=ast.Constant(value=int() as seed)):
                return ast.Constant(_there(self._cell(row).values.get(seed)))
        raise _Fault(f"`{ast.unparse(node)}` names no seed, such as ce[0]")

    def _judged(self, terms: ast.expr) -> Part:
        """The difference of rows with its estimate."""
        claim = Claim("", f"{ast.unparse(terms)} > 0", (self.column,), rows=self._rows(terms))
        return _there(judge(claim, self.summary.cells, self.summary.table.metric)[0].part)

    def _verdict(self, claim: str) -> str:
        """The state of a claim on this column; of the mean over columns where it is on no other."""
        every = [v for page in (self.page, *self.page.measures) for v in page.verdicts]
        found = {v.column: v.state for v in reversed(every) if ast.unparse(ast.parse(v.claim.holds)) == claim}
        for column in (self.column, ""):
            if column in found:
                return found[column]
        raise _Fault(f"the table has no claim `{claim}` on {self.column}")

    def _cell(self, row: ast.Name) -> Cell:
        return self.summary.cells[self._rows(row)[0], self.column]

    def _rows(self, node: ast.expr) -> tuple[str, ...]:
        called = {n.func for n in ast.walk(node) if isinstance(n, ast.Call)}
        names = dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n not in called)
        for name in names:
            if name not in self.summary.table.rows:
                raise _Fault(f"no row {name!r}. {suggest(name, self.summary.table.rows)}".rstrip("."))
        return tuple(names)


def _there(found: T | None) -> T:
    if found is None:
        raise _Absent
    return found
