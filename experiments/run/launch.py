"""Run what is left of a plan: JOBS runs at a time, each in its own process; finished runs are kept."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from experiments import store
from experiments.plan.runs import Plan, Run
from experiments.run.execute import HELD, Job, Outcome, Watch, execute

LOOK_EVERY = 0.5  # seconds between checks of progress and of runs locked by another process


class Board(Protocol):
    """Displays events."""

    def started(self, run: Run) -> None: ...

    def ended(self, run: Run, outcome: Outcome) -> None: ...

    def waits(self, run: Run, why: str) -> None: ...

    def tick(self, counts: dict[str, int], running: dict[str, dict[str, Any]]) -> None: ...


class Source(Protocol):
    """Adds runs while others are active."""

    def next(self) -> Run | None:
        """Another run, if there is one now."""

    def waits(self) -> bool:
        """Whether there may be one later."""

    def watch(self, run: Run) -> Watch: ...

    def tick(self, runs: list[Run]) -> None:
        """Called about twice a second with the active and waiting runs."""

    def ended(self, run: Run, outcome: Outcome) -> None: ...


@dataclass
class Slot:
    """An active run."""

    run: Run
    process: BaseProcess
    answer: Connection
    since: float = field(default_factory=time.monotonic)


class Launch:
    """The runs of one plan, from waiting to done, failed or blocked."""

    def __init__(
        self,
        plan: Plan,
        board: Board,
        context: ForkServerContext,
        *,
        jobs: int,
        threads: int,
        fresh: bool = False,
        source: Source | None = None,
    ) -> None:
        self.plan, self.board, self.context, self.source = plan, board, context, source
        self.jobs, self.threads, self.fresh = jobs, threads, fresh
        self.waiting = plan.todo()
        self.slots: list[Slot] = []
        self.done: list[Run] = []
        self.pruned: list[Run] = []
        self.failed: dict[str, str] = {}
        self.blocked: dict[str, str] = {}
        self.held: set[str] = set()
        self.names = {run.id: run.name for run in plan.runs}

    def work(self) -> None:
        """Run until nothing is left that can run. Ctrl-C stops the active runs; they can resume later."""
        try:
            while self._draw() or self.waiting or self.slots:
                self._start_ready()
                self._tick()
                wait([slot.answer for slot in self.slots], timeout=LOOK_EVERY)
                for slot in [s for s in self.slots if s.answer.poll() or not s.process.is_alive()]:
                    self._end(slot)
        finally:
            self._stop()

    def _draw(self) -> bool:
        """Take runs from the source for free slots; whether there are or may be any."""
        while self.source and len(self.slots) + len(self.waiting) < self.jobs:
            run = self.source.next()
            if run is None:
                return self.source.waits()
            self.plan.runs.append(run)
            self.names[run.id] = run.name
            self.waiting.append(run)
        return False

    def _start_ready(self) -> None:
        for run in list(self.waiting):
            if len(self.slots) >= self.jobs:
                return
            state, why = self._state(run)
            if state == "ready":
                self._start(run)
            elif state == "blocked":
                self._block(run, why)
            elif why and run.id not in self.held:
                self.held.add(run.id)
                self.board.waits(run, why)

    def _state(self, run: Run) -> tuple[str, str]:
        for needed in run.needs.values():
            for why in (self.failed, self.blocked):
                if needed in why:
                    return "blocked", f"needs {self.names[needed]}: {why[needed]}"
            if any(r.id == needed for r in [*self.waiting, *(s.run for s in self.slots)]):
                return "later", ""
            if store.read_record(needed) is None:
                return "blocked", f"needs {self.names[needed]}: {store.run_dir(needed)} is not finished"
        if store.is_held(store.run_dir(run.id)):
            return "later", HELD
        return "ready", ""

    def _start(self, run: Run) -> None:
        self.waiting.remove(run)
        watch = self.source.watch(run) if self.source else None
        job = job_of(self.plan, run, self.threads, fresh=self.fresh and run.asked, watch=watch)
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=execute, args=(job, theirs), daemon=True)
        process.start()
        theirs.close()
        self.slots.append(Slot(run, process, ours))
        self.board.started(run)

    def _end(self, slot: Slot) -> None:
        self.slots.remove(slot)
        try:
            outcome = slot.answer.recv()
        except EOFError:
            slot.process.join()
            outcome = Outcome("failed", how_died(slot.process.exitcode))
        slot.process.join()
        if outcome.state == "held":
            self.held.add(slot.run.id)
            self.waiting.insert(0, slot.run)
            self.board.waits(slot.run, outcome.reason)
        else:
            self._finish(slot.run, outcome)

    def _finish(self, run: Run, outcome: Outcome) -> None:
        if run in self.waiting:
            self.waiting.remove(run)
        if outcome.state == "done" and outcome.record:
            run.done = True
            self.done.append(run)
            self._keep(run, outcome.record)
        elif outcome.state == "pruned":
            self.pruned.append(run)
        else:
            self.failed[run.id] = outcome.reason
        self.board.ended(run, outcome)
        if self.source:
            self.source.ended(run, outcome)

    def _keep(self, run: Run, record: store.Record) -> None:
        """Write the record into the table; if the run was repeated, replace its copies in all others.

        A recorded run that was repeated for its checkpoint alone leaves its record unchanged.
        """
        anew = self.fresh and run.asked
        adopt(self.plan, run, record if anew else store.finished().get(run.id, record), anew=anew)
        if anew:
            store.renew(record)

    def _block(self, run: Run, why: str) -> None:
        self.waiting.remove(run)
        self.blocked[run.id] = why
        self.board.waits(run, why)

    def _tick(self) -> None:
        counts = {
            "done": len(self.done),
            **({"pruned": len(self.pruned)} if self.pruned else {}),
            "failed": len(self.failed),
            "running": len(self.slots),
            "waiting": len(self.waiting) + len(self.blocked),
        }
        self.board.tick(counts, {s.run.id: progress(s) for s in self.slots})
        if self.source:
            self.source.tick([*self.waiting, *(slot.run for slot in self.slots)])

    def _stop(self) -> None:
        for slot in self.slots:
            slot.process.kill()
        for slot in self.slots:
            slot.process.join()


def job_of(plan: Plan, run: Run, threads: int, *, fresh: bool = False, watch: Watch | None = None) -> Job:
    """What a worker gets about a run of a plan."""
    row, column = run.places[0]
    facts = {"table": plan.table.name, "row": row, "column": column, "seed": run.seed}
    return Job(run.id, run.filled(), run.identity, facts, threads, fresh, store.RUNS, watch)


def progress(slot: Slot) -> dict[str, Any]:
    """The progress of an active run."""
    found = store.read_json(store.run_dir(slot.run.id) / "progress.json") or {}
    return found | {"name": slot.run.name, "elapsed": time.monotonic() - slot.since}


def adopt(plan: Plan, run: Run, record: store.Record, *, anew: bool = False) -> None:
    """Write a finished run into the table, once for each cell that shares it and may take it."""
    name = plan.table.name
    places = open_to(run, store.places(name), anew=anew)
    store.keep(name, [store.placed(record, name, place) for place in places])


def open_to(run: Run, own: Mapping[store.Place, str], *, anew: bool = False) -> list[store.Place]:
    """The cells of a run that may take its record; `own` has the run ids already recorded there.

    A record is replaced only in a selected cell: if its config is outdated, or the run was repeated.
    """
    places = [(*place, run.seed) for place in run.places]
    return [p for p in places if p not in own or (run.asked and (anew or own[p] != run.id))]


def adopt_finished(plan: Plan, tell: Callable[[str], None]) -> None:
    """Record finished runs that are not in the table: of other tables, or finished just before a crash."""
    own, known = store.places(plan.table.name), store.finished()
    for run in plan.runs:
        record = known.get(run.id) or store.read_record(run.id)
        if run.done and record and open_to(run, own):
            adopt(plan, run, record)
            tell(f"{run.name}: taken over from an earlier run")


def how_died(code: int | None) -> str:
    """Why a process ended without an answer."""
    if code is not None and code < 0:
        hint = " (out of memory, perhaps)" if code == -9 else ""
        return f"killed by signal {-code}{hint}; it resumes from its last epoch next time"
    return f"its process ended with code {code}; see its log.txt"
