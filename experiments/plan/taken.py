"""Rows and columns that a table takes from another one, and the file of a table."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from experiments.errors import TableError, short, suggest
from experiments.fields import shown
from experiments.plan.layers import rows_of
from experiments.plan.reader import Reader, is_file
from experiments.plan.table import CALLBACKS, TABLES, TUNED
from experiments.plan.yaml_file import Tree, YamlFile, read_yaml
from experiments.sweep.file import SWEEPS, kind_of, refuse_name


def load(name: str) -> YamlFile:
    """The file of a table."""
    path = Path(name) if name.endswith(".yaml") else TABLES / f"{name}.yaml"
    if not is_file(path):
        unknown = f"There is no table {shown(name)} (looked for {short(str(path))})."
        if is_file(SWEEPS / path.name):
            raise TableError(f"{unknown} There is a sweep of this name:  make sweep SWEEP={path.stem}")
        raise TableError(f"{unknown} {suggest(name, sorted(p.stem for p in TABLES.glob('*.yaml')))}")
    file = read_yaml(path)
    if kind_of(file.tree) == "sweep":
        raise TableError(f"{path} is a sweep, not a table:  make sweep SWEEP={path}")
    refuse_name(path)
    return file


class TakingReader(Reader):
    """Writes out the rows and columns of one file that are those of another table."""

    def written_out(self, kind: str, tree: Tree) -> dict[str, Tree]:
        """All rows or columns; a word as value is the name of the table that defines the row or column.

        Of the columns that a row of another table names, those stay that this table has. A row gets the
        callbacks by which measures of its table take it.
        """
        trees = {str(name): t for name, t in tree[kind].items()}
        read: dict[str, YamlFile] = {}
        for name, lender in trees.items():
            place = f"{kind}.{name}"
            if isinstance(lender, str):
                try:
                    file = read[lender] = read.get(lender) or load(lender)
                except TableError as error:
                    self.fail(place, f": {error}")
                lent = file.tree.get(kind) if isinstance(file.tree, dict) else None
                trees[name] = lent.get(name) if isinstance(lent, dict) else None
                if not isinstance(trees[name], dict):
                    self.fail(place, f" is said to be that of {lender}, and {file.path} writes out none.")
                if only := trees[name].get("columns"):
                    trees[name] = {**trees[name], "columns": [c for c in only if c in tree["columns"]]}
                if kind == "rows":
                    theirs = [
                        c
                        for c, of in tree["columns"].items()
                        if of == lender and c in (only or tree["columns"])
                    ]
                    self._refuse_lost_settings(name, trees[name], file, theirs)
            if kind == "rows":
                lenders = [read[lender].tree] if isinstance(lender, str) else []
                measures = [m for t in (tree, *lenders) for m in numbered("measures", t)]
                taken = [m["by"] for m in (self.keyed("measure", *m) for m in measures) if _takes(m, name)]
                trees[name] = _measured(trees[name], taken)
        return trees

    def _refuse_lost_settings(self, name: str, row: Tree, lender: YamlFile, columns: list[str]) -> None:
        """Refuse cells of another table, row and column, that would run here without their settings."""
        folders = [TUNED / str(file.tree.get("tuned", file.path.stem)) for file in (lender, self.file)]
        for column in columns:
            own = f"{lender.tree['columns'][column].get('tuned', column)}.yaml"
            theirs, ours = (str(row.get("tuned", name)) in _settings(folder / own) for folder in folders)
            if theirs and not ours:
                self.fail(
                    f"rows.{name}",
                    f" and columns.{column} are those of {lender.path.stem}, whose settings for them are in "
                    f"{folders[0]}; this table reads {folders[1]}. Add:  tuned: {folders[0].name}",
                )


def _settings(file: Path) -> Iterable[str]:
    return rows_of(file) if file.exists() else ()


def _takes(measure: Tree, row: str) -> bool:
    return "by" in measure and row in measure.get("rows", [])


def _measured(row: Tree, taken: list[str]) -> Tree:
    """A row with callbacks of these classes beside its own; what is no row is refused later."""
    chosen = row.get("set", {}) if isinstance(row, dict) else None
    if not taken or not isinstance(chosen, dict):
        return row
    callbacks = [*chosen.get(CALLBACKS, []), *({"class_path": by} for by in dict.fromkeys(taken))]
    return row | {"set": chosen | {CALLBACKS: callbacks}}


def numbered(kind: str, tree: Tree) -> Iterator[tuple[str, Tree]]:
    """The place and tree of each item of a list."""
    return ((f"{kind}[{i}]", one) for i, one in enumerate(tree.get(kind, [])))
