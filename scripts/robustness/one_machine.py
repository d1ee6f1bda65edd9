"""A SLURM of this one machine for as long as a `with` block lasts, see scripts/slurm_here.sh."""

import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from experiments.errors import UserError

SCRIPT = Path(__file__).resolve().parents[1] / "slurm_here.sh"
KEEP = '"$0" start "$1" "$2" || exit 1; read -r _; "$0" stop "$1"'
COMMANDS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
PORTS = 3


def absent() -> list[str]:
    """The commands of SLURM that are not installed here."""
    return [name for name in COMMANDS if shutil.which(name) is None]


@contextmanager
def one_machine(folder: Path) -> Iterator[None]:
    """Address this process's SLURM commands to a cluster in the folder; also SIGKILL here ends its daemons.

    Raises:
        UserError: it cannot be started.
    """
    keeper = subprocess.Popen(
        ["bash", "-c", KEEP, str(SCRIPT), str(folder), str(free_ports())],
        stdin=subprocess.PIPE,  # closed when this process ends, however it ends
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process
    )
    assert keeper.stdout is not None
    before = os.environ.get("SLURM_CONF")
    try:
        said = keeper.stdout.readline().strip()
        if not said.startswith("export SLURM_CONF="):
            raise UserError(said)
        os.environ["SLURM_CONF"] = said.partition("=")[2]
        yield
    finally:
        keeper.communicate()
        os.environ.pop("SLURM_CONF", None)
        if before is not None:
            os.environ["SLURM_CONF"] = before


def free_ports() -> int:
    """The first of some ports in a row that are free."""
    while True:
        first = random.randrange(20_000, 30_000)
        with ExitStack() as stack:
            try:
                for port in range(first, first + PORTS):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first


def ask(*command: str, seconds: float | None = None) -> str:
    """What a command of SLURM prints.

    Raises:
        UserError: it fails, or takes longer: scancel goes on for minutes where a task is between states.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{' '.join(command)} did not end in {seconds} seconds.") from error
    if done.returncode:
        raise UserError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


def states(job: str) -> dict[str, str]:
    """PENDING, RUNNING, COMPLETED, ... of a job, or of each task of an array that SLURM has set apart."""
    lines = ask("scontrol", "--oneliner", "show", "job", job).splitlines()
    found = [dict(fact.split("=", 1) for fact in line.split() if "=" in fact) for line in lines]
    return {one.get("ArrayTaskId", ""): one["JobState"] for one in found}
