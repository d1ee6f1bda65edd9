"""A trial is followed in its own process: is its metric logged, and is it worth training on?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.sweep.file import Sweep

if TYPE_CHECKING:
    from experiments.sweep.report import Report


@dataclass(frozen=True)
class TrialWatch:
    """Makes the callback of a trial; the launcher sends it to the worker, and imports no torch for it."""

    sweep: Sweep
    number: int

    def callback(self) -> "Report":
        """The callback, in the worker."""
        from experiments.sweep.report import Report
        from experiments.sweep.study import Study

        return Report(self.sweep, self.number, Study.open(self.sweep) if self.sweep.early else None)
