"""Run a sweep: the points of a W&B sweep file as ordinary runs, here or by W&B's agents.

python -m scripts.sweep conf/sweeps/implicit_cd.yaml --engine local --jobs 2 --count 20
"""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from experiments.errors import SweepError, UserError
from scripts.options import Options

if TYPE_CHECKING:
    from experiments.sweep.file import Sweep


def main(arguments: list[str] | None = None, console: Console | None = None) -> int:
    """Parse, call, exit code."""
    console = console or Console()
    try:
        return run(parser().parse_args(arguments), console)
    except UserError as error:
        console.stderr = True
        console.print(Text(str(error), style="red"), soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130


def parser() -> Options:
    """The options."""
    options = Options("python -m scripts.sweep", __doc__)
    options.add_argument("sweep", help="a W&B sweep file, or the name of one in conf/sweeps")
    options.add_argument("--engine", choices=("local", "wandb"), default="local", help="default: local")
    options.add_argument("--jobs", type=int, help="trials at a time (default: one per core)")
    options.add_argument("--count", type=int, help="trials in all; a grid ends by itself")
    options.add_argument(
        "--dry-run", action="store_true", help="print the points and what is done; run nothing"
    )
    options.add_argument("--collect", action="store_true", help="render the page; run nothing")
    options.add_argument(
        "--adopt",
        metavar="FILE:ROW",
        help="then write the best point into a file of conf/tuned, under the name of a row",
    )
    options.add_argument(
        "--on", choices=("slurm",), help="submit an array of --jobs tasks that share the sweep"
    )
    options.add_argument(
        "--cluster", default="cpu", help="with --on slurm: a file of conf/cluster (default: cpu), or a path"
    )
    return options


def run(given: argparse.Namespace, console: Console) -> int:
    """Read the file, then run, show or render; the exit code."""
    from experiments.plan.table import TABLES
    from experiments.sweep import local, page
    from experiments.sweep.file import SWEEPS, read_sweep

    sweep = read_sweep(given.sweep)
    if (TABLES / f"{sweep.name}.yaml").is_file():
        raise SweepError(f"{sweep.path}: {sweep.name} is a table's name; save the file under another name.")
    own = SWEEPS / f"{sweep.name}.yaml"
    if own.is_file() and own.resolve() != sweep.path.resolve():
        raise SweepError(f"{sweep.path}: {own} has this name, and its results; save the file under another.")
    if given.jobs is not None and given.jobs < 1:
        raise SweepError(f"--jobs {given.jobs}: take 1 or more, or leave it out.")
    if given.count is not None and given.count < 1:
        raise SweepError(f"--count {given.count}: take 1 or more.")
    if given.adopt:
        if given.engine == "wandb":
            raise SweepError("--adopt takes the best trial of this machine: leave ENGINE=wandb out.")
        local.check_adoption(sweep, given.adopt)
    if given.engine == "local" and not given.collect:
        local.need(sweep, given.count)
    if given.on:
        return submit(given, sweep, console)
    if given.engine == "wandb" and not given.collect:
        return on_server(given, sweep, console)
    if given.dry_run:
        return local.dry_run(sweep, console, count=given.count)
    if given.collect:
        code = page.collect(sweep, console)
    else:
        local.check(sweep, console, count=given.count)
        code = local.run(sweep, console, jobs=given.jobs or 0, count=given.count)
    if given.adopt and code in (0, 1):
        local.adopt_best(sweep, given.adopt, console)
    return code


def on_server(given: argparse.Namespace, sweep: "Sweep", console: Console) -> int:
    """Create the sweep on W&B's server and run agents, or say what that would do; the exit code."""
    from experiments.sweep import local, server

    local.check(sweep, console, count=given.count, fetch=not given.dry_run)
    if given.dry_run:
        console.print("W&B's server would choose the points, also those whose runs are recorded here.")
        return 0
    count, jobs = given.count, given.jobs or 1
    return server.launch(sweep, jobs=jobs, count=count, project=None, entity=None, console=console)


def submit(given: argparse.Namespace, sweep: "Sweep", console: Console) -> int:
    """Submit an array whose tasks share the sweep, or print its job; the exit code."""
    from experiments.cluster import queue
    from experiments.cluster.file import read_cluster
    from experiments.cluster.script import sweep_array
    from experiments.sweep import local, server

    if given.adopt or given.collect:
        raise SweepError("--on slurm submits alone: run --collect or --adopt here once its tasks have ended.")
    cluster, tasks = read_cluster(given.cluster), given.jobs or 1
    local.check(sweep, console, count=given.count, fetch=not given.dry_run)
    if given.engine == "wandb":
        path = "ENTITY/PROJECT/SWEEP" if given.dry_run else server.create(sweep)
        command = server.agent_command(path, server.shares(tasks, given.count)[0])[1:]
        os.environ.update(server.environment())  # which sbatch hands on
    else:
        count = ["--count", str(given.count)] if given.count else []
        command = ["-m", "scripts.sweep", given.sweep, "--jobs", str(cluster.cpus), *count]
    text = sweep_array(command, cluster, tasks, name=sweep.name)
    if given.dry_run:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        return 0
    console.print(f"job {queue.submit(text)}: {tasks} tasks share {sweep.name}", highlight=False)
    return 0


def start() -> int:
    """The command, with workers."""
    from experiments.run import workers

    return workers.command(main)


if __name__ == "__main__":
    sys.exit(start())
