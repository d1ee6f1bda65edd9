"""Kill real runs of every scheme at random moments, resume them, compare them with uninterrupted ones.

    python -m scripts.robustness.kill_test --kills 200 --seed 0

A run is the command scripts.train on small generated data, or the worker of a table, in a fork of this
process, which has imported everything once. It is killed (mostly SIGKILL, some SIGINT and SIGTERM), started
again in the same folder, killed again, and so on until it is done. Its weights, optimizers, curves and record
must then equal those of an uninterrupted run. Half of the kills wait for the next change of a file. A stopped
test resumes with the remaining kills, given the same --folder.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import string
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import experiments.run.by_hand  # noqa: F401  (once, for all forks)
import scripts.train
from experiments.plan.parser import ParseOnly
from experiments.plan.runs import compose, identity
from experiments.run.epochs import read_rows
from experiments.run.execute import Job, execute
from scripts.options import count

SIGNALS = {signal.SIGKILL: 8, signal.SIGINT: 1, signal.SIGTERM: 1}  # with their weights
PATIENCE = 120.0  # seconds that a stop may take on a loaded machine
SETS = ("conf/data/generated.yaml", "--data.num_rows=300", "--data.num_features=12", "--data.num_labels=6")
CHAINS = ("conf/data/ocr.yaml",)
HORSES = ("conf/data/weizmann_horses_32.yaml", "--data.batch_size=80")  # of which training takes random crops
NEEDS = {
    "seal_static": ("energy", "energy_net"),
    "nce": ("guesser", "cross_entropy"),
}  # part: whose
CELLS = {
    "floor": (*SETS, "conf/scheme/floor.yaml"),
    "cross_entropy": (*SETS, "conf/scheme/cross_entropy.yaml"),
    "ranked_net": (*SETS, "conf/scheme/ranked_net.yaml"),
    "energy_net": (*SETS, "conf/scheme/energy_net.yaml", "conf/objective/dvn.yaml"),
    "nce": (*SETS, "conf/scheme/energy_net.yaml", "conf/objective/nce.yaml"),
    "seal_static": (*SETS, "conf/scheme/seal_static.yaml", "conf/objective/nce.yaml"),
    "seal_dynamic": (
        *(*SETS, "conf/scheme/seal_dynamic.yaml", "conf/objective/nce.yaml"),
        "--data.num_rows=150",
    ),
    "infnet": (*SETS, "conf/scheme/infnet.yaml", "conf/objective/joint_stacked.yaml"),
    "implicit": (*SETS, "conf/scheme/implicit.yaml", "conf/objective/margin.yaml"),
    "tags": (*CHAINS, "conf/scheme/cross_entropy.yaml"),
    "crf_joint": (*CHAINS, "conf/scheme/crf_joint.yaml", "conf/objective/marginal_ce.yaml"),
    "crf_stage": (*CHAINS, "conf/scheme/crf_stage.yaml", "conf/objective/marginal_ce.yaml"),
    "crf_scaled": (*CHAINS, "conf/scheme/crf_scaled.yaml", "conf/objective/marginal_ce.yaml"),
    "horses": (
        *(*HORSES, "conf/scheme/seal_dynamic.yaml", "conf/objective/regression_s.yaml"),
        *("--model.task_net.init_args.net.init_args.width=4", "--model.energy.init_args.width=4"),
        *("--model.inner_steps=1", "--model.outer_steps=1", "--trainer.max_epochs=5"),
    ),
}
# What differs between any two runs: times, folders, memory, and what each start adds.
TIMES = {"seconds", "inference_seconds", "finished", "train/examples_per_second", "test/examples_per_second"}
TIMES |= {"train_examples_per_second", "peak_memory_mib", "starts"}
TIMES |= {"current_score"}  # Lightning does not restore it; it is not used
PLACES = {
    "table",
    "row",
    "column",
    "dirpath",
    "best_model_path",
    "kth_best_model_path",
    "last_model_path",
    "best_k_models",
}

Events = list[dict[str, Any]]


@dataclass(frozen=True)
class Trial:
    """A run that is killed, by hand or as one of a table."""

    cell: str
    folder: Path  # of the run's files
    table: bool = False

    @property
    def log(self) -> Path:
        """The log of its last start."""
        return self.folder / "log.txt" if self.table else self.folder.with_suffix(".log")

    def said(self) -> str:
        """The end of the log of its last start."""
        return self.log.read_text()[-2000:].strip() if self.log.exists() else ""


class KillTest:
    """The cells, the folder of their runs, and what has happened so far."""

    def __init__(self, folder: Path, *, seed: int, console: Console) -> None:
        self.folder, self.seed, self.console = folder, seed, console
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        (folder / "letters.data").write_text(letters())
        self.past = folder / "events.jsonl"
        lines = self.past.read_text().splitlines() if self.past.exists() else []
        self.events: Events = [json.loads(line) for line in lines]
        self.seconds: dict[str, float] = {}  # of an uninterrupted run of each cell
        self.jobs: dict[str, Job] = {}

    def run(self, kills: int, cells: list[str]) -> int:
        """Kill `kills` times, cycling over the cells; return the number of faults."""
        for cell in cells:
            self._whole(cell)
        for number in range(len(self.of("kill")), kills):
            self._kill(cells[number % len(cells)], random.Random(f"{self.seed} {number}"))
        for trial in map(self._trial, cells):
            if trial.folder.exists():
                process = self._start(trial)
                process.join()
                self._judge(trial, process.exitcode)
        return len(self.of("fault"))

    def of(self, kind: str) -> Events:
        """The events of a kind."""
        return [event for event in self.events if event["event"] == kind]

    def _note(self, event: str, trial: Trial, **facts: object) -> None:
        """Keep an event and show it."""
        place = str(trial.folder.relative_to(self.folder))
        self.events.append({"event": event, "run": place, "cell": trial.cell} | facts)
        with self.past.open("a") as file:
            file.write(f"{json.dumps(self.events[-1])}\n")
        counts = " ".join(f"{kind} {len(self.of(kind)):3} " for kind in ("kill", "same", "fault"))
        said = " ".join(map(str, facts.values()))
        self.console.print(f"{counts} | {event} {place} {said}", style="red" if event == "fault" else "")

    def _whole(self, cell: str) -> Path:
        """The folder of the uninterrupted run, which is made if it is missing."""
        folder = self.folder / cell / "whole"
        if cell not in self.seconds:
            if cell in NEEDS:
                self._whole(NEEDS[cell][1])
            if not (folder / "record.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
            trial, began = Trial(cell, folder), time.monotonic()
            process = self._start(trial)  # which only repeats the test of a finished run
            process.join()
            if process.exitcode:
                raise SystemExit(f"{cell} does not run by itself:\n{trial.said()}")
            self.seconds[cell] = max(time.monotonic() - began, record(folder)["seconds"])
        return folder

    def _kill(self, cell: str, draw: random.Random) -> None:
        """Kill a run of the cell at a random moment; if it ends first, the next one."""
        while True:
            trial = self._trial(cell)
            fresh, began = not trial.folder.exists(), time.monotonic()
            whole, change = self.seconds[cell], draw.random() < 0.5
            trained = record(self._whole(cell))["seconds"]
            delay = draw.uniform(0.0 if draw.random() < 0.2 else max(whole - trained, 0.0), whole)
            process = self._start(trial)
            process.join(delay)
            if change:
                wait_for_change(process, trial.folder)
            if process.is_alive():
                break
            if fresh:
                self.seconds[cell] = min(self.seconds[cell], time.monotonic() - began)
            self._judge(trial, process.exitcode)
        (sign,) = draw.choices([*SIGNALS], [*SIGNALS.values()])
        if trial.table and sign == signal.SIGINT:
            sign = signal.SIGKILL  # its launcher's business
        assert process.pid is not None
        os.kill(process.pid, sign)
        process.join(PATIENCE)
        rows = read_rows(trial.folder)
        moment = f"after {delay:.2f} s{', at a change' if change else ''}"
        epoch = f"epoch {rows[-1]['epoch']}" if rows else ""
        self._note("kill", trial, signal=sign.name, moment=moment, epoch=epoch)
        if process.is_alive():
            process.kill()
            self._note("fault", trial, what=f"{sign.name} did not end it")
        elif sign != signal.SIGKILL and "Traceback" in trial.said():
            self._note("fault", trial, what=f"{sign.name}: {trial.said()}")
        if process.exitcode == 0:  # it had just ended
            self._judge(trial, 0)

    def _judge(self, trial: Trial, code: int | None) -> None:
        """Compare a run that has ended by itself with the uninterrupted one."""
        if code or not (trial.folder / "record.json").exists():
            wrong = [f"ended with {code}: {trial.said()}"]
        else:
            wrong = differences(trial.folder, self._whole(trial.cell))
        wrong += [f"{path} is left" for path in self.temporary.iterdir()]
        for what in wrong:
            self._note("fault", trial, what=what)
        if not wrong:
            self._note("same", trial, starts=f"{len(record(trial.folder)['starts'])} starts")
        place = trial.folder.parents[1] if trial.table else trial.folder
        place.rename(place.with_name(f"{place.name}-{'wrong' if wrong else 'same'}"))

    def _trial(self, cell: str) -> Trial:
        """The active run; a finished one is followed by a new one."""
        ended = len([*(self.folder / cell).glob("killed-*-*")])
        folder = self.folder / cell / f"killed-{ended}"
        return Trial(cell, folder / "runs" / self._job(cell).id, True) if ended % 2 else Trial(cell, folder)

    def _start(self, trial: Trial) -> BaseProcess:
        trial.folder.mkdir(parents=True, exist_ok=True)
        given: tuple[object, ...] = (self._arguments(trial.cell), trial)
        if trial.table:
            config = compose.fill(self._job(trial.cell).config, {compose.RUN_DIR: str(trial.folder)})
            given = (replace(self._job(trial.cell), config=config, runs=trial.folder.parent), trial)
        target = work if trial.table else train
        process = get_context("fork").Process(target=target, args=(*given, self.temporary))
        process.start()
        return process

    def _job(self, cell: str) -> Job:
        """The cell as a run of a table."""
        if cell not in self.jobs:
            config = ParseOnly().resolve(self._arguments(cell))
            kept = identity.identity(config)
            facts = {"table": "kill_test", "row": cell, "column": "", "seed": 0}
            self.jobs[cell] = Job(identity.run_id(kept), config, kept, facts, threads=1)
        return self.jobs[cell]

    def _arguments(self, cell: str) -> list[str]:
        """The command line of a cell: its files, training that ends soon, the run it needs."""
        words = [*CELLS[cell]]
        chains = words[0] == CHAINS[0]
        if chains:
            lines = letters().splitlines()
            sizes = {"letters": len(lines), "words": len({line.split()[3] for line in lines})}
            words += [f"--data.num_{name}={size}" for name, size in sizes.items()]
            words += [f"--data.file={self.folder}/letters.data", "--data.batch_size=8"]
        layer = self.folder / "short.yaml"
        layer.write_text("trainer: {max_epochs: 30}\nstop: {patience: 10, min_delta: 0.0}\n")
        if cell in NEEDS:
            part, other = NEEDS[cell]
            best = self._whole(other) / "checkpoints" / "best.ckpt"
            words.append(f"--model.{part}.init_args.checkpoint={best}")
        files = [*(word for word in words if word.endswith(".yaml")), str(layer)]
        return [w for f in files for w in ("--config", f)] + [w for w in words if not w.endswith(".yaml")]


def letters(words: int = 60) -> str:
    """Letters in the layout of letter.data: three a word, with pixels that encode the letter."""
    draw, lines = random.Random(0), []
    for word in range(words):
        for place, letter in enumerate(draw.choices(string.ascii_lowercase, k=3)):
            number = 3 * word + place + 1
            shown = f"{1 << (ord(letter) - 97):0128b}"
            noisy = (str(int(pixel) ^ (draw.random() < 0.02)) for pixel in shown)
            following = -1 if place == 2 else number + 1
            lines.append("\t".join(map(str, (number, letter, following, word, place + 1, word % 10, *noisy))))
    return "\n".join(lines) + "\n"


def train(arguments: list[str], trial: Trial, temporary: Path) -> None:
    """The child: the command scripts.train, as in a process of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = str(temporary)
    sys.argv = ["scripts.train", *arguments, f"--run_dir={trial.folder}"]
    with trial.log.open("w", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code = scripts.train.start()
    sys.stdout.flush()
    os._exit(code)


def work(job: Job, trial: Trial, temporary: Path) -> None:
    """The child: a run as the launcher of a table starts it."""
    tempfile.tempdir = str(temporary)
    heard, answer = get_context().Pipe(duplex=False)
    execute(job, answer)
    heard.close()


def wait_for_change(process: BaseProcess, folder: Path) -> None:
    """Until a file of the run is made, written or renamed."""

    def seen() -> list[tuple[str, int, int]]:
        found = []
        for entry in islice(entries(folder), 50):
            try:
                state = entry.stat()
            except FileNotFoundError:
                continue
            found.append((entry.name, state.st_mtime_ns, state.st_size))
        return found

    before = seen()
    while process.is_alive() and seen() == before:
        time.sleep(0.0005)


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of a run's folder and of its checkpoints' folder."""
    for place in (folder, folder / "checkpoints"):
        if place.exists():
            yield from os.scandir(place)


def differences(one: Path, other: Path) -> list[str]:
    """Where two finished runs differ that should not."""
    found = unlike(files(one), files(other), "files")
    found += unlike(read_rows(one), read_rows(other), "metrics.csv")
    found += unlike(record(one), record(other), "record.json")
    for name in ("best", "last"):
        paths = [folder / "checkpoints" / f"{name}.ckpt" for folder in (one, other)]
        if all(path.exists() for path in paths):
            ours, whole = (torch.load(path, weights_only=True) for path in paths)
            found += unlike(ours, whole, f"{name}.ckpt")
    return found


def files(folder: Path) -> list[str]:
    """The files of a run; one of a table has a log and drops its last checkpoint."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(set(found) - {"log.txt", "checkpoints/last.ckpt"})


def record(folder: Path) -> dict[str, Any]:
    """The record of the run."""
    return json.loads((folder / "record.json").read_text())


def unlike(one: Any, other: Any, place: str) -> list[str]:  # noqa: ANN401  (trees of anything)
    """The places where two trees differ, except times and folders."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in {**one, **other} if key not in TIMES | PLACES]
        return [w for k in keys for w in unlike(one.get(k), other.get(k), f"{place}: {k}")]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [w for number, (a, b) in pairs for w in unlike(a, b, f"{place}: {number}")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
    else:
        same = one == other or (both_nan(one) and both_nan(other))
    return [] if same else [f"{place}: {str(one)[:60]} for {str(other)[:60]}"]


def both_nan(number: object) -> bool:
    """Whether it is no number."""
    return isinstance(number, float) and math.isnan(number)


def main(arguments: list[str] | None = None) -> int:
    """Parse, kill, report; return 1 if there were faults."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.robustness.kill_test",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=count, default=20)
    parser.add_argument("--seed", type=int, default=0, help="draws signals and moments")
    parser.add_argument("--cells", default=",".join(CELLS), help=f"of {', '.join(CELLS)}")
    parser.add_argument("--folder", type=Path, default=Path("runs/kill_test"), help="where the runs are kept")
    given = parser.parse_args(arguments)
    cells = given.cells.split(",")
    if unknown := [cell for cell in cells if cell not in CELLS]:
        parser.error(f"there is no cell {unknown[0]!r}; there are {', '.join(CELLS)}")
    torch.set_num_threads(1)  # threads do not survive a fork
    console = Console(highlight=False, soft_wrap=True)
    test = KillTest(given.folder.absolute(), seed=given.seed, console=console)
    began = time.monotonic()
    try:
        faults = test.run(given.kills, cells)
    except KeyboardInterrupt:
        console.print("Stopped. The same command resumes with the remaining kills.")
        return 130
    signals = Counter(event["signal"] for event in test.of("kill"))
    by_signal = ", ".join(f"{number} {name}" for name, number in signals.items())
    console.print(
        f"{len(test.of('kill'))} kills ({by_signal}), {len(test.of('same'))} runs without a difference, "
        f"{faults} faults, {time.monotonic() - began:.0f} s"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
