"""The numbers in the notes of tables, and whether something stands behind each.

A number may be a reference to records, the paper's own (under `reported`), or a setting in the config of a
run. Any other stands in docs/quoted.yaml with a committed file that has it.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from experiments import store
from experiments.page.references import REFERENCE
from experiments.plan.spec import read_table
from experiments.plan.table import TUNED, Table

QUOTED = Path("docs/quoted.yaml")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w)( %)?")
# What names a thing and measures nothing: references, code, links, options, tables, seeds, years, the level.
NAMES = re.compile(
    rf"{REFERENCE.pattern}|`[^`]*`|\]\([^)]*\)|https?:\S+|--\S+"
    r"|(?:[Tt]able|[Ff]igure|eqs?\.|§|[Ss]eeds?|[Ff]olds?|torch) \d+(?:\.\d+)?"
    r"|[(]?\b20\d\d\b[)]?|intervals? of 95 %|\d/\d/\d"
)


def texts(table: Table) -> Iterator[tuple[str, str]]:
    """Each note of a table and where it stands."""
    for kind, named in (("columns", table.columns), ("rows", table.rows)):
        for name, one in named.items():
            yield f"{kind}.{name}.note", one.note
    yield from ((f"notes[{i}]", note) for i, note in enumerate(table.notes))


def numbers(text: str) -> list[str]:
    """The numbers that a text writes out itself."""
    return [found[0] for found in NUMBER.finditer(NAMES.sub(" ", text))]


def unsupported(table: Table) -> list[str]:
    """The numbers of a table's notes that nothing committed stands behind."""
    known = settings(table) | printed(table)
    quoted = {n for entry in quotations() if table.name in entry["tables"] for n in entry["numbers"]}
    return [
        f"conf/tables/{table.name}.yaml: {place}: {number}"
        for place, text in texts(table)
        for number in numbers(text)
        if number not in quoted and (number.endswith("%") or as_float(number) not in known)
    ]


def as_float(number: str) -> float:
    """A number as it is written in prose."""
    return abs(float(number.removesuffix(" %").replace(",", "")))


def printed(table: Table) -> set[float]:
    """The paper's numbers."""
    views = (table, *table.measures)
    cells = [cell for v in views for row in v.reported.values() for cell in row.values()]
    return {float(part) for cell in cells for part in cell if part is not None}


def settings(table: Table) -> set[float]:
    """All numbers in the resolved configs of a table's runs, and in its rows' and columns' config files."""
    tuned = TUNED / (table.tuned or table.name)
    files = {Path(file) for one in (*table.columns.values(), *table.rows.values()) for file in one.config}
    files |= {tuned / f"{column.tuned or column.name}.yaml" for column in table.columns.values()}
    trees: list[object] = [yaml.safe_load(path.read_text()) for path in files if path.exists()]
    trees += [record["config"] for record in store.read_results(table.name).records]
    trees += [row.set for row in table.rows.values()]
    return set(leaves(trees))


def leaves(tree: object) -> Iterator[float]:
    """The numbers in a tree, as written."""
    if isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(value)
    elif isinstance(tree, str) and NUMBER.fullmatch(tree):
        yield as_float(tree)  # YAML reads 1e-3 as text
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield abs(tree)


@cache
def quotations() -> list[dict[str, Any]]:
    """The list of exceptions."""
    return yaml.safe_load(QUOTED.read_text()) or []


def has(file: Path, number: str, at: str | None = None) -> bool:
    """Whether a file has a number in its text; in JSON under the key `at`, rounded to as many digits."""
    if file.suffix == ".json":
        digits, tree = len(number.partition(".")[2]), json.loads(file.read_text())
        return as_float(number) in {round(n, digits) for n in leaves(tree[at] if at else tree)}
    return as_float(number) in {as_float(found[0]) for found in NUMBER.finditer(file.read_text())}


@cache
def tables() -> list[Table]:
    """All tables of conf/tables."""
    return [read_table(path.stem) for path in sorted(Path("conf/tables").glob("*.yaml"))]
