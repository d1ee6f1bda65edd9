"""A table file, read and checked: rows, columns, what the paper reports and claims.

Everything a person can mistype in conf/tables/*.yaml is refused here, before anything runs.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import yaml

from experiments.claims import Claim, ClaimError, read_claim
from experiments.errors import TableError, near
from experiments.table import TUNED, Changes, Column, Figure, Metric, Ratio, Row, Table

Tree = Any  # what YAML gave

TABLES = Path("conf/tables")
SWEEPS = Path("conf/sweeps")  # tables that search on validation
KEYS = {
    "table": (
        "title source metric measures seeds columns rows reported reported_runs claims notes figures "
        "ratios tuned changes".split()
    ),
    "metric": ["name", "scale", "digits", "better"],
    "measure": ["title", "metric", "rows", "reported", "claims"],
    "column": ["label", "config", "over", "note", "unavailable", "tuned", "instead_of", "metric"],
    "row": ["label", "config", "needs", "tuned", "set", "grid", "columns", "cited", "note"],
    "claim": ["says", "holds", "on", "across"],
    "source": ["paper", "table", "figure"],
    "ratio": ["says", "of", "to", "reported"],
    "figure": (
        "name title kind column rows values lines curve x x_label y_label label scale seeds smooth "
        "begins".split()
    ),
    "changes": ["title", "row", "column"],
}


def read_table(name: str) -> Table:
    """Read conf/tables/<name>.yaml, conf/sweeps/<name>.yaml, or the file of that path."""
    path, tree = _load(name)
    return _Reader(path).table(tree)


def select(kind: str, wanted: str | None, options: Iterable[Any]) -> list[Any]:
    """Names of a comma-separated choice, in the table's order; all where nothing is chosen."""
    options = list(options)
    if not wanted:
        return options
    names = [w.strip() for w in wanted.split(",") if w.strip()]
    for name in names or [wanted]:
        if name not in map(str, options):
            raise TableError(f"There is no {kind} {name!r} in this table. {near(name, map(str, options))}")
    return [o for o in options if str(o) in names]


def _load(name: str) -> tuple[Path, Tree]:
    """Where a table is, and what its file holds."""
    places = [Path(name)] if name.endswith(".yaml") else [f / f"{name}.yaml" for f in (TABLES, SWEEPS)]
    path = next((place for place in places if place.exists()), places[0])
    if not path.exists():
        names = sorted(p.stem for folder in (TABLES, SWEEPS) for p in folder.glob("*.yaml"))
        raise TableError(f"There is no table {name!r} (looked for {path}). {near(name, names)}")
    try:
        return path, yaml.load(path.read_text(), _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise TableError(f"{path} is not YAML: {error}") from None


class _Loader(yaml.SafeLoader):
    """YAML 1.2 booleans: `on` is a word, as it is in claims."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:bool"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|false|False)$"), list("tTfF")
)


class _Reader:
    """Turns the tree of one file into a Table, naming the place of every fault."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def table(self, tree: Tree) -> Table:
        self._keys("table", "", tree)
        for key in ("title", "metric", "seeds", "columns", "rows"):
            if key not in tree:
                self._fail(f"`{key}` is missing.")
        columns = {name: self._column(name, t) for name, t in self._written_out("columns", tree).items()}
        trees = {
            name: t for n, rest in self._written_out("rows", tree).items() for name, t in self._grid(n, rest)
        }
        rows = {name: self._row(name, t, columns) for name, t in trees.items()}
        self._needs(rows)
        self._tuned(str(tree.get("tuned") or self.path.stem), rows, columns)
        table = Table(
            name=self.path.stem,
            title=str(tree["title"]),
            source=self._keys("source", "source", tree.get("source") or {}),
            metric=self._metric(tree["metric"]),
            seeds=self._seeds(tree["seeds"]),
            columns=columns,
            rows=rows,
            reported=self._reported(tree.get("reported") or {}, rows, columns),
            reported_runs=tree.get("reported_runs"),
            claims=self._claims(tree, rows, columns),
            notes=tuple(map(str, tree.get("notes") or [])),
            tuned=str(tree.get("tuned") or self.path.stem),
            ratios=tuple(self._ratio(i, t, rows) for i, t in enumerate(tree.get("ratios") or [])),
            figures=tuple(self._figure(i, t, rows, columns) for i, t in enumerate(tree.get("figures") or [])),
            changes=tuple(
                self._changes(i, t, rows, columns) for i, t in enumerate(tree.get("changes") or [])
            ),
        )
        measures = (self._measure(i, t, table) for i, t in enumerate(tree.get("measures") or []))
        return replace(table, measures=tuple(measures))

    def _written_out(self, kind: str, tree: Tree) -> dict[str, Tree]:
        """All rows or columns; one that is a word is the one of its name in the table so called."""
        trees = {str(name): t for name, t in self._dict(kind, tree[kind]).items()}
        read: dict[str, tuple[Path, Tree]] = {}
        for name, lender in trees.items():
            if isinstance(lender, str):
                try:
                    path, lent = read[lender] = read.get(lender) or _load(lender)
                except TableError as error:
                    self._fail(f"{kind}.{name}: {error}")
                trees[name] = self._dict(f"{kind} of {path}", self._dict(str(path), lent).get(kind)).get(name)
                if not isinstance(trees[name], dict):
                    self._fail(f"{kind}.{name} is said to be that of {lender}, and {path} writes out none.")
        return trees

    def _metric(self, tree: Tree, place: str = "metric") -> Metric:
        metric = Metric(**self._keys("metric", place, tree))
        if metric.better not in ("higher", "lower"):
            self._fail(f"{place}.better is {metric.better!r}; write higher or lower.")
        return metric

    def _measure(self, index: int, tree: Tree, table: Table) -> Table:
        """The table, or some of its rows, seen through another metric: same cells, other numbers."""
        place = f"measures[{index}]"
        tree = self._keys("measure", place, tree)
        if "metric" not in tree:
            self._fail(f"{place}.metric is missing.")
        for row in (shown := tree.get("rows") or table.rows):
            self._known(f"{place}.rows", "row", row, table.rows)
        rows = {name: row for name, row in table.rows.items() if name in shown}
        return replace(
            table,
            title=str(tree.get("title", tree["metric"].get("name"))),
            rows=rows,
            metric=self._metric(tree["metric"], f"{place}.metric"),
            columns={name: replace(column, metric="") for name, column in table.columns.items()},
            reported=self._reported(tree.get("reported") or {}, rows, table.columns),
            claims=self._claims(tree, rows, table.columns),
            figures=(),
            changes=(),
            ratios=(),
        )

    def _ratio(self, index: int, tree: Tree, rows: dict[str, Row]) -> Ratio:
        place = f"ratios[{index}]"
        tree = self._keys("ratio", place, tree)
        for key in ("says", "of", "to"):
            if key not in tree:
                self._fail(f"{place}.{key} is missing.")
        for key in ("of", "to"):
            self._known(f"{place}.{key}", "row", tree[key], rows)
        return Ratio(**tree)

    def _figure(self, index: int, tree: Tree, rows: dict[str, Row], columns: dict[str, Column]) -> Figure:
        place = f"figures[{index}]"
        tree = self._keys("figure", place, tree)
        for key in ("name", "title", "kind", "column"):
            if key not in tree:
                self._fail(f"{place}.{key} is missing.")
        choices = {
            "kind": ("sweep", "curves"),
            "x": ("epoch", "minutes"),
            "scale": ("log", "linear"),
            "seeds": ("first", "all"),
        }
        for key, known in choices.items():
            self._known(f"{place}.{key}", f"{key} of figure", tree.get(key, known[0]), known)
        self._known(f"{place}.column", "column", tree["column"], columns)
        for row in (*tree.get("rows", ()), *tree.get("values", ()), *tree.get("lines", ())):
            self._known(place, "row", row, rows)
        return Figure(**tree)

    def _changes(self, index: int, tree: Tree, rows: dict[str, Row], columns: dict[str, Column]) -> Changes:
        place = f"changes[{index}]"
        tree = self._keys("changes", place, tree)
        for key, options in (("title", None), ("row", rows), ("column", columns)):
            if key not in tree:
                self._fail(f"{place}.{key} is missing.")
            if options is not None:
                self._known(f"{place}.{key}", key, tree[key], options)
        return Changes(**tree)

    def _column(self, name: str, tree: Tree) -> Column:
        tree = self._keys("column", f"columns.{name}", tree)
        config, over = (self._files(f"columns.{name}.{key}", tree.pop(key, [])) for key in ("config", "over"))
        return Column(name, str(tree.pop("label", name)), config, over, **tree)

    def _grid(self, name: str, tree: Tree) -> Iterator[tuple[str, Tree]]:
        """The rows of a tree: itself, or with a `grid` one for each point, named and labelled by it."""
        if not isinstance(tree, dict) or "grid" not in tree:
            yield name, tree
            return
        place = f"rows.{name}.grid"
        grid = self._dict(place, tree["grid"])
        for key, values in grid.items():
            if not isinstance(values, list) or not values:
                self._fail(f"{place}.{key} is {values!r}; write a list of values.")
        rest = {key: value for key, value in tree.items() if key != "grid"}
        for index, point in enumerate(product(*grid.values())):
            told = ", ".join(
                f"{key.rpartition('.')[2]} {value}" for key, value in zip(grid, point, strict=True)
            )
            chosen = {**rest.get("set", {}), **dict(zip(grid, point, strict=True))}
            yield f"{name}_{index}", rest | {"label": f"{tree.get('label', name)}: {told}", "set": chosen}

    def _row(self, name: str, tree: Tree, columns: dict[str, Column]) -> Row:
        place = f"rows.{name}"
        if not name.isidentifier():
            self._fail(f"{place}: a row's name is letters, digits and _, so that claims can say it.")
        tree = self._keys("row", place, tree)
        config = self._files(f"{place}.config", tree.pop("config", []))
        if bool(config) == bool(tree.pop("cited", not config)):
            self._fail(f"{place}: a row has either `config` or `cited: true`.")
        only = tree.pop("columns", None)
        for column in only or []:
            self._known(f"{place}.columns", "column", column, columns)
        tree["columns"] = None if only is None else tuple(only)
        return Row(name, str(tree.pop("label", name)), config, **tree)

    def _needs(self, rows: dict[str, Row]) -> None:
        for row in rows.values():
            for key, needed in row.needs.items():
                self._known(f"rows.{row.name}.needs.{key}", "row", needed, rows)
                if rows[needed].cited:
                    self._fail(f"rows.{row.name}.needs.{key}: {needed} is cited, it has no run to take from.")
        for row in rows.values():
            seen, todo = set(), [row.name]
            while todo:
                for needed in rows[todo.pop()].needs.values():
                    if needed == row.name:
                        self._fail(f"rows.{row.name}.needs leads back to itself.")
                    if needed not in seen:
                        seen.add(needed)
                        todo.append(needed)

    def _tuned(self, table: str, rows: dict[str, Row], columns: dict[str, Column]) -> None:
        """A tuned file named by hand must be there for some column."""
        folder = TUNED / table
        there = sorted({path.stem for path in folder.glob("*/*.yaml")})
        for row in rows.values():
            if row.tuned:
                self._known(
                    f"rows.{row.name}.tuned (a file in {folder}/*)", "settings file", row.tuned, there
                )
        for column in columns.values():
            self._known(
                f"columns.{column.name}.instead_of", "column", column.instead_of or column.name, columns
            )
            if column.tuned:
                folders = sorted(path.name for path in folder.glob("*"))
                self._known(f"columns.{column.name}.tuned", f"folder in {folder}", column.tuned, folders)

    def _seeds(self, seeds: Tree) -> tuple[int, ...]:
        if (
            not isinstance(seeds, list)
            or not all(type(s) is int for s in seeds)
            or len(set(seeds)) != len(seeds)
        ):
            self._fail(f"seeds is {seeds!r}; write a list of different whole numbers, such as [0, 1, 2].")
        return tuple(seeds)

    def _reported(
        self, tree: Tree, rows: dict[str, Row], columns: dict[str, Column]
    ) -> dict[str, dict[str, tuple[float, float | None]]]:
        reported: dict[str, dict[str, tuple[float, float | None]]] = {}
        for row, cells in self._dict("reported", tree).items():
            self._known("reported", "row", row, rows)
            for column, numbers in self._dict(f"reported.{row}", cells).items():
                self._known(f"reported.{row}", "column", column, columns)
                pair = numbers if isinstance(numbers, list) else [numbers]
                if not 1 <= len(pair) <= 2 or not all(isinstance(p, int | float) for p in pair):
                    self._fail(f"reported.{row}.{column} is {numbers!r}; write [mean, std] or one number.")
                reported.setdefault(row, {})[column] = (pair[0], pair[1] if len(pair) == 2 else None)
        return reported

    def _claims(self, tree: Tree, rows: dict[str, Row], columns: dict[str, Column]) -> tuple[Claim, ...]:
        return tuple(self._claim(i, t, rows, columns) for i, t in enumerate(tree.get("claims") or []))

    def _claim(self, index: int, tree: Tree, rows: dict[str, Row], columns: dict[str, Column]) -> Claim:
        place = f"claims[{index}]"
        tree = self._keys("claim", place, tree)
        for column in tree.get("on") or []:
            self._known(f"{place}.on", "column", column, columns)
        try:
            return read_claim(tree, rows, columns)
        except ClaimError as error:
            self._fail(f"{place}: {error}")

    def _files(self, place: str, names: Tree) -> tuple[str, ...]:
        names = [names] if isinstance(names, str) else names
        for name in names:
            if not Path(name).exists():
                siblings = [str(p) for p in Path(name).parent.glob("*.yaml")]
                self._fail(f"{place}: there is no file {name}. {near(name, siblings)}")
        return tuple(names)

    def _keys(self, kind: str, place: str, tree: Tree) -> dict[str, Any]:
        for key in self._dict(place or "the file", tree):
            if key not in KEYS[kind]:
                where = f"{place}.{key}" if place else key
                self._fail(f"{where} is not a key of a {kind}. {near(str(key), KEYS[kind])}")
        return dict(tree)

    def _dict(self, place: str, tree: Tree) -> dict[Any, Any]:
        if not isinstance(tree, dict):
            self._fail(f"{place} should hold `name: value` pairs, not {tree!r}.")
        return tree

    def _known(self, place: str, kind: str, name: str, options: Iterable[str]) -> None:
        if name not in options:
            self._fail(f"{place}: there is no {kind} {name!r}. {near(str(name), options)}")

    def _fail(self, message: str) -> NoReturn:
        raise TableError(f"{self.path}: {message}")
