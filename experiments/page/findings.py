"""What the records say about the papers' claims, as one page: docs/findings.md. Needs records only.

docs/findings.yaml has the prose, with references to records, and which claims of which tables are shown.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from experiments.errors import TableError
from experiments.page import words
from experiments.page.index import PAPERS
from experiments.page.page import code, page_file, plain
from experiments.page.references import References
from experiments.page.summary import Summary
from experiments.page.verdicts import FAILS, HOLDS, LEVEL, NOT_YET, UNDECIDED, Verdict
from experiments.plan.table import TABLES, Table

SOURCE, PAGE = Path("docs/findings.yaml"), Path("docs/findings.md")
FOUND = {HOLDS: "reproduced", LEVEL: "level", FAILS: "refuted", UNDECIDED: "undecided", NOT_YET: "not run"}
DECIDED = (HOLDS, FAILS)
OURS = FOUND | {HOLDS: HOLDS, FAILS: FAILS}  # words for claims that are not the paper's
HEADS = "| found | claim | data | difference and 95 % interval | control |\n| --- | --- | --- | --- | --- |"

WHOLE = (
    "All claims of the paper in its tables, one for each column, those above among them:\n\n"
    f"| page | {' | '.join(FOUND.values())} |\n| --- |{' ---: |' * len(FOUND)}"
)


def drawn() -> str:
    """The page.

    Raises:
        TableError: a reference or a claim of the template names nothing; the message names the file.
    """
    tree = yaml.safe_load(SOURCE.read_text())
    filled = References()
    parts = [f"# {tree['title']}", filled.fill(tree["says"], SOURCE).strip()]
    for paper in tree["papers"]:
        title, address = PAPERS[paper["paper"]]
        parts += [f"## [{title}]({address})", filled.fill(paper["says"], SOURCE).strip()]
        parts += [_claims(paper, filled), _whole(paper["paper"], filled)]
    for section in tree["sections"]:
        parts += [f"## {section['title']}", filled.fill(section["says"], SOURCE).strip()]
    return "\n\n".join(parts) + "\n"


class Line(NamedTuple):
    """A line of the table of claims, and whether its verdict has seeds beyond the plan."""

    verdict: Verdict
    added: bool
    text: str


def _claims(paper: dict[str, Any], filled: References) -> str:
    """The claims of a paper, those that are decided first, and the command for each."""
    lines, commands = [], []
    for entry in paper["claims"]:
        page = filled.of(entry["table"])
        view, own = _verdicts(page, entry["holds"])
        controls = {v.column: v for v in _verdicts(page, entry["control"])[1]} if "control" in entry else {}
        but_of = entry.get("but", {})
        if strange := but_of.keys() - {verdict.column for verdict in own}:
            raise TableError(f"{SOURCE}: `{entry['holds']}` has no verdict on {min(strange)}. Correct `but`.")
        for verdict in own:
            but = filled.fill(but_of.get(verdict.column, ""), SOURCE)
            text = _line(page, view, verdict, controls.get(verdict.column), but)
            lines.append(Line(verdict, bool(words.beyond(view, verdict)), text))
        rows = ",".join(dict.fromkeys(row for v in (*own[:1], *controls.values()) for row in v.claim.rows))
        control = f"; control {code(entry['control'])}: {plain(entry['why'])}" if controls else ""
        command = f"make reproduce TABLE={entry['table']} ROWS={rows}"
        commands.append(f"- {code(entry['holds'])}: {plain(own[0].claim.says)}{control}. {code(command)}")
    lines.sort(key=lambda line: [*FOUND].index(line.verdict.state))
    shown = [line.text for line in lines if line.verdict.state != NOT_YET]
    return "\n".join([_tally(lines), "", HEADS, *shown, "", *commands])


def _tally(lines: list[Line]) -> str:
    """How many claims have which verdict, and how many verdicts say less than they seem to."""
    papers = [line for line in lines if not line.verdict.claim.ours]
    found = [line.verdict for line in papers]
    less = {
        "Reproduced or refuted with seeds beyond the plan": sum(
            line.added for line in papers if line.verdict.state in DECIDED
        ),
        "Level because the runs are identical": sum(v.state == LEVEL and v.p is None for v in found),
        "Undecided, with an interval that excludes the paper's number": sum(
            v.state == UNDECIDED and v.excludes for v in found
        ),
    }
    counts = {"The paper's claims": _counts(found)} | {says: many for says, many in less.items() if many}
    if ours := _counts(line.verdict for line in lines if line.verdict.claim.ours):
        counts["Our own"] = ours
    return " ".join(f"{says}: {many}." for says, many in counts.items())


def _whole(paper: str, filled: References) -> str:
    """How many of all claims of a paper, one for each column, have which verdict, a line for each page."""
    lines = []
    for name in sorted(path.stem for path in TABLES.glob("*.yaml") if page_file(path.stem).exists()):
        if (page := filled.of(name)).table.source.get("paper") != paper:
            continue
        verdicts = [v for view in (page, *page.measures) for v in view.verdicts if not v.claim.ours]
        if verdicts:
            found = Counter(FOUND[v.state] for v in verdicts)
            cells = [str(found[word] or "") for word in FOUND.values()]
            lines.append(f"| [{name}](../results/{name}.md) | {' | '.join(cells)} |")
    return "\n".join([WHOLE, *lines])


def _counts(verdicts: Iterable[Verdict]) -> str:
    return ", ".join(f"{many} {word}" for word, many in Counter(map(_word, verdicts)).items())


def _verdicts(page: Summary, claim: str) -> tuple[Summary, list[Verdict]]:
    """The verdicts on a claim, and where it is made: on the page's own metric or on a further measure."""
    for view in (page, *page.measures):
        if found := [v for v in view.verdicts if v.claim.holds == claim]:
            return view, found
    raise TableError(f"{SOURCE}: {page.table.name} has no claim `{claim}`. Copy one of its file.")


def _word(verdict: Verdict) -> str:
    """What the page calls a verdict; the paper's claims are reproduced or refuted, ours hold or fail."""
    return (OURS if verdict.claim.ours else FOUND)[verdict.state]


def _line(page: Summary, view: Summary, verdict: Verdict, control: Verdict | None, but: str) -> str:
    table, column = view.table, verdict.column
    place = plain(table.columns[column].label if column else "mean over columns")
    measure = "" if view is page else f": {plain(table.title.partition(' (')[0])}"
    cells = f"[{place}](../results/{table.name}.md){measure}"
    floors = _below(view, verdict)
    beside = f"{control.state}: {_difference(table, control)}{_stale(page, control)}" if control else ""
    said = [*words.of_the_paper(table, verdict), *_against(page, view, verdict)]
    if more := words.beyond(view, verdict):
        said.append(more)
    difference = (
        "; ".join([_difference(table, verdict), *said, *[but] * bool(but)]) + floors + _stale(view, verdict)
    )
    return f"| {' | '.join([_word(verdict), code(verdict.claim.holds), cells, difference, beside])} |"


def _below(view: Summary, verdict: Verdict) -> str:
    """The rows of a verdict that are below the floor; of a mean over columns with the columns."""
    columns = [verdict.column] if verdict.column else verdict.claim.on
    found = []
    for row in verdict.claim.rows:
        low = [plain(view.table.columns[c].label) for c in columns if view.cells[row, c].below]
        if low:
            found.append(code(row) if verdict.column else f"{code(row)} on {', '.join(low)}")
    return f"; below the floor: {', '.join(found)}" if found else ""


def _against(page: Summary, view: Summary, verdict: Verdict) -> list[str]:
    """The other scores by which a decided claim is not found to be so, or not known to be."""
    if view is not page or verdict.state not in DECIDED:
        return []
    found = words.by_other_scores(page, verdict)
    return [said for said in found if not said.endswith(f": {verdict.state}")]


def _stale(view: Summary, verdict: Verdict) -> str:
    """The rows with runs of an earlier config."""
    rows = [row for row in verdict.claim.rows if verdict.column and view.cells[row, verdict.column].stale]
    return f"; of an earlier config: {', '.join(map(code, rows))}" if rows else ""


def _difference(table: Table, verdict: Verdict) -> str:
    """The difference that decides, with its interval and the runs it rests on."""
    if verdict.state == NOT_YET:
        return f"no runs of {' or '.join(verdict.lacking)}"
    if found := words.interval(table, verdict):
        return found[0].partition(", p = ")[0]
    return f"{words.difference(table, verdict.part)}, one seed" if verdict.part else "the same for every seed"
