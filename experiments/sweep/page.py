"""A sweep as a Markdown page, results/<sweep>.md: trials, what matters, the best point. Needs no torch."""

import json
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from rich.console import Console
from rich.table import Table as Grid

from experiments import fields as f
from experiments import starts, store
from experiments.errors import StoreError, SweepError
from experiments.page.page import code, label, plain
from experiments.run.board import clock
from experiments.sweep import plots
from experiments.sweep.file import SWEEPS, Sweep
from experiments.sweep.importance import ENOUGH, importance, varied
from experiments.sweep.study import DONE, FAILED, PRUNED, RUNNING, WAITING, Study, Trial, study_file
from experiments.sweep.trials import row_of
from experiments.sweep.winner import best_of, command_of, layer_of, written

STATES = (DONE, PRUNED, FAILED, RUNNING, WAITING)
TRIAL = f.keyed(
    {
        "number": f.count,
        "point": f.named(f.plain),
        "state": f.one_of(*STATES),
        "score": f.optional(f.number),
        "epoch": f.optional(f.count),
        "run_id": f.optional(f.file_name),
    },
    needed=("number", "point", "state", "score", "epoch", "run_id"),
)
FEW = 8  # trials on the terminal


def collect(sweep: Sweep, console: Console) -> int:
    """Render the page from what is known of the trials; the exit code."""
    if study_file(sweep).exists():
        keep_trials(sweep, Study.open(sweep).trials())
    if not store.trials_file(sweep.name).exists():
        raise SweepError(
            f"The sweep {sweep.name} has no trials yet. Run some:  make sweep SWEEP={handle(sweep)}"
        )
    render(sweep, console)
    return 0


def handle(sweep: Sweep) -> str:
    """How a command names a sweep: by its name in conf/sweeps, or by its path."""
    return sweep.name if sweep.path.parent == SWEEPS else str(sweep.path)


def keep_trials(sweep: Sweep, trials: list[Trial]) -> None:
    """Write the trials beside the records."""
    lines = ",\n".join(json.dumps(asdict(trial)) for trial in trials)
    text, path = f'{{"trials": [\n{lines}\n]}}\n', store.trials_file(sweep.name)
    if trials and not (path.exists() and path.read_text() == text):
        store.write(path, text)


def read_trials(sweep: Sweep) -> list[Trial]:
    """The trials that are kept.

    Raises:
        StoreError: the file is damaged, or its trials have other parameters than the sweep.
    """
    path = store.trials_file(sweep.name)
    if not path.exists():
        return []
    tree = store.read_json(path)
    fault = f.keyed({"trials": f.listed(TRIAL)}, needed=("trials",))("", tree)
    found = [] if fault or tree is None else [Trial(**trial) for trial in tree["trials"]]
    if fault or any(trial.point.keys() != sweep.parameters.keys() for trial in found):
        says = fault or f"it holds trials of other parameters than {sweep.path}"
        raise StoreError(
            f"{path}: {says}. Take the committed file again (git checkout {path}), or delete it: `make sweep "
            f"SWEEP={sweep.name}` writes it anew."
        )
    return found


def render(sweep: Sweep, console: Console) -> None:
    """Print the best trials and write the page and its figures."""
    trials = ordered(sweep, read_trials(sweep))
    if not trials:
        return
    records = store.finished()
    files = plots.draw(sweep, trials)
    _show(sweep, trials, records, console)
    path, text = store.RESULTS / f"{sweep.name}.md", markdown(sweep, trials, records, files)
    if not path.exists() or path.read_text() != text:
        store.write(path, text)
    console.print(f"page: {path}", style="dim", markup=False)


def ordered(sweep: Sweep, trials: list[Trial]) -> list[Trial]:
    """Finished trials by score, then pruned ones, then the rest."""
    sign = -1 if sweep.goal == "maximize" else 1
    return sorted(
        trials, key=lambda t: (STATES.index(t.state), t.score is None, sign * (t.score or 0), t.number)
    )


def markdown(
    sweep: Sweep, trials: list[Trial], records: dict[str, store.Record], files: dict[str, Path]
) -> str:
    """The page."""
    kept = [records[t.run_id] for t in trials if t.run_id in records]
    parts = [
        f"# {plain(sweep.title)}",
        f"Sweep {code(str(sweep.path))}: {sweep.method}, {sweep.goal} {code(sweep.metric)} on validation. "
        f"Made by {code(f'make sweep SWEEP={handle(sweep)}')}.",
        plain(sweep.raw.get("description", "")) if "name" in sweep.raw else "",
        f"{counted(trials)}.",
        "\n".join(f"| {' | '.join(line)} |" for line in _grid(sweep, trials, records)),
        *(f"![{label(title)}]({quote(path.name)})" for title, path in files.items()),
        matters(sweep, trials),
        _best(sweep, trials),
        _effort(kept),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def counted(trials: list[Trial]) -> str:
    """How many trials there are of each state."""
    states = [trial.state for trial in trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    return f"{len(trials)} trials: {counts}"


def _grid(sweep: Sweep, trials: list[Trial], records: dict[str, store.Record]) -> list[list[str]]:
    names = plots.short(varied(sweep))
    heads = ["trial", *map(plain, names.values()), plain(sweep.metric), "epochs", "time", "state"]
    lines = [heads, ["---:"] * (len(heads) - 1) + ["---"]]
    return lines + [[plain(cell) for cell in cells(trial, [*names], records)] for trial in trials]


def cells(trial: Trial, names: list[str], records: dict[str, store.Record]) -> list[str]:
    """A line of the table: point, score, epochs, time, state."""
    record = records.get(trial.run_id or "", {}) if trial.state == DONE else {}
    epochs = record.get("epochs", None if trial.epoch is None else trial.epoch + 1)
    spent = record.get("seconds")
    return [
        str(trial.number),
        *(plots.value(trial.point[name]) for name in names),
        "" if trial.score is None else f"{trial.score:.4f}",
        "" if epochs is None else str(epochs),
        "" if spent is None else clock(float(spent)),
        f"{trial.state}, its best score" if trial.state == PRUNED else trial.state,
    ]


def matters(sweep: Sweep, trials: list[Trial]) -> str:
    """The importance of each parameter, and how far to trust it."""
    shares, names = importance(sweep, trials), plots.short(varied(sweep))
    if not shares:
        return ""
    done = sum(trial.state == DONE for trial in trials)
    few = f" With {done} finished trials it is weak." if done < ENOUGH * len(names) else ""
    lines = ["| parameter | share |", "| --- | ---: |"]
    lines += [f"| {code(name)} | {share:.2f} |" for name, share in shares.items()]
    says = (
        "Importance: the share of the variance of scores that lies between the values of one parameter, less "
        "what chance would give (epsilon squared; numbers of a range in quarters). Interactions are left out."
    )
    return "\n".join([*lines, "", f"{says}{few}"])


def _best(sweep: Sweep, trials: list[Trial]) -> str:
    best = best_of(sweep, trials)
    if best is None:
        return ""
    return "\n\n".join(
        [
            f"## The best: {row_of(best.number)}, {best.score:.4f}",
            f"```\n{command_of(sweep, best.point)}\n```",
            f"```yaml\n{written(layer_of(sweep, best.point))}```",
        ]
    )


def _effort(records: list[store.Record]) -> str:
    if not records:
        return ""
    spent = sum(float(record.get("seconds") or 0) for record in records)
    made = f"{starts.processors_of(records)}; commits {starts.commits_of(records)} (+: with changes)"
    return f"{len(records)} runs, {clock(spent)} of training on {plain(made)}."


def _show(sweep: Sweep, trials: list[Trial], records: dict[str, store.Record], console: Console) -> None:
    """The best trials on the terminal."""
    names = plots.short(varied(sweep))
    grid = Grid(title=sweep.title, title_justify="left", caption=counted(trials), caption_justify="left")
    for head in ("trial", *names.values(), sweep.metric, "epochs", "time", "state"):
        grid.add_column(head, justify="left" if head == "state" else "right")
    for trial in trials[:FEW]:
        grid.add_row(*cells(trial, [*names], records))
    console.print(grid)
