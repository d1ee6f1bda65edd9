"""A sweep on this machine: JOBS trials at a time, each an ordinary run with its id and its record.

Several processes, also of several machines, may work on one sweep: they share its study.
"""

from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape

from experiments import store
from experiments.errors import SweepError
from experiments.plan import compose
from experiments.plan.runs import Plan, Run
from experiments.run import workers
from experiments.run.board import board
from experiments.run.execute import Outcome
from experiments.run.launch import Launch
from experiments.run.launch import adopt as record_in
from experiments.run.reproduce import STOPPED, tell_failed
from experiments.sweep import adopt, trials
from experiments.sweep.file import Sweep
from experiments.sweep.page import keep_trials, read_trials, render
from experiments.sweep.points import Point, grid_points, grid_size, random_point
from experiments.sweep.study import DONE, FAILED, PRUNED, Study, Trial
from experiments.sweep.watch import TrialWatch

SHOWN = 10  # points of a dry run of an endless sweep


def run(sweep: Sweep, console: Console, *, jobs: int = 0, count: int | None = None) -> int:
    """Run the trials that are left, `count` in all, and render the page; the exit code."""
    jobs = jobs or workers.cores()
    endless(sweep, count)
    study = Study.open(sweep)
    _serve(sweep)
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
        source.compose_first()
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

    def next(self) -> Run | None:
        """The run of the next point that is not recorded anywhere."""
        self.study.beat(*self.active)
        while trial := self.study.claim(self.count):
            self.active[trial.number] = trial
            run = self._run(trial)
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

    def compose_first(self) -> None:
        """Compose a point, or all of a grid at once: a mistake is found before anything is claimed."""
        points = planned(self.sweep, self.count)[: None if self.sweep.method == "grid" else 1]
        with self.console.status(f"composing {len(points)} points of {self.sweep.name}"):
            trials.configs_of(self.sweep, points, _parse(self.jobs))

    def _run(self, trial: Trial) -> Run:
        (config,) = trials.configs_of(self.sweep, [trial.point], _parse(1))
        run = trials.run_of(self.sweep, trial.number, trial.point, config)
        if not self.plan.runs and (data := config.get("data")):
            reasons = workers.missing_all(workers.server, {"data": data}, fetch=True)
            for reason in reasons.values():
                raise SweepError(reason)
        return run

    def _finish(self, run: Run, state: str, score: float | None) -> None:
        number = trials.number_of(run)
        self.study.finish(number, state, score, run.id)
        self.active.pop(number, None)


def endless(sweep: Sweep, count: int | None) -> None:
    """Refuse a sweep that would never end."""
    if sweep.method != "grid" and count is None and sweep.run_cap is None and sweep.target is None:
        raise SweepError(
            f"{sweep.path}: {sweep.method} has no end. Say how many trials: COUNT=20 (--count 20), or "
            "run_cap in the file."
        )


def check_adoption(sweep: Sweep, place: str) -> None:
    """Refuse a place for the winner before anything runs."""
    file, row = adopt.target(sweep, place)
    text = file.read_text() if file.exists() else ""
    adopt.put(text, row, "", file)


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
    """Print the points, and which of them are done; the exit code. Points of bayes depend on scores."""
    _serve(sweep)
    points = planned(sweep, count)
    counts: dict[str, int] = {}
    known = store.finished()
    for number, config in enumerate(trials.configs_of(sweep, points, _parse(workers.cores()))):
        run = trials.run_of(sweep, number, points[number], config)
        state = "done" if run.id in known or store.read_record(run.id) else "planned"
        counts[state] = counts.get(state, 0) + 1
        values = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in points[number].items())
        line = f"{state:8} {run.id}  {run.name}  [dim]{escape(values)}[/dim]"
        console.print(line, highlight=False, soft_wrap=True)
    console.print(", ".join(f"{n} {state}" for state, n in counts.items()))
    if sweep.method == "bayes":
        console.print("These are points at random; bayes chooses further ones by the scores of earlier ones.")
    return 0


def planned(sweep: Sweep, count: int | None) -> list[Point]:
    """The first points of a sweep."""
    most = min(n for n in (count, sweep.run_cap, grid_size(sweep), 10**9) if n is not None)
    if sweep.method == "grid":
        return grid_points(sweep)[:most]
    return [random_point(sweep, 0, number) for number in range(min(most, count or SHOWN))]
