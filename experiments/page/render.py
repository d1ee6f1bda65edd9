"""Render a table on the terminal and as a page; name other pages that show its runs. Needs records only."""

from contextlib import suppress

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text

from experiments import store
from experiments.errors import UserError
from experiments.page import findings, index, plots, words
from experiments.page.gains import LEGEND, shares
from experiments.page.page import label, markdown, page_file
from experiments.page.state import read_state
from experiments.page.summary import Summary, summarise
from experiments.page.verdicts import FAILS, HOLDS, LEVEL, NOT_YET, UNDECIDED, Cell
from experiments.plan.spec import read_table
from experiments.plan.table import TABLES, Table

COLORS = {HOLDS: "green", LEVEL: "blue", FAILS: "red", UNDECIDED: "yellow", NOT_YET: "yellow"}


def collect(name: str, console: Console) -> Summary:
    """Render a table from its records, shared runs of other tables included.

    Raises:
        UserError: no run is finished, and no page was ever drawn.
    """
    table = read_table(name)
    store.take_over(table.name, read_state(table.name)["ids"])
    if not store.read_results(table.name).records and not page_file(table.name).exists():
        raise UserError(
            f"{table.name} has no finished run, so there is nothing to draw. First:  {table.command}"
        )
    return render(table, console)


def render(table: Table, console: Console) -> Summary:
    """Print a table and write its page; if that changed, print the commands that draw stale pages again.

    Raises:
        TableError: a reference in a note cannot be read.
    """
    summary = summarise(table, read_state(table.name))
    show(summary, console)
    plots.draw(summary)
    for line in (*summary.without_metric(), *plots.without_curve(summary)):
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    path, text = page_file(table.name), markdown(summary)
    changed = not path.exists() or path.read_bytes() != text.encode()
    if changed:
        store.write(path, text)
    index.refresh(summary, label(table.title))
    console.print(f"page: {path}", style="dim", markup=False)
    if changed and (commands := redrawing(table)):
        says = "Other pages show or quote these runs and are out of date. To draw them again:"
        console.print("\n  ".join([says, *commands]), highlight=False, markup=False, soft_wrap=True)
    return summary


def show(summary: Summary, console: Console) -> None:
    """Print the table, then claims, notes and failures."""
    marks, notes = words.footnotes(summary)
    for view in (summary, *summary.measures):
        for columns in _split(view, console.width):
            console.print(_grid(view, columns, marks))
    console.print(words.legend(summary), style="dim", highlight=False, markup=False)
    for line in words.ratios(summary):
        console.print(line, highlight=False, markup=False)
    for title, lines in shares(summary):
        console.print(f"{escape(title)}  [dim]{LEGEND}[/dim]", highlight=False)
        for line in lines:
            console.print(f"  {line}", highlight=False, markup=False)
    if said := words.rule(summary):
        console.print(said, style="dim", highlight=False, markup=False)
    for view in (summary, *summary.measures):
        for claim in view.table.claims:
            console.print(
                f"\n[bold]{escape(claim.says)}[/bold]  [dim]{escape(claim.holds)}[/dim]", highlight=False
            )
            for state, line in words.verdicts(view, claim):
                console.print(f"  {line}", style=COLORS[state], highlight=False, markup=False)
    for number, note in enumerate(notes, start=1):
        console.print(f"({number}) {note}", style="dim", highlight=False, markup=False)
    for name, reason in summary.failed.items():
        console.print(f"failed: {name}: {reason}", style="red", highlight=False, markup=False)
    for warning in summary.warnings:
        console.print(warning, style="yellow", highlight=False, markup=False)
    if origin := words.elsewhere(summary):
        console.print(origin, highlight=False, markup=False, soft_wrap=True)


def redrawing(table: Table) -> list[str]:
    """The commands that draw again each stale page that shares runs with a table or quotes its numbers."""
    runs = {record["id"] for record in store.read_results(table.name).records}
    files, quote = {path.stem: path for path in TABLES.glob("*.yaml")}, f"{{{table.name}/"
    if not any(quote.encode() in path.read_bytes() for path in files.values()):
        quote = ""
    names = [name for name in sorted(files) if name != table.name and page_file(name).exists()]
    commands = [f"make table TABLE={name}" for name in names if _is_stale(name, runs, quote)]
    with suppress(Exception):  # a broken template ends its own command, and not that of a table
        if table.source and findings.drawn().encode() != findings.PAGE.read_bytes():
            commands.append("python -m scripts.figures.findings")
    return commands


def _is_stale(name: str, runs: set[str], quote: str) -> bool:
    """Whether a page that shows any of the runs, or quotes the table, differs from what is drawn now."""
    with suppress(OSError, UserError):  # the table's own command says what is wrong
        state = read_state(name)
        shared = {place: run for place, run in state["ids"].items() if run in runs}
        if shared or (quote and any(quote in note for note in _notes(read_table(name)))):
            own = {f"{row}/{column}/{seed}": run for (row, column, seed), run in store.places(name).items()}
            lacks = any(own.get(place) != run for place, run in shared.items())
            drawn = "" if lacks else markdown(summarise(read_table(name), state))
            return drawn.encode() != page_file(name).read_bytes()
    return False


def _notes(table: Table) -> list[str]:
    return [*table.notes, *(r.note for r in table.rows.values()), *(c.note for c in table.columns.values())]


def _grid(summary: Summary, columns: list[str], marks: dict[str, list[int]]) -> Grid:
    table = summary.table
    grid = Grid(title=Text(table.title), title_justify="left", show_lines=False)
    grid.add_column("")
    for column in columns:
        grid.add_column(Text(table.columns[column].label + _mark(marks, f"column {column}")), no_wrap=True)
    best = {column: summary.best(column) for column in columns}
    for name, row in summary.drawn[0].items():
        style = "grey50 italic" if row.cited else ""
        label = Text(row.label + _mark(marks, f"row {name}"), style=style)
        cells = [_cell(summary, summary.cells[name, column], bold=name in best[column]) for column in columns]
        grid.add_row(label, *cells)
    return grid


def _cell(summary: Summary, cell: Cell, *, bold: bool) -> Text:
    upper = words.ours(summary.table, cell)
    missing = cell.column in summary.missing and cell.ours is None and cell.planned
    text = Text("missing" if missing else upper, style="bold" if bold else "")
    if cell.paper:
        cited = summary.table.rows[cell.row].cited
        printed = words.printed(summary.table, cell)
        text.append(
            printed if cited else f"{chr(10) if upper else ''}{printed}", style="grey50 italic not bold"
        )
    return text


def _mark(marks: dict[str, list[int]], key: str) -> str:
    return "".join(f" ({n})" for n in marks.get(key, []))


def _split(summary: Summary, width: int) -> list[list[str]]:
    """Columns in groups that fit the terminal."""
    table = summary.table
    label = max(len(row.label) for row in table.rows.values()) + 8
    groups: list[list[str]] = [[]]
    used = label
    for column in summary.drawn[1]:
        cells = [words.ours(table, summary.cells[row, column]) for row in table.rows]
        need = 3 + max(len(table.columns[column].label) + 4, *(len(c) for c in cells))
        if groups[-1] and used + need > width:
            groups.append([])
            used = label
        groups[-1].append(column)
        used += need
    return groups
