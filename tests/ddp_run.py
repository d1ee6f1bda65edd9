"""Trains runs on two processes, and each on one with twice the batch; started by test_ddp.py with a folder.

What is run is built once, and then the process forks: building takes longer than training.
"""

import json
import os
import shutil
import socket
import sys
import warnings
from contextlib import suppress
from copy import deepcopy
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
warnings.filterwarnings("ignore")

import torch  # noqa: E402

from experiments.run.cli import quiet_lightning  # noqa: E402
from lightning_modules.engine.processes import share_gradients  # noqa: E402
from lightning_modules.metrics.multilabel import MultiLabelScores  # noqa: E402
from scheme_runs import SmallCLI  # noqa: E402

FORMS = ("space", "guess", "networks", "solver")


def main(folder: Path) -> int:
    """Build all runs, train them in three processes; 1 where one of these fails."""
    quiet_lightning()
    torch.set_num_threads(1)
    built = build(folder)
    port = free_port()
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    fork = get_context("fork")
    workers = [fork.Process(target=alone, args=(folder, built))]
    workers += [
        fork.Process(target=together, args=(folder, built, rank, address | {"LOCAL_RANK": str(rank)}))
        for rank in (0, 1)
    ]
    for worker in workers:
        worker.start()
    while running := [worker for worker in workers if worker.is_alive()]:
        connection.wait([worker.sentinel for worker in running])
        if any(worker.exitcode for worker in workers):
            for worker in running:
                worker.kill()
            return 1
    return 0


def free_port() -> int:
    """A port that no system gives to another process in the seconds until the first run opens it."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise OSError("no port from 20,000 to 32,000 is free")


def build(folder: Path) -> dict[int, SmallCLI]:
    """The runs of runs.json by their places, with data that are read once."""
    read: dict[type, Any] = {}
    built = {}
    for place, arguments in enumerate(json.loads((folder / "runs.json").read_text())):
        cli = SmallCLI(arguments)
        kind = type(cli.datamodule)
        if missing := cli.datamodule.missing():
            (folder / f"{place}-missing.txt").write_text(missing)
            continue
        if kind not in read:
            cli.datamodule.setup()
            read[kind] = cli.datamodule.splits, cli.datamodule.tables
        cli.datamodule.splits, cli.datamodule.tables = read[kind]
        built[place] = cli
    return built


def alone(folder: Path, built: dict[int, SmallCLI]) -> None:
    """One process after which two are measured."""
    for place, cli in built.items():
        ended = cli.fit(cli.model, folder / f"{place}-alone")
        torch.save(ended, folder / f"{place}-alone.pt")
        shutil.rmtree(folder / f"{place}-alone")  # checkpoints of all runs would fill gigabytes


def together(folder: Path, built: dict[int, SmallCLI], rank: int, ranks: dict[str, str]) -> None:
    """One of two processes. All runs are trained without draws, the first of each form also with them."""
    os.environ.update(ranks)
    forms = set()
    for place, cli in built.items():
        form = type(cli.model), *(type(getattr(cli.model, name, None)) for name in FORMS)
        ways = ["exact"] if form in forms else ["exact", "drawn"]
        forms.add(form)
        for way in ways:
            ended = cli.fit(deepcopy(cli.model), folder / f"{place}-{way}", two=True, draws=way == "drawn")
            torch.save(ended, folder / f"{place}-{way}-{rank}.pt")
            torch.distributed.barrier()
            if rank == 0:
                shutil.rmtree(folder / f"{place}-{way}")
    torch.save((threshold(rank), gradients(rank)), folder / f"shared-{rank}.pt")
    torch.distributed.destroy_process_group()  # its threads may not outlive the interpreter


def threshold(rank: int) -> dict[str, torch.Tensor]:
    """What a metric says after each process has seen examples that want another threshold."""
    metric = MultiLabelScores(2, thresholds=(0.5, 0.2))
    probability = [[[0.9, 0.3]], [[0.3, 0.1], [0.4, 0.1]]][rank]
    metric.update(torch.tensor(probability), torch.tensor([[1.0, 0.0]]).repeat(len(probability), 1))
    metric.choose_threshold()
    return {"threshold": metric.threshold, **metric.compute()}


def gradients(rank: int) -> list[torch.Tensor | None]:
    """What three parameters get, of which the first process reaches one, the second two."""
    parameters = [torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(3)]
    for place, p in enumerate(parameters[: 1 + rank]):
        p.grad = torch.full_like(p, 1.0 + rank + place)
    share_gradients(parameters)
    return [p.grad for p in parameters]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
