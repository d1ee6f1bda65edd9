"""The logger of a table's runs, and the finished table in W&B: page, records and figures as an artifact."""

import importlib.util
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments import store
from experiments.errors import TableError
from experiments.page import words
from experiments.page.page import page_file
from experiments.page.plots import figure_file
from experiments.page.summary import Summary
from experiments.plan.advice import not_installed
from experiments.plan.compose import RUN_DIR, fill
from experiments.plan.layers import merged_files
from experiments.plan.runs import Plan
from experiments.tracking.client import PROJECT, explained, run_id

OWN = "experiments.tracking.logger.RunLogger"


def read_logger(name: str | None) -> dict[str, Any] | None:
    """The logger in a file such as conf/logger/wandb.yaml.

    Raises:
        TableError: the file sets anything else, which could change numbers, or its package is not installed.
    """
    if not name:
        return None
    tree = merged_files(name)
    trainer = tree.get("trainer") or {}
    if set(tree) != {"trainer"} or set(trainer) != {"logger"} or not isinstance(trainer["logger"], dict):
        raise TableError(
            f"--logger {name}: a table takes a file that sets trainer.logger alone, such as "
            "conf/logger/wandb.yaml. Write other settings into the table's file."
        )
    if trainer["logger"].get("class_path") == OWN and importlib.util.find_spec("wandb") is None:
        raise TableError(not_installed("wandb"))
    return dict(trainer["logger"])


def add_logger(plan: Plan, logger: dict[str, Any] | None) -> None:
    """Let the runs of a plan log; their ids do not change."""
    if logger is not None:
        for run in plan.runs:
            run.config["trainer"]["logger"] = fill(logger, {"${run_dir}": RUN_DIR})


def publish(summary: Summary, logger: dict[str, Any] | None, console: Console) -> None:
    """Log a finished table as an artifact, if W&B is the logger of its runs."""
    if logger is None or logger.get("class_path") != OWN:
        return
    import wandb

    table, options = summary.table, logger.get("init_args") or {}
    offline = bool(options.get("offline", True))
    folder = store.RUNS / "tables" / table.name
    (folder / "wandb").mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_DATA_DIR", str((folder / "wandb").resolve()))  # files that wait for a server
    with explained():
        run = wandb.init(
            dir=folder,
            id=run_id(folder),
            resume="allow",
            name=table.name,
            group=table.name,
            job_type="table",
            project=options.get("project", PROJECT),
            entity=options.get("entity"),
            mode="offline" if offline else "online",
            settings=wandb.Settings(silent=offline),
        )
        run.log({"table": wandb.Table(columns=columns(summary), data=lines(summary))})
        artifact = wandb.Artifact(table.name, type="table", description=table.title)
        for path in files(summary):
            artifact.add_file(str(path), name=path.name)
        run.log_artifact(artifact)
        run.finish()
    place = Path(run.dir).parent if offline else run.url
    console.print(f"W&B: artifact {table.name} in {place}", style="dim", markup=False, soft_wrap=True)


def columns(summary: Summary) -> list[str | int]:
    """The heads of the rendered table."""
    return ["method", *(column.label for column in summary.columns.values())]


def lines(summary: Summary) -> list[list[Any]]:
    """The rendered table: a line for each row."""
    table = summary.table
    return [
        [row.label, *(words.ours(table, summary.cells[name, column]) for column in summary.columns)]
        for name, row in table.rows.items()
    ]


def files(summary: Summary) -> list[Path]:
    """What a table leaves in results/: page, records, figures."""
    name = summary.table.name
    figures = [figure_file(name, f.name, kind) for f in summary.table.figures for kind in ("png", "svg")]
    return [path for path in (page_file(name), store.results_file(name), *figures) if path.exists()]
