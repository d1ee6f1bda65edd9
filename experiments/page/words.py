"""Wording of numbers and verdicts, the same on the terminal and on the page."""

from experiments import starts, store
from experiments.page.summary import NOT_YET, Cell, Sample, Summary, Verdict, paired
from experiments.plan.claims import Claim
from experiments.plan.table import Table

LEGEND = (
    "mean ± sample standard deviation over seeds (runs finished/planned) [ours - paper]; below it the "
    "paper's number. *: differs from the paper, Welch p < 0.05. †: made with an earlier config."
)
MIXED = (
    "‡: its runs were made on several kinds of processor, or resumed after their code had changed. Of nine "
    "SEAL runs repeated on another kind, six came within 0.5. Three differ by 1.4 to 3.7. A tenth, of "
    "static margin on Genbase and with newer code too, differs by 65; the part of the code is not known."
)
LEVEL = 0.05


def number(table: Table, value: float, *, sign: bool = False) -> str:
    """A number with the table's digits."""
    return f"{value:{'+' if sign else ''}.{table.metric.digits}f}"


def sample(table: Table, found: Sample) -> str:
    """Mean ± std."""
    spread = "" if found.std is None else f" ± {number(table, found.std)}"
    return f"{number(table, found.mean)}{spread}"


def ours(table: Table, cell: Cell) -> str:
    """The upper line of a cell."""
    if cell.ours is None:
        return f"- (0/{cell.planned})" if cell.planned else ""
    done = f" ({cell.ours.count}/{cell.planned})" + "†" * bool(cell.stale) + "‡" * cell.mixed
    gap = ""
    if cell.difference is not None:
        star = "*" if cell.p is not None and cell.p < LEVEL else ""
        gap = f" [{number(table, cell.difference, sign=True)}{star}]"
    return f"{sample(table, cell.ours)}{done}{gap}"


def legend(summary: Summary) -> str:
    """What the marks in the cells mean."""
    cells = (cell for view in (summary, *summary.measures) for cell in view.cells.values())
    return f"{LEGEND} {MIXED}" if any(cell.mixed for cell in cells) else LEGEND


def verdicts(summary: Summary, claim: Claim) -> list[tuple[str, str]]:
    """State and line of each verdict on a claim; verdicts that wait for runs share a line."""
    found = [v for v in summary.verdicts if v.claim is claim]
    lines = [(v.state, verdict(summary, v)) for v in found if v.state != NOT_YET]
    waiting = [v for v in found if v.state == NOT_YET]
    if waiting:
        places = ", ".join(f"{_where(summary, v)} (no {' or '.join(v.lacking)})" for v in waiting)
        lines.append((NOT_YET, f"{NOT_YET}: {places}"))
    return lines


def verdict(summary: Summary, found: Verdict) -> str:
    """A verdict with its numbers."""
    numbers = ", ".join(f"{row} {number(summary.table, value)}" for row, value in found.numbers.items())
    gap = "" if found.gap is None else _gap(summary.table, found.gap)
    if found.seeds is not None:
        gap += f"; of the seeds that all have: {', '.join(map(str, found.seeds))}"
    printed = "; the paper's own numbers fail it" if found.paper is False else ""
    return f"{_where(summary, found)}: {found.state} ({numbers}{gap}{printed})"


def _gap(table: Table, gap: Sample) -> str:
    """The difference of two rows paired by seed, with its p-value, if there is more than one seed."""
    if gap.std is None:
        return ""
    chance, mean = paired(gap), number(table, gap.mean, sign=True)
    spread = f"; seed by seed {mean} ± {number(table, gap.std)}"
    return spread if chance is None else f"{spread}, paired p = {chance:.2g}"


def ratios(summary: Summary) -> list[str]:
    """Each ratio of rows, with the paper's."""
    lines = []
    for ratio in summary.table.ratios:
        if found := summary.ratio(ratio):
            printed = "" if ratio.reported is None else f"; the paper: {ratio.reported:.2f}"
            columns = f"{found.count} column{'s' if found.count > 1 else ''}"
            places = f"{ratio.of} / {ratio.to}, mean over {columns}"
            lines.append(f"{ratio.says}: {found.mean:.2f} ({places}{printed})")
    return lines


def _where(summary: Summary, found: Verdict) -> str:
    return summary.table.columns[found.column].label if found.column else "mean over columns"


def footnotes(summary: Summary) -> tuple[dict[str, list[int]], list[str]]:
    """Numbered notes: their texts, and the numbers of each column and row."""
    marks: dict[str, list[int]] = {}
    texts: list[str] = []
    table = summary.table
    for name, column in summary.columns.items():
        empty = not any(cell.ours for (_, c), cell in summary.cells.items() if c == name)
        reason = summary.missing.get(name)
        missing = column.unavailable if reason is not None or empty else ""  # the same text on any machine
        notes = [column.note, missing or (f"Missing: {reason}" if reason else "")]
        _add(f"column {name}", notes, marks, texts)
    for name, row in table.rows.items():
        _add(f"row {name}", [row.note], marks, texts)
    return marks, texts


def _add(key: str, notes: list[str], marks: dict[str, list[int]], texts: list[str]) -> None:
    for note in filter(None, notes):
        if note not in texts:
            texts.append(note)
        marks.setdefault(key, []).append(texts.index(note) + 1)


def elsewhere(summary: Summary) -> str:
    """How much of a table comes from records whose runs are not here, their processors, what to do."""
    name = summary.table.name
    found = [
        r for r in summary.records if (store.read_record(r["id"]) or {}).get("finished") != r.get("finished")
    ]
    if not found:
        return ""
    cells, every = ({(r["row"], r["column"]) for r in records} for records in (found, summary.records))
    return (
        f"{len(cells)} of {len(every)} cells come from committed records (results/{name}.jsonl), made on "
        f"{starts.processors_of(found)}. To train some of them here:  make reproduce TABLE={name} ROWS=... "
        "VERIFY=1  compares, FRESH=1 replaces."
    )


def effort(summary: Summary) -> str:
    """How many runs, their time, their processors."""
    if not summary.records:
        return "No run has finished yet."
    hours = sum(float(r.get("seconds") or 0) for r in summary.records) / 3600
    spent = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
    torches = sorted({r.get("versions", {}).get("torch", "?") for r in summary.records})
    return (
        f"{len(summary.records)} runs, {spent} of training on {starts.processors_of(summary.records)}; "
        f"torch {', '.join(torches)}; commits {starts.commits_of(summary.records)} (+: with changes)."
    )
