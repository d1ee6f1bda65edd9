"""The list of all pages, results/README.md: a line a table with its runs and verdicts. Needs records only."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments import store
from experiments.page import words
from experiments.page.summary import Summary
from experiments.page.verdicts import STATES, Cell
from experiments.plan.table import TABLES, Table

TRIALS = ".trials.json"  # the end of the name of a sweep's trials
COLUMNS = (
    f"| page | in the paper | runs | hours left | {' | '.join(STATES)} |",
    f"| --- | --- | ---: | ---: |{' ---: |' * len(STATES)}",
)
LINE = re.compile(r"^\| \[.*\]\((\w+)\.md\) \|.*\|$", re.MULTILINE)
PAPERS = {  # the key that table files use -> title, address
    "seal": ("Structured Energy Network as a Loss Function", "https://openreview.net/forum?id=F0DowhX7_x"),
    "scaling": ("Scaling Matters in Deep Structured-Prediction Models", "https://arxiv.org/abs/1902.11088"),
    "infnet": (
        "Improving Joint Training of Inference Networks and Structured Prediction Energy Networks",
        "https://doi.org/10.18653/v1/2020.spnlp-1.8",
    ),
    "implicit": (
        "Implicit Training of Energy Model for Structured Prediction",
        "https://arxiv.org/abs/2211.11649",
    ),
}
HEAD = """# Results

[What we found](../docs/findings.md) says which claims of the papers the runs decide.

One line a table. *Runs* counts finished and planned runs; after a + those beyond the plan. The last five
columns count all verdicts of a page, on the paper's claims and on our own, one for each claim and column.
`make reproduce TABLE=<name>` runs what is missing.

*Hours left* are those of one CPU core. A missing run takes as long as the median finished run of its row and
column. *Not known* counts the missing runs where no core has finished one. Columns whose data are not public
are left out. Tables may share runs.

A verdict goes by the 95 % interval of a difference over seeds. *Holds*: it is above what the claim
asks. *Fails*: it is below. *Level*: it is within 0.2 points, of scores where higher is better.
*Undecided*: it is none of these, too little among so many verdicts, or there is one seed. *Not yet*: a row
has no run with that score. On each page the false-discovery rate is kept at 5 % (Benjamini-Hochberg).

Each finished run is one line of JSON in `<name>.jsonl`: its numbers, config, data, versions, commits and
processor. Since 23 November 2026 a record lists each start of its run. Older records name the last start.

`make reproduce TABLE=<name> VERIFY=1` trains finished cells again and compares. *Bitwise*: every metric and
curve came out the same, speeds apart. *Within the noise of a seed*: the cell moved by at most one sample
standard deviation over its seeds. *Different*: it moved by more, or it has one seed.

On a page, † marks a number made with an earlier config. ‡ marks a cell whose runs were made on several kinds
of processor, or resumed after their code had changed or with uncommitted changes. ¶ marks a cell with a run
that read another version of a file. § marks a cell below the *floor* of its column, the score of an answer
that learns nothing of the inputs.
"""
FIGURES = """## What energies have learnt of answers

One finished run each, drawn by `scripts.figures.interactions`. The `.json` beside it has numbers and run.

- [pairs of tags](interactions_tags.png): implicit CD on tweets, beside how often tags follow each other
- [pairs of labels](interactions_labels.png): implicit CD on Bibtex, beside the correlation of labels
- [labels of a taxonomy](interactions_gradient.png): DVN on Expr-FUN
"""


def path() -> Path:
    """Where the list is kept."""
    return store.RESULTS / "README.md"


def line(summary: Summary, title: str) -> str:
    """The line of one table; `title` may be used as the text of a link."""
    table, cells = summary.table, summary.cells.values()
    place = " ".join(f"{key} {table.source[key]}" for key in ("table", "figure") if table.source.get(key))
    planned = sum(cell.planned for cell in cells)
    of_plan = planned - sum(missing(table, cell) for cell in cells)
    more = sum(len(cell.finished) for cell in cells) - of_plan
    runs = f"{of_plan}/{planned}{f' + {more}' if more else ''}"
    states = Counter(v.state for view in (summary, *summary.measures) for v in view.verdicts)
    counts = [str(states[state] or "") for state in STATES]
    return f"| {' | '.join([f'[{title}]({table.name}.md)', place, runs, hours_left(summary), *counts])} |"


def missing(table: Table, cell: Cell) -> int:
    """How many planned runs of a cell have not finished."""
    return len(set(table.seeds) - set(cell.finished)) if cell.planned else 0


def hours_left(summary: Summary) -> str:
    """The hours of one CPU core that the missing runs take, and how many runs have no such estimate."""
    hours, unknown = 0.0, 0
    for place, cell in summary.cells.items():
        left = 0 if summary.table.columns[place[1]].unavailable else missing(summary.table, cell)
        hours += left * summary.seconds.get(place, 0) / 3600
        unknown += 0 if place in summary.seconds else left
    known = [words.hours(hours)] if hours else []
    return " + ".join([*known, *[f"{unknown} not known"] * bool(unknown)])


def unstarted() -> list[str]:
    """The tables of conf/tables without a page."""
    names = sorted(file.stem for file in TABLES.glob("*.yaml"))
    return [name for name in names if not path().with_name(f"{name}.md").is_file()]


def refresh(summary: Summary, title: str) -> None:
    """Replace a table's line; tables of no paper have no line, nor have pages that are gone."""
    paper = summary.table.source.get("paper")
    if paper not in PAPERS:
        return
    old = path().read_text() if path().exists() else ""
    kept = {found[1]: found[0] for found in LINE.finditer(old)}
    lines = {name: text for name, text in kept.items() if path().with_name(f"{name}.md").is_file()}
    lines[summary.table.name] = line(summary, title)
    text = drawn(lines, unstarted())
    if text != old:
        store.write(path(), text)


def drawn(lines: dict[str, str], later: Sequence[str]) -> str:
    """The whole list; `lines` is keyed by table, and the name of a paper's table begins with the paper.

    Tables of a paper in `later` have no run yet.
    """
    parts, left = [HEAD], dict(sorted(lines.items()))
    groups = {f"{paper}_": f"[{title}]({address})" for paper, (title, address) in PAPERS.items()}
    for start, title in {**groups, "": "Tables of our own"}.items():
        if own := [left.pop(name) for name in [*left] if name.startswith(start)]:
            parts.append("\n".join([f"## {title}", "", *COLUMNS, *own, ""]))
            if start and (names := [name for name in later if name.startswith(start)]):
                links = ", ".join(f"[{name}](../{TABLES}/{name}.yaml)" for name in names)
                parts.append(f"Planned, not begun: {links}.\n")
    sweeps = sorted(file.name.removesuffix(TRIALS) for file in store.RESULTS.glob(f"*{TRIALS}"))
    if sweeps:
        listed = [f"- [{name}]({name}.md)" for name in sweeps]
        parts.append(
            "\n".join(["## Sweeps", "", "Searches on validation, see docs/sweeps.md.", "", *listed, ""])
        )
    return "\n".join([*parts, FIGURES])
