"""A training scheme: parts that learn, moved in turns."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable, ReduceLROnPlateau
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer
from torchmetrics import Metric

from datamodules.batches import Batch
from energies.base import Energy
from energies.check import check_energy, energies_in
from energies.spaces import AnswerSpace
from inference.teachers import Lesson, Teacher
from lightning_modules.engine.best import forget_best
from lightning_modules.engine.bookkeeping import Bookkeeping
from lightning_modules.engine.processes import share_gradients, share_statistics, unshared
from lightning_modules.engine.steps import are_plain, plain_step
from networks.layers import at_rest, batch_norms

Loss = Callable[[Batch], Tensor]


class Part:
    """A part of a scheme: parameters, the optimizer that moves them, the loss it minimises.

    `gradient` replaces `loss` if the gradient is computed by hand. It sets the gradient of each parameter of
    `learned`, the mean over all processes, and returns a loss to log. While it runs, all parameters require
    gradients, so it may differentiate through those of other parts; these get no gradient.

    Args:
        parameters: as an optimizer takes them.
        clip_norm: the largest norm of the gradient; None clips nothing.
        schedule: of the learning rate; it advances at a validation, if the part has moved in the epoch.

    Raises:
        ValueError: there are no parameters.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        optimizer: OptimizerCallable,
        loss: Loss | None = None,
        *,
        gradient: Loss | None = None,
        clip_norm: float | None = None,
        schedule: LRSchedulerCallable | None = None,
    ) -> None:
        assert (loss is None) != (gradient is None), "a part has a loss or a gradient made by hand"
        if not isinstance(parameters, Tensor):  # to which torch objects
            parameters = [*parameters]
        if not len(parameters):
            where = _name_of(loss or gradient)
            raise ValueError(f"the part that minimises {where} has no parameters: give those that it moves.")
        self.optimizer = optimizer(parameters)
        self.loss, self.gradient, self.clip_norm = loss, gradient, clip_norm
        self.schedule = schedule(self.optimizer) if schedule else None
        self.place = 0  # index among the parts of its scheme
        self.step: Callable[[], Any] = self.optimizer.step  # replaced by Lightning's, which counts steps
        self.learned: list[nn.Parameter] = []  # its parameters that are not frozen
        self.rest: list[nn.Parameter] = []  # parameters that require no gradient while it moves
        self.norms: list[_BatchNorm] = []  # batch norms in evaluation mode while it moves

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters of the optimizer."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]


def still(module: nn.Module) -> Part:
    """A part whose steps move nothing."""
    return Part(module.parameters(), partial(SGD, lr=0.0), gradient=lambda batch: batch.y.new_zeros(()))


class Scheme(Bookkeeping):
    """A training scheme: parts, each with its optimizer, moved by manual optimization.

    Every step of a part draws its randomness (dropout, noise samples) from (seed, part, number of the step)
    and from nothing else. So adding a part leaves the random numbers of the others as they were.

    While a part moves, batch norm of all others is in evaluation mode; all batch norm is where the gradient
    of a part is computed by hand, which takes second derivatives.

    `main_options` are for the part that predicts: the clipping of its gradient, and its schedule.

    Raises:
        ValueError: `clip_norm` is not above 0.
    """

    def __init__(
        self,
        *,
        space: AnswerSpace,
        metric: Metric,
        seed: int = 0,
        clip_norm: float | None = 10.0,
        lr_schedule: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__(space=space, metric=metric, seed=seed)
        check_clip_norm("clip_norm", clip_norm)
        self.automatic_optimization = False
        self.main_options: dict[str, Any] = {"clip_norm": clip_norm, "schedule": lr_schedule}
        self.part: dict[str, Part] = {}
        self.steps_are_plain = False
        self.energies_are_tried = False

    @abstractmethod
    def parts(self) -> dict[str, Part]:
        """New parts, by name; during training the scheme has them in `part`.

        With several processes each has a share of the batch, and the mean of their losses is minimised: see
        `over_processes`.
        """

    def new_parts(self) -> dict[str, Part]:
        """See `parts`.

        Raises:
            ValueError: they are no dict of parts.
        """
        found, where = self.parts(), f"{type(self).__name__}.parts()"
        if not isinstance(found, dict):
            kind = type(found).__name__
            raise ValueError(f"{where} gives a {kind}: it has to return a dict, from a name to each Part.")
        for name, part in found.items():
            if not isinstance(part, Part):
                raise ValueError(f"{where} has a {type(part).__name__} as {name!r}: it has to be a Part.")
        return found

    @abstractmethod
    def training_step(self, batch: Batch, index: int) -> None:
        """Which parts move, in which order."""

    def model_energy(self) -> Energy | None:
        """The energy that this scheme learns, as its answers read it; None if it learns none."""
        return getattr(self, "energy", None)

    def move(self, name: str, batch: Batch) -> None:
        """One optimizer step of a part; every other parameter stays as it is and receives no gradient.

        Raises:
            ValueError: there is no such part; or, before the first step, an energy does not give one number
                for each answer.
        """
        if name not in self.part:
            raise ValueError(
                f"{type(self).__name__} moves {name!r}, and parts() names {', '.join(self.part) or 'none'}."
            )
        if not self.energies_are_tried:
            own = getattr(self, "energy", None)
            followed = energies_in(own) if own is not None else []
            for energy in energies_in(self):
                check_energy(
                    energy,
                    self.space,
                    batch.inputs,
                    batch.y,
                    batch.mask,
                    followed=energy in followed,
                    trained=self,
                )
            self.energies_are_tried = True
        part = self.part[name]
        for p in part.rest:
            p.requires_grad_(False)
        try:
            self.draw_from(part.place, self.steps[name])
            self.steps[name] += 1
            for p in part.learned:
                p.grad = None
            with at_rest(part.norms):
                loss = part.gradient(batch) if part.gradient else self.differentiate(part, batch)
            if part.clip_norm is not None:
                nn.utils.clip_grad_norm_(part.learned, part.clip_norm)
            part.step()
        finally:
            for p in part.rest:
                p.requires_grad_(True)
        self.count_step(name, loss)

    def differentiate(self, part: Part, batch: Batch) -> Tensor:
        """Set the gradients of the part's loss, means over all processes; return the loss.

        No other parameter gets a gradient: gradients that other parts have computed stay.
        """
        assert part.loss is not None
        loss = part.loss(batch)
        where = _name_of(part.loss)
        if not isinstance(loss, Tensor):
            raise ValueError(f"{where} gives a {type(loss).__name__}: it has to return a tensor, one number.")
        if not loss.requires_grad:
            raise ValueError(f"{where} has no gradient: compute it of what the part learns, without detach.")
        if loss.dim():
            raise ValueError(f"{where} has shape {tuple(loss.shape)}: it has to be one number, as a mean is.")
        if self.steps_are_plain:
            loss.backward(inputs=part.learned)
            return loss
        with unshared(self.trainer.strategy), torch.autocast(loss.device.type, enabled=False):
            self.manual_backward(loss, inputs=part.learned)  # each operation in the type of its forward pass
        share_gradients(part.learned)
        return loss

    def configure_optimizers(self) -> Any:  # noqa: ANN401  (Lightning's union of eight types)
        """The optimizers of the parts in order, and the schedules of those that have one."""
        self.part = self.new_parts()
        self.steps = dict.fromkeys(self.part, 0) | self.steps
        schedules = [part.schedule for part in self.part.values() if part.schedule]
        return [part.optimizer for part in self.part.values()], schedules

    def on_fit_start(self) -> None:
        """Find the parameters that each part moves, and those that are frozen meanwhile.

        Raises:
            ValueError: a precision that scales losses.
        """
        super().on_fit_start()
        if getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            raise ValueError(
                f"--trainer.precision {self.trainer.precision} scales losses, and gradients here are clipped "
                "and computed by hand: take bf16-mixed or 32-true."
            )
        wrapped: Any = self.optimizers()
        self.steps_are_plain = are_plain(self.trainer)
        learned = {p for part in self.part.values() for p in part.parameters if p.requires_grad}
        for place, part in enumerate(self.part.values()):
            part.place, part.step = place, (wrapped if len(self.part) == 1 else wrapped[place]).step
            if self.steps_are_plain:
                part.step = plain_step(part.optimizer, self.trainer)
            part.learned = [p for p in part.parameters if p.requires_grad]
            part.rest = [] if part.gradient else [*learned.difference(part.learned)]
            moving = set() if part.gradient else {*part.learned}
            part.norms = [norm for norm in batch_norms(self) if moving.isdisjoint(norm.parameters())]

    def on_train_epoch_end(self) -> None:
        """See Bookkeeping.

        Raises:
            ValueError: no part has moved so far.
        """
        if not any(self.steps.values()):
            raise ValueError(
                f"no part of {type(self).__name__} has moved in an epoch: training_step calls "
                "self.move(name, batch) for each of parts() that learns. What it returns is not used."
            )
        super().on_train_epoch_end()

    def on_validation_start(self) -> None:
        """Make the statistics of batch norms those of all processes: each has seen other examples."""
        super().on_validation_start()
        share_statistics(self)

    def on_validation_epoch_end(self) -> None:
        """Log the scores; advance the schedules of the parts that moved.

        Raises:
            ValueError: a schedule monitors a score that validation does not log.
        """
        super().on_validation_epoch_end()
        for name, part in self.part.items():
            if part.schedule and self.moved(name):
                self._advance(part.schedule)

    def _advance(self, schedule: Any) -> None:  # noqa: ANN401  (torch's kinds of schedule share no base)
        if not isinstance(schedule, ReduceLROnPlateau):
            schedule.step()
            return
        scores = self.trainer.callback_metrics
        if schedule.monitor not in scores:
            raise ValueError(
                f"lr_schedule.init_args.monitor is {schedule.monitor!r}, which validation does not log. "
                f"There are: {', '.join(name for name in scores if name.startswith('val/'))}."
            )
        schedule.step(scores[schedule.monitor])

    def sizes(self) -> dict[str, int]:
        """The numbers of trained parameters and of those that prediction needs."""
        trained = {p for part in self.new_parts().values() for p in part.parameters if p.requires_grad}
        asked = {p for module in self.predictors() for p in module.parameters()}
        return {
            "trained_parameters": sum(p.numel() for p in trained),
            "inference_parameters": sum(p.numel() for p in asked),
        }


class TaskNetScheme(Scheme):
    """A scheme whose task-net A predicts.

    No epoch of the first `warm_up` is kept as the best, and none of them counts for the stop rule: in them
    the scheme does not train as it is meant to.
    """

    task_net: nn.Module
    warm_up: int | float = 0  # epochs

    def on_train_epoch_start(self) -> None:
        """In the warm-up, and as it ends, forget the epochs so far; see Scheme."""
        super().on_train_epoch_start()
        if 0 <= self.current_epoch - 1 < self.warm_up:
            forget_best(self.trainer)

    def predictors(self) -> list[nn.Module]:
        return [self.task_net]

    def predict(self, batch: Batch) -> Tensor:
        return self.space.over(batch.mask).relax(self.task_net(batch.inputs))

    def lesson(self, teacher: Teacher | None, batch: Batch, logits: Tensor) -> Lesson:
        """The true answers; with a teacher also its answers where the truth is not observed."""
        space = self.space.over(batch.mask)
        if teacher is None:
            return Lesson(batch.y, batch.observed, space)
        return teacher(space, batch.inputs, batch.y, logits.detach(), batch.observed, batch.mask)


def _name_of(loss: Loss | None) -> str:
    return getattr(loss, "__qualname__", "the loss of a part")


def check_clip_norm(name: str, norm: float | None) -> None:
    """Raise an error unless the norm is above 0, or None for no clipping.

    Raises:
        ValueError: not above 0.
    """
    if norm is not None and not norm > 0:
        raise ValueError(f"{name} is {norm}: take a number above 0, or null to clip nothing.")


def check_settings(option: str, settings: Mapping[str, float] | None, optimizer: Optimizer) -> None:
    """Raise ValueError if settings of a parameter group have one that its optimizer does not have."""
    if strange := set(settings or ()) - set(optimizer.defaults):
        raise ValueError(
            f"{option} has {', '.join(sorted(strange))}, which {type(optimizer).__name__} does not have. "
            f"There are: {', '.join(optimizer.defaults)}."
        )
