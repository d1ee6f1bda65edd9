"""Bilevel training: the energy minimises an outer loss at the minimum of the task-net's.   [Implicit]"""

from functools import cache, partial
from typing import Any

import torch
from pytorch_lightning.cli import OptimizerCallable
from pytorch_lightning.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import Energy
from inference.bilevel import Bilevel, OuterStep, Products, Solver
from inference.guesses import Guess, GuessContext
from inference.teachers import Lesson, Teacher
from lightning_modules.base import Part, TaskNetScheme, check_clip_norm, check_settings
from lightning_modules.engine.encoder_copy import encoders
from lightning_modules.engine.gradients import set_gradients
from lightning_modules.engine.processes import mean_over_processes, over_processes, world_size
from losses.amounts import not_negative
from losses.objectives import EnergyFn, Objective
from losses.observed import over_observed
from networks.layers import at_rest
from networks.sizes import at_least


class Implicit(TaskNetScheme):
    """On each batch: `inner_steps` steps of the task-net, then one of the energy.   [Implicit algorithm 1]

    theta, the task-net A, minimises the inner loss, warm-started. phi, the energy E, minimises the outer one
    by its total gradient: the explicit gradient less the implicit one, which accounts for the change of theta
    with phi. In the first `warm_up` epochs the task-net learns from supervision alone, and the energy does
    not move. For `solver`, `products`, `damping` and `refresh` see `inference.bilevel.OuterStep`.

    With `inner_tolerance` the steps of the task-net end after one whose inner gradient has at most that norm:
    the inner problem of the batch is solved, and `inner_steps` is the cap. With 0 all steps are taken.

    With a `teacher` the outer loss has its answers where the truth is not observed; the inner loss does not:
    there the task-net learns from the energy alone.   [§5, citations]

    `encoder_settings` are those in which the optimizer's group of the energy's pretrained encoders deviates,
    such as {lr: 2.0e-5}; None makes one group of all.

    Training curves, each value the mean of an epoch: `explicit` and `implicit`, the norms of both gradients;
    `stopped`, the share of steps at which the solver stopped early. With `inner_tolerance` also `inner`, the
    norm of the inner gradient at the step of the energy, and `inner_steps`, the steps that were taken.

    Raises:
        ValueError: fewer than 1 inner step or 1 step between measurements; a weight, a damping, a tolerance
            or a number of epochs below 0, or not finite; a norm to clip to that is not above 0, or not above
            the tolerance; `encoder_settings` has one that the optimizer does not have.
    """

    batch_energy: EnergyFn

    def __init__(
        self,
        task_net: nn.Module,
        energy: Energy,
        objective: Objective,
        guess: Guess,
        energy_optimizer: OptimizerCallable,
        task_optimizer: OptimizerCallable,
        solver: Solver,
        products: Products,
        *,
        energy_weight: float = 1.0,
        inner_steps: int = 5,
        warm_up: int = 1,
        damping: float = 1e-3,
        refresh: int = 50,
        energy_clip_norm: float | None = 1.0,
        inner_tolerance: float | None = None,  # None keeps the ids of older runs
        teacher: Teacher | None = None,
        encoder_settings: dict[str, float] | None = None,
        **scheme: Any,
    ) -> None:
        super().__init__(**scheme)
        at_least(1, inner_steps=inner_steps, refresh=refresh)
        not_negative(energy_weight=energy_weight, damping=damping, warm_up=warm_up)
        not_negative(inner_tolerance=inner_tolerance or 0.0)
        check_clip_norm("energy_clip_norm", energy_clip_norm)
        largest = self.main_options["clip_norm"]
        if inner_tolerance is not None and largest is not None and inner_tolerance >= largest:
            raise ValueError(
                f"inner_tolerance is {inner_tolerance} and clip_norm {largest}: every clipped gradient would "
                "end the inner steps. Take a tolerance below clip_norm."
            )
        self.save_hyperparameters()
        self.task_net, self.energy, self.objective, self.guess = task_net, energy, objective, guess
        self.energy_optimizer, self.task_optimizer = energy_optimizer, task_optimizer
        self.encoder_settings = encoder_settings
        self.energy_weight, self.inner_steps, self.warm_up = energy_weight, inner_steps, warm_up
        self.energy_clip_norm, self.inner_tolerance, self.teacher = energy_clip_norm, inner_tolerance, teacher
        self.outer_step = OuterStep(solver, products, damping=damping, refresh=refresh)
        self.warned = False
        if energy_weight == 0:
            rank_zero_warn("energy_weight is 0: no energy reaches the task-net, the implicit gradient is 0.")

    def training_step(self, batch: Batch, index: int) -> None:
        self.batch_energy = self.energy_of(batch)
        began = self.steps["task"]
        for _ in range(self.inner_steps):
            self.move("task", batch)
            if self.inner_tolerance is not None and self.last_norm() <= self.inner_tolerance:
                break
        if self.inner_tolerance is not None:
            self.watch("inner", self.inner_norm(batch))
            self.watch("inner_steps", torch.tensor(float(self.steps["task"] - began), device=self.device))
        del self.batch_energy
        if self.current_epoch >= self.warm_up:
            self.move("energy", batch)

    def last_norm(self) -> Tensor:
        """The norm of the inner gradient at the point that the last step left, as clipped."""
        return nn.utils.get_total_norm([p.grad for p in self.part["task"].learned if p.grad is not None])

    def inner_norm(self, batch: Batch) -> Tensor:
        """The norm of the inner gradient here, where the energy learns; batch norm is at rest."""
        theta = self.part["task"].learned
        with at_rest(self.part["energy"].norms):
            found = torch.autograd.grad(self.task_loss(batch), theta, materialize_grads=True)
        return nn.utils.get_total_norm(mean_over_processes(found))

    def task_loss(self, batch: Batch) -> Tensor:
        """The inner loss; in the warm-up its supervision alone."""
        logits = self.task_net(batch.inputs)
        if self.current_epoch < self.warm_up:
            return self.supervision(batch, logits).mean()
        return self.inner_loss(self.batch_energy, batch, logits)

    def inner_loss(self, energy: EnergyFn, batch: Batch, logits: Tensor) -> Tensor:
        """The mean of supervision of A(x) + lambda E(x, A(x)).   [Implicit eq. 6, L_Aux]"""
        supervision = self.supervision(batch, logits)
        relaxed = self.space.over(batch.mask).relax(logits)
        return (self.energy_weight * energy(batch.inputs, relaxed) + supervision).mean()

    def supervision(self, batch: Batch, logits: Tensor) -> Tensor:
        """The supervised loss of each example, (B,), scaled for a mean over those whose answer is known."""
        return over_observed(self.space.over(batch.mask).supervise(logits, batch.y), batch.observed)

    def outer_loss(self, energy: EnergyFn, batch: Batch, logits: Tensor, lesson: Lesson) -> Tensor:
        """The objective of guesses through which gradients reach the task-net.   [Implicit §4, L_Prim]

        `lesson`: what the energy learns the batch's answers to be.
        """
        space, whole = self.space.over(batch.mask), self.energy.over(batch.mask)
        guesses = self.guess(GuessContext(whole, self.objective, space, batch.inputs, lesson.y, logits))
        loss = self.objective(energy, lesson.answers, batch.inputs, lesson.y, guesses, lesson.observed)
        return over_processes(loss, summed=self.objective.summed)

    def hypergradient(self, batch: Batch) -> Tensor:
        """Leave grad_phi outer - grad_phi <w, grad_theta inner> in the energy; the outer loss.   [eq. 4]"""
        phi = self.part["energy"].learned
        reduce = mean_over_processes if world_size() > 1 else None
        found = self.outer_step(
            partial(self.problem, batch, self.taught(batch)), self.steps["energy"] - 1, reduce
        )
        set_gradients(phi, found.gradient)
        self.watch("explicit", nn.utils.get_total_norm(found.explicit))
        self.watch("implicit", nn.utils.get_total_norm(found.implicit))
        self.watch("stopped", found.diverged.float())
        return found.loss

    def taught(self, batch: Batch) -> Lesson:
        """The lesson for all evaluations of a step: the truth, with a teacher also its answers."""
        if self.teacher is None:
            return Lesson(batch.y, batch.observed, self.space.over(batch.mask))
        with torch.no_grad():
            return self.lesson(self.teacher, batch, self.task_net(batch.inputs))

    def problem(self, batch: Batch, lesson: Lesson) -> Bilevel:
        """The two losses of a batch as functions of the task-net's logits."""
        energy = self.energy_of(batch)
        inner = partial(self.inner_loss, energy, batch)
        outer = partial(self.outer_loss, energy, batch, lesson=lesson)
        return Bilevel(self.task_net, batch.inputs, inner, outer, self.part["energy"].learned)

    def energy_of(self, batch: Batch) -> EnergyFn:
        """The energy between two of its steps: what depends on the input alone is computed once."""
        given = cache(self.energy.over(batch.mask).given)
        return lambda x, y: given(x)(y)

    def parts(self) -> dict[str, Part]:
        phi: list[Any] = [*self.energy.parameters()]
        if self.encoder_settings is not None:
            inside = {p for encoder in encoders(self.energy) for p in encoder.parameters()}
            others, of_encoders = ([p for p in phi if (p in inside) is there] for there in (False, True))
            phi = [{"params": others}, {"params": of_encoders, **self.encoder_settings}]
        energy = Part(
            phi, self.energy_optimizer, gradient=self.hypergradient, clip_norm=self.energy_clip_norm
        )
        check_settings("encoder_settings", self.encoder_settings, energy.optimizer)
        of_task = self.task_net.parameters()
        return {
            "task": Part(of_task, self.task_optimizer, self.task_loss, **self.main_options),
            "energy": energy,
        }

    def on_train_epoch_end(self) -> None:
        """Warn once if the solver stops early or the implicit gradient is 0; see Scheme."""
        moved = self.moved("energy")
        super().on_train_epoch_end()
        if moved and not self.warned and (warning := self.warning()):
            rank_zero_warn(warning)
            self.warned = True

    def warning(self) -> str | None:
        """What to change, judged by the means of the last epoch."""
        explicit, implicit, stopped = (self.curves[name][-1] for name in ("explicit", "implicit", "stopped"))
        if stopped:
            return (
                f"epoch {self.current_epoch}: at {stopped:.2%} of the steps the solver stopped early, the "
                f"last time because {self.outer_step.why_stopped()}"
            )
        if self.energy_weight > 0 and self.outer_step.solver.uses_hessian and explicit > 0 and implicit == 0:
            return (
                "the implicit gradient is 0: no guess carries a gradient back to the task-net, or its "
                "answers are saturated. Use one that does, such as Point, StraightThrough or Concrete, or "
                "the solver Dropped."
            )
        return None

    def on_fit_end(self) -> None:
        """Warn if the energy never learned."""
        if not self.steps["energy"]:
            rank_zero_warn(
                f"the energy never learned: warm_up is {self.warm_up} epochs, and there were no more. Raise "
                "trainer.max_epochs, or lower model.init_args.warm_up."
            )
