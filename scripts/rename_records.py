"""Update the records of finished runs after a class or an argument was renamed.

python -m scripts.rename_records [--results results] [--runs runs]

A run's id hashes its config, so renaming a class changes the ids of its runs. This script applies the renames
in STEPS to the configs of records and run folders, updates the ids, and updates configs and sweeps that name
another run. Before anything is written, two things are checked for each record: its id hashes its config, and
the new config with the old names restored is the old one, empty init_args apart. Records that are up to date
do not change. So the script may run again, for example on records from an older clone.
"""

import argparse
import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console

from experiments import store
from experiments.errors import UserError
from experiments.plan.compose import fill
from experiments.plan.identity import Tree, difference, identity, run_id, without_empty
from scripts.options import refused

ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")
CHECKPOINT = re.compile(r"(?:.*/)?([0-9a-f]{16})/checkpoints/best\.ckpt")

Ids = list[str]  # of one run: before the first step, and after each


@dataclass(frozen=True)
class Rename:
    """A class, a function, or a module with all that is in it; or an init argument of the class `of`."""

    old: str
    new: str
    of: str = ""

    def undone(self) -> "Rename":
        """The inverse."""
        return Rename(self.new, self.old, self.of)

    def __call__(self, tree: Tree) -> Tree:
        """A config with the new name."""
        if isinstance(tree, dict):
            tree = {key: self(value) for key, value in tree.items()}
            arguments = tree.get("init_args")
            if self.of and tree.get("class_path") == self.of and self.old in (arguments or {}):
                tree["init_args"] = {self.new if k == self.old else k: v for k, v in arguments.items()}
            return tree
        if isinstance(tree, list):
            return [self(value) for value in tree]
        if isinstance(tree, str) and not self.of and f"{tree}.".startswith(f"{self.old}."):
            return self.new + tree.removeprefix(self.old)
        return tree


@dataclass(frozen=True)
class EmptyArguments:
    """Empty init arguments, which identities had once; they do not come back."""

    def undone(self) -> Callable[[Tree], Tree]:
        """The inverse, as far as there is one."""
        return lambda tree: tree

    def __call__(self, tree: Tree) -> Tree:
        """A config without them."""
        return without_empty(tree)


# Every rename there has been, oldest first. `of` is a class by the name it had at that time.
STEPS = (
    Rename("inference.criteria", "inference.chain.criteria"),
    Rename("inference.hypergradient", "inference.bilevel"),
    Rename("inference.guesses.Together", "inference.guesses.Combined"),
    Rename("lightning_modules.known", "lightning_modules.metrics.known"),
    EmptyArguments(),
)


def mentioned(config: Tree) -> set[str]:
    """The strings that look like the id of another run."""
    return set(ID.findall(json.dumps(config)))


def stages(config: Tree, known: dict[str, Ids]) -> list[Tree]:
    """A config before the first step and after each; the given one may be from any step."""
    others = {run: known[run] for run in mentioned(config) if run in known}
    tree = fill(config, {run: f"@{ids[-1]}" for run, ids in others.items()})
    for step in reversed(STEPS):
        tree = step.undone()(tree)
    trees = [tree]
    trees += (tree := step(tree) for step in STEPS)
    return [fill(tree, {f"@{ids[-1]}": ids[at] for ids in others.values()}) for at, tree in enumerate(trees)]


def ids_of(configs: dict[str, Tree]) -> dict[str, Ids]:
    """The ids that each run has had, under each of them. Runs that others name come first."""
    known: dict[str, Ids] = {}
    left = {run: mentioned(config) for run, config in configs.items()}
    while left:
        ready = [run for run, others in left.items() if others <= known.keys()]
        for run in ready or [run for run, others in left.items() if not others & left.keys()]:
            del left[run]
            ids = [run_id(tree) for tree in stages(configs[run], known)]
            known |= dict.fromkeys(ids, ids)
    return known


def renamed(record: store.Record, known: dict[str, Ids], where: str) -> store.Record:
    """A record with its new names, after checking that nothing else changes.

    Raises:
        UserError: restoring the old names does not give the old config.
    """
    old, new = record["config"], stages(record["config"], known)[-1]
    ids = known.get(record["id"], [])
    at = ids.index(record["id"]) if ids else 0
    back = fill(new, {known[run][-1]: run for run in mentioned(old) if run in known})
    for step in reversed(STEPS[at:]):
        back = step.undone()(back)
    if changes := difference(without_empty(old), without_empty(back)):
        raise UserError(
            f"{where}: the config of run {record['id']} does not come back when its names are put back "
            f"({changes[0]}). Nothing was written. Does it mix names of different times?"
        )
    return record | {"id": run_id(identity(new)), "config": new}


def hashed(record: Tree, where: str) -> store.Record:
    """A record whose id hashes its config.

    Raises:
        UserError: it is none.
    """
    config = record.get("config") if isinstance(record, dict) else None
    if not isinstance(config, dict) or run_id(config) != record.get("id"):
        raise UserError(
            f"{where}: the id of this record is not the hash of its config, so nothing proves what made it. "
            "Nothing was written. Take the committed file again, or remove the record."
        )
    return record


class Results:
    """The files of a results folder."""

    def __init__(self, folder: Path) -> None:
        self.tables = {path: path.read_text().splitlines() for path in sorted(folder.glob("*.jsonl"))}
        self.others = {path: path.read_text() for path in sorted(folder.glob("*.json"))}
        self.records: dict[tuple[Path, int], store.Record] = {}
        for path, lines in self.tables.items():
            for number, line in enumerate(lines):
                if (record := _json(line)) is not None:
                    self.records[path, number] = hashed(record, f"{path}, line {number + 1}")

    def configs(self) -> dict[str, Tree]:
        """The configs of all records, by id."""
        return {record["id"]: record["config"] for record in self.records.values()}

    def renamed(self, known: dict[str, Ids]) -> dict[Path, str]:
        """The new text of each file that changes."""
        texts = {path: ID.sub(lambda m: known.get(m[0], [m[0]])[-1], t) for path, t in self.others.items()}
        texts = {path: text for path, text in texts.items() if text != self.others[path]}
        for path, lines in self.tables.items():
            new = list(lines)
            for (file, number), record in self.records.items():
                if file == path:
                    found = renamed(record, known, f"{path}, line {number + 1}")
                    new[number] = lines[number] if found == record else json.dumps(found)
            if new != lines:
                texts[path] = "".join(f"{line}\n" for line in new)
        return texts


class RunFolder:
    """The files of one run, finished or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = yaml.safe_load((folder / "config.yaml").read_text())
        self.record = store.read_json(folder / "record.json")
        if self.record is not None:
            hashed(self.record, str(folder / "record.json"))

    def configs(self) -> dict[str, Tree]:
        """Its identity, by id; none for a run by hand that is not finished."""
        if self.record is not None:
            return {self.record["id"]: self.record["config"]}
        kept = identity(_checkpoints_as_ids(self.config))
        return {self.folder.name: kept} if run_id(kept) == self.folder.name else {}

    def rename(self, known: dict[str, Ids]) -> bool:
        """Update its files and, if its name is the id, its name; return whether anything changed."""
        config = stages(self.config, known)[-1]
        files: dict[str, Tree] = {}
        if self.record is not None:
            files["record.json"] = renamed(self.record, known, str(self.folder))
        if progress := store.read_json(self.folder / "progress.json"):
            run = progress.get("id")
            files["progress.json"] = progress | ({"id": known[run][-1]} if run in known else {})
        changed = config != self.config
        if changed:
            for path in self.folder.glob("checkpoints/*.ckpt"):
                _rename_in_checkpoint(path, known)
            store.write(self.folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        for name, tree in files.items():
            if tree != store.read_json(self.folder / name):
                store.write_json(self.folder / name, tree)
                changed = True
        name = known.get(self.folder.name, [self.folder.name])[-1]
        if name != self.folder.name:
            self.folder.rename(self.folder.with_name(name))
        return changed or name != self.folder.name


def run_folders(runs: Path, console: Console) -> Iterator[Path]:
    """The run folders in a folder; those in use are reported and left out."""
    for folder in sorted(path.parent for path in runs.glob("*/config.yaml")):
        if store.is_held(folder):
            console.print(f"{folder} is in use: run this command again when its run has ended.")
        else:
            yield folder


def rename(results: Path, runs: Path, console: Console) -> None:
    """Update everything, or nothing if the check of one record fails."""
    with ExitStack() as stack:
        for path in sorted(results.glob("*.jsonl")):
            stack.enter_context(store.locked(results / f".{path.stem}.lock"))
        kept = Results(results)
        folders = [RunFolder(folder) for folder in run_folders(runs, console)]
        configs = kept.configs()
        for folder in folders:
            configs |= folder.configs()
        known = ids_of(configs)
        texts = kept.renamed(known)
        for folder in folders:  # before the first is changed
            if folder.record is not None:
                renamed(folder.record, known, str(folder.folder))
            name = known.get(folder.folder.name, [folder.folder.name])[-1]
            if name != folder.folder.name and folder.folder.with_name(name).exists():
                raise UserError(
                    f"{folder.folder} becomes {runs / name}, which is there already. Nothing was written. "
                    "They are the same run: remove one of them."
                )
        for path, text in texts.items():
            store.write(path, text)
            console.print(f"{path}: updated", highlight=False)
        for folder in folders:
            if folder.rename(known):
                console.print(f"{folder.folder}: updated", highlight=False)
        for path in sorted(runs.glob("sweeps/*/study.sqlite")):
            if _rename_in_study(path, known):
                console.print(f"{path}: updated", highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Parse, call, exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.rename_records",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=store.RESULTS, help="default: results")
    parser.add_argument("--runs", type=Path, default=store.RUNS, help="default: runs")
    given = parser.parse_args(arguments)
    try:
        rename(given.results, given.runs, Console())
    except UserError as error:
        return refused(error)
    return 0


def _checkpoints_as_ids(tree: Tree) -> Tree:
    """A config as an identity has it: for the checkpoint of a run of a table, the run's id."""
    if isinstance(tree, dict):
        return {key: _checkpoints_as_ids(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_checkpoints_as_ids(value) for value in tree]
    found = CHECKPOINT.fullmatch(tree) if isinstance(tree, str) else None
    return found[1] if found else tree


def _rename_in_checkpoint(path: Path, known: dict[str, Ids]) -> None:
    """Rename in a checkpoint too: a network loaded from a run is built from the class paths in it."""
    import torch

    if not store.is_whole(path):
        return
    content = torch.load(path, map_location="cpu", weights_only=True)
    if "hyper_parameters" in content:
        content["hyper_parameters"] = stages(content["hyper_parameters"], known)[-1]
        with store.replacing(path) as part:
            torch.save(content, part)


def _rename_in_study(path: Path, known: dict[str, Ids]) -> bool:
    """Rename the runs of a sweep's trials; return whether any changed.

    Raises:
        UserError: the file is damaged.
    """
    try:
        with closing(sqlite3.connect(path)) as study, study:
            runs = {run for (run,) in study.execute("SELECT run_id FROM trial") if run in known}
            changed = [(known[run][-1], run) for run in runs if known[run][-1] != run]
            study.executemany("UPDATE trial SET run_id = ? WHERE run_id = ?", changed)
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path} is damaged ({error}). All else is updated. Remove its folder.") from None
    return bool(changed)


def _json(line: str) -> Tree:
    """The parsed line; None if it is broken or empty."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


if __name__ == "__main__":
    sys.exit(main())
