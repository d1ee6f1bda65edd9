"""What a table file says: rows, columns, what the paper reports and claims."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.plan.claims import Claim
from experiments.plan.layers import rows_of

TUNED = Path("conf/tuned")


@dataclass(frozen=True)
class Metric:
    """What stands in the cells, how it is printed, and which way is good."""

    name: str
    scale: float = 1.0
    digits: int = 2
    better: str = "higher"


@dataclass(frozen=True)
class Column:
    """A dataset, usually."""

    name: str
    label: str
    config: tuple[str, ...] = ()
    note: str = ""
    unavailable: str = ""
    tuned: str = ""
    instead_of: str = ""  # the column this one stands in for when its data cannot be had
    metric: str = ""  # the name of another metric than the table's


@dataclass(frozen=True)
class Row:
    """A method: its config layers, the rows whose checkpoints it needs, and where it applies."""

    name: str
    label: str
    config: tuple[str, ...] = ()
    needs: dict[str, str] = field(default_factory=dict)
    tuned: str = ""
    set: dict[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    note: str = ""

    @property
    def cited(self) -> bool:
        """Numbers from a paper, nothing of ours to run."""
        return not self.config


@dataclass(frozen=True)
class Ratio:
    """How many times as much one row has as another, a mean over columns; the paper's number beside it."""

    says: str
    of: str
    to: str
    reported: float | None = None


@dataclass(frozen=True)
class Figure:
    """A figure drawn from a table's records: see `plots`.

    `sweep` draws the metric of each row of `values` over its value, `curves` draws a curve of each of `rows`,
    of its first seed or of all, over the row's value if it has one, each point a mean over `smooth` of them,
    by `epoch` or by `minutes`, all epochs of a run taken for equally long. It `begins` after so many epochs.
    """

    name: str
    title: str
    kind: str
    column: str
    rows: tuple[str, ...] = ()
    values: dict[str, float] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    curve: str = ""
    x: str = "epoch"
    x_label: str = ""
    y_label: str = ""
    label: str = ""
    scale: str = "log"
    seeds: str = "first"
    smooth: int = 1
    begins: int = 0


@dataclass(frozen=True)
class Changes:
    """A small table of what one answer has where another is right, as the runs of a cell found it."""

    title: str
    row: str
    column: str


@dataclass(frozen=True)
class Table:
    """A table of a paper."""

    name: str
    title: str
    source: dict[str, Any]
    metric: Metric
    seeds: tuple[int, ...]
    columns: dict[str, Column]
    rows: dict[str, Row]
    reported: dict[str, dict[str, tuple[float, float | None]]]
    reported_runs: int | None
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]
    tuned: str = ""
    measures: tuple["Table", ...] = ()  # the same cells seen through other metrics, such as time
    figures: tuple[Figure, ...] = ()
    changes: tuple[Changes, ...] = ()
    ratios: tuple[Ratio, ...] = ()

    def metric_name(self, column: str) -> str:
        """What stands in the cells of a column."""
        return self.columns[column].metric or self.metric.name

    def has(self, row: str, column: str) -> bool:
        """Whether this cell is one of ours to run; a column without config has only the paper's numbers."""
        wanted = self.rows[row].columns
        ours = not self.rows[row].cited and bool(self.columns[column].config)
        return ours and (wanted is None or column in wanted)

    def layers(self, row: str, column: str) -> tuple[str, ...]:
        """The layers of a cell, left to right, the base layer excepted."""
        file = TUNED / (self.tuned or self.name) / f"{self.columns[column].tuned or column}.yaml"
        tuned = self.rows[row].tuned or row
        settings = [f"{file}:{tuned}"] if file.exists() and tuned in rows_of(file) else []
        return (*self.columns[column].config, *self.rows[row].config, *settings)
