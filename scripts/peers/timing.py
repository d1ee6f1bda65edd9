"""Timing of functions in turn, in several rounds: CPU time, one thread; or events of a GPU. Memory."""

import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from experiments.run import memory

ROUNDS = 7


def side_by_side(
    contenders: Mapping[str, Callable[[], object]], repeats: int, rounds: int = ROUNDS
) -> dict[str, float]:
    """Microseconds of CPU time a call: the median of the first contender, times the median ratio to it.

    Ratios are taken within a round, so a machine that grows faster or slower does not change them.
    """
    torch.set_num_threads(1)
    memory.keep_freed()
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            call()
            began = time.process_time()
            for _ in range(repeats):
                call()
            spent[name].append((time.process_time() - began) / repeats * 1e6)
    first = next(iter(spent.values()))
    return {
        name: median(first) * median(time / of_first for time, of_first in zip(times, first, strict=True))
        for name, times in spent.items()
    }


def by_events(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median microseconds a call on the GPU, per contender."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            for _ in range(repeats):
                call()
            ended.record()
            torch.cuda.synchronize()
            spent[name].append(began.elapsed_time(ended) / repeats * 1e3)
    return {name: median(times) for name, times in spent.items()}


def peak_memory(call: Callable[[], object], device: str) -> float:
    """The most MiB that torch allocates at once in a second call, beside what is there before it."""
    call()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    assert found.profiler is not None and found.profiler.kineto_results is not None
    events = found.profiler.kineto_results.events()
    sizes = (event.nbytes() for event in events if event.name() == "[memory]")
    return max(accumulate(sizes), default=0) / 2**20


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


def print_table(title: str, columns: dict[str, dict[str, str]]) -> None:
    """The rows are the names of all columns."""
    table = Table("", *columns, title=title)
    for name in dict.fromkeys(name for cells in columns.values() for name in cells):
        table.add_row(name, *(cells.get(name, "-") for cells in columns.values()))
    Console(width=max(100, 30 + 26 * len(columns))).print(table)
