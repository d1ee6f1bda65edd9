"""The text of a job, as sbatch takes it."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import store
from experiments.cluster.agree import single
from experiments.cluster.file import Cluster
from experiments.errors import STOPPED

NOTICE = 90  # seconds before the time limit
# Inside of a container there is no scontrol: a run that stopped at the notice is requeued from outside.
OUTSIDE = f"""code=$?
if [ $code -eq {STOPPED} ]; then
    scontrol requeue ${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
fi
exit $code"""


def job_name(text: str) -> str:
    """A name that SLURM takes, and that may stand in the path of a job's output."""
    return re.sub(r"[^\w.+-]", "_", text)


def folder() -> Path:
    """The folder of jobs: their files, and what they print."""
    return store.RUNS / "jobs"


def job_text(
    cluster: Cluster, name: str, arguments: Sequence[str], *, output: Path, tasks: int = 0, hold: bool = False
) -> str:
    """A job that runs Python with these arguments; with `tasks`, an array of that many.

    A held job waits for its release; it is cancelled when a job it depends on fails.
    """
    options = [
        f"--job-name={name}",
        *([f"--array=0-{tasks - 1}{f'%{cluster.throttle}' if cluster.throttle else ''}"] if tasks else []),
        f"--output={output}",
        *([f"--partition={cluster.partition}"] if cluster.partition else []),
        *([f"--account={cluster.account}"] if cluster.account else []),
        f"--nodes={cluster.nodes}",
        f"--ntasks-per-node={cluster.tasks}",
        f"--cpus-per-task={cluster.cpus}",
        *([f"--gpus-per-node={cluster.gpus}"] if cluster.gpus else []),
        f"--mem={cluster.memory}",
        f"--time={_clock(cluster.hours)}",
        f"--requeue --signal=USR1@{NOTICE} --open-mode=append",
        *(["--hold --kill-on-invalid-dep=yes"] if hold else []),
        *cluster.sbatch,
    ]
    python = cluster.python or ("python" if cluster.container else shlex.quote(_python()))
    command = [
        f"srun --cpus-per-task={cluster.cpus}",  # srun does not take it from sbatch
        *([cluster.container] if cluster.container else []),
        python,
        shlex.join(arguments),
    ]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        "",
        *(f"module load {module}" for module in cluster.modules),
        *(f"export {key}={shlex.quote(value)}" for key, value in cluster.environment.items()),
        " ".join(command),
        *([OUTSIDE] if cluster.container else []),
    ]
    return "\n".join(lines) + "\n"


def sweep_array(command: Sequence[str], cluster: Cluster, tasks: int, *, name: str = "sweep") -> str:
    """An array whose tasks all run the same command: Python's arguments, such as -m scripts.sweep ...

    Raises:
        ClusterError: the cluster file starts several processes for a task.
    """
    single(cluster, "a task of a sweep trains its trials in one process each")
    name = job_name(name)
    return job_text(cluster, name, command, output=folder() / f"{name}-%A_%a.txt", tasks=tasks)


def _clock(hours: float) -> str:
    minutes = round(hours * 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:00"


def _python() -> str:
    """This interpreter, by a path relative to the working directory if it is inside."""
    path, here = Path(sys.executable), Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
