"""Intervals of differences between rows, and which of many p-values count."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

ALPHA = 0.05
ROUNDED = 1e-6  # the share of a score that single precision may take or add


@dataclass(frozen=True)
class Sample:
    """Mean, sample standard deviation (None below two numbers) and how many numbers there are."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Sample":
        """Summarise numbers."""
        return cls(
            statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values)
        )

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None if no spread is known."""
        return None if self.std is None else self.std / math.sqrt(self.count)


@dataclass(frozen=True)
class Estimate:
    """An estimated difference, and what its t-interval needs; `error` is None if one seed has no spread."""

    mean: float
    error: float | None
    freedom: float
    count: int  # pairs; without pairs, the runs of the row with the fewest
    paired: bool = True

    def half(self) -> float:
        """Half the width of the interval."""
        from scipy.special import stdtrit

        assert self.error is not None
        return float(stdtrit(self.freedom, 1 - ALPHA / 2)) * self.error

    def grown(self, count: int) -> "Estimate":
        """The estimate from this many seeds, if mean and spread stay."""
        assert self.error is not None
        freedom = self.freedom * (count - 1) / (self.count - 1)
        error = self.error * math.sqrt(self.count / count)
        return replace(self, error=error, freedom=freedom, count=count)

    @property
    def p(self) -> float | None:
        """Two-sided p of no difference; None without a spread, which is no chance of an error."""
        if not self.error:
            return None
        return two_sided(self.mean, self.error, self.freedom)


def paired_estimate(
    terms: Sequence[tuple[float, Mapping[int, float]]], seeds: Collection[int], constant: float
) -> Estimate:
    """Of a sum of rows, seed by seed: runs with one seed share split, fold and order of examples.

    Rows that differ by no more than single precision rounds are the same.
    """
    own = [[factor * values[seed] for factor, values in terms] for seed in sorted(seeds)]
    gaps, room = [sum(of_seed) for of_seed in own], ROUNDED * max(sum(map(abs, of_seed)) for of_seed in own)
    if max(gaps) - min(gaps) <= room:
        gaps = [statistics.fmean(gaps) if abs(statistics.fmean(gaps)) > room else 0.0] * len(gaps)
    found = Sample.of([constant + gap for gap in gaps])
    return Estimate(found.mean, found.error, len(gaps) - 1, len(gaps))


def welch_estimate(terms: Sequence[tuple[float, Sample]], constant: float) -> Estimate:
    """Of a sum of samples that do not pair. A sample without spread (a printed number) counts as exact."""
    mean = constant + sum(factor * sample.mean for factor, sample in terms)
    spread = [
        ((factor * sample.error) ** 2, sample.count)
        for factor, sample in terms
        if sample.error is not None and sample.count > 1
    ]
    count = min((n for _, n in spread), default=1)
    total = sum(part for part, _ in spread)
    fourth = sum(part**2 / (n - 1) for part, n in spread)
    freedom = total**2 / fourth if fourth else float(count - 1)
    error = math.sqrt(total) if spread else None
    return Estimate(mean, error, freedom, count, paired=False)


def two_sided(mean: float, error: float, freedom: float) -> float:
    """Two-sided p of Student's t."""
    from scipy.special import stdtr

    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stdtr(freedom, -abs(mean / error)))


def false_discovery_cut(chances: Collection[float]) -> float:
    """The largest p that counts so that at most a share ALPHA of what counts is expected to be wrong; or 0.

    The k-th smallest of m counts if it, or a larger one in its place, is at most ALPHA k / m.
    [Benjamini and Hochberg 1995]
    """
    ordered = sorted(chances)
    below = [p for k, p in enumerate(ordered, start=1) if p <= ALPHA * k / len(ordered)]
    return max(below, default=0.0)
