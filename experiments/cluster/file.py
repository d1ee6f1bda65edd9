"""A cluster file, conf/cluster/*.yaml, read and checked: what SLURM is to give to one run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from experiments import fields as f
from experiments.errors import ClusterError, TableError, short, suggest
from experiments.plan.reader import Reader, is_file
from experiments.plan.yaml_file import read_yaml

CLUSTERS = Path("conf/cluster")
SHORTEST = 0.05  # hours; the notice comes 90 seconds before the end
OPTIONS = {  # of sbatch, and the keys that set them
    "partition": "partition",
    "account": "account",
    "nodes": "nodes",
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "gres": "gpus",
    "ntasks": "tasks",
    "ntasks-per-node": "tasks",
    "cpus-per-task": "cpus",
    "mem": "memory",
    "time": "hours",
    "array": "throttle",
}
OWN = ("job-name", "output", "requeue", "no-requeue", "signal", "open-mode", "dependency", "hold")


def _matches(pattern: str, says: str) -> f.Check:
    return f.value(says, lambda v: isinstance(v, str) and re.fullmatch(pattern, v))


COUNT = f.value("a whole number from 1 to 10000", lambda v: f.is_count(v) and 1 <= v <= 10_000)
WORD = _matches(r"[\w.,:@/+-]{1,200}", "one word")
KEYS: dict[str, f.Check] = {
    "partition": WORD,
    "account": WORD,
    "nodes": COUNT,
    "gpus": f.value("a whole number from 0 to 1000", lambda v: f.is_count(v) and v <= 1000),
    "tasks": COUNT,
    "cpus": COUNT,
    "memory": _matches(r"[1-9]\d{0,8}[KMGT]", "a size in K, M, G or T, such as 16G"),
    "hours": f.value(
        f"a number from {SHORTEST} (three minutes) to 10000, such as 4 or 0.5",
        lambda v: f.is_number(v) and SHORTEST <= v <= 10_000,
    ),
    "throttle": COUNT,
    "modules": f.listed(WORD),
    "container": f.word,
    "python": f.word,
    "environment": f.named(
        f.value(
            "text in one line, or a number", lambda v: f.is_number(v) or (f.is_text(v) and "\n" not in v)
        ),
        _matches(r"[A-Za-z_]\w{0,79}", "a variable's name: letters, digits and _"),
    ),
    "sbatch": f.listed(
        _matches(r"--[a-z][a-z-]*([= ][^\n#]{1,200})?", "an option such as --constraint=a100")
    ),
}


@dataclass(frozen=True)
class Cluster:
    """The resources of one run; `gpus`, `tasks` (processes) and `memory` are those of each node."""

    path: Path
    hours: float
    memory: str
    cpus: int = 1  # of each task
    gpus: int = 0
    nodes: int = 1
    tasks: int = 1
    partition: str = ""
    account: str = ""
    throttle: int | None = None  # tasks of an array at a time
    modules: tuple[str, ...] = ()
    container: str = ""
    python: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    sbatch: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """The processes of one run, on all its nodes."""
        return self.nodes * self.tasks


def read_cluster(name: str) -> Cluster:
    """Read conf/cluster/<name>.yaml, or the file of that path.

    Raises:
        ClusterError: there is no such file, a key is unknown, or the resources are impossible.
    """
    path = Path(name if name.endswith(".yaml") else CLUSTERS / f"{name}.yaml")
    if not is_file(path):
        names = sorted(str(p) for p in CLUSTERS.glob("*.yaml"))
        raise ClusterError(f"There is no cluster file {short(str(path))}. {suggest(str(path), names)}")
    try:
        return _Reader(read_yaml(path)).cluster()
    except TableError as error:
        raise ClusterError(str(error)) from None


class _Reader(Reader):
    """Turns the tree of one file into a Cluster."""

    keys = {"cluster file": KEYS}  # noqa: RUF012
    error = ClusterError

    def cluster(self) -> Cluster:
        tree = self.keyed("cluster file", "", self.file.tree, needed=("hours", "memory"))
        gpus = tree.get("gpus", 0)
        tree.setdefault("tasks", gpus or 1)
        if gpus and tree["tasks"] != gpus:
            says = f" is {tree['tasks']}, and gpus is {gpus}: each process has one GPU. Leave tasks out."
            self.fail("tasks", says)
        for i, option in enumerate(tree.get("sbatch", ())):
            self._refuse_taken(f"sbatch[{i}]", option)
        for key in ("modules", "sbatch"):
            tree[key] = tuple(tree.get(key, ()))
        environment = {name: str(value) for name, value in tree.pop("environment", {}).items()}
        return Cluster(self.path, environment=MappingProxyType(environment), **tree)

    def _refuse_taken(self, place: str, option: str) -> None:
        """Raise an error for an option of sbatch that a key, or the launcher, sets already."""
        name = re.split("[= ]", option.removeprefix("--"))[0]
        if name in OPTIONS:
            self.fail(place, f" is {option}: the key `{OPTIONS[name]}` sets this.")
        if name in OWN:
            self.fail(place, f" is {option}: every job has its own --{name} already. Leave it out.")
