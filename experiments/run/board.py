"""The display of a launch: a live table on a terminal, one plain line per event elsewhere."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from experiments.plan.runs import Run
from experiments.plan.spec import Table as TableFile
from experiments.run.execute import Outcome


class PlainBoard:
    """One line per event."""

    def __init__(self, console: Console, table: TableFile) -> None:
        self.console, self.table = console, table

    def __enter__(self) -> "PlainBoard":
        return self

    def __exit__(self, *_: object) -> None: ...

    def started(self, run: Run) -> None:
        """A run starts or resumes."""
        self._say(f"start   {run.name}  [dim]{run.id}[/dim]")

    def ended(self, run: Run, outcome: Outcome) -> None:
        """A run is done, pruned or failed."""
        if outcome.state == "done" and outcome.record:
            metric = self.table.metric_name(run.places[0][1])
            number = self._number(outcome.record["metrics"], metric)
            shown = f"{metric} {number}, " if number else ""
            spent = clock(outcome.record["seconds"])
            self._say(f"[green]done[/green]    {run.name}  {shown}{outcome.record['epochs']} epochs, {spent}")
        elif outcome.state == "pruned":
            best = self._number({"best": outcome.score}, "best")
            self._say(f"[yellow]pruned[/yellow]  {run.name} {outcome.reason}, best {best}")
        else:
            self._say(f"[red]failed[/red]  {run.name}: {escape(outcome.reason)}")

    def waits(self, run: Run, why: str) -> None:
        """A run cannot start, and why."""
        self._say(f"[yellow]waits[/yellow]   {run.name}: {escape(why)}")

    def tick(self, counts: dict[str, int], running: dict[str, dict[str, Any]]) -> None:
        """Do nothing: lines are for events."""

    def _number(self, state: Mapping[str, Any], key: str) -> str:
        number, metric = state.get(key), self.table.metric
        return "" if number is None else f"{number * metric.scale:.{metric.digits}f}"

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)


class LiveBoard(PlainBoard):
    """The same lines, above a table of the active runs."""

    def __enter__(self) -> "LiveBoard":
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def tick(self, counts: dict[str, int], running: dict[str, dict[str, Any]]) -> None:
        """Draw the active runs and the counts."""
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("run", "epoch", "last", "best", "elapsed", "left at most"):
            table.add_column(name, justify="left" if name == "run" else "right")
        for state in running.values():
            table.add_row(*self._cells(state))
        line = "   ".join(f"{number} {name}" for name, number in counts.items())
        self.live.update(Group(table, Text(f"{line}   Ctrl-C stops", style="dim")))

    def _cells(self, state: dict[str, Any]) -> list[str]:
        epoch, most = state.get("epoch"), state.get("max_epochs")
        left = ""
        if epoch and most and most > 0:
            left = clock(state["seconds"] / epoch * (most - epoch))
        place = f"{epoch}/{most}" if epoch is not None else "starting"
        return [
            state["name"],
            place,
            self._number(state, "latest"),
            self._number(state, "best"),
            clock(state["elapsed"]),
            left,
        ]


def board(console: Console, table: TableFile) -> PlainBoard:
    """The board that fits the console."""
    kind = LiveBoard if console.is_terminal else PlainBoard
    return kind(console, table)


def clock(seconds: float) -> str:
    """A duration in readable units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
