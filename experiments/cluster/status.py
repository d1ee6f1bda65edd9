"""The state of each run of a table, with its job in the queue."""

import shutil
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape

from experiments import store
from experiments.cluster.queue import Queued
from experiments.cluster.table import in_queue
from experiments.errors import ClusterError
from experiments.plan.runs import Plan, Run
from experiments.run.reproduce import Selection, plan_of, state_of

IMPOSSIBLE = ("BadConstraints", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit")


def status(selection: Selection, console: Console) -> int:
    """Print a line for each run, and how many there are of each state; the exit code.

    Raises:
        ClusterError: after all else is printed, if SLURM is here and its queue could not be asked.
    """
    jobs, trouble = _queue()
    plan = plan_of(selection, console, fetch=False)
    states = states_of(plan, jobs)
    counts: dict[str, int] = {}
    for run in plan.runs:
        state, detail = states[run.id]
        counts[state] = counts.get(state, 0) + 1
        line = f"{state:8} {run.id}  {run.name}  [dim]{escape(detail)}[/dim]"
        console.print(line, highlight=False, soft_wrap=True)
    console.print(", ".join(f"{n} {state}" for state, n in counts.items()) or "nothing selected")
    if trouble is not None:
        raise trouble
    return 0


def _queue() -> tuple[Mapping[str, Queued], ClusterError | None]:
    """The runs in the queue, none where there is no SLURM; or why it could not be asked."""
    if shutil.which("squeue") is None:
        return {}, None
    try:
        return in_queue(), None
    except ClusterError as error:
        return {}, error


def states_of(plan: Plan, jobs: Mapping[str, Queued]) -> dict[str, tuple[str, str]]:
    """The state of each run, and details.

    A run is blocked if one that it needs has failed, and is neither done nor in the queue again.
    """
    names = {run.id: run.name for run in plan.runs}
    states: dict[str, tuple[str, str]] = {}
    for run in plan.runs:  # after those it needs
        lost = [n for n in run.needs.values() if states.get(n, ("",))[0] in ("failed", "blocked")]
        if run.done:
            states[run.id] = "done", ""
        elif lost:
            needed = lost[0]
            states[run.id] = "blocked", f"needs {names[needed]}: {states[needed][1]}"
        elif run.id in jobs:
            states[run.id] = _in_queue(run, jobs[run.id], names, states)
        else:
            states[run.id] = state_of(plan, run)
    return states


def _in_queue(
    run: Run, job: Queued, names: Mapping[str, str], states: Mapping[str, tuple[str, str]]
) -> tuple[str, str]:
    if job.state != "PENDING":
        told = store.read_json(store.run_dir(run.id) / "progress.json") or {}
        epoch = f", epoch {told['epoch']} of {told.get('max_epochs', '?')}" if "epoch" in told else ""
        return "running", f"job {job.job} on {job.reason}{epoch}"
    after = [names[n] for n in run.needs.values() if states.get(n, ("done",))[0] != "done"]
    if after:
        return "waiting", f"job {job.job}, after {', '.join(after)}"
    if any(reason in job.reason for reason in IMPOSSIBLE):
        return "queued", f"job {job.job}: no node has what the cluster file asks for. scancel it, submit anew"
    return "queued", f"job {job.job} {job.reason}"
