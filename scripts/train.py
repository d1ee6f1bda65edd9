"""One run by hand: layer config files left to right, then options.

    python -m scripts.train --config conf/data/bibtex.yaml --config conf/scheme/cross_entropy_mlc.yaml \
        --trainer.max_epochs 5

The run's files (config.yaml, metrics.csv, checkpoints, record.json) go to --run_dir; given the folder of a
run that was stopped, training goes on from its last epoch.
"""

import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments import slurm
from experiments.errors import Stopped, UserError


def main(arguments: list[str] | None = None) -> int:
    """Build, fit, test, show."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        from pytorch_lightning.utilities import rank_zero_only

        from experiments.by_hand import train

        first = rank_zero_only.rank == 0  # type: ignore[attr-defined]  # Lightning sets it elsewhere
        console = Console(highlight=False, quiet=not first)
        with console.status("building the run") as status:
            record, folder = train(arguments, lambda progress: status.update(line(progress)))
    except UserError as error:
        errors.print(f"[red]{escape(str(error))}[/red]")
        return 2
    except Stopped as stopped:
        errors.print(f"Stopped. To go on from the last epoch, add:  --run_dir {stopped}")
        return 130
    except KeyboardInterrupt:
        errors.print("Stopped before training began.")
        return 130
    show(record, folder, console)
    return 0


def line(progress: dict[str, Any]) -> str:
    """How far the run is, in one line."""
    numbers = [f"{key} {progress[key]:.4f}" for key in ("latest", "best") if progress.get(key) is not None]
    return "  ".join([f"epoch {progress['epoch']}/{progress['max_epochs']}", progress["metric"], *numbers])


def show(record: dict[str, Any], folder: Path, console: Console) -> None:
    """The numbers of a finished run."""
    table = Table(title=f"{record['epochs']} epochs, best {record['best_epoch']}; {record['seconds']:.1f} s")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in record["metrics"].items():
        table.add_row(name, f"{value:.4f}", style="bold" if name.startswith("test/") else "dim")
    console.print(table)
    console.print(f"files: {folder}", style="dim")


def start() -> int:
    """The command: SIGTERM and a notice of SLURM stop it in order, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    slurm.heed_notice()
    return main()


if __name__ == "__main__":
    sys.exit(start())
