"""Timing of several functions in turn, in several rounds: CPU time, one thread."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from experiments.run import memory

ROUNDS = 7


def side_by_side(contenders: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median microseconds of CPU time a call, per contender."""
    torch.set_num_threads(1)
    memory.keep_freed()
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, call in contenders.items():
            call()
            began = time.process_time()
            for _ in range(repeats):
                call()
            spent[name].append((time.process_time() - began) / repeats * 1e6)
    return {name: median(times) for name, times in spent.items()}


def show(title: str, rows: dict[str, dict[str, float]], reference: str) -> None:
    """A table of microseconds, a column for each problem, with ratios to the row `reference`."""
    table = Table(title=title)
    table.add_column("")
    for problem in rows:
        table.add_column(problem, justify="right")
    for name in next(iter(rows.values())):
        cells = [f"{times[name]:.0f} us  x{times[name] / times[reference]:.2f}" for times in rows.values()]
        table.add_row(name, *cells)
    Console().print(table)
