"""One run by hand as a job: devices, nodes and strategy follow from the cluster file."""

import hashlib
from pathlib import Path

from rich.console import Console

from experiments import store
from experiments.cluster import queue
from experiments.cluster.agree import agreed, resolve
from experiments.cluster.file import Cluster
from experiments.cluster.script import job_name, job_text
from experiments.errors import UserError
from experiments.plan.compose import RUN_DIR
from experiments.plan.identity import identity


def take_options(arguments: list[str]) -> tuple[str | None, bool, list[str]]:
    """The cluster file, whether the job is only printed, and the arguments of the run itself."""
    name, dry, rest, words = None, False, [], iter(arguments)
    for word in words:
        if word == "--cluster":
            name = next(words, "")
        elif word.startswith("--cluster="):
            name = word.partition("=")[2]
        elif word == "--dry-run":
            dry = True
        else:
            rest.append(word)
    if name is None and dry:
        raise UserError("--dry-run prints a job: name its resources, as in --cluster conf/cluster/cpu.yaml.")
    return name, dry, rest


def submit_run(arguments: list[str], cluster: Cluster, console: Console, *, dry: bool) -> int:
    """Submit the run, or print its job; the exit code."""
    from experiments.run.cli import by_hand_folder

    arguments = agreed(arguments, cluster)
    config = resolve(arguments)
    folder = Path(config["run_dir"])
    if config["run_dir"] == RUN_DIR:
        folder = Path(by_hand_folder(arguments))
        arguments = [*arguments, f"--run_dir={folder}"]
    name = job_name(f"{folder.name}-{_digest(str(folder.resolve()))}")
    text = job_text(cluster, name, ["-m", "scripts.train", *arguments], output=folder / "job.txt")
    if dry:
        console.print(text, highlight=False, markup=False, soft_wrap=True, end="")
        return 0
    record = store.read_json(folder / "record.json") or {}
    if record and record.get("config") == identity(config):
        console.print(f"{folder} is done: there is nothing to submit.", highlight=False)
        return 0
    with store.locked(folder / "job.lock"):
        for job in queue.queued():
            if job.name == name:
                said = f"{folder} is in the queue already: job {job.job}, {job.state.lower()}."
                console.print(said, highlight=False, soft_wrap=True)
                return 0
        store.write(folder / "job.sh", text)
        said = f"job {queue.submit(text)}: it prints to {folder}/job.txt"
    console.print(said, highlight=False, soft_wrap=True)
    return 0


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
