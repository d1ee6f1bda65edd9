"""Supervision alone."""

from typing import Any

from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn

from datamodules.batches import Batch
from inference.teachers import Teacher
from lightning_modules.base import Part, TaskNetScheme
from losses.amounts import not_negative
from losses.observed import mean
from networks.sizes import at_least


class CrossEntropy(TaskNetScheme):
    """A task-net learns from supervision only, `task_steps` steps a batch.   [all four papers' baseline]

    More than one step makes the control for schemes that take as many.

    After `warm_up` epochs a `teacher` answers the examples whose truth is not observed: with the task-net's
    own answers, which is self-training, or with the best of its samples by rules. Taught answers count as
    true ones do. With a `taught_weight` w the loss is the mean over true answers plus w times the mean over
    taught ones.

    Raises:
        ValueError: fewer than 1 step, fewer than 0 epochs, a weight below 0, or one without a teacher.
    """

    def __init__(
        self,
        task_net: nn.Module,
        task_optimizer: OptimizerCallable,
        *,
        task_steps: int = 1,
        teacher: Teacher | None = None,  # None keeps the ids of older runs
        warm_up: int | None = None,
        taught_weight: float | None = None,
        **scheme: Any,
    ) -> None:
        super().__init__(**scheme)
        at_least(1, task_steps=task_steps)
        at_least(0, warm_up=warm_up or 0)
        not_negative(taught_weight=taught_weight or 0)
        if taught_weight is not None and teacher is None:
            raise ValueError(
                "taught_weight is given and no teacher: nothing is taught. Give one, or leave it out."
            )
        self.save_hyperparameters()
        self.task_net, self.task_optimizer, self.task_steps = task_net, task_optimizer, task_steps
        self.teacher, self.warm_up, self.taught_weight = teacher, warm_up or 0, taught_weight

    def training_step(self, batch: Batch, index: int) -> None:
        for _ in range(self.task_steps):
            self.move("task", batch)

    def task_loss(self, batch: Batch) -> Tensor:
        """Mean over the batch of the supervised loss, of answers that are observed or taught."""
        logits = self.task_net(batch.inputs)
        teacher = self.teacher if self.current_epoch >= self.warm_up else None
        lesson = self.lesson(teacher, batch, logits)
        losses = lesson.answers.supervise(logits, lesson.y)
        if self.taught_weight is None or lesson.observed is None or batch.observed is None:
            return mean(losses, lesson.observed)
        taught = lesson.observed & ~batch.observed
        return mean(losses, batch.observed) + self.taught_weight * mean(losses, taught)

    def parts(self) -> dict[str, Part]:
        learned = self.task_net.parameters()
        return {"task": Part(learned, self.task_optimizer, self.task_loss, **self.main_options)}
