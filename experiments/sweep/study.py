"""The state of a sweep: one SQLite file that processes and jobs share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.sweep.file import Sweep

WAITING, RUNNING, DONE, PRUNED, FAILED = "waiting", "running", "done", "pruned", "failed"
LEASE = 30.0  # seconds without a heartbeat after which a running trial may be claimed again


@dataclass(frozen=True)
class Trial:
    """A point with its number, and how its run went."""

    number: int
    point: dict[str, Any]
    state: str = WAITING
    score: float | None = None
    epoch: int | None = None  # of the latest report
    run_id: str | None = None


class Study:
    """The trials of a sweep, in runs/sweeps/<name>/study.sqlite.

    A process opens its own; a worker process too, to report. Each method is one transaction.
    """

    path: Path

    @classmethod
    def open(cls, sweep: Sweep, *, seed: int = 0, lease: float = LEASE) -> "Study":
        """Open or create the study of a sweep, in store.RUNS/sweeps/<name>.

        Raises:
            SweepError: the file is of another sweep or no database, or the disk is full.
        """
        raise NotImplementedError

    def claim(self, count: int | None = None) -> Trial | None:
        """The next trial to run, now `running`: a waiting or abandoned one, or else a new point.

        None if the grid, run_cap or `count` trials in all are used up, or the target is reached. Trials that
        other processes run are not waited for: see `running`.
        """
        raise NotImplementedError

    def running(self) -> int:
        """How many trials run, in any process; one that died is counted until its lease ends."""
        raise NotImplementedError

    def beat(self, *numbers: int) -> None:
        """Say that these trials still run. Call it at least each lease / 3; calls in between cost nothing."""
        raise NotImplementedError

    def report(self, number: int, epoch: int, score: float) -> bool:
        """Keep the score of an epoch (0, 1, ...), also as a beat; True if the trial is to stop early."""
        raise NotImplementedError

    def finish(self, number: int, state: str, score: float | None = None, run_id: str | None = None) -> None:
        """End a trial as done, pruned or failed."""
        raise NotImplementedError

    def release(self, *numbers: int) -> None:
        """Give running trials back, as after Ctrl-C: they are claimed first the next time."""
        raise NotImplementedError

    def retry_failed(self) -> int:
        """Make failed trials waiting again; how many there were."""
        raise NotImplementedError

    def trials(self) -> list[Trial]:
        """All trials by number."""
        raise NotImplementedError

    def reports(self, number: int) -> dict[int, float]:
        """The scores of a trial by epoch."""
        raise NotImplementedError
