"""A run in Weights & Biases: its resolved config, its curves, its record."""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from experiments import store
from experiments.errors import UserError
from experiments.tracking import agent

CURVE = "curve/"  # before the names of the scheme's training curves
POINT = "curve/point"  # their x-axis: epochs or parts of epochs
LARGE = ("curves", "config", "data", "findings", "starts", "versions")  # of a record; not in the summary


class RunLogger(WandbLogger):
    """One W&B run for one run: interrupted, requeued and resumed, it stays the same one.

    Offline, unless an agent of W&B started the process. The id stands in the run's folder.
    """

    def __init__(
        self,
        folder: str,
        project: str = "structured-prediction",
        entity: str | None = None,
        tags: list[str] | None = None,
        offline: bool = True,
    ) -> None:
        sweep = bool(agent.trial())  # it has project and entity
        where: dict[str, Any] = {} if sweep else {"project": project, "entity": entity}
        self.offline = offline and not sweep
        super().__init__(save_dir=folder, offline=self.offline, tags=tags, **where)
        self._wandb_init.pop("anonymous", None)  # Lightning passes it on, W&B warns of it

    @rank_zero_only
    def begin(self, config: dict[str, Any], facts: dict[str, Any]) -> None:
        """Start or resume the W&B run of this folder; log the resolved config."""
        import wandb

        folder = Path(str(self.save_dir))
        place = [str(facts[key]) for key in ("row", "column") if key in facts]
        known = {
            "id": None if agent.trial() else run_id(folder),
            "name": " / ".join([*place, f"seed {facts.get('seed')}"]) if place else folder.name,
            "group": facts.get("table"),
            "settings": wandb.Settings(silent=self.offline),
        }
        self._wandb_init.update(known)
        with explained():
            self.experiment.config.update({"run": facts, **config}, allow_val_change=True)

    def log_hyperparams(self, *_: object, **__: object) -> None:
        """Do nothing: the resolved config has the scheme's arguments too."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add to the row of this step; a resumed run repeats rows, of which W&B keeps the first."""
        self.experiment.log({**metrics, "trainer/global_step": step}, step=step)

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
    trainer: Trainer, config: Callable[[], dict[str, Any]], facts: dict[str, Any]
) -> Iterator[Callable[[store.Record], None]]:
    """Begin the W&B runs of a trainer's loggers, and finish them; call what it gives with the record."""
    loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
    own = [logger for logger in loggers if isinstance(logger, RunLogger)]
    for logger in own:
        logger.begin(config(), facts)

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


def run_id(folder: Path) -> str:
    """The id of the W&B run of a folder, the same after a stop; W&B takes no other characters."""
    path = folder / "wandb" / "id"
    if not path.exists():
        store.write(path, f"{re.sub('[^A-Za-z0-9_.-]', '_', folder.name)[:80]}-{secrets.token_hex(4)}")
    return path.read_text()


@contextmanager
def explained() -> Iterator[None]:
    """Turn W&B's errors into one sentence.

    Raises:
        UserError: no login, no server, or the server refuses.
    """
    import wandb

    try:
        yield
    except wandb.Error as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise UserError(
            f"W&B: {why}. Log in with `wandb login`, or log offline (conf/logger/wandb.yaml as it is)."
        ) from error
