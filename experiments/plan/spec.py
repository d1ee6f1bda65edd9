"""A table file, read and checked: rows, columns, what the paper reports and claims.

Every mistake in conf/tables/*.yaml raises an error here, before anything runs.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from experiments import fields
from experiments.errors import SweepError, TableError, suggest
from experiments.fields import shown
from experiments.plan.claims import Claim, ClaimError, read_claim
from experiments.plan.keys import REPORTED, TABLE
from experiments.plan.layers import rows_of
from experiments.plan.table import (
    TABLES,
    TUNED,
    Changes,
    Column,
    Figure,
    Gain,
    Metric,
    Ratio,
    Row,
    Table,
)
from experiments.plan.taken import TakingReader, load, numbered
from experiments.plan.yaml_file import Tree
from experiments.sweep.file import read_sweep

POINTS = 1000  # of a sweep


def read_table(name: str) -> Table:
    """Read conf/tables/<name>.yaml, or the file of that path."""
    file = load(name)
    return _Reader(file).table(file.tree)


def select(
    kind: str, wanted: str | None, options: Iterable[Any], groups: Mapping[str, Sequence[str]] | None = None
) -> list[Any]:
    """The names in a comma-separated choice, in the table's order; all if nothing is chosen.

    `groups` are names that stand for several options: `cd` for the points cd_0, cd_1, ... of its sweep.

    Raises:
        TableError: a name is none of the options or groups.
    """
    options, groups = list(options), groups or {}
    if not wanted:
        return options
    names = [w.strip() for w in wanted.split(",") if w.strip()]
    known = [*map(str, options), *groups]
    for name in names or [wanted]:
        if name not in known:
            raise TableError(f"There is no {kind} {name!r} in this table. {suggest(name, known)}")
    chosen = {option for name in names for option in groups.get(name, [name])}
    return [option for option in options if str(option) in chosen]


class _Reader(TakingReader):
    """Turns the tree of one file into a Table, naming line and key of every fault."""

    keys = TABLE

    def table(self, tree: Tree) -> Table:
        tree = self.keyed("table", "", tree, needed=("title", "metric", "seeds", "columns", "rows"))
        columns = {name: self._column(name, t) for name, t in self.written_out("columns", tree).items()}
        written = self.written_out("rows", tree)
        points = {name: dict(self._points(name, rest)) for name, rest in written.items()}
        trees = {name: t for of_one in points.values() for name, t in of_one.items()}
        rows = {name: self._row(name, t, columns) for name, t in trees.items()}
        if rows.keys() != tree["rows"].keys():
            self._searches(tree, columns)
        self._needs(rows)
        tuned = tree.get("tuned", self.path.stem)
        self._tuned(tuned, rows, columns)
        table = Table(
            name=self.path.stem,
            title=str(tree["title"]),
            source=self.keyed("source", "source", tree.get("source", {})),
            metric=self._metric(tree["metric"]),
            seeds=self._seeds(tree["seeds"]),
            columns=columns,
            rows=rows,
            reported=self._reported("reported", tree, rows, columns),
            reported_runs=tree.get("reported_runs"),
            claims=self._claims("claims", tree, rows, columns),
            notes=tuple(map(str, tree.get("notes", []))),
            tuned=tuned,
            extras=tuple(tree.get("extras", ())),
            path=None if self.path.parent.resolve() == TABLES.resolve() else self.path,
            ratios=tuple(self._ratio(*one, rows) for one in numbered("ratios", tree)),
            sweeps={name: tuple(of_one) for name, of_one in points.items() if name not in of_one},
            gains=tuple(self._gain(*one, rows) for one in numbered("gains", tree)),
            figures=tuple(self._figure(*one, rows, columns) for one in numbered("figures", tree)),
            changes=tuple(self._changes(*one, rows, columns) for one in numbered("changes", tree)),
        )
        measures = tuple(self._measure(*one, table) for one in numbered("measures", tree))
        self._figures_of(measures, table.figures)
        return replace(
            table,
            measures=measures,
            scores=tuple(_scored(table, name) for name in tree.get("scores", [])),
        )

    def _metric(self, tree: Tree, place: str = "metric") -> Metric:
        return Metric(**self.keyed("metric", place, tree, needed=("name",)))

    def _measure(self, place: str, tree: Tree, table: Table) -> Table:
        """The table, or some of its rows, with another metric: the same cells, other numbers.

        `columns` names the metric of a column that has another than `metric`. `by` is the callback that takes
        the measure: its rows have it.
        """
        tree = self.keyed("measure", place, tree, needed=("metric", *["rows"] * ("by" in tree)))
        metric = self._metric(tree["metric"], f"{place}.metric")
        for row in (shown_rows := tree.get("rows") or table.rows):
            self.known(f"{place}.rows", "row", row, table.rows)
        for column in (own := tree.get("columns", {})):
            self.known(f"{place}.columns", "column", column, table.columns)
        rows = {name: row for name, row in table.rows.items() if name in shown_rows}
        return replace(
            table.bare(),
            title=str(tree.get("title", metric.name)),
            rows=rows,
            metric=metric,
            columns={
                name: replace(column, metric=own.get(name, "")) for name, column in table.columns.items()
            },
            reported=self._reported(f"{place}.reported", tree, rows, table.columns),
            claims=self._claims(f"{place}.claims", tree, rows, table.columns),
        )

    def _figures_of(self, measures: tuple[Table, ...], figures: tuple[Figure, ...]) -> None:
        """Refuse figures of a metric that no measure has for all their rows."""
        rows = {measure.metric.name: measure.rows for measure in reversed(measures)}  # plots takes the first
        for at, figure in enumerate(figures):
            if figure.metric:
                self.known(f"figures[{at}].metric", "measure of the metric", figure.metric, rows)
                for row in figure.rows:
                    self.known(f"figures[{at}].rows", "row of that measure", row, rows[figure.metric])

    def _ratio(self, place: str, tree: Tree, rows: dict[str, Row]) -> Ratio:
        tree = self.keyed("ratio", place, tree, needed=("says", "of", "to"))
        for key in ("of", "to"):
            self.known(f"{place}.{key}", "row", tree[key], rows)
        return Ratio(**tree)

    def _gain(self, place: str, tree: Tree, rows: dict[str, Row]) -> Gain:
        tree = self.keyed("gain", place, tree, needed=("title", "of", "over"))
        for key in ("of", "over"):
            self.known(f"{place}.{key}", "row", tree[key], rows)
            if rows[tree[key]].cited:
                self.fail(f"{place}.{key}", f" is {tree[key]}, which has no runs.")
        if tree["of"] == tree["over"]:
            self.fail(f"{place}.over", f" is {tree['over']} as `of` is: name two rows.")
        return Gain(**tree)

    def _figure(self, place: str, tree: Tree, rows: dict[str, Row], columns: dict[str, Column]) -> Figure:
        tree = self.keyed("figure", place, tree, needed=("name", "title", "kind"))
        shape = {
            "sweep": ("column", "values"),
            "columns": ("columns", "rows"),
            "curves": ("column", "rows", "curve"),
            "masks": ("column", "rows"),
        }[tree["kind"]]
        self.keyed("figure", place, tree, needed=shape)
        if "metric" in tree and tree["kind"] != "columns":
            self.fail(f"{place}.metric", " is for figures of kind columns.")
        for column in tree.get("columns", [tree.get("column")]):
            self.known(f"{place}.column", "column", column, columns)
        for key in ("rows", "values", "lines"):
            for row in tree.get(key, ()):
                self.known(f"{place}.{key}", "row", row, rows)
        return Figure(**tree)

    def _changes(self, place: str, tree: Tree, rows: dict[str, Row], columns: dict[str, Column]) -> Changes:
        tree = self.keyed("changes", place, tree, needed=("title", "row", "column"))
        self.known(f"{place}.row", "row", tree["row"], rows)
        self.known(f"{place}.column", "column", tree["column"], columns)
        return Changes(**tree)

    def _column(self, name: str, tree: Tree) -> Column:
        place = f"columns.{name}"
        self.check(fields.name, place, name)
        tree = self.keyed("column", place, tree)
        config = self._files(f"{place}.config", tree.pop("config", []))
        return Column(name, str(tree.pop("label", name)), config, **tree)

    def _points(self, name: str, tree: Tree) -> Iterator[tuple[str, Tree]]:
        """The rows of a tree: itself, or one for each point of its `sweep`, numbered and labelled."""
        place = f"rows.{name}"
        if not name.isidentifier() or len(name) > 80:
            self.fail(place, ": a row's name is letters, digits and _, so that claims can say it.")
        rest = self.keyed("row", place, tree)
        if "sweep" not in rest:
            yield name, rest
            return
        rest, grid = self._sweep(place, rest)
        if math.prod(map(len, grid.values())) > POINTS:
            self.fail(f"{place}.sweep", f" has more than {POINTS:,} points. Give fewer values.")
        for index, point in enumerate(product(*grid.values())):
            values = ", ".join(
                f"{key.rpartition('.')[2]} {value}" for key, value in zip(grid, point, strict=True)
            )
            chosen = {**rest.get("set", {}), **dict(zip(grid, point, strict=True))}
            yield f"{name}_{index}", rest | {"label": f"{rest.get('label', name)}: {values}", "set": chosen}

    def _sweep(self, place: str, tree: Tree) -> tuple[Tree, dict[str, list[Any]]]:
        """A row whose files, fixed options and grid are those of a sweep, in the order of its file."""
        for key in ("config", "set", "tuned", "cited"):
            if key in tree:
                self.fail(f"{place}.{key}", " comes from the sweep, write it there.")
        try:
            sweep = read_sweep(tree.pop("sweep"))
        except SweepError as error:
            self.fail(f"{place}.sweep", f": {error}")
        if sweep.method != "grid":
            self.fail(f"{place}.sweep", f": {sweep.path} has method {sweep.method}, a row takes a grid.")
        grid = {name: sweep.parameters[name].grid() or [] for name in sweep.raw["parameters"]}
        return tree | {"layers": sweep.layers, "set": sweep.options}, grid

    def _searches(self, tree: Tree, columns: dict[str, Column]) -> None:
        """A table with points to choose from is judged on validation."""
        named = {"metric.name": tree["metric"]["name"]}
        named |= {f"columns.{name}.metric": column.metric for name, column in columns.items()}
        named |= {f"{p}.metric.name": one["metric"]["name"] for p, one in numbered("measures", tree)}
        for place, metric in named.items():
            if metric.startswith("test/"):
                validation = metric.replace("test/", "val/", 1)
                self.fail(place, f" is {metric}; a table with a sweep chooses by {validation}.")

    def _row(self, name: str, tree: Tree, columns: dict[str, Column]) -> Row:
        place, tree = f"rows.{name}", dict(tree)
        config = self._files(f"{place}.config", tree.pop("config", []))
        if layers := tree.pop("layers", ()):
            config, tree["columns"] = self._fitting(place, layers, tree, columns)
        if bool(config) == bool(tree.pop("cited", not config)):
            self.fail(place, ": a row has either `config` or `cited: true`.")
        only = tree.pop("columns", None)
        for column in only or []:
            self.known(f"{place}.columns", "column", column, columns)
        tree["columns"] = None if only is None else tuple(only)
        return Row(name, str(tree.pop("label", name)), config, **tree)

    def _fitting(
        self, place: str, layers: tuple[str, ...], tree: Tree, columns: dict[str, Column]
    ) -> tuple[tuple[str, ...], list[str]]:
        """The files of a sweep above its data, and the columns of this data."""
        fitting = [c for c in columns.values() if c.config and layers[: len(c.config)] == c.config]
        if not fitting:
            self.fail(f"{place}.sweep", f" begins with {layers[0]}, and no column has that config.")
        chosen = tree.get("columns") or [column.name for column in fitting]
        return layers[len(fitting[0].config) :], chosen

    def _needs(self, rows: dict[str, Row]) -> None:
        for row in rows.values():
            for key, needed in row.needs.items():
                place = f"rows.{row.name}.needs.{key}"
                self.known(place, "row", needed, rows)
                if rows[needed].cited:
                    self.fail(place, f": {needed} is cited, it has no run to take from.")
        for row in rows.values():
            seen, todo = set(), [row.name]
            while todo:
                for needed in rows[todo.pop()].needs.values():
                    if needed == row.name:
                        self.fail(f"rows.{row.name}.needs", " leads back to itself.")
                    if needed not in seen:
                        seen.add(needed)
                        todo.append(needed)

    def _tuned(self, table: str, rows: dict[str, Row], columns: dict[str, Column]) -> None:
        """Named settings must exist for some column."""
        folder = TUNED / table
        files = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
        there = {tuned for path in files.values() for tuned in rows_of(path)}
        for row in rows.values():
            if row.tuned:
                kind = f"row in the files of {folder}"
                self.known(f"rows.{row.name}.tuned", kind, row.tuned, sorted(there))
        for column in columns.values():
            place = f"columns.{column.name}"
            self.known(f"{place}.instead_of", "column", column.instead_of or column.name, columns)
            if column.tuned:
                self.known(f"{place}.tuned", f"file in {folder}", column.tuned, files)

    def _seeds(self, seeds: list[int]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            self.fail("seeds", f" is {shown(seeds)}; write different whole numbers, such as [0, 1, 2].")
        return tuple(seeds)

    def _reported(
        self, place: str, tree: Tree, rows: dict[str, Row], columns: dict[str, Column]
    ) -> dict[str, dict[str, tuple[float, float | None]]]:
        reported: dict[str, dict[str, tuple[float, float | None]]] = {}
        for row, cells in tree.get("reported", {}).items():
            self.known(f"{place}.{row}", "row", row, rows)
            for column, numbers in cells.items():
                self.known(f"{place}.{row}.{column}", "column", column, columns)
                self.check(REPORTED, f"{place}.{row}.{column}", numbers)
                mean, std = (*numbers, None)[:2] if isinstance(numbers, list) else (numbers, None)
                reported.setdefault(row, {})[column] = (mean, std)
        return reported

    def _claims(
        self, place: str, tree: Tree, rows: dict[str, Row], columns: dict[str, Column]
    ) -> tuple[Claim, ...]:
        return tuple(
            self._claim(f"{place}[{i}]", one, rows, columns) for i, one in enumerate(tree.get("claims", []))
        )

    def _claim(self, place: str, tree: Tree, rows: dict[str, Row], columns: dict[str, Column]) -> Claim:
        tree = self.keyed("claim", place, tree, needed=("holds",))
        for column in tree.get("on", []):
            self.known(f"{place}.on", "column", column, columns)
        try:
            return read_claim(tree, rows, columns)
        except ClaimError as error:
            self.fail(f"{place}.holds", f": {error}")

    def _files(self, place: str, names: str | list[str]) -> tuple[str, ...]:
        names = [names] if isinstance(names, str) else names
        for name in names:
            self.is_file(place, name)
        return tuple(names)


def _scored(table: Table, name: str) -> Table:
    """The table by another score of the same scale; the paper's numbers are none of it."""
    columns = {column.name: replace(column, metric="") for column in table.columns.values()}
    return replace(table, metric=replace(table.metric, name=name), columns=columns, reported={})
