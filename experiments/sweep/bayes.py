"""Bayesian search and early stopping by optuna, rebuilt for each question from the trials of a study.

Search is optuna's TPE. It sees a choice as the index of a value, in order if all are numbers, a whole number
as it is, and a number as its quantile, so W&B's distribution is the prior. Running trials count as bad ones
(constant liar), so that processes do not all try the same point. Failed ones, and those without a finite
score, are left out. The first points are random.

Early stopping maps W&B's hyperband to optuna's successive halving, since in W&B all runs share one bracket.
Each is compared at the same bands, min_iter * eta^k or max_iter / eta^k for k = s, ..., 1. They count reports
of the metric; the first report has number 0. `eta` is optuna's reduction factor, and a band its rung. A run
stops at a band if it is not in the best 1/eta of those that reached it. They are compared by their best score
so far, with `strict` by the score at the band. Unlike W&B's server, a run is judged at its bands alone.
"""

import json
import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.errors import SweepError
from experiments.sweep.file import Sweep
from experiments.sweep.parameters import Choice, Number, Parameter, Whole
from experiments.sweep.points import Point, grid_points, grid_size, random_point

if TYPE_CHECKING:
    import optuna

    from experiments.sweep.study import Trial

STARTUP = 10  # random points before the search, as in optuna; a quarter of a shorter sweep
ATTEMPTS = 10  # to find a point that was not tried
INSTALL = "pip install -c constraints.txt -e '.[sweep]'"

Reports = dict[int, dict[int, float]]  # scores by trial and epoch


def need(sweep: Sweep) -> None:
    """Refuse a sweep for which optuna is needed and not installed."""
    if sweep.method == "bayes" or sweep.early:
        try:
            import optuna
        except ModuleNotFoundError:
            what = "method: bayes" if sweep.method == "bayes" else "early_terminate"
            raise SweepError(f"{sweep.path} says {what}, which needs optuna: {INSTALL}") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)


def suggest(
    sweep: Sweep, trials: "list[Trial]", reports: Reports, seed: int, limit: int | None
) -> Point | None:
    """The next point, different from those before if there is such a one; None once all were tried.

    It depends on the seed and the trials alone.
    """
    number, tried = len(trials), {_key(trial.point) for trial in trials}
    source = random.Random(f"{seed}/{number}")
    point: Point = {}
    for attempt in range(ATTEMPTS):
        if number < startup(limit):
            point = random_point(sweep, seed if attempt == 0 else source.getrandbits(32), number)
        else:
            point = _ask(sweep, _rebuilt(sweep, trials, reports, source.getrandbits(32)))
        if _key(point) not in tried:
            return point
    if grid_size(sweep) is None:
        return point
    left = [one for one in grid_points(sweep) if _key(one) not in tried]
    return source.choice(left) if left else None


def startup(limit: int | None) -> int:
    """How many points a search of `limit` trials begins with that do not depend on scores."""
    return STARTUP if limit is None else min(STARTUP, math.ceil(limit / 4))


def stops(sweep: Sweep, reports: Reports, number: int) -> bool:
    """Whether a trial is to stop after its latest report, judged by the reports of all."""
    early, own = sweep.early, len(reports.get(number, ()))
    if early is None or own - 1 not in early.bands(own):
        return False
    import optuna

    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=early.eta)
    study = optuna.create_study(direction=sweep.goal, pruner=pruner)
    stop = False
    for one in sorted(reports, key=lambda other: other == number):  # its own reports last
        trial = study.ask()
        scores = [score for _, score in sorted(reports[one].items())]
        for rung, band in enumerate(early.bands(len(scores))):
            score = scores[band] if early.strict else _best(sweep, scores[: band + 1])
            trial.report(score, early.eta**rung)
            stop = trial.should_prune()
    return stop


def _best(sweep: Sweep, scores: list[float]) -> float:
    numbers = [score for score in scores if not math.isnan(score)] or [math.nan]
    return max(numbers) if sweep.goal == "maximize" else min(numbers)


def _rebuilt(sweep: Sweep, trials: "list[Trial]", reports: Reports, seed: int) -> "optuna.Study":
    """A study of optuna in memory, with the trials that it can learn from."""
    import optuna
    from optuna.trial import TrialState, create_trial

    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)
    states = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
    study = optuna.create_study(direction=sweep.goal, sampler=sampler)
    distributions = _distributions(sweep)
    for trial in trials:
        state = states.get(trial.state, TrialState.RUNNING)
        over = state != TrialState.RUNNING
        if trial.state == "failed" or (over and (trial.score is None or not math.isfinite(trial.score))):
            continue
        study.add_trial(
            create_trial(
                state=state,
                value=trial.score if over else None,
                params={name: _inward(sweep.parameters[name], trial.point[name]) for name in distributions},
                distributions=distributions,
                intermediate_values=reports.get(trial.number, {}),
            )
        )
    return study


def _ask(sweep: Sweep, study: "optuna.Study") -> Point:
    """The point optuna asks for."""
    asked = study.ask(_distributions(sweep)).params
    return {
        name: _outward(parameter, asked[name]) if name in asked else parameter.at(0.0)
        for name, parameter in sweep.parameters.items()
    }


def _distributions(sweep: Sweep) -> dict[str, Any]:
    """The parameters as optuna sees them; those with one value are left out."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for name, parameter in sweep.parameters.items():
        if isinstance(parameter, Whole):
            found[name] = IntDistribution(parameter.low, parameter.high)
        elif isinstance(parameter, Number):
            found[name] = FloatDistribution(0.0, 1.0)
        elif isinstance(parameter, Choice) and len(values := _values(parameter)) > 1:
            last = len(values) - 1
            found[name] = (
                IntDistribution(0, last) if _ordered(values) else CategoricalDistribution(range(last + 1))
            )
    return found


def _inward(parameter: Parameter, value: Any) -> int | float:  # noqa: ANN401
    """A value as optuna sees it."""
    if isinstance(parameter, Number):
        return parameter.quantile(value)
    if isinstance(parameter, Choice):
        return [_key(one) for one in _values(parameter)].index(_key(value))
    return value


def _outward(parameter: Parameter, found: Any) -> Any:  # noqa: ANN401
    """The value optuna means."""
    if isinstance(parameter, Number):
        return parameter.at(found)
    return _values(parameter)[found] if isinstance(parameter, Choice) else found


def _values(choice: Choice) -> list[Any]:
    """The values of a choice as optuna sees them: numbers in their order."""
    return sorted(choice.values) if _ordered(choice.values) else [*choice.values]


def _ordered(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _key(value: Any) -> str:  # noqa: ANN401
    return json.dumps(value, sort_keys=True)
