"""What all schemes share: parts that move in turns, exact randomness, validation, the rate plateau."""

import math
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, ReduceLROnPlateau
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric

from datamodules.batches import Batch
from energies.spaces import AnswerSpace
from lightning_modules.processes import mean_over_processes, share_gradients, unshared

EVALUATION = -1  # in the place of a part


class Diverged(ValueError):
    """A loss is no longer a finite number."""


class Scheme(pl.LightningModule):
    """A training scheme: parts, each with its optimizer, moved by manual optimization.

    Every step of a part draws its randomness (dropout, noise samples) from (seed, part, number of the step)
    and from nothing else. So a resumed run equals an unbroken one bit by bit, and adding a part leaves the
    random numbers of the others as they were.

    The `main` part, the one that predicts, has its gradient clipped to `clip_norm` and its learning rate
    scheduled.

    Raises:
        ValueError: a norm to clip to that is not above 0.
    """

    main: str

    def __init__(
        self,
        *,
        space: AnswerSpace,
        metric: Metric,
        seed: int = 0,
        clip_norm: float | None = 10.0,
        lr_schedule: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__()
        check_clip_norm("clip_norm", clip_norm)
        self.automatic_optimization = False
        self.space, self.metric = space, metric
        self.seed, self.clip_norm, self.lr_schedule = seed, clip_norm, lr_schedule
        self.steps: dict[str, int] = {}
        self.curves: dict[str, list[float]] = {}  # what a scheme notes in the course of training
        self.findings: dict[str, Any] = {}  # what it finds out about the weights it has, for the record
        self._losses: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    @abstractmethod
    def parts(self) -> dict[str, Optimizer]:
        """The optimizer of each part that learns."""

    @abstractmethod
    def loss(self, part: str, batch: Batch) -> Tensor:
        """What `part` minimises on a batch, from forward passes of its own.

        Of several processes each has a share of the batch, and the mean of their losses is minimised: see
        `over_processes`.
        """

    @abstractmethod
    def predict(self, batch: Batch) -> Tensor:
        """The relaxed answer of the scheme to a batch."""

    @abstractmethod
    def predictors(self) -> list[nn.Module]:
        """The modules that `predict` asks."""

    def step(self, part: str, batch: Batch) -> None:
        """One optimizer step of `part`; every other parameter stays as it is and receives no gradient."""
        with self._moving(part):
            optimizer = self._optimizers[part]
            optimizer.zero_grad()
            loss = self.differentiate(part, batch)
            if (bound := self.clip_norms().get(part)) is not None:
                nn.utils.clip_grad_norm_(self._owned[part], bound)
            optimizer.step()
        self._losses[part] = self._losses.get(part, 0) + loss.detach()
        self._counts[part] = self._counts.get(part, 0) + 1

    def differentiate(self, part: str, batch: Batch) -> Tensor:
        """Leave the gradient of the part's loss, over all processes, in its parameters; the loss.

        It goes nowhere else: what other parts computed with gradients stays as it is, for a step of theirs.
        """
        loss = self.loss(part, batch)
        learned = [p for p in self._owned[part] if p.requires_grad]
        with unshared(self.trainer.strategy):
            self.manual_backward(loss, inputs=learned)
        share_gradients(learned)
        return loss

    def clip_norms(self) -> dict[str, float | None]:
        """What the gradients of parts are clipped to; of those that are not here, to nothing."""
        return {self.main: self.clip_norm}

    def training_step(self, batch: Batch, index: int) -> None:
        """One step of the main part; schemes with more parts say their own order."""
        self.step(self.main, batch)

    def configure_optimizers(self) -> Any:  # noqa: ANN401  (Lightning's union of eight types)
        """The optimizers of the parts in order, and the schedules of those that have one."""
        parts = self.parts()
        self._names = list(parts)
        self.steps = {name: 0 for name in parts} | self.steps
        schedules = [self.lr_schedule(parts[name]) for name in self.scheduled()] if self.lr_schedule else []
        return list(parts.values()), schedules

    def scheduled(self) -> list[str]:
        """The parts whose learning rate is scheduled."""
        return [self.main]

    def setup(self, stage: str) -> None:
        """Compare sizes with the data's; hand its vocabulary's tables to the networks that start from them.

        Checkpoints are read later.
        """
        data = getattr(self.trainer, "datamodule", None)
        splits = getattr(data, "splits", {})
        for part in (self.space, *self.modules()) if splits else ():
            if callable(check := getattr(part, "check_answers", None)):
                check(splits["train"].y)
        tables = getattr(data, "tables", None)
        for module in self.modules() if tables else ():
            if callable(initialise := getattr(module, "initialise", None)):
                initialise(tables)

    def on_fit_start(self) -> None:
        """Keep the wrapped optimizers and the parameters of each part at hand."""
        self._start_count()  # training that goes on within an epoch starts none
        wrapped = self.optimizers()
        listed = wrapped if isinstance(wrapped, list) else [wrapped]
        self._optimizers: dict[str, LightningOptimizer] = dict(zip(self._names, listed, strict=True))
        self._owned = {
            name: [p for group in optimizer.param_groups for p in group["params"]]
            for name, optimizer in self._optimizers.items()
        }

    @contextmanager
    def _moving(self, part: str) -> Iterator[None]:
        """Only `part` asks for gradients, and randomness is that of its next step."""
        others = [p for name, group in self._owned.items() if name != part for p in group if p.requires_grad]
        for p in others:
            p.requires_grad_(False)
        self._draw_from(self._names.index(part), self.steps[part])
        self.steps[part] += 1
        try:
            yield
        finally:
            for p in others:
                p.requires_grad_(True)

    def _draw_from(self, part: int, step: int) -> None:
        """Seed the generators of the device; of EVALUATION, which no process shares with others, all alike.

        `torch.manual_seed` would queue a call, with its stack, for each kind of device that is not there.
        """
        seed = mix(self.seed, 0 if part == EVALUATION else self.global_rank, part, step)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def sizes(self) -> dict[str, int]:
        """How many numbers are learned, and how many of these prediction needs."""
        groups = [group["params"] for part in self.parts().values() for group in part.param_groups]
        trained = {p for group in groups for p in group}
        asked = {p for module in self.predictors() for p in module.parameters()}
        return {
            "trained_parameters": sum(p.numel() for p in trained),
            "inference_parameters": sum(p.numel() for p in asked),
        }

    def on_train_epoch_start(self) -> None:
        """Start the count of examples and seconds."""
        self._start_count()

    def _start_count(self) -> None:
        self._trained, self._train_began = 0, time.perf_counter()

    def on_train_batch_end(self, outputs: Any, batch: Batch, index: int) -> None:  # noqa: ANN401  (Lightning's)
        """Count; at the end of the epoch, wait for a GPU and look at the clock."""
        self._trained += len(batch.y)
        if self.trainer.is_last_batch:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self._train_seconds = time.perf_counter() - self._train_began

    def note(self, curve: str, *values: float) -> None:
        """Let a curve go on."""
        self.curves.setdefault(curve, []).extend(values)

    def on_train_epoch_end(self) -> None:
        """Log the mean loss of each part and the examples a second; stop where a loss is not finite.

        Raises:
            Diverged: with the part, the epoch and what to change.
        """
        totals = mean_over_processes([*self._losses.values()])
        for part, total in zip(self._losses, totals, strict=True):
            mean = float(total) / self._counts[part]
            if not math.isfinite(mean):
                rates = (
                    f"model.init_args.{name}_optimizer.init_args.lr" for name in {part: 0} | self._losses
                )
                raise Diverged(
                    f"the {part} loss is {mean} in epoch {self.current_epoch}: training diverged. Lower "
                    f"{' or '.join(rates)}, or look for extreme inputs."
                )
            self.log(f"train/{part}_loss", mean)
        self._losses, self._counts = {}, {}
        speed = self.trainer.world_size * self._trained / self._train_seconds
        self.log("train/examples_per_second", speed)

    def validation_step(self, batch: Batch, index: int) -> None:
        """Add a batch to the metric."""
        self._judge(batch)

    def test_step(self, batch: Batch, index: int) -> None:
        """Add a batch to the metric, and to the time that prediction takes."""
        began = time.perf_counter()
        self._judge(batch)
        self._tested += len(batch.y)
        self._test_seconds += time.perf_counter() - began

    def _judge(self, batch: Batch) -> None:
        self._draw_from(EVALUATION, 0)  # searches may start at random
        self.metric.update(self.predict(batch), batch.y)

    def on_validation_epoch_end(self) -> None:
        """Log the scores; let the metric choose its threshold; move the learning rate on."""
        self._report("val")
        schedules = self.lr_schedulers()
        if schedules is None:
            return
        listed = schedules if isinstance(schedules, list) else [schedules]
        schedule = listed[self.scheduled().index(self.main)]
        if isinstance(schedule, ReduceLROnPlateau):
            scores = self.trainer.callback_metrics
            if schedule.monitor not in scores:
                raise ValueError(
                    f"lr_schedule.init_args.monitor is {schedule.monitor!r}, which validation does not log. "
                    f"There are: {', '.join(name for name in scores if name.startswith('val/'))}."
                )
            schedule.step(scores[schedule.monitor])
        else:
            schedule.step()

    def on_test_epoch_start(self) -> None:
        """Start the count of examples and seconds."""
        self._tested, self._test_seconds = 0, 0.0

    def on_test_epoch_end(self) -> None:
        """Log the scores, and how many examples a second are predicted and judged."""
        began = time.perf_counter()
        self._report("test")
        self._test_seconds += time.perf_counter() - began  # where a GPU is waited for
        self.log("test/examples_per_second", self._tested / self._test_seconds)

    def _report(self, stage: str) -> dict[str, Tensor]:
        scores = scores_of(self.metric, choose=stage == "val")
        self.log_dict({f"{stage}/{name}": value for name, value in scores.items()})
        return scores

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the step numbers, which are all the randomness there is, and nothing that takes code to read.

        Built from config files, a scheme's hyperparameters are class paths and numbers; built by hand they
        are objects, and stay out.
        """
        checkpoint["scheme_steps"], checkpoint["scheme_curves"] = dict(self.steps), self.curves
        checkpoint["scheme_findings"] = self.findings
        if not _plain(checkpoint.get("hyper_parameters", {})):
            del checkpoint["hyper_parameters"]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on counting where the checkpoint was written."""
        self.steps = dict(checkpoint.get("scheme_steps", {}))
        self.curves = {name: [*values] for name, values in checkpoint.get("scheme_curves", {}).items()}
        self.findings = dict(checkpoint.get("scheme_findings", {}))


def scores_of(metric: Metric, *, choose: bool) -> dict[str, Tensor]:
    """What a metric says of all it has seen, which it then forgets; it may choose its threshold before."""
    if choose and callable(settle := getattr(metric, "choose_threshold", None)):
        settle()
    scores = metric.compute()
    metric.reset()
    return scores


def check_clip_norm(name: str, norm: float | None) -> None:
    """Refuse what would stop a part or turn it round; None clips nothing.

    Raises:
        ValueError: not above 0.
    """
    if norm is not None and not norm > 0:
        raise ValueError(f"{name} is {norm}: take a number above 0, or null to clip nothing.")


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
