"""Storage of runs: a folder each under runs/, and a line for each finished run in results/<table>.jsonl.

Two processes may work on one table. A run's folder and a results file are changed only under a lock. Files
are replaced by rename, so a reader sees the old or the new file, never an incomplete one.
"""

import errno
import fcntl
import json
import os
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from experiments import fields as f
from experiments.errors import StoreError

RUNS = Path("runs")
RESULTS = Path("results")
FULL = (errno.ENOSPC, errno.EDQUOT)
FOLDER = 0x10  # of a zip's entry
RESUMABLE = ("last.ckpt", "before.ckpt")  # what a stopped run resumes from

Record = dict[str, Any]
Place = tuple[str, str, int]  # row, column, seed

# Valid values in a record and a state file.
SAID = f.optional(f.value("text", lambda v: isinstance(v, str)))
START = f.keyed(
    {
        "epoch": f.optional(f.count),
        "commit": SAID,
        "dirty": f.optional(f.truth),
        "device": SAID,
        "cpu": SAID,
    },
    needed=("epoch", "commit", "dirty", "device", "cpu"),
)
CHANGE = f.value(
    "[tag, tag, times]",
    lambda v: (
        isinstance(v, list) and len(v) == 3 and f.is_text(v[0]) and f.is_text(v[1]) and f.is_number(v[2])
    ),
)
# A curve may hold what is not finite, such as the loss of an epoch that diverged; a metric may not.
POINT = f.value("a number", lambda v: isinstance(v, int | float) and not isinstance(v, bool))
BY_THRESHOLD = [
    f"{stage}/{kind}f1_by_threshold" for stage in ("val", "test") for kind in ("", "micro_", "macro_")
]
FINDINGS = f.keyed(
    {
        "changes": f.listed(CHANGE),
        **dict.fromkeys(BY_THRESHOLD, f.listed(f.number)),
        "test/answers": f.masks,
    }
)
FACTS: dict[str, f.Check] = {
    "id": f.file_name,
    "row": f.name,
    "column": f.name,
    "seed": f.seed,
    "metrics": f.named(f.number),
    "seconds": f.optional(f.not_negative),
    "epochs": f.optional(f.count),
    "updates": f.optional(f.named(f.count)),
    "curves": f.named(f.listed(POINT)),
    "findings": FINDINGS,
    "versions": f.named(f.word),
    "config": f.pairs,
    "starts": f.listed(START),
    **{key: SAID for key in ("commit", "device", "cpu")},
    "dirty": f.optional(f.truth),
}
RECORD = f.keyed(FACTS, needed=("id", "row", "column", "seed", "metrics"))
# A run by hand has no row and no column.
FINISHED = f.keyed(FACTS, needed=("seed", "metrics", "config", "data", "commit", "dirty"))
STATE = f.keyed(
    {
        "ids": f.named(f.file_name, f.value("row/column/seed", lambda v: f.PLACE.fullmatch(v))),
        "missing": f.named(SAID),
    }
)


@dataclass
class Records:
    """The records of a results file, and warnings about it."""

    records: list[Record] = field(default_factory=list)
    broken: list[bytes] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Use another folder for runs and results, both, within a `with` block."""
    global RUNS, RESULTS
    before, RUNS, RESULTS = (RUNS, RESULTS), folder, folder / "results"
    try:
        yield
    finally:
        RUNS, RESULTS = before


def run_dir(run_id: str) -> Path:
    """The folder of a run."""
    return RUNS / run_id


def checkpoint(run_id: str) -> Path:
    """The checkpoint a run chose on validation."""
    return run_dir(run_id) / "checkpoints" / "best.ckpt"


def has_finished(run_id: str) -> bool:
    """Whether a run has left its record, which comes last, and its checkpoint."""
    return read_record(run_id) is not None and is_whole(checkpoint(run_id))


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint exists and has the checksums it was written with; torch does not compare them.

    An entry marked as a folder would keep its checksum, but torch would read other numbers.
    """
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            folders = any(entry.external_attr & FOLDER for entry in archive.infolist())
            return not folders and archive.testzip() is None
    except Exception:  # damaged bytes can raise anything
        return False


def results_file(table: str) -> Path:
    """The committed records of a table."""
    return RESULTS / f"{table}.jsonl"


def trials_file(sweep: str) -> Path:
    """The committed trials of a sweep; the study is in runs/, which is not."""
    return RESULTS / f"{sweep}.trials.json"


def read_results(table: str) -> Records:
    """The records of a table; a broken line gives a warning with its number and key, the rest is used."""
    path, found = results_file(table), Records()
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    line_of: dict[Place, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _record(line)
            if (first := line_of.setdefault(place_of(record), number)) != number:
                raise Broken(f"line {first} has its row, column and seed already")
            found.records.append(record)
        except Broken as reason:
            found.broken.append(line)
            found.warnings.append(
                f"{path}, line {number} is broken: {reason}. The rest is used; the line moves to "
                f"{path.name}.broken at the next change, and its run is made again unless runs/ still has it."
            )
    return found


class Broken(ValueError):
    """Why a line is no record."""


def _record(line: bytes) -> Record:
    """The record in a line."""
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError:
        raise Broken("it is not UTF-8") from None
    except RecursionError:
        raise Broken("it is too deeply nested") from None
    except ValueError as error:
        raise Broken(f"it is not JSON ({str(error)[:80]})") from None
    if fault := RECORD("", record):
        raise Broken(str(fault))
    return record


def read_record(run_id: str) -> Record | None:
    """What a finished run left in its folder."""
    record = read_json(run_dir(run_id) / "record.json")
    return record if record and not RECORD("", record) and record["id"] == run_id else None


def record_in(folder: Path) -> Record:
    """The record in the folder of a finished run.

    Raises:
        StoreError: there is none, or it is damaged.
    """
    path = folder / "record.json"
    if not path.is_file():
        raise StoreError(f"{folder} is no finished run: it has no record.json.")
    record = read_json(path)
    if fault := "it is no JSON object" if record is None else FINISHED("", record):
        raise StoreError(f"{path} is damaged: {fault}. Put a copy of it back, or train the run anew.")
    assert record is not None
    return record


def finished() -> dict[str, Record]:
    """Every recorded run of any table, by id."""
    return {record["id"]: record for table in tables() for record in read_results(table).records}


def tables() -> list[str]:
    """The tables that have records."""
    return sorted(path.stem for path in RESULTS.glob("*.jsonl"))


def keep(table: str, records: list[Record]) -> None:
    """Add records to a table; each replaces the one of the same row, column and seed."""
    if not records:
        return
    path = results_file(table)
    with locked(RESULTS / f".{table}.lock"):
        old = read_results(table)
        lines = {place_of(record): record for record in [*old.records, *records]}.values()
        if old.broken:
            with path.with_name(f"{path.name}.broken").open("ab") as aside:
                aside.writelines(line + b"\n" for line in old.broken)
        write(path, "".join(f"{json.dumps(line, sort_keys=False)}\n" for line in lines))


def places(table: str) -> dict[Place, str]:
    """The run id recorded for each row, column and seed of a table."""
    return {place_of(record): record["id"] for record in read_results(table).records}


def placed(record: Record, table: str, place: Place) -> Record:
    """The record with the table, row, column and seed of a cell."""
    row, column, seed = place
    key = {"id": record["id"], "table": table, "row": row, "column": column, "seed": seed}
    return key | {k: v for k, v in record.items() if k not in key}


def take_over(table: str, ids: dict[str, str]) -> None:
    """Add records of other tables and of jobs; `ids` has the table's runs, as "row/column/seed"."""
    known, own = finished(), places(table)
    found = []
    for name, run_id in ids.items():
        row, column, seed = name.split("/")
        place = row, column, int(seed)
        record = own.get(place) != run_id and (known.get(run_id) or read_record(run_id))
        if record:
            found.append(placed(record, table, place))
    keep(table, found)


def renew(record: Record) -> None:
    """Replace the records of a repeated run in every table that shares it."""
    for table in tables():
        copies = [r for r in read_results(table).records if r["id"] == record["id"]]
        keep(table, [placed(record, table, place_of(copy)) for copy in copies])


def place_of(record: Record) -> Place:
    """Row, column and seed of a record."""
    return record["row"], record["column"], record["seed"]


def read_json(path: Path) -> dict[str, Any] | None:
    """A small file of ours; None where it is absent or damaged."""
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def write_json(path: Path, tree: dict[str, Any]) -> None:
    """Replace a small file of ours."""
    write(path, json.dumps(tree, indent=1))


def write(path: Path, text: str, *, sure: bool = True) -> None:
    """Replace a file by a text; if `sure`, it is synced to disk."""
    with replacing(path) as part, part.open("w") as file:
        file.write(text)
        file.flush()
        if sure:
            os.fsync(file.fileno())


def append(path: Path, text: str) -> None:
    """Add to the end of a file."""
    try:
        with path.open("a") as file:
            file.write(text)
    except OSError as error:
        raise StoreError(explain(error, path)) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; the result then replaces the file by rename, so it is never incomplete."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise StoreError(explain(error, path)) from error
    except RuntimeError as error:  # torch.save closes its archive, which fails too where the disk is full
        if not isinstance(error.__context__, OSError):
            raise
        raise StoreError(explain(error.__context__, path)) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def sweep(folder: Path, *, older: float = 0.0) -> None:
    """Remove incomplete files of killed processes that were not modified for `older` seconds."""
    for part in folder.glob(".*.[0-9]*.part"):
        with suppress(FileNotFoundError):  # finished, or removed by another process
            if time.time() - part.lstat().st_mtime >= older:
                part.unlink()


def explain(error: OSError, path: Path) -> str:
    """A message for a file-system error, with what to do."""
    if error.errno in FULL:
        return (
            f"The disk is full, {path} could not be written. Free some space (finished runs need only "
            "record.json and checkpoints/best.ckpt) and give the same command again: it resumes."
        )
    return f"{path} could not be written: {error.strerror or error}."


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, waiting for it."""
    with _opened(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _opened(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        raise StoreError(explain(error, path)) from error


@contextmanager
def hold(folder: Path) -> Iterator[bool]:
    """Lock a run for this process; False if another process has it."""
    with _opened(folder / "lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def tidy(folder: Path) -> None:
    """Remove what a killed process left in a run's folder, if no living process has locked it."""
    if not folder.exists():
        return
    with hold(folder) as mine:
        if mine:
            clear(folder)


def clear(folder: Path) -> None:
    """Remove incomplete and useless files from the folder of a locked run.

    Useless are the last checkpoints of a finished run of a table, and Lightning's for SLURM, which may be
    from the middle of an epoch.
    """
    sweep(folder)
    sweep(folder / "checkpoints")
    for stray in folder.glob("hpc_ckpt_*.ckpt"):
        stray.unlink()
    if "table" in (read_json(folder / "record.json") or {}):
        for name in RESUMABLE:
            (folder / "checkpoints" / name).unlink(missing_ok=True)


def is_held(folder: Path) -> bool:
    """Whether a living process works on this run."""
    if not (folder / "lock").exists():
        return False
    with hold(folder) as free:
        return not free
