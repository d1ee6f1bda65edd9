"""The winner of a sweep becomes a row of conf/tuned, with a comment that says where it comes from."""

import os
import re
from datetime import datetime
from pathlib import Path

import yaml

from experiments import store
from experiments.errors import SweepError, suggest
from experiments.fields import name as is_name
from experiments.plan.compose import Layers, Parse, compose_all
from experiments.plan.layers import file_and_row
from experiments.plan.table import TUNED
from experiments.plan.yaml_file import read_yaml
from experiments.sweep.file import Sweep
from experiments.sweep.study import DONE, PRUNED, Trial
from experiments.sweep.trials import configs_of, refuse_changed, run_of, seed_of
from experiments.sweep.winner import best_of, flow, layer_of

MARK = "# From the sweep "


def adopt(sweep: Sweep, trials: list[Trial], place: str, parse: Parse) -> str:
    """Write the winner as a row, `conf/tuned/table/column.yaml:row`; return a sentence.

    The row lies over those of conf/tuned that the sweep has among its files, and with its other files it has
    to make the winner's run: this is checked. All other text of the file stays as it is.

    Raises:
        SweepError: no winner, no such place, a row of other origin there, or it would make another run.
    """
    file, row = target(sweep, place)
    best = best_of(sweep, trials)
    if best is None or best.score is None:
        raise SweepError(f"The sweep {sweep.name} has no finished trial to adopt. Run some first.")
    text = file.read_text()
    after = put(text, row, "\n".join([_comment(sweep, best, trials), *_lines(sweep, best, file, row)]), file)
    if after == text:
        return f"{place} holds the winner already."
    store.write(file, after)
    try:
        _makes_the_same(sweep, best, f"{file}:{row}", parse)
    except BaseException:
        store.write(file, text)
        raise
    return f"adopted: {place} has trial {best.number}, {sweep.metric} {best.score:.4f}."


def target(sweep: Sweep, place: str) -> tuple[Path, str]:
    """The file and the row of a place, checked."""
    name, row = file_and_row(place)
    file = Path(name)
    here = file.parent.parent == TUNED and file.suffix == ".yaml"
    if not here or not row or is_name("", row) or not re.fullmatch(r"[\w-]+", row):
        raise SweepError(
            f"--adopt {place}: name a row of a file conf/tuned/FOLDER/FILE.yaml, such as "
            "conf/tuned/seal_mlc/bibtex.yaml:cd."
        )
    if not file.is_file():
        places = sorted(map(str, TUNED.glob("*/*.yaml")))
        raise SweepError(
            f"--adopt {place}: there is no file {file}. {suggest(str(file), places)} A new one has to be "
            f"there, empty:  mkdir -p {file.parent} && touch {file}"
        )
    if f"{file}:{row}" in sweep.layers:
        raise SweepError(
            f"--adopt {place}: {sweep.path} lies over this row itself. Adopt under another name."
        )
    return file, row


def put(text: str, row: str, lines: str, file: Path) -> str:
    """A file's text with the row's lines in it: in place of a row from a sweep, or at the end."""
    if text.strip():
        read_yaml(file)  # its faults have messages
    root = yaml.compose(text)
    keys = [key for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
    old = text.splitlines(keepends=True)
    index = next((i for i, key in enumerate(keys) if key.value == row), None)
    if index is None:
        end = "\n" if text and not text.endswith("\n") else ""
        return f"{text}{end}{lines}\n"
    start = keys[index].start_mark.line
    if start == 0 or not old[start - 1].startswith(MARK):
        raise SweepError(
            f"{file}, line {start + 1}: the row {row} is no sweep's, it stays. Adopt under another name."
        )
    stop = keys[index + 1].start_mark.line if index + 1 < len(keys) else len(old)
    while old[stop - 1].lstrip().startswith("#") or not old[stop - 1].strip():
        stop -= 1  # comments of the next row
    return "".join([*old[: start - 1], f"{lines}\n", *old[stop:]])


def _comment(sweep: Sweep, best: Trial, trials: list[Trial]) -> str:
    tried = sum(trial.state in (DONE, PRUNED) for trial in trials)
    record = store.finished().get(best.run_id or "") or store.read_record(best.run_id or "") or {}
    made = str(record.get("finished", ""))
    day = f", {_day(made)}" if made else ""
    return f"{MARK}{sweep.name}: {sweep.metric} {best.score:.4f}, the best of {tried} trials{day}."


def _day(time: str) -> str:
    found = datetime.fromisoformat(time)
    return f"{found.day} {found:%B %Y}"


def _lines(sweep: Sweep, best: Trial, file: Path, row: str) -> list[str]:
    """The row as YAML, one line a key."""
    below = [_beside(name, file) for name in sweep.layers if _is_row(name)]
    layer = layer_of(sweep, best.point)
    over = {"over": below[0] if len(below) == 1 else below} if below else {}
    return [f"{row}:", *(f"  {key}: {flow(value)}" for key, value in (over | layer).items())]


def _is_row(layer: str) -> bool:
    return Path(layer).is_relative_to(TUNED)


def _beside(layer: str, file: Path) -> str:
    """A row of settings as `over` in a file names it."""
    other, row = file_and_row(layer)
    return row if Path(other) == file else f"{os.path.relpath(other, file.parent)}:{row}"


def _makes_the_same(sweep: Sweep, best: Trial, layer: str, parse: Parse) -> None:
    """Refuse a row with which the sweep's other files do not make the winner's run."""
    layers = Layers((*(name for name in sweep.layers if not _is_row(name)), layer))
    found = compose_all({layer: layers}, parse)[layer]
    (config,) = configs_of(sweep, [best.point], parse)
    if isinstance(found, str):
        raise SweepError(f"{layer} would not work, so it was not written: {found}")
    seed = {"seed_everything": seed_of(sweep, best.point)}
    one, two = (run_of(sweep, best.number, best.point | seed, made) for made in (config, found))
    refuse_changed(sweep, best.number, best.run_id, one)
    if one.id != two.id:
        raise SweepError(
            f"{layer} would not make the run of trial {best.number}, so it was not written: write the "
            f"parameters of {sweep.path} in full, such as model.init_args.inner_steps."
        )
