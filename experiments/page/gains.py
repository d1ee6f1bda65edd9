"""Which share of one row's gain over another the other rows recover."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import covariance, fmean

from experiments.page.intervals import ALPHA, paired_estimate
from experiments.page.summary import Summary
from experiments.page.verdicts import Cell
from experiments.plan.table import Gain


@dataclass(frozen=True)
class Share:
    """A share and its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.0f} % [{100 * self.low:.0f}, {100 * self.high:.0f}]"


def share(part: Sequence[float], whole: Sequence[float], alpha: float = ALPHA) -> Share | None:
    """The mean of `part` over that of `whole`, numbers that pair, with Fieller's interval.

    It has every r that the t-test of part - r whole does not exclude: with means A and B and (co)variances v
    of the means, (B^2 - t^2 v_BB) r^2 - 2 (AB - t^2 v_AB) r + A^2 - t^2 v_AA <= 0.   [Fieller 1954]

    None where that has no end: there is one pair, or the test does not exclude that `whole` is 0.
    """
    from scipy.special import stdtrit

    count = len(part)
    if count < 2:
        return None
    a, b = fmean(part), fmean(whole)
    t = float(stdtrit(count - 1, 1 - alpha / 2))
    aa, ab, bb = (t * t * covariance(x, y) / count for x, y in ((part, part), (part, whole), (whole, whole)))
    if (square := b * b - bb) <= 0:
        return None
    middle, half = a * b - ab, math.sqrt(max((a * b - ab) ** 2 - square * (a * a - aa), 0.0))
    return Share(a / b, (middle - half) / square, (middle + half) / square)


def shares(summary: Summary) -> list[tuple[str, list[str]]]:
    """Each gain of a table: its title, and a line for each column in which it is above 0."""
    found = ((gain.title, _lines(gain, summary)) for gain in summary.table.gains)
    return [(title, lines) for title, lines in found if lines]


def _lines(gain: Gain, summary: Summary) -> list[str]:
    lines = []
    for name, column in summary.columns.items():
        best, base = summary.cells[gain.of, name], summary.cells[gain.over, name]
        rows = (r for r, row in summary.table.rows.items() if not (row.cited or row.floor))
        found = [
            f"{summary.table.rows[row].label} {one}"
            for row in rows
            if row not in (gain.of, gain.over) and (one := _share(summary.cells[row, name], best, base))
        ]
        seeds = best.values.keys() & base.values.keys()
        if found:
            whole = paired_estimate(((1, best.values), (-1, base.values)), seeds, 0)
            half = whole.half()
            lines.append(
                f"{column.label}: of {whole.mean:+.2f} [{whole.mean - half:+.2f}, {whole.mean + half:+.2f}]: "
                + ", ".join(found)
            )
    return lines


def _share(row: Cell, best: Cell, base: Cell) -> Share | None:
    """Of the gain of `best` over `base`, by the seeds that all three have."""
    seeds = sorted(row.values.keys() & best.values.keys() & base.values.keys())
    part, whole = ([cell.values[s] - base.values[s] for s in seeds] for cell in (row, best))
    return share(part, whole)
