"""The fork server: torch and Lightning are imported once, then each run is a fork away.

The process that plans and renders imports neither.
"""

import atexit
import importlib
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from experiments.plan.compose import Composed, Layers, compose, remember_files, remembered_files
from experiments.run.slurm import heed_notice

PRELOAD = [
    "experiments.forks",  # first
    "experiments.run.fit",
    "experiments.run.execute",
    "experiments.plan.compose",
    "experiments.run.workers",
]
TEMPORARY = "reproduce"


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Threads of one run: OMP_NUM_THREADS, or one.

    Not a share of the cores: the order of sums changes numbers, and a run should not depend on the number of
    runs in parallel. Networks of this size are not faster on two threads.
    """
    return int(os.environ.get("OMP_NUM_THREADS") or 1)


def server(modules: Sequence[str] = ()) -> ForkServerContext:
    """A context whose processes start with everything imported and leave Ctrl-C to this one."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("forkserver")
    if modules:
        context.set_forkserver_preload([*PRELOAD, *modules])  # has an effect only before the first process
        _own_temporary_folder()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by its processes
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # delivers a Ctrl-C from meanwhile
    return context


def stop_server() -> None:
    """Kill the fork server: by itself it would end only after all its imports."""
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


def command(main: Callable[[], int]) -> int:
    """Call a command's `main`: Ctrl-C, SIGTERM and SLURM's notice stop it and its workers cleanly."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    heed_notice()
    try:
        return main()
    finally:
        stop_server()


def _own_temporary_folder() -> None:
    """Put the fork server's socket in a folder named by our process; remove folders of dead processes."""
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if "tempdir" in settings:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}-*-*"):
        if not _alive(folder.name.split("-")[1]):
            shutil.rmtree(folder, ignore_errors=True)
    settings["tempdir"] = tempfile.mkdtemp(prefix=f"{TEMPORARY}-{os.getpid()}-")
    atexit.register(shutil.rmtree, settings["tempdir"], ignore_errors=True)


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, OverflowError, PermissionError):
        return True  # of another user
    except ProcessLookupError:
        return False
    return True


@contextmanager
def pool_of(workers: int, context: ForkServerContext) -> Iterator[ProcessPoolExecutor]:
    """Processes for small jobs, which do not outlive Ctrl-C."""
    pool = ProcessPoolExecutor(workers, mp_context=context)
    try:
        yield pool
    except BaseException:
        for process in (pool._processes or {}).values():  # kill_workers() from Python 3.14 on
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def parse_all(context: ForkServerContext, cells: list[Layers], jobs: int) -> list[Composed]:
    """Compose many cells, in forks."""
    up = context.Process(target=os.getpid)  # waits for the server: a pool stopped earlier would print errors
    up.start()
    up.join()
    workers = min(jobs, 1 + len(cells) // 4)
    with pool_of(workers, context) as pool:
        return list(pool.map(compose, cells, chunksize=max(1, len(cells) // (4 * workers))))


def missing_all(
    context: Callable[[], ForkServerContext], data: dict[str, dict[str, Any]], *, fetch: bool
) -> dict[str, str]:
    """Ask the data module of each column whether its data is here; with `fetch` it downloads what is missing.

    If the files of a data module are cached, it is built only to fetch them.
    """
    reasons: dict[str, str | None] = {}
    for column, config in data.items():
        if files := remembered_files(config):
            reasons[column] = missing(files, fetch=False)[0]
    asked = {c: config for c, config in data.items() if c not in reasons or (fetch and reasons[c])}
    if asked:
        with pool_of(1, context()) as pool:
            answers = list(pool.map(partial(missing, fetch=fetch), asked.values()))
        for (column, config), (reason, files) in zip(asked.items(), answers, strict=True):
            reasons[column] = reason
            if files:
                remember_files(config, files)
    return {column: reason for column in data if (reason := reasons[column])}


def missing(config: dict[str, Any], *, fetch: bool) -> tuple[str | None, dict[str, Any] | None]:
    """One sentence on why the data of this config is missing; and its SourceFiles, which need no torch."""
    module, _, name = config["class_path"].rpartition(".")
    try:
        data = getattr(importlib.import_module(module), name)(**config.get("init_args", {}))
        reason = data.missing() if hasattr(data, "missing") else None
        if reason and fetch:
            data.prepare_data()
            reason = data.missing()
        return reason, data.source_files() if hasattr(data, "source_files") else None
    except ValueError as error:
        return " ".join(str(error).split()), None
