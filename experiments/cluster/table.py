"""A table as job arrays: a task for each run that is neither done nor in the queue."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from experiments import store
from experiments.cluster import queue
from experiments.cluster.agree import agree
from experiments.cluster.file import Cluster
from experiments.cluster.queue import Queued
from experiments.cluster.script import folder, job_name, job_text
from experiments.cluster.task import Task, read_tasks, write_tasks
from experiments.errors import ClusterError
from experiments.page.render import render
from experiments.plan.runs import Plan, Run
from experiments.run.execute import HELD
from experiments.run.launch import adopt_finished, job_of
from experiments.run.reproduce import Selection, keep_state, plan_of
from experiments.run.workers import threads

JOB = "JOB"  # stands for the array's id until SLURM has given one


@dataclass(frozen=True)
class Array:
    """The runs of one array, and the jobs that each of them waits for."""

    name: str
    runs: list[Run]
    after: dict[str, list[str]]  # by run
    text: str

    @property
    def folder(self) -> Path:
        """The files of its job."""
        return folder() / self.name

    def jobs(self, job: str) -> dict[str, Queued]:
        """Its runs in the queue, once it has this id."""
        places = enumerate(run.id for run in self.runs)
        return {run: Queued(f"{job}_{i}", str(i), "PENDING", "", self.name) for i, run in places}

    def waits(self, run: Run, job: str) -> list[str]:
        """The jobs that a run waits for, once the array has this id."""
        return [one.replace(JOB, job) if one.startswith(f"{JOB}_") else one for one in self.after[run.id]]


def submit_table(selection: Selection, cluster: Cluster, console: Console) -> int:
    """Submit what is neither done nor in the queue, and render what is done; the exit code."""
    with store.locked(folder() / ".lock"):
        jobs = in_queue()  # before the plan: what ends in between is done in the plan
        plan = plan_of(selection, console, fetch=True)
        agree(plan, cluster)
        adopt_finished(plan, console.print)
        keep_state(plan)
        for run in hopeless(plan, jobs):
            queue.cancel(jobs.pop(run.id).job)
        left = _left(plan, jobs, console)
        for runs in _parts(left, queue.longest()):
            array = array_of(plan, cluster, runs, jobs)
            job = _submit(plan, array)
            jobs |= array.jobs(job)
            console.print(f"job {job}: {len(runs)} runs, {array.folder}/job.sh", highlight=False)
    render(plan.table, console)
    name = plan.table.path or plan.table.name
    said = f"{len(left)} runs submitted" if left else _nothing(plan, jobs)
    console.print(
        f"{said}. `make status TABLE={name}` shows the queue, `make table TABLE={name}` what is done.",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def show_table(selection: Selection, cluster: Cluster, console: Console) -> int:
    """Print the jobs that would be submitted, and what each of their tasks waits for; the exit code."""
    try:
        jobs, size = in_queue(), queue.longest()
    except ClusterError:  # a job can be read where there is no SLURM
        jobs, size = {}, queue.LONGEST
    plan = plan_of(selection, console, fetch=False)
    agree(plan, cluster)
    for run in hopeless(plan, jobs):
        del jobs[run.id]
    left = _left(plan, jobs, console)
    for number, runs in enumerate(_parts(left, size), start=1):
        job = f"{JOB}{number}"
        array = array_of(plan, cluster, runs, jobs)
        jobs |= array.jobs(job)
        console.print(array.text, highlight=False, markup=False, soft_wrap=True)
        for i, run in enumerate(runs):
            after = f"  after {', '.join(array.waits(run, job))}" if run.id in array.after else ""
            line = f"{job}_{i:<3} {run.id}  {run.name}{after}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if not left:
        console.print(_nothing(plan, jobs))
    return 0


def _nothing(plan: Plan, jobs: Mapping[str, Queued]) -> str:
    """Why there is nothing to submit."""
    done, todo = sum(run.done for run in plan.runs), plan.todo()
    queued = sum(run.id in jobs for run in todo)
    counts = {
        "done": done,
        "in the queue": queued,
        "at work or waiting elsewhere": len(todo) - queued,
        "without data": len(plan.runs) - done - len(todo),
    }
    return f"Nothing to submit: {', '.join(f'{n} {what}' for what, n in counts.items() if n)}"


def in_queue() -> dict[str, Queued]:
    """The runs of any table that are in the queue, and their jobs."""
    found: dict[str, Queued] = {}
    files: dict[str, list[Task]] = {}
    for job in queue.queued():
        if job.name not in files:
            files[job.name] = read_tasks(folder() / job.name / "tasks.jsonl")
        if job.task.isdigit() and int(job.task) < len(files[job.name]):
            found[files[job.name][int(job.task)].job.id] = job
    return found


def array_of(plan: Plan, cluster: Cluster, runs: list[Run], jobs: Mapping[str, Queued]) -> Array:
    """The array of these runs; `jobs` has those that are in the queue already."""
    name = job_name(f"{plan.table.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    while (folder() / name).exists():
        name += "+"
    done = {run.id for run in plan.runs if run.done}
    tasks = {run.id: f"{JOB}_{i}" for i, run in enumerate(runs)}
    known = {id: job.job for id, job in jobs.items()} | tasks
    after = {}
    for run in runs:
        if waits := [known[needed] for needed in run.needs.values() if needed not in done]:
            after[run.id] = waits
    arguments = ["-m", "experiments.cluster.task", str(folder() / name / "tasks.jsonl")]
    output = folder() / name / "%a.txt"
    text = job_text(cluster, name, arguments, output=output, tasks=len(runs), hold=bool(after))
    return Array(name, runs, after, text)


def hopeless(plan: Plan, jobs: Mapping[str, Queued]) -> list[Run]:
    """Waiting runs whose needs have failed, and which SLURM has not yet cancelled."""
    known = {run.id for run in plan.runs if run.done} | jobs.keys()
    found = []
    for run in plan.runs:
        waits = run.id in jobs and jobs[run.id].state == "PENDING"
        if waits and not run.done and not known.issuperset(run.needs.values()):
            found.append(run)
            known.discard(run.id)
    return found


def _left(plan: Plan, jobs: Mapping[str, Queued], console: Console) -> list[Run]:
    """The runs to submit: not done, not in the queue, not at work, and nor is what they need at work here."""
    left: dict[str, Run] = {}
    names = {run.id: run.name for run in plan.runs}
    done = {run.id for run in plan.runs if run.done}
    for run in plan.todo():
        lost = [n for n in run.needs.values() if n not in done | jobs.keys() | left.keys()]
        if run.id in jobs:
            job = jobs[run.id]
            console.print(f"{run.name}: in the queue as {job.job}, {job.state.lower()}", highlight=False)
        elif store.is_held(store.run_dir(run.id)):
            console.print(f"{run.name}: {HELD}", highlight=False)
        elif lost:
            console.print(f"{run.name}: needs {names[lost[0]]}, submit it later", highlight=False)
        else:
            left[run.id] = run
    return list(left.values())


def _submit(plan: Plan, array: Array) -> str:
    names = {run.id: run.name for run in plan.runs}
    write_tasks(array.folder / "tasks.jsonl", (_task(plan, run, names) for run in array.runs))
    store.write(array.folder / "job.sh", array.text)
    job = queue.submit(array.text)
    if array.after:
        try:
            for i, run in enumerate(array.runs):
                if run.id in array.after:
                    queue.depend(f"{job}_{i}", array.waits(run, job))
            queue.release(job)
        except BaseException:
            queue.cancel(job)
            raise
    return job


def _task(plan: Plan, run: Run, names: Mapping[str, str]) -> Task:
    needs = {needed: names[needed] for needed in run.needs.values()}
    return Task(job_of(plan, run, threads()), run.name, needs)


def _parts(runs: list[Run], size: int) -> list[list[Run]]:
    return [runs[start : start + size] for start in range(0, len(runs), size)]
