"""Which share of one row's gain over another the other rows recover."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import covariance, fmean

from experiments.page.intervals import ALPHA, paired_estimate
from experiments.page.summary import Summary
from experiments.plan.table import Gain

LEGEND = (
    "Intervals are Fieller's, 95 %, over seeds that pair. Below 0 is a loss, 100 % all of the gain. Columns "
    "whose gain may be 0 are left out."
)


@dataclass(frozen=True)
class Share:
    """A share and its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.0f} % [{100 * self.low:.0f}, {100 * self.high:.0f}]"


def share(part: Sequence[float], whole: Sequence[float]) -> Share | None:
    """The mean of `part` over that of `whole`, numbers that pair, with Fieller's interval.

    It has every r that the t-test of part - r whole does not exclude: with means A and B and (co)variances v
    of the means, (B^2 - t^2 v_BB) r^2 - 2 (AB - t^2 v_AB) r + A^2 - t^2 v_AA <= 0.   [Fieller 1954]

    None where there is one pair, or the test does not exclude that `whole` is 0 or less: it has no end there.
    """
    from scipy.special import stdtrit

    count = len(part)
    if count < 2:
        return None
    a, b = fmean(part), fmean(whole)
    t = float(stdtrit(count - 1, 1 - ALPHA / 2))
    aa, ab, bb = (t * t * covariance(x, y) / count for x, y in ((part, part), (part, whole), (whole, whole)))
    if b <= 0 or (square := b * b - bb) <= 0:
        return None
    middle, half = a * b - ab, math.sqrt(max((a * b - ab) ** 2 - square * (a * a - aa), 0.0))
    return Share(a / b, (middle - half) / square, (middle + half) / square)


def shares(summary: Summary) -> list[tuple[str, list[str]]]:
    """Each gain of a table: its title, and a line for each row and each column in which it is above 0.

    The gain is that of the seeds that both of its rows have. A row with fewer is compared on its own seeds.
    """
    found = ((gain.title, _lines(gain, summary)) for gain in summary.table.gains)
    return [(title, lines) for title, lines in found if lines]


def _lines(gain: Gain, summary: Summary) -> list[str]:
    lines = []
    metric = summary.table.metric
    sign = metric.sign
    for name, column in summary.columns.items():
        best, base = (summary.cells[row, name].values for row in (gain.of, gain.over))
        seeds = best.keys() & base.keys()
        if len(seeds) < 2:
            continue
        whole = paired_estimate(((sign, best), (-sign, base)), seeds, 0)
        if whole.mean <= (half := whole.half()):
            continue
        ends = (sign * (whole.mean - half), sign * (whole.mean + half))
        low, high = (f"{end:+.{metric.digits}f}" for end in sorted(ends))
        lines.append(f"{column.label}: the gain is {sign * whole.mean:+.{metric.digits}f} [{low}, {high}]")
        for row, at in summary.table.rows.items():
            if at.cited or at.floor or row in (gain.of, gain.over):
                continue
            own = summary.cells[row, name].values
            paired = sorted(seeds & own.keys())
            part, gains = ([sign * (values[s] - base[s]) for s in paired] for values in (own, best))
            if one := share(part, gains):
                fewer = f", on {len(paired)} of {len(seeds)} seeds" if seeds - own.keys() else ""
                lines.append(f"{column.label}: {at.label} {one}{fewer}")
    return lines
