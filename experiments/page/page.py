"""A table as a Markdown page, results/<table>.md. Needs records only, no torch."""

import html
import re
from pathlib import Path
from urllib.parse import quote

from experiments import store
from experiments.page import plots, words
from experiments.page.gains import LEGEND, shares
from experiments.page.summary import Summary
from experiments.page.verdicts import Cell
from experiments.plan.table import Changes

# The start of a link, an image or a link definition, unless a backslash is before it.
LINK = re.compile(r"(?<!\\)((?:\\\\)*)(!(?=\[)|\](?=[\[(:])(?!\((?:https?://)?[\w./#-]+\)))")


def page_file(table: str) -> Path:
    """The committed page of a table."""
    return store.RESULTS / f"{table}.md"


def markdown(summary: Summary) -> str:
    """The page: table, legend, claims, notes, what is missing, what failed, what it took."""
    table = summary.table
    marks, notes = words.footnotes(summary)
    source = ", ".join(f"{key} {value}" for key, value in table.source.items())
    names = dict.fromkeys(table.metric_name(column) for column in summary.columns)
    parts = [
        f"# {plain(table.title)}",
        f"{plain(source)}{'; ' if source else ''}metric {', '.join(map(code, names))}"
        + (f" x {table.metric.scale:g}" if table.metric.scale != 1 else "")
        + f". Made by {code(table.command)}.",
        grid(summary, marks),
        f"{words.legend(summary)} Bold: our best in a column over the seeds that all its rows have, floors "
        "left out; none where that is one seed and a row has more. Grey and italic: the paper's.",
        *(f"## {plain(other.table.title)}\n\n{grid(other, marks)}" for other in summary.measures),
        _scores(summary, marks),
        *map(plain, words.ratios(summary)),
        *_shares(summary),
        *_figures(summary),
        *(_changes(changes, summary) for changes in table.changes),
        _claims(summary),
        _listed("Footnotes", [f"({i}) {plain(note)}" for i, note in enumerate(notes, start=1)]),
        _listed("Notes", [plain(note) for note in words.notes(summary)]),
        _listed("Failed runs", [f"{plain(name)}: {plain(why)}" for name, why in summary.failed.items()]),
        _listed("Results file", [plain(warning) for warning in summary.warnings]),
        plain(words.effort(summary)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def grid(summary: Summary, marks: dict[str, list[int]]) -> str:
    """The table alone."""
    rows, columns = summary.drawn
    heads = ["method", *(plain(c.label) + _mark(marks, f"column {n}") for n, c in columns.items())]
    lines = [heads, ["---", *("---:" for _ in columns)]]
    best = {column: summary.best(column) for column in columns}
    for name, row in rows.items():
        head = plain(row.label) + _mark(marks, f"row {name}")
        cells = [_cell(summary, summary.cells[name, c], bold=name in best[c]) for c in columns]
        lines.append([_grey(head) if row.cited else head, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(summary: Summary, cell: Cell, *, bold: bool) -> str:
    upper = plain(words.ours(summary.table, cell)).replace("*", "\\*")
    if cell.ours is None and cell.planned and cell.column in summary.missing:
        upper = "missing"
    if bold:
        upper = f"**{upper}**"
    if cell.paper is None:
        return upper
    printed = _grey(words.printed(summary.table, cell))
    return f"{upper}<br>{printed}" if upper else printed


def _scores(summary: Summary, marks: dict[str, list[int]]) -> str:
    """The rows with runs by several scores, beside each other in each cell."""
    if not summary.scores:
        return ""
    heads = ["method", *(plain(c.label) + _mark(marks, f"column {n}") for n, c in summary.columns.items())]
    lines = [heads, ["---", *("---:" for _ in summary.columns)]]
    for name, row in summary.table.rows.items():
        if not row.cited:
            lines.append([plain(row.label), *(words.by_scores(summary, name, c) for c in summary.columns)])
    return (
        f"## {plain(words.score_heads(summary))}\n\n"
        + "\n".join(f"| {' | '.join(line)} |" for line in lines)
        + f"\n\n{plain(words.score_legend(summary))}"
    )


def _claims(summary: Summary) -> str:
    lines = []
    for view in (summary, *summary.measures):
        for claim in view.table.claims:
            states = [v.state for v in view.verdicts if v.claim is claim]
            counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
            lines.append(f"- {plain(claim.says)} ({code(claim.holds)}): {counts}")
            lines += [f"  - {plain(line)}" for _, line in words.verdicts(view, claim)]
    return "\n".join(["## Claims", "", plain(words.rule(summary)), "", *lines]) if lines else ""


def _shares(summary: Summary) -> list[str]:
    """Which share of a gain each row recovers."""
    return [
        f"## {plain(title)}\n\n{LEGEND}\n\n" + "\n".join(f"- {plain(line)}" for line in lines)
        for title, lines in shares(summary)
    ]


def _figures(summary: Summary) -> list[str]:
    """The figures that have been drawn."""
    table = summary.table
    files = [(figure.title, plots.figure_file(table.name, figure.name, "png")) for figure in table.figures]
    return [f"![{label(title)}]({quote(path.name)})" for title, path in files if path.exists()]


def _changes(changes: Changes, summary: Summary) -> str:
    """How often one answer has which tag where another is right, a mean over seeds."""
    right, changed, counts = summary.changes(changes)
    if not counts:
        return ""
    lines = [
        "| right, changed to | " + " | ".join(map(plain, changed)) + " |",
        "| --- |" + " ---: |" * len(changed),
    ]
    for tag in right:
        times = [counts.get((tag, other)) for other in changed]
        lines.append(f"| {plain(tag)} | " + " | ".join("" if n is None else f"{n:.1f}" for n in times) + " |")
    return "\n".join([f"## {plain(changes.title)}", "", *lines])


def _listed(title: str, lines: list[str]) -> str:
    return "\n".join([f"## {title}", "", *(f"- {line}" for line in lines)]) if lines else ""


def plain(text: str) -> str:
    """Text escaped for a Markdown table: no HTML, no bar, no line break.

    Only links to plain addresses are kept: pages and files beside this one, and http(s).
    """
    return LINK.sub(r"\1\\\2", _no_html(text).replace("|", "\\|"))


def label(text: str) -> str:
    """Text escaped for the brackets of a link."""
    return re.sub(r"([\[\]\\|])", r"\\\1", _no_html(text))


def _no_html(text: str) -> str:
    return html.escape(" ".join(str(text).split()), quote=False)


def code(text: str) -> str:
    """Text as inline code; it may contain backticks."""
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " * ("`" in text)
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}"


def _grey(text: str) -> str:
    return f'<i style="color:gray">{text}</i>'


def _mark(marks: dict[str, list[int]], key: str) -> str:
    return "".join(f" <sup>({n})</sup>" for n in marks.get(key, []))
