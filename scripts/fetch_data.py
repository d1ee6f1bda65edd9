"""Download data sets and verify their checksums, or list the known sets.

python -m scripts.fetch_data                all that can be downloaded
python -m scripts.fetch_data bibtex yeast   these
python -m scripts.fetch_data --list         name, task, state, size, source and licence of each set
"""

import argparse
import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from datamodules.errors import DataError
from datamodules.sources.files import Sources, shown
from datamodules.sources.registry import DataSet, data_set, data_sets

STYLE = {"present": "green", "mirror": "green", "downloadable": "yellow", "missing": "red"}


def main(arguments: list[str] | None = None) -> int:
    """Fetch or list; return 0 if all requested sets are here."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m scripts.fetch_data", description=__doc__, formatter_class=form
    )
    parser.add_argument("names", nargs="*", metavar="name", help="data sets; default: all downloadable")
    parser.add_argument(
        "--list", action="store_true", help="show the data sets and their state, fetch nothing"
    )
    parser.add_argument("--folder", help="where data is kept (default: $DATA_DIR, or data/)")
    parser.add_argument("--mirror", help="a folder to read from (default: $DATA_MIRROR, or ../shared/data)")
    options = parser.parse_args(arguments)
    sources = Sources(options.folder, options.mirror)
    console = Console(stderr=True)
    try:
        chosen = [data_set(name) for name in options.names] or list(data_sets().values())
        if options.list:
            wide = Console() if sys.stdout.isatty() else Console(width=160)
            wide.print(listing(chosen, sources))
            return 0
        return fetch(chosen, sources, console, named=bool(options.names))
    except DataError as error:
        console.print(escape(str(error)), style="red", highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("Stopped. Downloaded data is kept: run the same command to resume.")
        return 130


def fetch(chosen: list[DataSet], sources: Sources, console: Console, *, named: bool) -> int:
    """Download and verify each set; without names, a set may fail without stopping the others."""
    failed = 0
    for data in chosen:
        if not named and sources.state(data) == "missing":
            console.print(f"{data.name}: skipped, it cannot be downloaded. {data.advice}", soft_wrap=True)
            continue
        try:
            sources.fetch(data)
            for file in data.files.values():
                sources.read(data, file)
        except DataError as error:
            console.print(f"[red]{data.name}[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
            failed += 1
            continue
        found = [path for file in data.files.values() if (path := sources.find(data, file))]
        places = ", ".join(sorted({shown(path.parent) for path in found}))
        checked = (
            "checked" if all(file.sha256 or file.git_blob for file in data.files.values()) else "readable"
        )
        console.print(f"[green]{data.name}[/]: complete and {checked}, in {places}", soft_wrap=True)
    return int(failed > 0)


def listing(chosen: list[DataSet], sources: Sources) -> Table:
    """The sets as a table."""
    table = Table(box=None, header_style="bold")
    for column in ("name", "task", "state", "size"):
        table.add_column(column, no_wrap=True, justify="right" if column == "size" else "left")
    table.add_column("source", overflow="fold")
    table.add_column("licence")
    for data in chosen:
        state = sources.state(data)
        size = f"{data.size / 1e6:.1f} MB" if data.size else "unknown"
        table.add_row(data.name, data.task, f"[{STYLE[state]}]{state}[/]", size, data.source, data.licence)
    return table


if __name__ == "__main__":
    sys.exit(main())
