"""What becomes of a claim: it holds, is level, fails, or too few seeds have been run."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from experiments.page.intervals import (
    ALPHA,
    Estimate,
    Sample,
    false_discovery_cut,
    paired_estimate,
    two_sided,
    welch_estimate,
)
from experiments.plan.claims import Claim, Difference, Tree, differences, holds, leaves
from experiments.plan.table import Metric

HOLDS, LEVEL, FAILS, UNDECIDED, NOT_YET = STATES = ("holds", "level", "fails", "undecided", "not yet")
ROOM = 0.2  # points within which a difference is level; the spread of runs must not widen it
ENOUGH = 3  # runs before a difference from the paper is tested, or how many would decide is told
MOST = 100  # seeds that anybody would run


@dataclass(frozen=True)
class Cell:
    """One row in one column: our numbers, the paper's, and how many runs are planned."""

    row: str
    column: str
    ours: Sample | None
    paper: Sample | None
    planned: int
    stale: int = 0
    mixed: bool = False  # several kinds of processor, or code that changed during a run
    other_data: bool = False  # a run read another version of a file than most runs of the column
    values: dict[int, float] = field(default_factory=dict)
    stars: str = ""  # * and *: under which readings of its spread the paper's number differs
    below: bool = False  # below the floor of its column
    finished: Collection[int] = ()  # the seeds of its runs, with or without the metric

    @property
    def sample(self) -> Sample | None:
        """Ours; the paper's if no run is planned."""
        return self.ours if self.planned else self.paper

    def of_seeds(self, seeds: Collection[int] | None) -> "Cell":
        """The cell with the runs of these seeds only; all its runs if none are given."""
        if seeds is None or not self.values:
            return self
        values = {seed: self.values[seed] for seed in seeds}
        return replace(self, values=values, ours=Sample.of(list(values.values())) if values else None)

    def as_planned(self, seeds: Collection[int]) -> "Cell":
        """The cell without the runs that were added to the plan's."""
        return self.of_seeds([seed for seed in self.values if seed in seeds])

    @property
    def told(self) -> bool:
        """Whether there is anything to say of it."""
        return self.planned > 0 or self.paper is not None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper.mean

    def chances(self) -> tuple[float | None, float | None]:
        """The p-value of that difference, with the paper's spread as a standard deviation, as an error."""
        if self.ours is None or self.paper is None:
            return None, None
        printed, count = self.paper.std, self.paper.count
        of_runs = None if printed is None else printed * math.sqrt(count)
        return welch(self.ours, self.paper), welch(self.ours, replace(self.paper, std=of_runs))


@dataclass(frozen=True)
class Part:
    """One difference of a claim: its estimate, what it is found to be, and within what it is level."""

    difference: Difference
    estimate: Estimate
    state: str
    room: float

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the sum of rows lies, without the claim's constant."""
        if self.estimate.error is None:
            return None
        found, half = self.estimate.mean - self.difference.constant, self.estimate.half()
        return found - half, found + half


@dataclass(frozen=True)
class Verdict:
    """A claim in one column, or across columns."""

    claim: Claim
    column: str  # "" across columns
    state: str
    numbers: dict[str, float] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()
    part: Part | None = None  # the difference that decides, or is furthest from it
    parts: dict[Difference, Part] = field(default_factory=dict)  # all of the claim's
    p: float | None = None  # of the whole claim, all its parts considered
    paper: bool | None = None
    seeds: tuple[int, ...] | None = None  # if rows have different seeds: those that all have
    many: bool = False  # decided alone, and not among so many verdicts
    planned: str = ""  # the state by the planned seeds alone
    needed: int | None = None  # seeds in all that would decide it
    printed: float | None = None  # the paper's number for the difference that decides, without a constant

    @property
    def excludes(self) -> bool:
        """Whether the interval leaves out the paper's number."""
        if self.p is None or self.printed is None or self.part is None or self.part.interval is None:
            return False
        low, high = self.part.interval
        return not low <= self.printed <= high


def judge(claim: Claim, cells: Mapping[tuple[str, str], Cell], metric: Metric) -> list[Verdict]:
    """One verdict per column, or one for the mean over columns."""
    if claim.across == "mean":
        return [_judge(claim, "", {row: [cells[row, c] for c in claim.on] for row in claim.rows}, metric)]
    return [
        _judge(claim, column, {row: [cells[row, column]] for row in claim.rows}, metric)
        for column in claim.on
    ]


def _judge(claim: Claim, column: str, rows: dict[str, list[Cell]], metric: Metric) -> Verdict:
    printed = _numbers({r: [c.paper for c in cells] for r, cells in rows.items()})
    paper = holds(claim, printed) if len(printed) == len(rows) else None
    planned = [cell for cells in rows.values() for cell in cells if cell.planned]
    if not planned:  # the paper alone proves nothing here
        return Verdict(claim, column, NOT_YET, lacking=tuple(rows), paper=paper)
    seeds = shared_seeds(planned)
    rows = {row: [cell.of_seeds(seeds) for cell in cells] for row, cells in rows.items()}
    numbers = _numbers({row: [cell.sample for cell in cells] for row, cells in rows.items()})
    if lacking := tuple(row for row in rows if row not in numbers):
        return Verdict(claim, column, NOT_YET, numbers, lacking, paper=paper)
    if metric.exact:
        return Verdict(claim, column, HOLDS if holds(claim, numbers) else FAILS, numbers, paper=paper)
    parts = {of: _part(of, rows, numbers, metric) for of in leaves(differences(claim))}
    state, p, part = _combined(differences(claim), parts)
    told = metric.scale == 100 and all(row in printed for row, _ in part.difference.rows)
    gap = sum(factor * printed[row] for row, factor in part.difference.rows) if told else None
    return Verdict(
        claim, column, state, numbers, part=part, parts=parts, p=p, paper=paper, seeds=seeds, printed=gap
    )


def _combined(tree: Tree, parts: Mapping[Difference, Part]) -> tuple[str, float | None, Part]:
    """State, p and deciding part. Of several, the best p counts as many times as there were chances."""
    if isinstance(tree, Difference):
        part = parts[tree]
        return part.state, part.estimate.p, part
    found = [_combined(part, parts) for part in tree.of]
    one, every = (FAILS, HOLDS) if tree.which == "all" else (HOLDS, FAILS)
    states = [state for state, _, _ in found]
    deciding = next((state for state in (one, UNDECIDED, LEVEL) if state in states), every)
    among = [(p, part) for state, p, part in found if state == deciding]
    p, part = (min if deciding == one else max)(among, key=_doubt)
    if p is not None and deciding == one:
        p = min(1.0, p * len(found))
    return deciding, p, part


def _doubt(found: tuple[float | None, Part]) -> float:
    """The p-value by which parts are ordered; without a spread apart is sure, and one seed knows nothing."""
    p, part = found
    if p is not None:
        return p
    return 2.0 if part.estimate.error is None else float(not part.estimate.mean)


def _part(
    difference: Difference, rows: Mapping[str, list[Cell]], numbers: Mapping[str, float], metric: Metric
) -> Part:
    terms = [(f / len(rows[row]), cell) for row, f in difference.rows for cell in rows[row]]
    found = _estimate(terms, difference.constant) or Estimate(
        difference.constant + sum(f * numbers[row] for row, f in difference.rows), None, 0, 1
    )
    return part_of(difference, found, ROOM if metric.in_points else 0.0)


def part_of(difference: Difference, found: Estimate, room: float) -> Part:
    """What a difference is found to be."""
    if found.error is None:
        return Part(difference, found, UNDECIDED, room)
    low, high = found.mean - found.half(), found.mean + found.half()
    state = HOLDS if low > 0 else FAILS if high < 0 else LEVEL if -room <= low <= high <= room else UNDECIDED
    return Part(difference, found, state, room)


def seeds_needed(tree: Tree, parts: Mapping[Difference, Part], alpha: float) -> int | None:
    """The seeds in all that would decide a claim, if means and spreads stay.

    Its p has to be at most `alpha`; a level needs no p. None where a part has one seed; `MOST` + 1 where none
    up to `MOST` would do.
    """
    have = [part.estimate.count for part in parts.values() if part.estimate.error is not None]
    if len(have) < len(parts):
        return None
    for count in range(min(have) + 1, MOST + 1):
        estimates = {of: part.estimate.grown(max(count, part.estimate.count)) for of, part in parts.items()}
        grown = {of: part_of(of, estimates[of], part.room) for of, part in parts.items()}
        state, p, _ = _combined(tree, grown)
        if state == LEVEL or (state != UNDECIDED and (p is None or p <= alpha)):
            return count
    return MOST + 1


def _estimate(terms: Sequence[tuple[float, Cell]], constant: float) -> Estimate | None:
    """Paired where two seeds or more pair; else by Welch, if each row has two runs; else nothing is known."""
    runs = [cell for _, cell in terms if cell.planned]
    exact = all(cell.paper and cell.paper.std is None for _, cell in terms if not cell.planned)
    shared = set.intersection(*(set(cell.values) for cell in runs)) if runs else set()
    if len(shared) > 1 and exact:
        printed = sum(factor * cell.paper.mean for factor, cell in terms if not cell.planned and cell.paper)
        own = [(factor, cell.values) for factor, cell in terms if cell.planned]
        return paired_estimate(own, shared, constant + printed)
    if not all(len(cell.values) > 1 for cell in runs):
        return None
    cited = [cell.paper for _, cell in terms if not cell.planned and cell.paper]
    if any(paper.std is not None and paper.count < 2 for paper in cited):
        return None  # a spread of an unknown number of runs
    samples = [(factor, cell.sample) for factor, cell in terms]
    return welch_estimate([(factor, sample) for factor, sample in samples if sample], constant)


def shared_seeds(cells: Sequence[Cell]) -> tuple[int, ...] | None:
    """The seeds that all cells have, if they differ: only these are comparable.

    None if all have the same seeds, or share none: then each counts with all its seeds. Also where they share
    one and each has more.
    """
    every = [set(cell.values) for cell in cells]
    shared = set.intersection(*every) if every else set()
    if len(shared) == 1 and all(len(own) > 1 for own in every):
        return None
    return tuple(sorted(shared)) if shared and any(own != shared for own in every) else None


def controlled(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Verdicts of one page: what does not count among so many is undecided; and what would decide it.

    If k of m p-values count, another one does up to ALPHA (k + 1) / m: see `false_discovery_cut`.
    """
    verdicts = list(verdicts)
    chances = distinct(verdicts)
    cut = false_discovery_cut(chances)
    counted = sum(p <= cut for p in chances)
    alpha = ALPHA * min(1.0, (counted + 1) / max(len(chances), 1))
    found = []
    for verdict in verdicts:
        many = verdict.state in (HOLDS, FAILS) and verdict.p is not None and verdict.p > cut
        state = UNDECIDED if many else verdict.state
        enough = verdict.part is not None and verdict.part.estimate.count >= ENOUGH
        asked = state == UNDECIDED and enough
        needed = seeds_needed(differences(verdict.claim), verdict.parts, alpha) if asked else None
        found.append(replace(verdict, state=state, many=many, needed=needed))
    return found


def distinct(verdicts: Iterable[Verdict]) -> list[float]:
    """The p-values of a page. Claims that rest on one difference, or on it and its negative, are one test."""
    found = {}
    for verdict in verdicts:
        if verdict.part and verdict.p is not None:
            size = round(abs(verdict.part.estimate.mean), 9)  # tells one score of a page from another
            found[verdict.column, verdict.part.difference.unsigned, size, round(verdict.p, 12)] = verdict.p
    return [*found.values()]


def starred(cells: dict[tuple[str, str], Cell]) -> dict[tuple[str, str], Cell]:
    """Cells with a star where they differ from the paper, and one more where they do under both readings."""
    pairs = {place: cell.chances() for place, cell in cells.items()}
    cuts = [
        false_discovery_cut([p[reading] for p in pairs.values() if p[reading] is not None])  # type: ignore[misc]
        for reading in (0, 1)
    ]
    stars = {
        place: sum(p is not None and p <= cut for p, cut in zip(both, cuts, strict=True))
        for place, both in pairs.items()
    }
    return {place: replace(cell, stars="*" * stars[place]) for place, cell in cells.items()}


def welch(a: Sample, b: Sample) -> float | None:
    """Two-sided p of Welch's t-test; None where a side has fewer than three runs or no spread is known."""
    if min(a.count, b.count) < ENOUGH or a.error is None or b.error is None:
        return None
    found = welch_estimate([(1.0, a), (-1.0, b)], 0.0)
    assert found.error is not None
    return two_sided(found.mean, found.error, found.freedom)


def _numbers(samples: Mapping[str, Sequence[Sample | None]]) -> dict[str, float]:
    return {
        row: statistics.fmean([s.mean for s in found if s])
        for row, found in samples.items()
        if found and all(found)
    }
