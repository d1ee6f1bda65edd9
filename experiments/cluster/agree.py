"""Whether the trainer of a run and the cluster file agree on processes, nodes and devices."""

import tempfile
from pathlib import Path
from typing import Any

import yaml

from experiments.cluster.file import Cluster
from experiments.errors import ClusterError, UserError
from experiments.plan.layers import CONF
from experiments.plan.runs import Plan

DDP = str(CONF / "trainer/ddp.yaml")


def agree(plan: Plan, cluster: Cluster) -> None:
    """Raise an error where a run's trainer and the cluster file contradict each other."""
    for run in plan.todo():
        trainer = run.config.get("trainer", {})
        for key in ("devices", "num_nodes"):
            if trainer.get(key) not in (None, 1, "1", "auto"):
                raise ClusterError(
                    f"{run.name} has trainer.{key} {trainer[key]}, but a run of a table is one process. "
                    "Train it with scripts.train --cluster."
                )
        _check_accelerator(trainer.get("accelerator"), cluster, run.name)


def _check_accelerator(accelerator: object, cluster: Cluster, name: str) -> None:
    """Raise an error if a run asks for another kind of device than it gets."""
    if accelerator in ("gpu", "cuda") and not cluster.gpus:
        raise ClusterError(f"{name} has trainer.accelerator {accelerator}, but {cluster.path} gives no GPU.")
    if accelerator == "cpu" and cluster.gpus:
        raise ClusterError(
            f"{name} has trainer.accelerator cpu, but {cluster.path} asks for gpus: {cluster.gpus}."
        )


def agreed(arguments: list[str], cluster: Cluster) -> list[str]:
    """The arguments with the trainer's devices, nodes and strategy of the cluster file.

    Raises:
        ClusterError: a file or an option of the run contradicts the cluster file.
    """
    several = cluster.processes > 1
    below = [f"--config={DDP}"] if several and DDP not in " ".join(arguments) else []
    given = resolve([*below, *arguments])["trainer"]
    wanted = {"devices": cluster.tasks, "num_nodes": cluster.nodes}
    with tempfile.TemporaryDirectory() as scratch:
        lowest = Path(scratch, "lowest.yaml")  # whatever overrides it contradicts
        lowest.write_text(yaml.safe_dump({"trainer": wanted}))
        trainer = resolve([f"--config={lowest}", *below, *arguments])["trainer"]
    for key, number in wanted.items():
        if str(trainer[key]) not in (str(number), "auto", "-1"):
            raise ClusterError(
                f"trainer.{key} is {trainer[key]}, but {cluster.path} gives {_gives(cluster)}. Leave it out: "
                "it follows from the cluster file."
            )
    if several and "single" in str(trainer["strategy"]):
        raise ClusterError(
            f"trainer.strategy is {trainer['strategy']}, but {cluster.path} gives {_gives(cluster)}. Leave "
            f"it out: {DDP} is taken."
        )
    _check_accelerator(trainer["accelerator"], cluster, "this run")
    return [*below, *arguments, *(f"--trainer.{k}={n}" for k, n in wanted.items() if given[k] != n)]


def _gives(cluster: Cluster) -> str:
    return f"nodes: {cluster.nodes} and tasks: {cluster.tasks}"


def resolve(arguments: list[str]) -> dict[str, Any]:
    """The resolved config of a command line; its folder is RUN_DIR where none is given."""
    from experiments.plan.parser import ParseOnly  # imports torch

    try:
        return ParseOnly().resolve(arguments)
    except ValueError as error:
        raise UserError(str(error)) from error


def single(cluster: Cluster, why: str) -> None:
    """Raise an error if a run gets several processes."""
    if cluster.processes > 1:
        raise ClusterError(
            f"{cluster.path} starts {cluster.processes} processes for a run, but {why}. Take a file with one "
            "node and at most one GPU, such as conf/cluster/gpu.yaml; SLURM puts many such runs on a node."
        )
