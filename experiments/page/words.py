"""Wording of numbers and verdicts, the same on the terminal and on the page."""

from experiments import starts, store
from experiments.page import repeats, scores
from experiments.page.intervals import ALPHA, Sample
from experiments.page.references import References
from experiments.page.summary import Summary
from experiments.page.verdicts import MOST, NOT_YET, ROOM, UNDECIDED, Cell, Part, Verdict, distinct
from experiments.plan.claims import Claim
from experiments.plan.table import Table

LEGEND = (
    "mean ± sample standard deviation over seeds (runs finished/planned) [ours - paper]; below it the "
    "paper's number. **: differs from the paper (Welch, two-sided, with a false-discovery rate of 5 % over "
    "the page), whether its spread is the standard deviation of its runs or the standard error of their "
    "mean. *: under one of these readings. With fewer than three runs, or where the paper has no spread, "
    "there is no star. †: made with an earlier config."
)
GRIDLESS = (
    "The threshold is chosen on validation, from one grid of 0.01 to 0.95 for all "
    "rows; older runs that chose their own did so from 0 to 0.75. -: no run kept F1 by threshold, as runs do "
    "since 23 November 2026. (1/3): one run of three did."
)
OTHER_DATA = (
    "¶: a run of it read another version of a file than most runs of its column, so its numbers are not "
    "comparable. Train it anew: FRESH=1."
)
BELOW = "§: below the floor of its column, an answer that learns nothing of the inputs."
MIXED = (
    "‡: its runs were made on several kinds of processor, or resumed after their code had changed or with "
    "uncommitted changes. Two kinds round differently, so a run repeated on another ends with other numbers."
)


def number(table: Table, value: float, *, sign: bool = False) -> str:
    """A number with the table's digits; what rounds to zero has no minus."""
    said = f"{value:{'+' if sign else ''}.{table.metric.digits}f}"
    return said if float(said) else said.replace("-", "+" if sign else "")


def sample(table: Table, found: Sample) -> str:
    """Mean ± std."""
    spread = "" if found.std is None else f" ± {number(table, found.std)}"
    return f"{number(table, found.mean)}{spread}"


def printed(table: Table, cell: Cell) -> str:
    """The paper's number, marked where it is all that a cell has."""
    assert cell.paper is not None
    return sample(table, cell.paper) + "§" * (cell.below and cell.ours is None)


def ours(table: Table, cell: Cell) -> str:
    """The upper line of a cell."""
    if cell.ours is None and cell.finished:
        return "not measured"
    if cell.ours is None:
        return f"- (0/{cell.planned})" if cell.planned else ""
    marks = "†" * bool(cell.stale) + "‡" * cell.mixed + "¶" * cell.other_data + "§" * cell.below
    done = f" ({cell.ours.count}/{cell.planned}){marks}"
    gap = ""
    if cell.difference is not None:
        gap = f" [{number(table, cell.difference, sign=True)}{cell.stars}]"
    return f"{sample(table, cell.ours)}{done}{gap}"


def legend(summary: Summary) -> str:
    """What the marks in the cells mean."""
    cells = [cell for view in (summary, *summary.measures) for cell in view.cells.values()]
    said = [
        LEGEND,
        *[MIXED] * any(cell.mixed for cell in cells),
        *[OTHER_DATA] * any(cell.other_data for cell in cells),
        *[BELOW] * any(cell.below for cell in cells),
    ]
    return " ".join(said)


def rule(summary: Summary) -> str:
    """How the verdicts of a page are reached, and how many count."""
    found = [v for view in (summary, *summary.measures) for v in view.verdicts]
    if not found:
        return ""
    points = any(view.table.metric.in_points for view in (summary, *summary.measures))
    level = f"Level, where higher is better: it is within {ROOM} points of it. " if points else ""
    said = [
        f"A verdict goes by the {100 - 100 * ALPHA:g} % t-interval of a difference: paired where two or more "
        "seeds (or folds) pair, by Welch otherwise. Holds: the interval is above what the claim asks. Fails: "
        f"it is below. {level}Otherwise, and always with one seed, undecided."
    ]
    if chances := distinct(found):
        said.append(
            f"Among the {len(chances)} differences with an interval the false-discovery rate is kept at "
            f"{100 * ALPHA:g} % (Benjamini-Hochberg): {sum(v.many for v in found)} verdicts that alone would "
            "hold or fail are undecided. Levels are not part of this control."
        )
    if any(v.needed for v in found):
        said.append(
            "Seeds that would decide are counted in all; they do with even chances, if mean and spread stay."
        )
    if any(beyond(summary, v) for v in found):
        said.append(
            "Seeds beyond the plan make an interval surer than it should be, if they were added when the "
            "first had been seen."
        )
    if summary.scores:
        said.append(
            "After a verdict: what it is by the other scores of this page, each with a rate of its own."
        )
    return " ".join(said)


def verdicts(summary: Summary, claim: Claim) -> list[tuple[str, str]]:
    """State and line of each verdict on a claim; verdicts that wait for runs share a line."""
    found = [v for v in summary.verdicts if v.claim is claim]
    lines = [(v.state, verdict(summary, v)) for v in found if v.state != NOT_YET]
    waiting = [v for v in found if v.state == NOT_YET]
    if waiting:
        places = ", ".join(f"{where(summary, v)} (no {' or '.join(v.lacking)})" for v in waiting)
        lines.append((NOT_YET, f"{NOT_YET}: {places}"))
    return lines


def verdict(summary: Summary, found: Verdict) -> str:
    """A verdict with its numbers and interval, and what would decide it."""
    table = summary.table
    numbers = ", ".join(f"{row} {number(table, value)}" for row, value in found.numbers.items())
    said = [numbers, *interval(table, found), *of_the_paper(table, found)]
    if more := beyond(summary, found):
        said.append(more)
    if found.seeds is not None:
        said.append(f"of the seeds that all have: {', '.join(map(str, found.seeds))}")
    if found.paper is False:
        said.append("the paper's own numbers fail it")
    said += by_other_scores(summary, found)
    return f"{where(summary, found)}: {found.state}{needed(summary, found)} ({'; '.join(said)})"


def interval(table: Table, found: Verdict) -> list[str]:
    """The difference that decides, with its interval, how many runs it rests on, and the claim's p-value."""
    if found.part is None or found.part.interval is None:
        return []
    low, high = (number(table, end, sign=True) for end in found.part.interval)
    estimate = found.part.estimate
    how = f"{estimate.count} pairs" if estimate.paired else f"not paired, {estimate.count} runs or more"
    if found.p is None:
        return [f"{difference(table, found.part)}, the same in every run, {how}"]
    many = ", too much for so many verdicts" if found.many else ""
    return [f"{difference(table, found.part)} [{low}, {high}], {how}, p = {found.p:.2g}{many}"]


def of_the_paper(table: Table, found: Verdict) -> list[str]:
    """The paper's number for that difference, and whether our interval excludes it; of scores alone."""
    if found.part is None or found.printed is None:
        return []
    excluded = ", which the interval excludes" if found.excludes else ""
    return [f"in the paper {number(table, found.printed, sign=True)}{excluded}"]


def places(found: Verdict) -> list[tuple[str, str]]:
    """The cells of a verdict."""
    columns = [found.column] if found.column else found.claim.on
    return [(row, column) for row in found.claim.rows for column in columns]


def with_needs(summary: Summary, cells: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Cells, and those whose checkpoints they need."""
    found = set(cells)
    for row, column in cells:
        needs = [(needed, column) for needed in summary.table.rows[row].needs.values()]
        found |= with_needs(summary, needs)
    return found


def beyond(summary: Summary, found: Verdict) -> str:
    """How many seeds of a verdict are beyond the table's plan, and what is found without them."""
    every = set().union(*(summary.cells[place].values for place in places(found)))
    used = every if found.seeds is None else set(found.seeds)
    many = len(used - set(summary.table.seeds)) if found.part else 0
    without = "" if found.planned in ("", found.state) else f", {found.planned} without them"
    return f"{many} seed{'s' * (many > 1)} beyond the plan{without}" if many else ""


def difference(table: Table, part: Part) -> str:
    """A sum of rows and its estimate, without the claim's constant."""
    return f"{part.difference} {number(table, part.estimate.mean - part.difference.constant, sign=True)}"


def hours(found: float) -> str:
    """Hours of a CPU core."""
    return f"{found:.1f}" if found >= 0.05 else "< 0.1"


def needed(summary: Summary, found: Verdict) -> str:
    """How many seeds would decide an undecided verdict, and the time that those to come take."""
    if found.state != UNDECIDED:
        return ""
    if found.needed is None:
        few = found.part is None or found.part.estimate.error is None
        return ", one seed" if few else ", two seeds"
    if found.needed > MOST:
        return f", {MOST} seeds would not"
    planned = {place for place in with_needs(summary, places(found)) if summary.cells[place].planned}
    gaps = {place: found.needed - len(summary.cells[place].values) for place in planned}
    more = {place: missing for place, missing in gaps.items() if missing > 0}
    known = more.keys() <= summary.seconds.keys()
    left = sum(missing * summary.seconds[place] for place, missing in more.items()) if known else 0
    took = f", in {hours(left / 3600)} core hours more" if left else ""
    return f", some {found.needed} seeds would decide{took}"


def by_other_scores(summary: Summary, found: Verdict) -> list[str]:
    """What the claim is found to be by the other scores; a score with the same numbers is no other.

    A margin is one of the page's own score. Of older runs only this score was kept.
    """
    if found.part and found.part.difference.constant:
        return []
    missing = NOT_YET if found.state == NOT_YET else "not kept by all runs"
    said = []
    for view in summary.scores:
        same = (v for v in view.verdicts if (v.claim, v.column) == (found.claim, found.column))
        if (other := next(same, None)) and other.numbers != found.numbers:
            state = missing if other.state == NOT_YET else other.state
            said.append(f"{scores.label(view.table.metric.name)}: {state}")
    return said


def by_scores(summary: Summary, row: str, column: str) -> str:
    """A cell by each of the scores, side by side; with the runs that can tell, if not all can."""
    cells = [(view.table, view.cells[row, column]) for view in summary.scores]
    most = max((len(cell.values) for _, cell in cells), default=0)
    if not most:
        return ""
    few = {cell.ours.count for _, cell in cells if cell.ours} - {most}
    return " · ".join(
        "-"
        if cell.ours is None
        else number(table, cell.ours.mean) + f" ({cell.ours.count}/{most})" * (cell.ours.count in few)
        for table, cell in cells
    )


def score_heads(summary: Summary) -> str:
    """What stands in the cells of `by_scores`."""
    return " · ".join(scores.label(view.table.metric.name) for view in summary.scores)


def score_legend(summary: Summary) -> str:
    """What stands below the cells of `by_scores`."""
    chosen = any(view.table.metric.name.endswith("_chosen") for view in summary.scores)
    return f"Means over seeds, x 100.{f' {GRIDLESS}' if chosen else ''}"


def ratios(summary: Summary) -> list[str]:
    """Each ratio of rows, with the paper's over the same columns, and over all of its own."""
    lines = []
    for ratio in summary.table.ratios:
        if found := summary.ratio(ratio):
            same = summary.ratio(ratio, printed=True)
            printed = f"; the paper: {same.mean:.2f} over the same" if same else ""
            if ratio.reported is not None:
                printed += f"; the paper over all of its columns: {ratio.reported:.2f}"
            columns = f"{found.count} column{'s' if found.count > 1 else ''}"
            places = f"{ratio.of} / {ratio.to}, mean over {columns}"
            lines.append(f"{ratio.says}: {found.mean:.2f} ({places}{printed})")
    return lines


def where(summary: Summary, found: Verdict) -> str:
    """The column of a verdict."""
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
        notes = [column.note, repeats.note(column), missing or (f"Missing: {reason}" if reason else "")]
        _add(f"column {name}", notes, marks, texts)
    for name, row in table.rows.items():
        _add(f"row {name}", [row.note], marks, texts)
    filled = References(summary)
    return marks, [filled.fill(text) for text in texts]


def notes(summary: Summary) -> list[str]:
    """The notes of a table, their numbers drawn from records."""
    filled = References(summary)
    return [filled.fill(note) for note in summary.table.notes]


def check_references(summary: Summary) -> None:
    """Fill in every note, so that a wrong reference is found before runs are.

    Raises:
        TableError: a reference cannot be read; the message names file and line.
    """
    footnotes(summary)
    notes(summary)


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
        f"{starts.processors_of(found)}. To train some of them here:  {summary.table.command} ROWS=... "
        "VERIFY=1  compares, FRESH=1 replaces."
    )


def effort(summary: Summary) -> str:
    """How many runs, their time, their processors."""
    if not summary.records:
        return "No run has finished yet."
    records = [*{record["id"]: record for record in summary.records}.values()]  # cells may share a run
    hours = sum(float(r.get("seconds") or 0) for r in records) / 3600
    spent = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
    torches = sorted({r.get("versions", {}).get("torch", "?") for r in records})
    return (
        f"{len(records)} runs, {spent} of training on {starts.processors_of(records)}; "
        f"torch {', '.join(torches)}; commits {starts.commits_of(records)} (+: with changes)."
    )
