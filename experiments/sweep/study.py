"""The state of a sweep: one SQLite file that processes and jobs share.

Each method is one transaction on a connection of its own, so a study may be used by forked workers. The file
keeps SQLite's rollback journal, which unlike its write-ahead log works on a shared folder.
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import store
from experiments.errors import SweepError
from experiments.sweep import bayes
from experiments.sweep.file import Sweep
from experiments.sweep.points import Point, grid_point, grid_size, random_point

WAITING, RUNNING, DONE, PRUNED, FAILED = "waiting", "running", "done", "pruned", "failed"
LEASE = 30.0  # seconds without a beat after which a running trial may be claimed again
BUSY = 30.0  # seconds to wait for another process
TABLES = """
    CREATE TABLE IF NOT EXISTS sweep (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS trial (
        number INTEGER PRIMARY KEY, point TEXT NOT NULL, state TEXT NOT NULL, score REAL, epoch INTEGER,
        run_id TEXT, beat REAL);
    CREATE TABLE IF NOT EXISTS report (
        number INTEGER, epoch INTEGER, score REAL, PRIMARY KEY (number, epoch));
"""
COLUMNS = "number, point, state, score, epoch, run_id"


@dataclass(frozen=True)
class Trial:
    """A point with its number, and how its run went."""

    number: int
    point: Point
    state: str = WAITING
    score: float | None = None
    epoch: int | None = None  # of the latest report
    run_id: str | None = None


@dataclass
class Study:
    """The trials of a sweep. A process opens its own; a worker process too, to report."""

    sweep: Sweep
    path: Path
    seed: int = 0
    lease: float = LEASE
    busy: float = BUSY
    _beaten: dict[int, float] = field(default_factory=dict)

    @classmethod
    def open(cls, sweep: Sweep, *, seed: int = 0, lease: float = LEASE, busy: float = BUSY) -> "Study":
        """Open or create the study of a sweep, in store.RUNS/sweeps/<name>.

        Raises:
            SweepError: the file is of another sweep or no database, another process holds it, or the disk is
                full.
        """
        study = cls(sweep, study_file(sweep), seed, lease, busy)
        bayes.need(sweep)
        try:
            study.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SweepError(store.explain(error, study.path)) from None
        with study._transaction(create=True) as db:
            for statement in filter(str.strip, TABLES.split(";")):
                db.execute(statement)
            study._compare(db)
        return study

    @classmethod
    def known(cls, sweep: Sweep) -> list[Trial]:
        """The trials of a sweep so far; nothing is written."""
        study = cls(sweep, study_file(sweep))
        if not study.path.exists() or not study.path.stat().st_size:  # a full disk leaves it empty
            return []
        with study._transaction() as db:
            return study._trials(db) if study._continues(db) else []

    def claim(self, count: int | None = None) -> Trial | None:
        """The next trial to run, now `running`: a waiting or abandoned one, or else a new point.

        None if the grid, run_cap or `count` trials in all are used up, or the target is reached. Trials that
        other processes run are not waited for: see `running`.
        """
        with self._transaction() as db:
            limit = most(self.sweep, count)
            if reached(self.sweep, self._trials(db)):
                return None
            trial = self._abandoned(db, limit) or self._new(db, limit)
            if trial is not None:
                now = time.time()
                db.execute(
                    "UPDATE trial SET state = ?, beat = ? WHERE number = ?", (RUNNING, now, trial.number)
                )
                self._beaten[trial.number] = now
                trial = _trial(self._row(db, trial.number))
        return trial

    def running(self) -> int:
        """How many trials run, in any process; one that died is counted until its lease ends."""
        with self._transaction() as db:
            query = "SELECT COUNT(*) FROM trial WHERE state = ? AND beat > ?"
            return db.execute(query, (RUNNING, time.time() - self.lease)).fetchone()[0]

    def beat(self, *numbers: int) -> None:
        """Say that these trials still run. Call it often: it writes once in a third of the lease."""
        now = time.time()
        due = [n for n in numbers if now - self._beaten.get(n, 0.0) > self.lease / 3]
        if due:
            with self._transaction() as db:
                db.executemany(
                    "UPDATE trial SET beat = ? WHERE number = ? AND state = ?",
                    [(now, number, RUNNING) for number in due],
                )
            self._beaten.update(dict.fromkeys(due, now))

    def report(self, number: int, epoch: int, score: float) -> bool:
        """Keep the score of an epoch (0, 1, ...), also as a beat; True if the trial is to stop early."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM report WHERE number = ? AND epoch >= ?", (number, epoch)
            )  # resumed before
            db.execute("INSERT INTO report VALUES (?, ?, ?)", (number, epoch, score))
            db.execute(
                "UPDATE trial SET score = ?, epoch = ?, beat = ? WHERE number = ? AND state = ?",
                (score, epoch, time.time(), number, RUNNING),
            )
            reports = self._reports(db) if self.sweep.early else {}
        return bayes.stops(self.sweep, reports, number)

    def finish(self, number: int, state: str, score: float | None = None, run_id: str | None = None) -> None:
        """End a trial as done, pruned or failed. One that is done or pruned already stays as it is."""
        with self._transaction() as db:
            db.execute(
                "UPDATE trial SET state = ?, score = COALESCE(?, score), run_id = COALESCE(?, run_id) "
                "WHERE number = ? AND state NOT IN (?, ?)",
                (state, score, run_id, number, DONE, PRUNED),
            )

    def release(self, *numbers: int) -> None:
        """Give running trials back, as after Ctrl-C: they are claimed first the next time."""
        with self._transaction() as db:
            rows = [(WAITING, number, RUNNING) for number in numbers]
            db.executemany("UPDATE trial SET state = ? WHERE number = ? AND state = ?", rows)

    def retry_failed(self) -> int:
        """Make failed trials waiting again; how many there were."""
        with self._transaction() as db:
            return db.execute(
                "UPDATE trial SET state = ?, score = NULL WHERE state = ?", (WAITING, FAILED)
            ).rowcount

    def trials(self) -> list[Trial]:
        """All trials by number."""
        with self._transaction() as db:
            return self._trials(db)

    def reports(self, number: int) -> dict[int, float]:
        """The scores of a trial by epoch."""
        with self._transaction() as db:
            return self._reports(db).get(number, {})

    def _abandoned(self, db: sqlite3.Connection, limit: int | None) -> Trial | None:
        row = db.execute(
            f"SELECT {COLUMNS} FROM trial WHERE number < ? AND (state = ? OR (state = ? AND beat <= ?)) "
            "ORDER BY number LIMIT 1",
            (limit if limit is not None else 2**62, WAITING, RUNNING, time.time() - self.lease),
        ).fetchone()
        return row and _trial(row)

    def _new(self, db: sqlite3.Connection, limit: int | None) -> Trial | None:
        trials = self._trials(db)
        number = len(trials)
        if limit is not None and number >= limit:
            return None
        if self.sweep.method == "grid":
            point = grid_point(self.sweep, number)
        elif self.sweep.method == "random":
            point = random_point(self.sweep, self.seed, number)
        else:
            found = bayes.suggest(self.sweep, trials, self._reports(db), self.seed, limit)
            if found is None:
                return None
            point = found
        trial = Trial(number, point)
        query = "INSERT INTO trial (number, point, state) VALUES (?, ?, ?)"
        db.execute(query, (number, json.dumps(point), trial.state))
        return trial

    def _compare(self, db: sqlite3.Connection) -> None:
        """Keep what the sweep searches; a search without results gives way to it."""
        if not self._continues(db):
            for table in ("sweep", "trial", "report"):
                db.execute(f"DELETE FROM {table}")
            db.executemany("INSERT INTO sweep VALUES (?, ?)", _searched(self.sweep, self.seed).items())

    def _continues(self, db: sqlite3.Connection) -> bool:
        """Whether the study is of this search; False if it is empty, or of another without results.

        Raises:
            SweepError: another search has results here, or is at work.
        """
        now = _searched(self.sweep, self.seed)
        then = dict(db.execute("SELECT key, value FROM sweep").fetchall())
        changed = [key for key in sorted(now.keys() | then.keys()) if now.get(key) != then.get(key)]
        query = "SELECT COUNT(*) FROM trial WHERE score IS NOT NULL OR (state = ? AND beat > ?)"
        if changed and db.execute(query, (RUNNING, time.time() - self.lease)).fetchone()[0]:
            raise SweepError(
                f"{self.path} was begun with other settings than {self.sweep.path} has now: "
                f"{', '.join(changed)}. Undo the change to continue, save the file under another name for a "
                f"new sweep, or remove {self.path.parent} to begin anew (finished runs are kept)."
            )
        return not changed

    def _trials(self, db: sqlite3.Connection) -> list[Trial]:
        return [_trial(row) for row in db.execute(f"SELECT {COLUMNS} FROM trial ORDER BY number")]

    def _row(self, db: sqlite3.Connection, number: int) -> tuple[Any, ...]:
        return db.execute(f"SELECT {COLUMNS} FROM trial WHERE number = ?", (number,)).fetchone()

    def _reports(self, db: sqlite3.Connection) -> dict[int, dict[int, float]]:
        """The scores of all trials that have not failed, by number and epoch."""
        reports: dict[int, dict[int, float]] = {}
        query = (
            "SELECT number, report.epoch, report.score FROM report JOIN trial USING (number) "
            "WHERE state != ? ORDER BY number, report.epoch"
        )
        for number, epoch, score in db.execute(query, (FAILED,)):
            reports.setdefault(number, {})[epoch] = float("nan") if score is None else score
        return reports

    @contextmanager
    def _transaction(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction that writes; the file is created only if it may be."""
        uri = f"{self.path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        try:
            with closing(sqlite3.connect(uri, self.busy, uri=True, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
                yield db  # closing without a commit rolls back
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise SweepError(_explain(error, self.path, self.busy)) from None


def most(sweep: Sweep, count: int | None) -> int | None:
    """The number of trials in all, at most; None if there is no end."""
    size = grid_size(sweep) if sweep.method != "random" else None
    return min((limit for limit in (count, sweep.run_cap, size) if limit is not None), default=None)


def reached(sweep: Sweep, trials: list[Trial]) -> bool:
    """Whether a finished trial has the target."""
    scores = [trial.score for trial in trials if trial.state == DONE and trial.score is not None]
    return sweep.target is not None and any(not sweep.better(sweep.target, score) for score in scores)


def study_file(sweep: Sweep) -> Path:
    """Where the study of a sweep is."""
    return store.RUNS / "sweeps" / sweep.name / "study.sqlite"


def _trial(row: tuple[Any, ...]) -> Trial:
    number, point, *rest = row
    return Trial(number, json.loads(point), *rest)


def _searched(sweep: Sweep, seed: int) -> dict[str, str]:
    """What makes the trials of a sweep comparable, by name."""
    facts = {
        "method": sweep.method,
        "metric": [sweep.metric, sweep.goal],
        "config files": sweep.layers,
        "seed": seed,
        **{f"option {key}": value for key, value in sweep.options.items()},
        **{f"parameter {name}": repr(parameter) for name, parameter in sweep.parameters.items()},
    }
    return {key: json.dumps(value) for key, value in facts.items()}


def _explain(error: sqlite3.Error, path: Path, busy: float) -> str:
    """A message for an error of SQLite, with what to do."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        held = f"Another process has held {path} for {busy:g} seconds"
        return f"{held}. End it (`fuser {path}` names it), and give the same command again: it continues."
    if name == "SQLITE_FULL":
        full = f"The disk is full, {path} could not be written"
        return f"{full}. Free some space and give the same command again: it continues."
    if name in ("SQLITE_NOTADB", "SQLITE_CORRUPT") or "no such" in str(error):
        return f"{path} is no study of a sweep ({error}). Remove it to begin anew: finished runs are kept."
    return f"{path} could not be used: {error}."
