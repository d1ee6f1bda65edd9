"""SLURM jobs: the handling of the notice before the time limit, and the id of a requeued job.

With `#SBATCH --requeue --signal=USR1@90` a job gets SIGUSR1 90 seconds before its time limit.
"""

import os
import signal
import subprocess
import sys
from types import FrameType


def heed_notice() -> None:
    """From here on SIGUSR1 requeues the job of this process and stops the process as Ctrl-C does.

    SIGTERM comes before SIGKILL when a batch job is preempted. It is blocked: a job that ends by itself in
    the grace time is not requeued, and epochs that end in this time are kept.
    """
    if _job():
        signal.signal(signal.SIGUSR1, _requeue_and_stop)
    if batch_job():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # Lightning would handle an ignored signal


def _requeue_and_stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    if os.environ.get("SLURM_PROCID", "0") == "0":  # once for all processes of a run
        try:
            answer = subprocess.run(["scontrol", "requeue", _job()], capture_output=True, text=True)
            failed = answer.returncode and answer.stderr.strip()
        except OSError as error:
            failed = str(error)
        if failed:
            sys.stderr.write(f"Job {_job()} was not requeued: {failed}\n")
    raise KeyboardInterrupt


def _job() -> str:
    """The job as scontrol names it; the plain id of an array's last task would mean the whole array."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


def batch_job() -> str:
    """The id of a batch job, the same after a requeue; empty elsewhere."""
    return _job() if os.environ.get("ENVIRONMENT") == "BATCH" else ""
