"""A table on the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text

from experiments.page import words
from experiments.page.gains import LEGEND, shares
from experiments.page.summary import Summary
from experiments.page.verdicts import FAILS, HOLDS, LEVEL, NOT_YET, UNDECIDED, Cell

COLORS = {HOLDS: "green", LEVEL: "blue", FAILS: "red", UNDECIDED: "yellow", NOT_YET: "yellow"}


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
