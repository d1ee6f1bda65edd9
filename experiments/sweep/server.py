"""A sweep on W&B's server: create it there, and start agents here that run its trials."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.errors import STOPPED, SweepError
from experiments.tracking.client import PROJECT, said

if TYPE_CHECKING:
    from experiments.sweep.file import Sweep


def launch(
    sweep: "Sweep", *, jobs: int, count: int | None, project: str | None, entity: str | None, console: Console
) -> int:
    """Create a sweep and run `count` of its trials in `jobs` agents, or all; the exit code."""
    path = create(sweep, project=project, entity=entity)
    more = " ".join(agent_command(path, None, python="python"))
    console.print(f"more agents, here or elsewhere:  {more}", highlight=False, soft_wrap=True)
    commands = [agent_command(path, share) for share in shares(jobs, count)]
    # Ctrl-C of the terminal reaches this process alone, which passes it on once
    agents = [subprocess.Popen(command, env=environment(), start_new_session=True) for command in commands]
    try:
        codes = [agent.wait() for agent in agents]
    except KeyboardInterrupt:
        console.print(f"\nStopped. The sweep waits on the server; to go on:  {more}", highlight=False)
        _stop(agents)
        return STOPPED
    return max(map(abs, codes), default=0)


def create(sweep: "Sweep", *, project: str | None = None, entity: str | None = None) -> str:
    """Create a sweep on the server; its path, entity/project/id.

    Raises:
        SweepError: W&B is not installed, there is no login, or the server does not answer or refuses.
    """
    try:
        import wandb
    except ModuleNotFoundError:
        from experiments.plan.advice import not_installed

        raise SweepError(f"{not_installed('wandb')} Or sweep without it: ENGINE=local.") from None
    try:
        if not wandb.login(prompt=False, verify=True):
            raise SweepError(
                "There is no login to W&B here, and ENGINE=wandb needs its server. Run `wandb login`, or "
                "sweep without a server: ENGINE=local."
            )
        name = wandb.sweep(sweep.raw, project=project or sweep.raw.get("project") or PROJECT, entity=entity)
    except (wandb.Error, OSError, ValueError) as error:
        if isinstance(error, SweepError):
            raise
        raise SweepError(
            f"W&B's server did not take the sweep {sweep.name}: {said(error)}. Check WANDB_BASE_URL and "
            "`wandb login`, or sweep without a server: ENGINE=local."
        ) from error
    where = (os.environ.get("WANDB_ENTITY"), os.environ.get("WANDB_PROJECT"), name)
    return "/".join(part for part in where if part)


def agent_command(path: str, count: int | None, *, python: str = sys.executable) -> list[str]:
    """The command line of an agent that runs `count` trials of a sweep, or all that are left."""
    limit = ["--count", str(count)] if count else []
    return [python, "-m", "wandb", "agent", "--forward-signals", *limit, path]


def environment() -> dict[str, str]:
    """The environment of an agent: its `python` is this one."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return os.environ | {"PATH": os.pathsep.join(folders)}


def shares(jobs: int, count: int | None) -> list[int | None]:
    """How many trials each agent runs, so that all run `count` together."""
    if count is None:
        return [None] * jobs
    return [count // jobs + (agent < count % jobs) for agent in range(min(jobs, count))]


def _stop(agents: list[subprocess.Popen[bytes]]) -> None:
    """End agents, which pass the notice on to their trials and wait for them, as any further Ctrl-C."""
    while any(agent.poll() is None for agent in agents):
        for agent in agents:
            agent.terminate()
        with suppress(KeyboardInterrupt):
            for agent in agents:
                agent.wait()
