"""Kill and requeue tasks of a table's job array at random moments; compare all runs with those of no cluster.

    python -m scripts.robustness.array_test --runs 200 --kills 20 --requeues 10 --seed 0

The table is made by `scripts.reproduce --on slurm` in a SLURM of this machine (scripts/slurm_here.sh), and by
`scripts.reproduce` alone in another folder, whose records have to be the same. A kill is SIGKILL: to a task
by scancel, or to one process of it. A requeue is SLURM's notice (SIGUSR1) or `scontrol requeue`. Half of them
come when the run has trained an epoch. What failed is submitted again with the same command. A stopped test
resumes the runs that are left, given the same --folder.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from rich.console import Console

from experiments import store
from experiments.cluster.table import in_queue
from experiments.errors import UserError
from scripts.robustness.kill_test import CELLS, CHAINS, NEEDS, differences, letters, unlike
from scripts.robustness.one_machine import ask, one_machine

ROOT = Path(__file__).resolve().parents[2]
TABLE = "array_test"
ROWS = tuple(cell for cell in CELLS if cell not in ("crf_stage", "floor", "horses", "ranked_net"))
CLUSTER = {"hours": 1, "memory": "1G", "throttle": 4}
LOOK_EVERY = 0.3  # seconds
SUBMISSIONS = 8  # at most
Way = Callable[[str, random.Random], None]


def kill_task(job: str, draw: random.Random) -> None:
    """SIGKILL to the task."""
    ask("scancel", "--signal=KILL", job, seconds=4)


def kill_process(job: str, draw: random.Random) -> None:
    """SIGKILL to a process of the task: its shell, srun, its launcher or its worker."""
    (number,) = ask("squeue", "--noheader", "--format=%A", f"--jobs={job}").split()
    (node,) = ask("squeue", "--noheader", "--format=%N", f"--jobs={job}").split()
    lines = ask("scontrol", "listpids", number, node).splitlines()
    found = {int(words[0]) for words in map(str.split, lines) if words and words[0].isdigit()}
    with suppress(ProcessLookupError):
        os.kill(draw.choice(sorted(found)), signal.SIGKILL)


def give_notice(job: str, draw: random.Random) -> None:
    """SIGUSR1, as SLURM sends it before the time limit."""
    ask("scancel", "--signal=USR1", job, seconds=4)


def requeue(job: str, draw: random.Random) -> None:
    """Back into the queue, as after the failure of a node."""
    ask("scontrol", "requeue", job, seconds=4)


KILLS: tuple[Way, ...] = (kill_task, kill_process)
REQUEUES: tuple[Way, ...] = (give_notice, requeue)


@dataclass(frozen=True)
class Event:
    """What happens when so many runs are done."""

    after: int
    way: Way
    trained: bool  # wait until the run has trained an epoch


class ArrayTest:
    """The two folders, and what has happened."""

    def __init__(self, folder: Path, *, runs: int, console: Console) -> None:
        self.folder, self.runs, self.console = folder, runs, console
        self.array, self.local = folder / "array", folder / "local"
        self.happened: Counter[str] = Counter()
        self.submissions = 0
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "letters.data").write_text(letters())
        for name, tree in (("table", table(runs, folder)), ("cluster", CLUSTER), ("short", SHORT)):
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
        (folder / "table.yaml").replace(folder / f"{TABLE}.yaml")
        for side in (self.array, self.local):
            side.mkdir(exist_ok=True)
            if not (side / "conf").exists():
                (side / "conf").symlink_to(ROOT / "conf")

    def reproduce(self, side: Path, *options: str) -> None:
        """Call scripts.reproduce in one of the folders.

        Raises:
            UserError: it fails.
        """
        command = [sys.executable, "-m", "scripts.reproduce", str(self.folder / f"{TABLE}.yaml"), *options]
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        with (side / "said.txt").open("a") as said:
            code = subprocess.run(command, cwd=side, env=env, stdout=said, stderr=said).returncode
        if code:
            raise UserError(f"{' '.join(command)} ended with {code}, see {side / 'said.txt'}.")

    def work(self, events: list[Event], draw: random.Random) -> None:
        """Submit until all is done, with the events on the way."""
        left = sorted(events, key=lambda event: event.after)
        with one_machine(self.folder / "slurm"):
            while self.done() < self.runs and self.submissions < SUBMISSIONS:
                self.submissions += 1
                self.reproduce(self.array, "--on", "slurm", "--cluster", str(self.folder / "cluster.yaml"))
                while self.watch(left, draw):
                    time.sleep(LOOK_EVERY)
        self.reproduce(self.array, "--collect")

    def done(self) -> int:
        """The runs that have a record."""
        return len(list(self.array.glob("runs/*/record.json")))

    def watch(self, left: list[Event], draw: random.Random) -> bool:
        """Let the next event happen if it is time; whether anything is in the queue."""
        with store.inside(self.array / "runs"):
            jobs = in_queue()
        for job in jobs.values():
            if (
                job.state == "PENDING" and job.reason.strip("()") == "BeginTime"
            ):  # two minutes after a requeue
                with suppress(UserError):
                    ask("scontrol", "update", f"JobId={job.job}", "StartTime=now")
        active = {id: job.job for id, job in jobs.items() if job.state == "RUNNING"}
        if left and active and self.done() >= left[0].after:
            event, id = left.pop(0), draw.choice(sorted(active))
            try:
                if event.trained and not self.trains(id):
                    raise UserError(f"{id} is done")
                event.way(active[id], draw)
                self.happened[event.way.__name__] += 1
                self.console.print(f"{self.done():3} done | {event.way.__name__} {active[id]} {id}")
            except UserError:  # it has just begun, or ended by itself
                left.insert(0, replace(event, trained=False))
        return bool(jobs)

    def trains(self, id: str) -> bool:
        """Wait until a run has trained an epoch; False if it is done, or takes longer than a minute."""
        folder, end = self.array / "runs" / id, time.monotonic() + 60
        while time.monotonic() < end and not (folder / "record.json").exists():
            if (folder / "metrics.csv").exists():
                return True
            time.sleep(0.01)
        return False

    def faults(self) -> list[str]:
        """Records that are missing, twice there or not those of the other folder, and runs that differ."""
        found = []
        records = []
        for side in (self.array, self.local):
            with store.inside(side):
                records.append(store.read_results(TABLE).records)
        ours, theirs = ({record["id"]: record for record in some} for some in records)
        for name, some in zip(("array", "local"), records, strict=True):
            if not len(some) == len({record["id"] for record in some}) == self.runs:
                found.append(f"{name}: {len(some)} records of {self.runs}")
        for id in sorted({*ours, *theirs}):
            wrong = unlike(ours.get(id), theirs.get(id), "results")
            if not wrong:
                wrong = differences(self.array / "runs" / id, self.local / "runs" / id)
            found += [f"{id}: {what}" for what in wrong]
        return found

    def resumed(self) -> int:
        """The runs whose epochs are of several starts."""
        with store.inside(self.array):
            return sum(len(record.get("starts", ())) > 1 for record in store.read_results(TABLE).records)


SHORT = {"trainer": {"max_epochs": 25}, "stop": {"patience": 25, "min_delta": 0.0}}


def table(runs: int, folder: Path) -> dict[str, object]:
    """A table of so many runs: ten cells of small generated data, of which two need others."""
    pixels = letters().splitlines()
    sizes = {"letters": len(pixels), "words": len({line.split()[3] for line in pixels})}
    chains: dict[str, object] = {f"data.num_{name}": size for name, size in sizes.items()}
    chains |= {"data.file": str(folder / "letters.data"), "data.batch_size": 8, "data.test_fold": 9}
    rows: dict[str, dict[str, object]] = {}
    for cell in ROWS:
        words = CELLS[cell]
        files = [word for word in words if word.endswith(".yaml")]
        options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
        column = "letters" if words[0] == CHAINS[0] else "sets"
        given = {key: int(value) for key, value in options.items()} if column == "sets" else chains
        rows[cell] = {
            "label": cell,
            "config": [*files[1:], str(folder / "short.yaml")],
            "columns": [column],
            "set": given,
        }
        if cell in NEEDS:
            part, other = NEEDS[cell]
            rows[cell]["needs"] = {f"model.{part}.init_args.checkpoint": other}
    columns = {"sets": ("generated", "test/example_f1"), "letters": ("ocr", "test/word_accuracy")}
    return {
        "title": "Runs of a job array that are killed",
        "metric": {"name": "test/example_f1", "scale": 100, "digits": 2, "better": "higher"},
        "seeds": list(range(runs // len(ROWS))),
        "columns": {
            column: {"label": column, "config": [f"conf/data/{file}.yaml"], "metric": metric}
            for column, (file, metric) in columns.items()
        },
        "rows": rows,
    }


def main(arguments: list[str] | None = None) -> int:
    """Submit, kill, compare; return 1 if there were faults."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.robustness.array_test",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=20, help="of the table, a multiple of ten")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--requeues", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="draws tasks and moments")
    parser.add_argument("--folder", type=Path, default=Path("runs/array_test"), help="where all is kept")
    given = parser.parse_args(arguments)
    if given.runs < 1 or given.runs % len(ROWS):
        parser.error(f"--runs {given.runs}: take a multiple of {len(ROWS)}, one for each row and seed.")
    console = Console(highlight=False, soft_wrap=True)
    draw, began = random.Random(given.seed), time.monotonic()
    test = ArrayTest(given.folder.absolute(), runs=given.runs, console=console)
    ways = [KILLS[i % 2] for i in range(given.kills)] + [REQUEUES[i % 2] for i in range(given.requeues)]
    moments = range(test.done(), max(test.done() + 1, given.runs * 9 // 10))
    events = [Event(draw.choice(moments), way, draw.random() < 0.5) for way in ways]
    try:
        test.work(events, draw)
        took = time.monotonic() - began
        test.reproduce(test.local)
    except UserError as error:
        console.print(str(error), style="red")
        return 2
    except KeyboardInterrupt:
        console.print("Stopped. The same command resumes with the runs that are left.")
        return 130
    faults = test.faults()
    for fault in faults:
        console.print(fault, style="red")
    happened = ", ".join(f"{number} {way}" for way, number in test.happened.items())
    console.print(
        f"{test.done()} runs of {given.runs}, {test.submissions} submissions, {happened}; "
        f"{test.resumed()} runs resumed, {len(faults)} faults; {took:.0f} s on SLURM, "
        f"{time.monotonic() - began:.0f} s in all"
    )
    return 1 if faults or test.happened.total() < len(events) else 0


if __name__ == "__main__":
    sys.exit(main())
