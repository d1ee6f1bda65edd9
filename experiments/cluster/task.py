"""One run of a table as a task of a job array.

`python -m experiments.cluster.task FILE` runs line SLURM_ARRAY_TASK_ID of the file. The run writes into its
own folder alone; `make table` and `make reproduce` take its record over.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments import store
from experiments.errors import STOPPED
from experiments.run import slurm
from experiments.run.execute import Job, Outcome, execute
from experiments.run.launch import how_died

PATIENCE = 180  # seconds; file systems may hold a dead process's lock for a while


@dataclass(frozen=True)
class Task:
    """A line of the file: a run, and the names of those it needs by their ids."""

    job: Job
    name: str
    needs: dict[str, str]


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write the file of an array."""
    trees = ({**asdict(task), "job": asdict(task.job) | {"runs": str(task.job.runs)}} for task in tasks)
    store.write(path, "".join(f"{json.dumps(tree)}\n" for tree in trees))


def read_tasks(path: Path) -> list[Task]:
    """The tasks of an array; none if its file is not there."""
    try:
        trees = map(json.loads, path.read_text().splitlines())
        return [Task(**tree | {"job": _job(tree["job"])}) for tree in trees]
    except FileNotFoundError:
        return []


def _job(tree: dict[str, str]) -> Job:
    return Job(**tree | {"runs": Path(tree["runs"])})  # type: ignore[arg-type]


def run(task: Task) -> Outcome:
    """Execute a task in a process of its own."""
    for needed, name in task.needs.items():
        if not store.has_finished(needed):
            return Outcome("failed", f"needs {name}: {store.run_dir(needed)} is not finished")
    outcome, since = _execute(task.job), time.monotonic()
    while outcome.state == "held" and time.monotonic() - since < PATIENCE:
        time.sleep(5)
        outcome = _execute(task.job)
    return outcome


def _execute(job: Job) -> Outcome:
    context = multiprocessing.get_context("fork")  # nothing heavy is imported yet
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=execute, args=(job, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        process.join()
        return Outcome("failed", how_died(process.exitcode))
    finally:
        process.kill()
        process.join()


def main() -> int:
    """Run the task of this job; the exit code tells SLURM whether others may go on."""
    slurm.heed_notice()
    path, number = Path(sys.argv[1]), int(os.environ["SLURM_ARRAY_TASK_ID"])
    tasks = read_tasks(path)
    if not tasks:
        sys.stderr.write(f"{path} is not there: submit the table again.\n")
        return 1
    try:
        task = tasks[number]
        outcome = run(task)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped; the run resumes from its last epoch.\n")
        return STOPPED
    sys.stderr.write(f"{task.name}: {outcome.state} {outcome.reason}\n")
    return 0 if outcome.state == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
