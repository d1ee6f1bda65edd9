"""What the records say about the papers' claims, as one page: docs/findings.md. Needs records only.

docs/findings.yaml has the prose, with references to records, and which claims of which tables are shown.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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


def _claims(paper: dict[str, Any], filled: References) -> str:
    """The claims of a paper, those that are decided first, and the command for each."""
    lines: list[tuple[Verdict, str]] = []
    commands = []
    for entry in paper["claims"]:
        page = filled.of(entry["table"])
        view, own = _verdicts(page, entry["holds"])
        controls = {v.column: v for v in _verdicts(page, entry["control"])[1]} if "control" in entry else {}
        for verdict in own:
            lines.append((verdict, _line(page, view, verdict, controls.get(verdict.column))))
        rows = ",".join(dict.fromkeys(row for v in (*own[:1], *controls.values()) for row in v.claim.rows))
        control = f"; control {code(entry['control'])}: {plain(entry['why'])}" if controls else ""
        command = f"make reproduce TABLE={entry['table']} ROWS={rows}"
        commands.append(f"- {code(entry['holds'])}: {plain(own[0].claim.says)}{control}. {code(command)}")
    lines.sort(key=lambda line: [*FOUND].index(line[0].state))
    shown = [line for verdict, line in lines if verdict.state != NOT_YET]
    counts = f"The paper's claims: {_counts(v for v, _ in lines if not v.claim.ours)}."
    if out := sum(v.excludes and v.state == UNDECIDED and not v.claim.ours for v, _ in lines):
        counts += f" Undecided, with an interval that excludes the paper's number: {out}."
    if ours := _counts(v for v, _ in lines if v.claim.ours):
        counts += f" Our own: {ours}."
    return "\n".join([counts, "", HEADS, *shown, "", *commands])


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


def _line(page: Summary, view: Summary, verdict: Verdict, control: Verdict | None) -> str:
    table, column = view.table, verdict.column
    place = plain(table.columns[column].label if column else "mean over columns")
    measure = "" if view is page else f": {plain(table.title.partition(' (')[0])}"
    cells = f"[{place}](../results/{table.name}.md){measure}"
    low = [row for row in verdict.claim.rows if column and view.cells[row, column].below]
    floors = f"; below the floor: {', '.join(map(code, low))}" if low else ""
    beside = f"{control.state}: {_difference(table, control)}{_stale(page, control)}" if control else ""
    said = [*words.of_the_paper(table, verdict), *_against(page, view, verdict)]
    if more := words.beyond(view, verdict):
        said.append(more)
    difference = "; ".join([_difference(table, verdict), *said]) + floors + _stale(view, verdict)
    return f"| {' | '.join([_word(verdict), code(verdict.claim.holds), cells, difference, beside])} |"


def _against(page: Summary, view: Summary, verdict: Verdict) -> list[str]:
    """The other scores by which a decided claim is found to be the opposite."""
    opposite = {HOLDS: FAILS, FAILS: HOLDS}.get(verdict.state)
    found = words.by_other_scores(page, verdict) if view is page else []
    return [said for said in found if said.endswith(f": {opposite}")]


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
