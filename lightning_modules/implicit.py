"""Bilevel training: the task-net minimises its loss, the energy what that minimum leads to.   [Implicit]"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from pytorch_lightning.cli import OptimizerCallable
from pytorch_lightning.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import ConditionedEnergy, Energy
from inference.bilevel import (
    Bilevel,
    Dropped,
    Hypergradient,
    Products,
    Solver,
    hypergradient,
    largest_curvature,
    why_diverged,
)
from inference.guesses import Guess, GuessContext
from lightning_modules.base import Part, Scheme, check_clip_norm
from lightning_modules.processes import mean_over_processes, over_processes, world_size
from losses.objectives import EnergyFn, Objective
from losses.observed import mean
from losses.task import EnergyAndSupervision
from networks.sizes import at_least

OfInput = Callable[[Tensor], ConditionedEnergy]

MARGIN = 1.1  # of the divisor over the curvature that power iterations find, which is below the largest


class Implicit(Scheme):
    """On each batch: `inner_steps` steps of the task-net, then one of the energy.   [Implicit algorithm 1]

    The task-net minimises supervision + `energy_weight` E(x, A(x)), warm-started; the energy the objective,
    of guesses that carry gradients back to the task-net, by its total gradient: the explicit one less the
    implicit one, which says how the task-net would follow. In the first `warm_up` epochs the task-net learns
    from supervision alone, and the energy rests.

    The solver's divisor is 1.1 times the largest curvature known, at least 1: every `refresh` steps of the
    energy ten power iterations find it anew, and between them a series that grows shows where it is larger.
    `damping` times the divisor is added to the curvature.

    Curves, an epoch's means: `explicit` and `implicit`, the norms of both gradients; `stopped`, the share of
    steps at which a solver had to stop early.

    Raises:
        ValueError: fewer than 1 inner step or 1 step between measurements; a weight, a damping or a number of
            epochs below 0, or not finite; a norm to clip to that is not above 0.
    """

    divisor: Tensor
    _resting: OfInput

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
        **scheme: Any,
    ) -> None:
        super().__init__(**scheme)
        at_least(1, inner_steps=inner_steps, refresh=refresh)
        for name, weight in (("energy_weight", energy_weight), ("damping", damping), ("warm_up", warm_up)):
            if not 0 <= weight < math.inf:
                raise ValueError(f"{name} is {weight}: take a finite number, 0 or more.")
        check_clip_norm("energy_clip_norm", energy_clip_norm)
        self.save_hyperparameters()
        self.task_net, self.energy, self.objective, self.guess = task_net, energy, objective, guess
        self.energy_optimizer, self.task_optimizer = energy_optimizer, task_optimizer
        self.solver, self.products = solver, products
        self.task_terms = EnergyAndSupervision(energy_weight)
        self.inner_steps, self.warm_up = inner_steps, warm_up
        self.damping, self.refresh, self.energy_clip_norm = damping, refresh, energy_clip_norm
        self.register_buffer("divisor", torch.ones(()))
        self._stop: Tensor | None = None  # curvature and divisor where the solver last stopped
        self._told = False
        if energy_weight == 0:
            rank_zero_warn("energy_weight is 0: no energy reaches the task-net, the implicit gradient is 0.")

    def parts(self) -> dict[str, Part]:
        return {
            "task": Part(
                self.task_net.parameters(), self.task_optimizer, self.task_loss, **self.main_options
            ),
            "energy": Part(
                self.energy.parameters(),
                self.energy_optimizer,
                gradient=self.hypergradient,
                clip_norm=self.energy_clip_norm,
            ),
        }

    def predictors(self) -> list[nn.Module]:
        return [self.task_net]

    def training_step(self, batch: Batch, index: int) -> None:
        self._resting = self._at_rest(batch)
        for _ in range(self.inner_steps):
            self.move("task", batch)
        del self._resting
        if self.current_epoch >= self.warm_up:
            self.move("energy", batch)

    def task_loss(self, batch: Batch) -> Tensor:
        """Supervision + `energy_weight` E(x, A(x)); in the warm-up supervision alone."""
        logits = self.task_net(batch.inputs)
        if self.current_epoch < self.warm_up:
            return mean(self.space.over(batch.mask).supervise(logits, batch.y), batch.observed)
        return self._inner(self._resting, batch, logits)

    def hypergradient(self, batch: Batch) -> Tensor:
        """Leave the total gradient in the energy's parameters; the outer loss."""
        for p in self.part["task"].learned:
            p.requires_grad_(True)
        phi = self.part["energy"].learned
        losses: list[Tensor] = []

        def problem() -> Bilevel:
            given = self._at_rest(batch)

            def outer(logits: Tensor) -> Tensor:
                losses.append(self._outer(given, batch, logits))
                return losses[-1]

            return Bilevel(
                self.task_net,
                batch.inputs,
                lambda logits: self._inner(given, batch, logits),
                outer,
                phi,
            )

        reduce = mean_over_processes if world_size() > 1 else None
        if (self.steps["energy"] - 1) % self.refresh == 0 and not isinstance(self.solver, Dropped):
            curvature = largest_curvature(problem(), self.products, iterations=10, reduce=reduce)
            self.divisor.copy_((MARGIN * curvature).clamp_min(1))
        damping = self.damping * self.divisor
        found = hypergradient(
            problem(), self.solver, self.products, divisor=self.divisor, damping=damping, reduce=reduce
        )
        for p, gradient in zip(phi, found.gradient, strict=True):
            p.grad = gradient
        self._watch(found)
        larger = found.curvature > self.divisor
        self.divisor.copy_(torch.where(larger, MARGIN * found.curvature, self.divisor))
        return losses[-1]

    def predict(self, batch: Batch) -> Tensor:
        return self.space.over(batch.mask).relax(self.task_net(batch.inputs))

    def on_train_epoch_end(self) -> None:
        """Warn where a solver stops early or works for nothing; see Scheme."""
        moved = self.moved("energy")
        super().on_train_epoch_end()
        if moved and not self._told:
            self._tell({curve: self.curves[curve][-1] for curve in ("explicit", "implicit", "stopped")})
        self._stop = None

    def on_fit_end(self) -> None:
        """Say so where the energy never learned."""
        if not self.steps["energy"]:
            rank_zero_warn(
                f"the energy never learned: warm_up is {self.warm_up} epochs, and there were no more. Raise "
                "trainer.max_epochs, or lower model.init_args.warm_up."
            )

    def _tell(self, means: dict[str, float]) -> None:
        """Warn, once, of what an epoch's means show."""
        if means["stopped"] and self._stop is not None:
            rank_zero_warn(
                f"epoch {self.current_epoch}: at {means['stopped']:.2%} of the steps the solver stopped "
                f"early, the last time since {self._why(*self._stop.unbind())}"
            )
            self._told = True
        elif self._works_for_nothing(means):
            rank_zero_warn(
                "the implicit gradient is 0: no guess carries a gradient back to the task-net, or its "
                "answers are saturated. Take one that does, such as Point, StraightThrough or Concrete, or "
                "the solver Dropped."
            )
            self._told = True

    def _works_for_nothing(self, means: dict[str, float]) -> bool:
        """Whether guesses teach the energy, and none of them leads back to the task-net."""
        asked = self.task_terms.energy_weight > 0 and not isinstance(self.solver, Dropped)
        return asked and means["implicit"] == 0 and means["explicit"] > 0

    def _why(self, curvature: Tensor, divisor: Tensor) -> str:
        """What stopped the solver, and which option helps."""
        if curvature > 0:
            return (
                f"H with its damping has a curvature of {curvature:.4g} or more and the divisor was "
                f"{divisor:.4g}. It is then raised; a smaller model.init_args.refresh measures oftener."
            )
        if curvature < 0:
            return (
                f"H with its damping has a negative curvature, {curvature:.4g} or less, and the divisor was "
                f"{divisor:.4g}: model.init_args.damping above {self.damping - curvature / divisor:.2g} lets "
                "the series go on."
            )
        return why_diverged(Hypergradient([], [], torch.tensor(True), curvature, divisor))

    def _watch(self, found: Hypergradient) -> None:
        """Note how long the gradients are and whether the solver stopped; nothing waits for the device."""
        self.watch("explicit", nn.utils.get_total_norm(found.explicit))
        self.watch("implicit", nn.utils.get_total_norm(found.implicit))
        self.watch("stopped", found.diverged.float())
        stop = torch.stack([found.curvature, self.divisor])
        self._stop = stop if self._stop is None else torch.where(found.diverged, stop, self._stop)

    def _at_rest(self, batch: Batch) -> OfInput:
        """The energy while its parameters stay as they are: what it makes of an input is computed once."""
        return cache(self.energy.over(batch.mask).given)

    def _inner(self, given: OfInput, batch: Batch, logits: Tensor) -> Tensor:
        space = self.space.over(batch.mask)
        return self.task_terms(_whole(given), space, batch.inputs, batch.y, logits, batch.observed)

    def _outer(self, given: OfInput, batch: Batch, logits: Tensor) -> Tensor:
        space = self.space.over(batch.mask)
        energy = self.energy.over(batch.mask)
        guesses = self.guess(GuessContext(energy, self.objective, space, batch.inputs, batch.y, logits))
        loss = self.objective(_whole(given), space, batch.inputs, batch.y, guesses, batch.observed)
        return over_processes(loss, summed=self.objective.summed)


def _whole(given: OfInput) -> EnergyFn:
    """A function of input and answer again."""
    return lambda x, y: given(x)(y)
