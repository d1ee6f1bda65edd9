"""SLURM's queue: submit, look up, release."""

import subprocess
from dataclasses import dataclass

from experiments.cluster.script import folder
from experiments.errors import ClusterError, short

LONGEST = 1001  # tasks of an array, unless a cluster says otherwise
NEVER = "DependencyNeverSatisfied"


@dataclass(frozen=True)
class Queued:
    """A job, or one task of an array, that waits or runs."""

    job: str  # such as 12_3
    task: str
    state: str  # PENDING, RUNNING, ...
    reason: str  # why it waits, or the nodes it runs on
    name: str


def submit(text: str) -> str:
    """Give a job to SLURM; its id."""
    folder().mkdir(parents=True, exist_ok=True)
    return _ask("sbatch", "--parsable", text=text).partition(";")[0]


def depend(job: str, after: list[str]) -> None:
    """Let a held job wait until others have ended well."""
    _ask("scontrol", "update", f"JobId={job}", f"Dependency=afterok:{':'.join(after)}")


def release(job: str) -> None:
    """Let a held job start."""
    _ask("scontrol", "release", job)


def cancel(job: str) -> None:
    """Take a job out of the queue."""
    _ask("scancel", job)


def queued() -> list[Queued]:
    """The user's jobs; a task of an array is one."""
    lines = _ask("squeue", "--me", "--noheader", "--array", "--format=%i|%K|%T|%R|%j").splitlines()
    found = [Queued(*line.split("|", 4)) for line in lines]
    return [job for job in found if NEVER not in job.reason]


def longest() -> int:
    """The most tasks that an array may have."""
    lines = _ask("scontrol", "show", "config").splitlines()
    sizes = [line.partition("=")[2].strip() for line in lines if line.startswith("MaxArraySize")]
    return int(sizes[0]) if sizes else LONGEST


def _ask(*command: str, text: str | None = None) -> str:
    """What a command of SLURM answers.

    Raises:
        ClusterError: the command is not here, or it failed.
    """
    try:
        answer = subprocess.run(command, capture_output=True, text=True, input=text)
    except FileNotFoundError:
        raise ClusterError(
            f"There is no SLURM here: the command {command[0]} was not found. Run this on a login node of "
            "the cluster; DRY=1 (--dry-run) prints the job without one."
        ) from None
    except OSError as error:
        raise ClusterError(f"{command[0]} could not be started: {error.strerror or error}.") from error
    if answer.returncode:
        said = " ".join(answer.stderr.split()) or f"exit code {answer.returncode}"
        if any(sign in said for sign in ("resolve_ctls", "Unable to contact", "fetch_config")):
            raise ClusterError(
                f"No SLURM answers `{command[0]}`. Run this on a login node, set SLURM_CONF, or start one "
                "on this machine with scripts/slurm_here.sh; DRY=1 (--dry-run) prints the job without one."
            )
        raise ClusterError(f"SLURM did not take `{' '.join(command[:3])}`: {short(said)}")
    return answer.stdout.strip()
