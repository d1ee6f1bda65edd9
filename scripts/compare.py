"""Compare finished runs: which settings differ, and their scores side by side.

    python -m scripts.compare RUN RUN [RUN ...]

A RUN is the folder of a finished run. Settings are compared with those of the first.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import store
from experiments.errors import UserError
from experiments.plan.identity import difference
from scripts.options import refused


def main(arguments: list[str] | None = None) -> int:
    """Parse, read the records, print."""
    parser = argparse.ArgumentParser(prog="python -m scripts.compare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a finished run")
    given = parser.parse_args(arguments)
    try:
        if len(given.runs) < 2:
            raise UserError("Give the folders of two runs or more.")
        records = [store.record_in(folder) for folder in given.runs]
    except UserError as error:
        return refused(error)
    console = Console(highlight=False, soft_wrap=True)
    for folder, record in zip(given.runs[1:], records[1:], strict=True):
        changes = differences(records[0], record)
        console.print(Text(f"{given.runs[0]} -> {folder}:{'' if changes else ' nothing differs'}"))
        for change in changes:
            console.print(Text(f"  {change}"))
    console.print(scores(given.runs, records))
    return 0


def differences(one: store.Record, other: store.Record) -> list[str]:
    """The settings, seeds, files of data and commits that differ."""
    told = [f"seed: {one['seed']} -> {other['seed']}"] if one["seed"] != other["seed"] else []
    told += difference(one["config"], other["config"])
    files = one["data"].keys() | other["data"].keys()
    told += [f"data: {name}" for name in sorted(files) if one["data"].get(name) != other["data"].get(name)]
    if one["commit"] != other["commit"] or one["dirty"] or other["dirty"]:
        made = [f"{str(r['commit'])[:9]}{'+' * bool(r['dirty'])}" for r in (one, other)]
        same = " (uncommitted changes, which may differ)" if made[0] == made[1] else ""
        told.append(f"code: {' -> '.join(made)}{same}")
    return told


def scores(folders: list[Path], records: list[store.Record]) -> Table:
    """A row for each score, a column for each run; times and epochs too."""
    table = Table("score", *map(str, folders))
    for name in dict.fromkeys(name for record in records for name in record["metrics"]):
        values = [record["metrics"].get(name) for record in records]
        style = "bold" if name.startswith("test/") else "dim"
        table.add_row(name, *("" if v is None else f"{v:.4f}" for v in values), style=style)
    for name in ("epochs", "best_epoch", "seconds"):
        table.add_row(name, *(f"{record[name]:g}" for record in records), style="dim")
    return table


if __name__ == "__main__":
    sys.exit(main())
