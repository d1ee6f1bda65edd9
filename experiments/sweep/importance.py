"""How much of a sweep's scores each parameter explains.

The measure is epsilon squared of a one-way analysis of variance: the share of the variance of scores that
lies between the values of one parameter, less what chance alone would give. Numbers with more than four
values are grouped into quarters. It knows no interactions, and has no dependency; optuna's fANOVA needs a
forest.
"""

import json
import statistics
from collections.abc import Iterable, Sequence

from experiments.fields import is_number
from experiments.sweep.file import Sweep
from experiments.sweep.study import DONE, Trial

GROUPS = 4
ENOUGH = 10  # trials for each parameter


def importance(sweep: Sweep, trials: Iterable[Trial]) -> dict[str, float]:
    """The share of each parameter that varies, 0 to 1, the largest first; empty with too few trials."""
    done = [t for t in trials if t.state == DONE and t.score is not None]
    scores = [float(t.score or 0.0) for t in done]
    shares = {name: explained(groups_of([t.point[name] for t in done]), scores) for name in varied(sweep)}
    known = {name: share for name, share in shares.items() if share is not None}
    return dict(sorted(known.items(), key=lambda one: -one[1]))


def varied(sweep: Sweep) -> list[str]:
    """The parameters with more than one value."""
    return [name for name, one in sweep.parameters.items() if len(one.grid() or (0, 1)) > 1]


def groups_of(values: Sequence[object]) -> list[str]:
    """The group of each value: the value itself, or the quarter of the numbers it lies in."""
    texts = [json.dumps(value, sort_keys=True) for value in values]
    if len(set(texts)) <= GROUPS or not all(map(is_number, values)):
        return texts
    cuts = statistics.quantiles([float(v) for v in values], n=GROUPS)  # type: ignore[arg-type]
    return [str(sum(float(v) > cut for cut in cuts)) for v in values]  # type: ignore[arg-type]


def explained(groups: Sequence[str], scores: Sequence[float]) -> float | None:
    """Epsilon squared, at least 0; None if no group has two scores, or all scores are the same."""
    kinds = set(groups)
    free = len(scores) - len(kinds)
    if free < 1 or len(kinds) < 2:
        return None
    total = statistics.variance(scores)
    inside = sum(
        (score - statistics.fmean([s for g, s in zip(groups, scores, strict=True) if g == kind])) ** 2
        for kind, score in zip(groups, scores, strict=True)
    )
    return max(0.0, 1 - inside / free / total) if total else None
