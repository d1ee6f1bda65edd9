"""A sweep on this machine: JOBS trials at a time, each an ordinary run with its id and its record.

Several processes, also of several machines, may work on one sweep: they share its study.
"""

from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape

from experiments import store
from experiments.errors import STOPPED, SweepError
from experiments.plan import compose
from experiments.plan.runs import Plan, Run
from experiments.run import probe, workers
from experiments.run.board import board
from experiments.run.execute import Outcome
from experiments.run.launch import Launch
from experiments.run.launch import adopt as record_in
from experiments.run.reproduce import tell_failed
from experiments.sweep import adopt, bayes, trials
from experiments.sweep.file import Sweep
from experiments.sweep.page import keep_trials, read_trials, render
from experiments.sweep.points import covering, grid_point, grid_points, random_point
from experiments.sweep.study import DONE, FAILED, PRUNED, Study, Trial, most, reached
from experiments.sweep.watch import TrialWatch

SHOWN = 10  # points of a dry run of an endless sweep


def run(sweep: Sweep, console: Console, *, jobs: int = 0, count: int | None = None) -> int:
    """Run the trials that are left, `count` in all, and render the page; the exit code."""
    jobs = jobs or workers.cores()
    study = Study.open(sweep)
    study.retry_failed()
    try:
        launch = _work(sweep, study, console, jobs, count)
    finally:
        found = study.trials()
        if any(trial.state in (DONE, PRUNED) for trial in found):
            keep_trials(sweep, found)
            render(sweep, console)
    return tell_failed(launch, console) if launch else STOPPED


def _work(sweep: Sweep, study: Study, console: Console, jobs: int, count: int | None) -> Launch | None:
    """Run until no point is left; None if Ctrl-C stopped it."""
    plan = Plan(trials.table_of(sweep), [], {})
    source = Trials(sweep, study, plan, console, jobs, count)
    showing = board(console, plan.table)
    context = workers.server()
    launch = Launch(plan, showing, context, jobs=jobs, threads=workers.threads(), source=source)
    store.sweep(store.RESULTS, older=60)  # other processes may be writing these files
    try:
        with showing:
            launch.work()
    except KeyboardInterrupt:
        console.print(
            "\nStopped. Finished trials are kept; the same command resumes the others from their last epoch."
        )
        return None
    finally:
        study.release(*source.active)
    return launch


@dataclass
class Trials:
    """The trials of a study as runs, for a launch; those whose run is recorded count at once."""

    sweep: Sweep
    study: Study
    plan: Plan
    console: Console
    jobs: int
    count: int | None
    active: dict[int, Trial] = field(default_factory=dict)
    begun: dict[str, Trial] = field(default_factory=dict)  # by the id of their run

    def next(self) -> Run | None:
        """The run of the next point that is not recorded anywhere."""
        self.study.beat(*self.active)
        while trial := self.study.claim(self.count):
            self.active[trial.number] = trial
            run = self._run(trial)
            self._refuse_one_run(trial, run)
            record = store.finished().get(run.id) or store.read_record(run.id)
            if record is None:
                store.tidy(store.run_dir(run.id))
                return run
            record_in(self.plan, run, record)
            self._finish(run, DONE, trials.score_of(self.sweep, record))
            self.console.print(f"{run.name}: taken over from an earlier run")
        return None

    def waits(self) -> bool:
        """Whether other processes run trials, which could be left to this one."""
        return self.study.running() > len(self.active)

    def watch(self, run: Run) -> TrialWatch:
        """What follows a run in its process."""
        return TrialWatch(self.sweep, trials.number_of(run))

    def tick(self, runs: list[Run]) -> None:
        """Say that the trials of these runs still run."""
        self.study.beat(*map(trials.number_of, runs))

    def ended(self, run: Run, outcome: Outcome) -> None:
        """Keep how a trial ended; end the sweep on a fault that all its trials would have."""
        if outcome.all_alike:
            raise SweepError(outcome.reason)
        if outcome.state == "done" and outcome.record:
            self._finish(run, DONE, trials.score_of(self.sweep, outcome.record))
        else:
            self._finish(run, PRUNED if outcome.state == "pruned" else FAILED, outcome.score)

    def _run(self, trial: Trial) -> Run:
        (config,) = trials.configs_of(self.sweep, [trial.point], _parse(1))
        return trials.run_of(self.sweep, trial.number, trial.point, config)

    def _refuse_one_run(self, trial: Trial, run: Run) -> None:
        """Raise an error if a trial at another point had the same run: what differs there has no effect."""
        had = {other.run_id: other for other in self.study.trials() if other.run_id} | self.begun
        other = had.setdefault(run.id, trial)
        idle = [name for name, value in trial.point.items() if other.point.get(name) != value]
        if idle:
            raise SweepError(
                f"{self.sweep.path}: trials {other.number} and {trial.number} are one run, so "
                f"{' and '.join(idle)} changes nothing there: another setting wins. Leave one of them out."
            )
        self.begun[run.id] = trial

    def _finish(self, run: Run, state: str, score: float | None) -> None:
        number = trials.number_of(run)
        self.study.finish(number, state, score, run.id)
        self.active.pop(number, None)


def check(sweep: Sweep, console: Console, *, count: int | None = None, fetch: bool = True) -> None:
    """Find what would spoil its trials before there are any; with `fetch` download missing data.

    Raises:
        SweepError: a parameter or the metric is not there, or the data cannot be fetched.
    """
    known = Study.known(sweep)
    _serve(sweep)
    points = grid_points(sweep)[: most(sweep, count)] if sweep.method == "grid" else covering(sweep)
    with console.status(f"composing {len(points)} points of {sweep.name}"):
        first, *_ = trials.configs_of(sweep, points, _parse(workers.cores()))
        _refuse_changed(sweep, known)
    data = {"data": first["data"]} if "data" in first else {}
    absent = workers.missing_all(workers.server, data, fetch=fetch)
    if absent and fetch:
        raise SweepError(absent["data"])
    if not absent and not any(trial.score is not None for trial in known):
        with console.status(f"asking a run of {sweep.name} which scores it logs"):
            _check_metric(sweep, trials.run_of(sweep, 0, points[0], first))


def _refuse_changed(sweep: Sweep, known: list[Trial]) -> None:
    done = next((trial for trial in known if trial.state == DONE), None)
    if done:
        (config,) = trials.configs_of(sweep, [done.point], _parse(1))
        point = done.point | {trials.SEED: trials.seed_of(sweep, done.point)}
        trials.refuse_changed(
            sweep, done.number, done.run_id, trials.run_of(sweep, done.number, point, config)
        )


def _check_metric(sweep: Sweep, run: Run) -> None:
    """Refuse a metric that no callback of a run monitors, and that its first validation does not log.

    So is one that a callback monitors and takes for better the other way round.
    """
    options = [callback.get("init_args") or {} for callback in run.config["trainer"].get("callbacks") or []]
    monitored = [given.get("monitor") for given in options]
    modes = {given.get("mode") for given in options if given.get("monitor") == sweep.metric} & {"min", "max"}
    if modes and sweep.goal[:3] not in modes:
        (mode,) = modes
        raise SweepError(
            f"{sweep.at('metric.name')}: the goal is to {sweep.goal} {sweep.metric}, and the runs' own "
            f"callbacks have mode {mode} for it. Write  goal: {mode}imize , or correct their mode."
        )
    if sweep.metric not in monitored and (names := probe.logged(run.config)) and sweep.metric not in names:
        raise SweepError(trials.not_logged(sweep, names))


def need(sweep: Sweep, count: int | None) -> None:
    """Refuse a sweep that would never end, or that needs a package which is not here."""
    bayes.need(sweep)
    if sweep.method != "grid" and count is None and sweep.run_cap is None and sweep.target is None:
        raise SweepError(
            f"{sweep.path}: {sweep.method} has no end. Say how many trials: COUNT=20 (--count 20), or "
            "run_cap in the file."
        )


def check_adoption(sweep: Sweep, place: str) -> None:
    """Refuse a place for the winner before anything runs."""
    file, row = adopt.target(sweep, place)
    adopt.put(file.read_text(), row, "", file)


def adopt_best(sweep: Sweep, place: str, console: Console) -> None:
    """Write the best point into conf/tuned."""
    _serve(sweep)
    said = adopt.adopt(sweep, read_trials(sweep), place, _parse(1))
    console.print(said, highlight=False, markup=False, soft_wrap=True)


def _serve(sweep: Sweep) -> None:
    """Start the fork server, so that it imports while this process plans."""
    workers.server(sorted(compose.modules(trials.layers_of(sweep, {}))))


def _parse(jobs: int) -> compose.Parse:
    return lambda cells: workers.parse_all(workers.server(), cells, jobs)


def dry_run(sweep: Sweep, console: Console, *, count: int | None = None) -> int:
    """Print the trials so far, and those to come as far as they are known; the exit code."""
    check(sweep, console, count=count, fetch=False)
    known = Study.known(sweep)
    ahead = [] if reached(sweep, known) else coming(sweep, known, count)
    points = [trial.point for trial in [*known, *ahead]]
    configs = trials.configs_of(sweep, points, _parse(workers.cores()))
    counts: dict[str, int] = {}
    recorded = store.finished()
    for trial, config in zip([*known, *ahead], configs, strict=True):
        run = trials.run_of(sweep, trial.number, trial.point, config)
        state = trial.state
        if trial in ahead:
            state = DONE if run.id in recorded or store.read_record(run.id) else "planned"
        counts[state] = counts.get(state, 0) + 1
        values = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in trial.point.items())
        line = f"{state:8} {run.id}  {run.name}  [dim]{escape(values)}[/dim]"
        console.print(line, highlight=False, soft_wrap=True)
    console.print(", ".join(f"{n} {state}" for state, n in counts.items()))
    if said := _rest(sweep, len(points), known, count):
        console.print(said, highlight=False, soft_wrap=True)
    return 0


def coming(sweep: Sweep, known: list[Trial], count: int | None) -> list[Trial]:
    """The next trials whose points do not depend on scores; at most SHOWN of a sweep without a limit."""
    limit, found = most(sweep, count), list[Trial]()
    end = len(known) + SHOWN if limit is None else limit
    if sweep.method == "bayes":
        end = min(end, bayes.startup(limit))
    for number in range(len(known), end):
        if sweep.method == "grid":
            point = grid_point(sweep, number)
        elif sweep.method == "random":
            point = random_point(sweep, 0, number)
        else:
            point = bayes.suggest(sweep, [*known, *found], {}, 0, limit) or {}
        found.append(Trial(number, point))
    return found


def _rest(sweep: Sweep, shown: int, known: list[Trial], count: int | None) -> str:
    """A sentence on the trials that are not shown."""
    limit = most(sweep, count)
    if reached(sweep, known):
        return f"The target {sweep.target} is reached: no trial would follow."
    if limit is None:
        return f"Trials follow until {sweep.metric} reaches {sweep.target}."
    if sweep.method == "bayes" and shown < limit:
        return f"{limit - shown} more follow: bayes chooses their points by the scores of earlier ones."
    return ""
