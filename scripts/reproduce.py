"""Reproduce a table: run what is missing, render what is finished.

python -m scripts.reproduce seal_mlc --rows ce,dynamic_nce --columns bibtex --seeds 0,1 --jobs 2
"""

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from experiments.errors import UserError
from scripts.options import Options

if TYPE_CHECKING:
    from experiments.run.reproduce import Selection

ALONE = {  # what an option does, and the options that have no meaning beside it
    "collect": (
        "draws the whole table and runs nothing",
        ("rows", "columns", "seeds", "jobs", "fresh", "verify", "dry_run", "status"),
    ),
    "status": ("prints states and runs nothing", ("jobs", "fresh", "verify", "dry_run")),
    "verify": ("trains finished runs again and keeps their records", ("fresh",)),
}


def main(arguments: list[str] | None = None, console: Console | None = None) -> int:
    """Parse, call, exit code."""
    console = console or Console()
    try:
        given = _parser().parse_args(arguments)
        _refuse_contradictions(given)
        if given.collect:
            return collect(given.table, given.logger, console)
        from experiments.run import reproduce as engine
        from experiments.run.verify import verify

        given_names = (given.rows, given.columns, given.seeds)
        chosen = engine.Selection(given.table, *given_names, given.jobs or 0, given.fresh, given.logger)
        if given.status:
            from experiments.cluster.status import status

            return status(chosen, console)
        if given.on:
            return _on_slurm(chosen, given, console)
        if given.verify:
            return verify(chosen, console, dry=given.dry_run)
        return engine.dry_run(chosen, console) if given.dry_run else engine.reproduce(chosen, console)
    except UserError as error:
        console.stderr = True
        console.print(Text(str(error), style="red"), soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.stderr = True
        console.print("Stopped before a run ended. The same command resumes.", soft_wrap=True)
        return 130


def _parser() -> Options:
    """The options."""
    parser = Options("python -m scripts.reproduce", __doc__)
    named = "a file of conf/tables, without .yaml, or the path of one; with --collect also a sweep"
    parser.add_argument("table", help=named)
    parser.add_argument("--rows", help="only these rows, such as ce,dynamic_nce")
    parser.add_argument("--columns", help="only these columns")
    parser.add_argument("--seeds", help="these seeds instead of the table's, such as 0,1,2")
    parser.add_argument("--jobs", type=int, help="runs at a time (default: one per core)")
    parser.add_argument("--fresh", action="store_true", help="run again what is selected, finished or not")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="train again what is selected and finished, in a folder of its own, and compare",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would run and what is done; run nothing"
    )
    parser.add_argument("--collect", action="store_true", help="render it from existing records; run nothing")
    parser.add_argument(
        "--on", choices=["slurm"], help="submit the runs as an array of jobs, --jobs of them at a time"
    )
    parser.add_argument(
        "--cluster", help="with --on slurm: a file of conf/cluster without .yaml (default: cpu), or a path"
    )
    parser.add_argument(
        "--status", action="store_true", help="print the state of each run and its job in SLURM"
    )
    parser.add_argument(
        "--logger", help="a file of conf/logger: the runs log there, and W&B gets the rendered table too"
    )
    return parser


def _on_slurm(chosen: "Selection", given: argparse.Namespace, console: Console) -> int:
    """Submit a table, or print the job."""
    from experiments.cluster.agree import single
    from experiments.cluster.file import read_cluster
    from experiments.cluster.table import show_table, submit_table

    cluster = read_cluster(given.cluster or "cpu")
    single(cluster, "a run of a table has one")
    if given.jobs:
        cluster, chosen = replace(cluster, throttle=given.jobs), replace(chosen, jobs=0)
    return (show_table if given.dry_run else submit_table)(chosen, cluster, console)


def _refuse_contradictions(given: argparse.Namespace) -> None:
    """Raise an error for options that do not go together."""
    for option, (does, without) in ALONE.items():
        others = [other for other in without if getattr(given, other)]
        if getattr(given, option) and others:
            raise UserError(f"--{option} {does}: leave --{others[0].replace('_', '-')} out.")
    if given.jobs is not None and given.jobs < 1:
        raise UserError(f"--jobs {given.jobs}: take 1 or more, or leave it out.")
    here = [option for option in ("collect", "verify", "fresh", "status") if getattr(given, option)]
    if given.on and here:
        raise UserError(f"--{here[0]} works on this machine: leave --on {given.on} out.")
    if given.cluster and not given.on:
        raise UserError(f"--cluster {given.cluster} is for jobs: add --on slurm.")


def collect(name: str, logger: str | None, console: Console) -> int:
    """Render a table, or a sweep."""
    from experiments.page import render
    from experiments.sweep import page as sweeps
    from experiments.sweep.file import is_sweep, read_sweep
    from experiments.tracking.tables import publish, read_logger

    if is_sweep(name):
        if logger:
            raise UserError(f"--logger {logger}: {name} is a sweep, and W&B gets tables. Leave LOGGER out.")
        return sweeps.collect(read_sweep(name), console)
    read = read_logger(logger)
    publish(render.collect(name, console), read, console)
    return 0


def start() -> int:
    """The command, with workers."""
    from experiments.run import workers

    return workers.command(main)


if __name__ == "__main__":
    sys.exit(start())
