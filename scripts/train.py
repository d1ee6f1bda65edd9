r"""One run by hand: layer config files left to right, then options.

    python -m scripts.train --config conf/data/bibtex.yaml --config conf/scheme/cross_entropy.yaml \
        --trainer.max_epochs 5

The run's files (config.yaml, metrics.csv, checkpoints, record.json) go to --run_dir; given the folder of a
stopped run, training resumes from its last epoch.
"""

import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.errors import Stopped, UserError
from experiments.lean import import_torchmetrics
from experiments.run import slurm
from experiments.run.memory import unswept
from experiments.tracking import agent

OPTIONS = {  # the most common ones; the parser of the run has all
    "what is trained": {
        "-c, --config FILE": "a layer: data, scheme, objective, then whatever changes them; a later one "
        "wins. Of a file of settings a row: conf/tuned/seal_mlc/bibtex.yaml:ce",
        "--model.NAME VALUE": "an argument of the scheme, such as --model.task_net.width 200",
        "--data.NAME VALUE": "an argument of the data, such as --data.batch_size 64",
        "--net.NAME VALUE": "an argument of a part, here of the network that files refer to as ${net}",
        "--seed_everything SEED": "the seed of all draws (default: 0)",
    },
    "how, and where to": {
        "--run_dir FOLDER": "folder of the run's files; a stopped run resumes in its own "
        "(default: runs/by_hand/SCHEME-TIME-HASH)",
        "--trainer.max_epochs N": "epochs at most",
        "--trainer.devices N": "processes, each with batches of its own; see conf/trainer/ddp.yaml",
        "--trainer.accelerator NAME": "cpu or gpu (default: the best there is)",
        "--trainer.limit_train_batches N": "that many training batches an epoch, for a quick look",
    },
    "more to read": {
        "--cluster FILE": "submit the run to SLURM with these resources, such as conf/cluster/gpu.yaml; "
        "--dry-run prints the job",
        "--print_config": "print the whole resolved config, and do not run",
        "--model.help CLASS": "arguments of a scheme, such as lightning_modules.seal_dynamic.SealDynamic",
        "--data.help CLASS": "arguments of a data module, such as datamodules.mlc.MultiLabelData",
        "--trainer.callbacks.help CLASS": "arguments of a callback, such as EarlyStopping",
        "-h, --help [all]": "this page, or every option of the parser, those of Lightning's trainer too",
    },
}
LAYERS = ("data", "scheme", "objective", "tuned", "trainer", "logger")  # folders of conf


def main(arguments: list[str] | None = None) -> int:
    """Build, fit, test, show."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    arguments = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(arguments):
        if "all" not in arguments:
            show_help(Console(markup=False, highlight=False))
            return 0
        arguments = ["--help"]
    try:
        from experiments.cluster.by_hand import submit_run, take_options
        from experiments.cluster.file import read_cluster

        name, dry, arguments = take_options(arguments)
        cluster = None if name is None else read_cluster(name)
        with unswept():
            import_torchmetrics()
            from pytorch_lightning.utilities import rank_zero_only

            from experiments.run.by_hand import train

        first = rank_zero_only.rank == 0  # type: ignore[attr-defined]  # Lightning sets it elsewhere
        console = Console(highlight=False, quiet=not first)
        if cluster is not None:
            return submit_run(arguments, cluster, console, dry=dry)
        with console.status("building the run") as status:
            record, folder = train(arguments, lambda progress: status.update(line(progress)))
    except UserError as error:
        errors.print(Text(str(error), style="red"))
        return 2
    except Stopped as stopped:
        if Path(str(stopped), "checkpoints", "last.ckpt").is_file():
            errors.print(f"Stopped. To resume from the last epoch, add:  --run_dir {stopped}")
        else:
            errors.print(f"Stopped before an epoch was saved. To begin again, add:  --run_dir {stopped}")
        return 0 if agent.trial() else 130  # an agent would take a trial it stops early for a failed one
    except KeyboardInterrupt:
        errors.print("Stopped before training. The same command starts the run, or resumes it.")
        return 130
    show(record, folder, console)
    return 0


def show_help(console: Console) -> None:
    """Print the most common options, and the layers there are."""
    usage = "usage: python -m scripts.train --config FILE [--config FILE ...] [options]"
    console.print(f"{usage}\n\n{__doc__}", soft_wrap=True)
    for title, options in OPTIONS.items():
        table = Table.grid("", "", padding=(0, 2, 0, 0))
        for option, text in options.items():
            table.add_row(f"  {option}", text)
        console.print(f"{title}:", table, "", sep="\n")
    table = Table.grid("", "", padding=(0, 2, 0, 0))
    for folder in (Path("conf", name) for name in LAYERS):
        files = sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))
        table.add_row(f"  {folder}/", ", ".join(files))
    console.print("the layers there are (.yaml):", table, sep="\n")


def line(progress: dict[str, Any]) -> str:
    """The progress of the run, in one line."""
    numbers = [f"{key} {progress[key]:.4f}" for key in ("latest", "best") if progress.get(key) is not None]
    return "  ".join([f"epoch {progress['epoch']}/{progress['max_epochs']}", progress["metric"], *numbers])


def show(record: dict[str, Any], folder: Path, console: Console) -> None:
    """Print the numbers of a finished run."""
    table = Table(title=f"{record['epochs']} epochs, best {record['best_epoch']}; {record['seconds']:.1f} s")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in record["metrics"].items():
        table.add_row(name, f"{value:.4f}", style="bold" if name.startswith("test/") else "dim")
    console.print(table)
    console.print(f"files: {folder}", style="dim")


def start() -> int:
    """The command: SIGTERM and SLURM's notice stop it cleanly, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    slurm.heed_notice()
    return main()


if __name__ == "__main__":
    sys.exit(start())
