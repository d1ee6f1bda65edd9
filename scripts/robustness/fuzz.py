"""Feed damaged files to all readers: each file has to be read, or rejected with one sentence, quickly.

    python -m scripts.robustness.fuzz --cases 10000 --seed 0
    python -m scripts.robustness.fuzz --replay runs/fuzz/arff-0-17.case

A finding is an exception of another class than the project's own, a message that is long or has line breaks,
or a case that takes more than two seconds of CPU time. Its file is kept, and the exit code is 1.
"""

import argparse
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from scripts.options import count
from scripts.robustness.fuzz_targets import REFUSALS, Target, targets

SLOW = 2.0  # seconds of processor time
STOP = 20.0  # after which a case is stopped
LONGEST = 2000  # characters of a message
KEPT = Path("runs/fuzz")


class GivenUp(BaseException):
    """A case took too long."""


@dataclass
class Tally:
    """The results of a target's cases."""

    cases: int = 0
    read: int = 0
    refused: int = 0
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    """Draw cases, feed them, count; or replay a kept case."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m scripts.robustness.fuzz", description=__doc__, formatter_class=form
    )
    parser.add_argument("--cases", type=count, default=10_000, help="in all, shared by the targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="these targets, such as arff,table")
    parser.add_argument("--replay", type=Path, help="a case that was kept")
    given = parser.parse_args(arguments)
    console = Console()
    kept = KEPT.absolute()
    warnings.simplefilter("ignore")
    replay = given.replay.absolute() if given.replay else None
    names = replay.name.split("-")[0] if replay else given.only
    with targets() as every:
        chosen = names.split(",") if names else list(every)
        if unknown := [name for name in chosen if name not in every]:
            parser.error(f"there is no target {unknown[0]!r}; there are: {', '.join(every)}")
        if replay:
            return _replay(every[chosen[0]], replay, console)
        counts = {name: Tally() for name in chosen}
        whole, left = sum(every[name].share for name in chosen), given.cases
        for name, tally in counts.items():
            cases = given.cases * every[name].share // whole if name != chosen[-1] else left
            left -= cases
            run(every[name], tally, seed=given.seed, cases=cases, kept=kept)
            console.print(f"{name}: {cases} cases, {len(tally.findings)} findings", highlight=False)
            for finding in tally.findings:
                console.print(finding, style="red", highlight=False, markup=False)
    console.print(listing(counts))
    return int(any(tally.findings for tally in counts.values()))


def run(target: Target, tally: Tally, *, seed: int, cases: int, kept: Path) -> None:
    """Feed damaged files to a target; keep the findings."""
    for whole in target.wholes:
        target.feed(whole)  # an undamaged file has to be read; this also does late imports
    for number in range(cases):
        draw = random.Random(f"{target.name} {seed} {number}")
        content = target.damage(draw)
        reason = feed(target, content, tally)
        if reason:
            path = kept / f"{target.name}-{seed}-{number}.case"
            kept.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.with_suffix(".txt").write_text(reason)
            tally.findings.append(f"{path}: {reason.strip().splitlines()[-1][:300]}")


def feed(target: Target, content: bytes, tally: Tally) -> str:
    """Feed a file; return why it is a finding, or an empty string."""
    tally.cases += 1
    began, reason = time.process_time(), ""
    try:
        with _given_up_after(STOP):
            target.feed(content)
        tally.read += 1
    except REFUSALS as error:
        tally.refused += 1
        if len(str(error)) > LONGEST or "\n" in str(error):
            reason = (
                f"{type(error).__name__} with a message of {len(str(error))} characters: {str(error)[:200]!r}"
            )
    except (Exception, GivenUp):
        reason = traceback.format_exc()
    spent = time.process_time() - began
    tally.slowest = max(tally.slowest, spent)
    return reason or (f"took {spent:.1f} s" if spent > SLOW else "")


@contextmanager
def _given_up_after(seconds: float) -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise GivenUp(f"no end after {seconds} s of processor time")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _replay(target: Target, path: Path, console: Console) -> int:
    tally = Tally()
    reason = feed(target, path.read_bytes(), tally)
    console.print(reason or ("read" if tally.read else "refused"), highlight=False, markup=False)
    return int(bool(reason))


def listing(counts: dict[str, Tally]) -> Table:
    """The counts as a table."""
    table = Table("what", "cases", "read", "refused", "findings", "slowest", box=None)
    every = Tally(
        cases=sum(tally.cases for tally in counts.values()),
        read=sum(tally.read for tally in counts.values()),
        refused=sum(tally.refused for tally in counts.values()),
        findings=[finding for tally in counts.values() for finding in tally.findings],
        slowest=max(tally.slowest for tally in counts.values()),
    )
    for name, tally in {**counts, "all": every}.items():
        numbers = (tally.cases, tally.read, tally.refused, len(tally.findings))
        table.add_row(name, *map(str, numbers), f"{tally.slowest:.2f} s")
    return table


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
