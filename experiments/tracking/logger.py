"""A run in Weights & Biases: its resolved config, its curves, its record."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from experiments import store
from experiments.tracking import agent
from experiments.tracking.client import PROJECT, explained, run_id

CURVE = "curve/"  # before the names of the scheme's training curves
POINT = "curve/point"  # their x-axis: epochs or parts of epochs
Rows = list[dict[str, Any]]  # of metrics.csv
End = Callable[[store.Record], None]
LARGE = ("curves", "config", "data", "findings", "starts", "versions")  # of a record; not in the summary


class RunLogger(WandbLogger):
    """One W&B run for one run: interrupted, requeued and resumed, it stays the same one.

    Offline, unless an agent of W&B started the process. The id stands in the run's folder. W&B's step is the
    epoch, so its rows are those of metrics.csv.
    """

    def __init__(
        self,
        folder: str,
        project: str = PROJECT,
        entity: str | None = None,
        tags: list[str] | None = None,
        offline: bool = True,
    ) -> None:
        self.offline = offline and not agent.trial()
        super().__init__(save_dir=folder, project=project, offline=self.offline, entity=entity, tags=tags)
        self._wandb_init.pop("anonymous", None)  # Lightning passes it on, W&B warns of it
        self._waiting: dict[str, float] = {}

    @rank_zero_only
    def begin(self, facts: dict[str, Any], config: dict[str, Any], rows: Rows) -> None:
        """Start or resume the W&B run of this folder; log the resolved config, and the epochs so far.

        W&B skips epochs it has. It lacks some if the process was killed: it writes every 15 seconds.
        """
        import wandb

        folder = Path(str(self.save_dir))
        place = [str(facts[key]) for key in ("row", "column") if key in facts]
        sweep = dict.fromkeys(("id", "project", "entity"))  # an agent of W&B has set them
        own = sweep if agent.trial() else {"id": run_id(folder)}
        known = {
            "name": " / ".join([*place, f"seed {facts.get('seed')}"]) if place else folder.name,
            "group": facts.get("table"),
            "settings": wandb.Settings(silent=self.offline),
        }
        self._wandb_init.update(known | own)
        with explained():
            run = self.experiment
        run.config.update({"run": facts, **config}, allow_val_change=True)
        run.define_metric("*", step_metric="epoch")
        for row in rows:
            self.log_metrics({name: float(value) for name, value in row.items() if value != ""})

    def log_hyperparams(self, *_: object, **__: object) -> None:
        """Do nothing: the resolved config has the scheme's arguments too."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add to the row of an epoch, unless W&B has later ones: a resumed run repeats epochs.

        What Lightning's monitors log themselves names no epoch: it waits for the row that comes next.
        """
        if "epoch" not in metrics:
            self._waiting |= metrics
            return
        row, self._waiting = {**self._waiting, **metrics}, {}
        if (epoch := int(row["epoch"])) >= self.experiment.step:
            self.experiment.log(row, step=epoch)

    @rank_zero_only
    def end(self, record: store.Record) -> None:
        """Log the record: scores of the chosen epoch as summary, the scheme's curves, all of it as a file."""
        run = self.experiment
        run.define_metric(POINT, hidden=True)
        run.define_metric(f"{CURVE}*", step_metric=POINT)
        curves = {n: values for n, values in record["curves"].items() if not n.startswith("val/")}
        first = run.step + 1
        for point in range(max(map(len, curves.values()), default=0)):
            row = {f"{CURVE}{name}": of[point] for name, of in curves.items() if point < len(of)}
            run.log({POINT: point, **row}, step=first + point)
        run.summary.update({key: value for key, value in record.items() if key not in (*LARGE, "metrics")})
        run.summary.update(record["metrics"])
        store.write_json(Path(run.dir) / "record.json", record)
        run.save(str(Path(run.dir) / "record.json"), base_path=run.dir, policy="now")


@contextmanager
def tracked(
    trainer: Trainer, facts: dict[str, Any], state: Callable[[], tuple[dict[str, Any], Rows]]
) -> Iterator[End]:
    """Begin and finish the W&B runs of a trainer's loggers; what it gives logs the record.

    `state` has the resolved config, and the rows of epochs that the run resumes from.
    """
    loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
    own = [logger for logger in loggers if isinstance(logger, RunLogger)]
    for logger in own:
        logger.begin(facts, *state())

    def end(record: store.Record) -> None:
        for logger in own:
            logger.end(record)

    try:
        yield end
    except BaseException as error:
        _finish(loggers, 1 if isinstance(error, Exception) else 255)  # 255: W&B says that it was killed
        raise
    _finish(loggers, 0)


@rank_zero_only
def _finish(loggers: list[WandbLogger], code: int) -> None:
    """Write out what W&B still holds: a worker's process ends without the interpreter's goodbye."""
    for logger in loggers:
        logger.experiment.finish(exit_code=code)
