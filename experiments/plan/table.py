"""The contents of a table file: rows, columns, the paper's numbers and claims."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.plan.claims import Claim
from experiments.plan.layers import rows_of

TABLES, TUNED = Path("conf/tables"), Path("conf/tuned")
FLOOR = "floor"  # how the label of such a row begins
CALLBACKS = "trainer.callbacks+"  # appends to the callbacks of every run


@dataclass(frozen=True)
class Metric:
    """The metric of the cells, its format, and whether higher or lower is better."""

    name: str
    scale: float = 1.0
    digits: int = 2
    better: str = "higher"

    @property
    def sign(self) -> int:
        """Of a number that is better the higher it is: the metric's times this."""
        return 1 if self.better == "higher" else -1

    @property
    def in_points(self) -> bool:
        """Whether this is a score from 0 to 100."""
        return self.scale == 100 and self.better == "higher"

    @property
    def exact(self) -> bool:
        """Whether this is the same for every seed: a count of parameters."""
        return self.name.endswith("_parameters")


@dataclass(frozen=True)
class Column:
    """A dataset, usually."""

    name: str
    label: str
    config: tuple[str, ...] = ()
    note: str = ""
    unavailable: str = ""
    tuned: str = ""
    instead_of: str = ""  # the column that this one replaces if its data is missing
    metric: str = ""  # the name of another metric than the table's


@dataclass(frozen=True)
class Row:
    """A method: its config layers, the rows whose checkpoints it needs, and its columns."""

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
        """Whether the row has a paper's numbers only, and no runs."""
        return not self.config

    @property
    def floor(self) -> bool:
        """Whether the row says what an answer gets that learns nothing of the inputs."""
        return self.label.startswith(FLOOR)


@dataclass(frozen=True)
class Ratio:
    """The ratio of two rows, a mean over columns, and the paper's number."""

    says: str
    of: str
    to: str
    reported: float | None = None


@dataclass(frozen=True)
class Gain:
    """What one row scores above another; a page says which share of it the other rows recover."""

    title: str
    of: str
    over: str


@dataclass(frozen=True)
class Figure:
    """A figure drawn from a table's records: see `plots`.

    `sweep` plots the metric of each row of `values` against its value, in one column. `columns` plots the
    metric of each of `rows` against a number of each of `columns`; or the `metric` of a measure. `curves`
    plots a training curve of each of `rows`, of the first seed or of all, divided by the row's value if it
    has one. Each point is a mean over `smooth` points. The x axis is `epoch` or `minutes`; all epochs of a
    run count as equally long. Curves start after `begins` epochs. `masks` shows the answers of `rows` to the
    first test pictures.
    """

    name: str
    title: str
    kind: str
    column: str = ""
    columns: dict[str, float] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    values: dict[str, float] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    curve: str = ""
    metric: str = ""
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
    """A small table of the tags of one answer where another is right, counted by the runs of a cell."""

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
    measures: tuple["Table", ...] = ()  # the same cells with other metrics, such as time
    scores: tuple["Table", ...] = ()  # the same cells and claims by other scores, beside each other
    figures: tuple[Figure, ...] = ()
    changes: tuple[Changes, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    gains: tuple[Gain, ...] = ()
    sweeps: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the rows of the points of each
    extras: tuple[str, ...] = ()  # what its runs need beside the base, as named in pyproject.toml
    path: Path | None = None  # of its file, if that is not in conf/tables

    @property
    def file(self) -> Path:
        """Where it is written."""
        return self.path or TABLES / f"{self.name}.yaml"

    @property
    def command(self) -> str:
        """What makes it."""
        return f"make reproduce TABLE={self.path or self.name}"

    def bare(self) -> "Table":
        """The rows and columns alone, without what is said of them."""
        return replace(
            self, reported={}, claims=(), measures=(), scores=(), figures=(), changes=(), ratios=(), gains=()
        )

    def metric_name(self, column: str) -> str:
        """The metric of a column's cells."""
        return self.columns[column].metric or self.metric.name

    def has(self, row: str, column: str) -> bool:
        """Whether this cell has runs; a column without config has only the paper's numbers."""
        wanted = self.rows[row].columns
        ours = not self.rows[row].cited and bool(self.columns[column].config)
        return ours and (wanted is None or column in wanted)

    def layers(self, row: str, column: str) -> tuple[str, ...]:
        """The layers of a cell, left to right, the base layer excepted."""
        file = TUNED / (self.tuned or self.name) / f"{self.columns[column].tuned or column}.yaml"
        tuned = self.rows[row].tuned or row
        settings = [f"{file}:{tuned}"] if file.exists() and tuned in rows_of(file) else []
        return (*self.columns[column].config, *self.rows[row].config, *settings)
