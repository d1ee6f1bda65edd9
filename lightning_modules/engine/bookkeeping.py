"""What all schemes share besides their algorithms: seeds, logs, curves, times, scores, checkpoints."""

import math
import time
from abc import ABC, abstractmethod
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from datamodules.batches import Batch
from energies.check import check_answers
from energies.spaces import AnswerSpace
from lightning_modules.engine.processes import mean_over_processes
from lightning_modules.engine.unseen import Unseen, unseen

EVALUATION = -1  # its random stream; parts have 0, 1, ...


class Diverged(ValueError):
    """A loss is no longer a finite number."""


class Bookkeeping(pl.LightningModule, ABC):
    """Keeps the `steps` of each part, training `curves` and `findings` about the weights, for the record.

    Random numbers depend on (seed, rank, stream, step) alone. So a resumed run equals an uninterrupted one
    bit by bit.
    """

    def __init__(self, *, space: AnswerSpace, metric: Metric, seed: int = 0) -> None:
        super().__init__()
        self.space, self.metric, self.seed = space, metric, seed
        self.steps: dict[str, int] = {}
        self.curves: dict[str, list[float]] = {}
        self.findings: dict[str, Any] = {}
        self._losses: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._watched: dict[str, tuple[int, list[Tensor]]] = {}
        self._unseen: Unseen | None = None

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Set strings the fast way: Lightning sets the name of the current hook a dozen times a step."""
        if type(value) is str:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @abstractmethod
    def predict(self, batch: Batch) -> Tensor:
        """The relaxed answer of the scheme to a batch."""

    @abstractmethod
    def predictors(self) -> list[nn.Module]:
        """The modules that `predict` calls."""

    def draw_from(self, stream: int, step: int) -> None:
        """Seed the device's generators; EVALUATION has the same seed in all processes.

        `torch.manual_seed` would also queue a call, with a stack trace, for each kind of device that is
        absent.
        """
        seed = mix(self.seed, 0 if stream == EVALUATION else self.global_rank, stream, step)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def count_step(self, part: str, loss: Tensor) -> None:
        """Keep the loss of a step, for the epoch's mean."""
        self._losses[part] = self._losses.get(part, 0) + loss.detach()
        self._counts[part] = self._counts.get(part, 0) + 1

    def moved(self, part: str) -> bool:
        """Whether a part has taken a step in this epoch."""
        return part in self._counts

    def watch(self, curve: str, value: Tensor, *, points: int = 1) -> None:
        """Keep a value of this step for a training curve, without waiting for the device.

        Each epoch appends `points` means to the curve, each over an equal share of its steps. A single mean
        is logged too.
        """
        self._watched.setdefault(curve, (points, []))[1].append(value.detach())

    def append_to_curve(self, curve: str, *values: float) -> None:
        """Append values to a training curve."""
        self.curves.setdefault(curve, []).extend(values)

    def setup(self, stage: str) -> None:
        """Compare sizes with the data's; initialise networks from the tables of its vocabulary.

        A checkpoint is read later and replaces what is initialised here.
        """
        data = getattr(self.trainer, "datamodule", None)
        splits = getattr(data, "splits", {})
        if splits:
            check_answers((self.space, *self.modules()), splits["train"].y)
        tables = getattr(data, "tables", None)
        for module in self.modules() if tables else ():
            if callable(initialise := getattr(module, "initialise", None)):
                initialise(tables)

    def on_fit_start(self) -> None:
        """Start the count of examples and seconds: a run resumed within an epoch has no epoch start."""
        self._start_count()

    def on_train_epoch_start(self) -> None:
        """Start the count of examples and seconds."""
        self._start_count()

    def _start_count(self) -> None:
        self._trained, self._train_began = 0, time.perf_counter()
        self._train_seconds: float | None = None

    def on_train_batch_end(self, outputs: Any, batch: Batch, index: int) -> None:  # noqa: ANN401  (Lightning's)
        """Count examples; at the end of the epoch, synchronise with the GPU and take the time."""
        self._trained += len(batch.y)
        if self.trainer.is_last_batch:
            self._train_seconds = self._seconds_so_far()

    def _seconds_so_far(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - self._train_began

    def on_train_epoch_end(self) -> None:
        """Append to the curves; log the mean loss of each part and the examples a second."""
        for curve, (points, values) in self._watched.items():
            self._end_curve(curve, points, values)
        self._watched = {}
        for part, mean in self._mean_losses().items():
            self.log(f"train/{part}_loss", mean)
        seconds = self._train_seconds or self._seconds_so_far()  # a limit may end training within an epoch
        speed = self.trainer.world_size * self._trained / seconds
        self.log("train/examples_per_second", speed)

    def _end_curve(self, curve: str, points: int, values: list[Tensor]) -> None:
        (steps,) = mean_over_processes([torch.stack(values)])
        means = torch.stack([some.mean() for some in steps.tensor_split(points) if len(some)]).tolist()
        self.append_to_curve(curve, *means)
        if points == 1:
            self.log(f"train/{curve}", means[0])

    def _mean_losses(self) -> dict[str, float]:
        """The mean loss of each part that moved in this epoch.

        Raises:
            Diverged: a mean is not finite. The message names the part, the epoch and what to change.
        """
        totals = mean_over_processes([*self._losses.values()])
        means = {
            part: float(total) / self._counts[part] for part, total in zip(self._losses, totals, strict=True)
        }
        self._losses, self._counts = {}, {}
        for part, mean in means.items():
            if not math.isfinite(mean):
                every = [name for name in vars(self) if name.endswith("_optimizer")]
                names = [name for one in {part: 0} | means if (name := f"{one}_optimizer") in every]
                rates = (f"model.init_args.{name}.init_args.lr" for name in names or every)
                raise Diverged(
                    f"the {part} loss is {mean} in epoch {self.current_epoch}: training diverged. Lower "
                    f"{' or '.join(rates)}, or look for extreme inputs."
                )
        return means

    def validation_step(self, batch: Batch, index: int) -> None:
        """Add a batch to the metric."""
        self._score(batch)

    def test_step(self, batch: Batch, index: int) -> None:
        """Add a batch to the metric, and to the time that prediction takes."""
        began = time.perf_counter()
        answers = self._score(batch)
        self._tested += len(batch.y)
        self._test_seconds += time.perf_counter() - began
        if self._unseen:
            self._unseen.judge(batch, answers)

    def answer_to(self, batch: Batch) -> Tensor:
        """The relaxed answer as it is judged: a search that starts at random has one seed for every batch."""
        self.draw_from(EVALUATION, 0)
        return self.predict(batch)

    def decide(self, batch: Batch, relaxed: Tensor) -> Tensor:
        """The discrete answer that the scores judge, of the same shape, each entry 0 or 1.

        It is the metric's own, by its threshold or its decoder, or else the nearest of the space.
        """
        if callable(own := getattr(self.metric, "decide", None)):
            return own(relaxed, *_mask_of(batch))
        return self.space.over(batch.mask).decode(relaxed)

    def _score(self, batch: Batch) -> Tensor:
        answers = self.answer_to(batch)
        judge(self.metric, batch, answers)
        return answers

    def on_validation_epoch_end(self) -> None:
        """Log the scores."""
        self.report("val")

    def on_test_epoch_start(self) -> None:
        """Start the count of examples and seconds; find out whether training has inputs of the test."""
        self._tested, self._test_seconds = 0, 0.0
        data = getattr(self.trainer, "datamodule", None)
        self._unseen = unseen(self.metric, getattr(data, "splits", {}))

    def on_test_epoch_end(self) -> None:
        """Log the scores, and how many examples a second are predicted and judged."""
        began = time.perf_counter()
        self.report("test")
        self._test_seconds += time.perf_counter() - began  # waiting for the GPU included
        self.log("test/examples_per_second", self._tested / self._test_seconds)
        if self._unseen:
            scores = scores_of(self._unseen.metric, choose=False)
            self.log_dict({f"test_unseen/{name}": value for name, value in scores.items() if not value.dim()})

    def report(self, stage: str) -> dict[str, Tensor]:
        """Log the scores of a stage; on validation the metric chooses its threshold first.

        A score that is a vector is not logged, it is a finding. The others are returned. Examples of test
        answers are a finding too, where the metric keeps some.
        """
        examples = getattr(self.metric, "examples", None)
        if stage == "test" and callable(examples) and (kept := examples()):
            self.findings["test/answers"] = kept
        found = scores_of(self.metric, choose=stage == "val")
        self.findings |= {f"{stage}/{name}": value.tolist() for name, value in found.items() if value.dim()}
        scores = {name: value for name, value in found.items() if not value.dim()}
        self.log_dict({f"{stage}/{name}": value for name, value in scores.items()})
        return scores

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store step numbers, which determine all random numbers, and no objects of our classes.

        Hyperparameters of a scheme built from config files are class paths and numbers. Those of a scheme
        built in Python may be objects; then they are left out.
        """
        checkpoint["scheme_steps"], checkpoint["scheme_curves"] = dict(self.steps), self.curves
        checkpoint["scheme_findings"] = self.findings
        if not _plain(checkpoint.get("hyper_parameters", {})):
            del checkpoint["hyper_parameters"]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore step numbers, curves and findings."""
        self.steps = dict(checkpoint.get("scheme_steps", {}))
        self.curves = {name: [*values] for name, values in checkpoint.get("scheme_curves", {}).items()}
        self.findings = dict(checkpoint.get("scheme_findings", {}))


def judge(metric: Metric, batch: Batch, *answers: Tensor) -> None:
    """Add a batch to a metric, with the mask where answers have positions."""
    metric.update(*answers, batch.y, *_mask_of(batch))


def _mask_of(batch: Batch) -> list[Tensor]:
    return [] if batch.mask is None else [batch.mask]


def scores_of(metric: Metric, *, choose: bool) -> dict[str, Tensor]:
    """The scores of all batches in a metric, which is reset; with `choose` it first chooses its threshold."""
    if choose and callable(settle := getattr(metric, "choose_threshold", None)):
        settle()
    scores = metric.compute()
    metric.reset()
    return scores


def _plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, str | int | float)


def mix(*numbers: int) -> int:
    """A 63-bit seed from small integers; close inputs give unrelated seeds (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
