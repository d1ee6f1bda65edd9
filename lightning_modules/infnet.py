"""Inference networks and an energy that learn jointly, in turns, batch by batch.   [InfNet+ §3]"""

from collections.abc import Callable, Collection
from functools import cache
from typing import Any, Literal

import torch
from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric

from datamodules.batches import Batch
from energies.base import ConditionedEnergy, Energy
from inference.networks import InferenceNetworks
from lightning_modules.base import Part, check_settings
from lightning_modules.engine.bookkeeping import EVALUATION, judge, scores_of
from lightning_modules.engine.phases import Phased
from lightning_modules.engine.processes import mean_over_processes
from lightning_modules.metrics.changes import TagChanges
from losses.amounts import not_negative
from losses.joint import ROLES, JointObjective, Perceptron, Role, RoleEnergies
from losses.observed import mean
from networks.layers import at_rest, batch_norms
from networks.sizes import at_least


class InfNet(Phased):
    """The networks ascend the objective that the energy descends; A predicts.   [InfNet+ eq. 6]

    On each batch: `guess_steps` steps of the networks, then one of the energy. The networks also learn from
    supervision, `supervision_weight` times the loss of each role in `networks.supervised`.

    That is the phase `joint`. In `tune` the energy is frozen and A continues from the best F so far, by E(x,
    A(x)) and the same supervision.   [Tu and Gimpel 2018, "retuning"]

    `augmented_settings` overrides settings of `inference_optimizer`, such as `lr`, for parameters of F alone:
    without cross-entropy, the affine F of stacked networks predicts one tag everywhere at the rate that suits
    A.

    What depends on x alone in the energy is computed once for all steps of a batch; so is its dropout.

    Curves, an epoch's means: of F as the energy's step meets it, `cost_augmented`, cost - E(F), and `hinge`.
    With `watch_network`, at the price of one more backward pass a batch, also `network_gradient`, the norm of
    dE(x, A(x))/dPsi after the network steps, and `energy_gradient`, the norm of the energy's gradient.
    [InfNet+ Fig. 3]

    On validation, `val/augmented_...` are the scores of F and `val/ahead_...` those of A less these; given
    `changes`, it is counted where A is right and F differs.   [InfNet+ Table 3]

    Raises:
        ValueError: fewer than 1 step; a negative weight; objective, networks, `changes` and phases do
            not fit one another; at the start of a fit, the optimizer has no such settings, or
            nothing keeps the epoch that `tune` goes on from.
    """

    from_best = ("tune",)

    def __init__(
        self,
        networks: InferenceNetworks,
        energy: Energy,
        objective: JointObjective,
        energy_optimizer: OptimizerCallable,
        inference_optimizer: OptimizerCallable,
        *,
        guess_steps: int = 1,
        supervision_weight: float = 1.0,
        augmented_settings: dict[str, float] | None = None,
        phases: tuple[Literal["joint", "tune"], ...] = ("joint",),
        changes: TagChanges | None = None,
        watch_network: bool = False,
        **scheme: Any,
    ) -> None:
        super().__init__(phases=phases, **scheme)
        self.save_hyperparameters()
        at_least(1, guess_steps=guess_steps)
        not_negative(supervision_weight=supervision_weight)
        self.networks, self.energy, self.objective = networks, energy, objective
        self.energy_optimizer, self.inference_optimizer = energy_optimizer, inference_optimizer
        self.guess_steps, self.supervision_weight = guess_steps, supervision_weight
        self.augmented_settings = augmented_settings
        self.changes, self.watch_network = changes, watch_network
        self._check_roles()
        self.augmented_metric: Metric | None = (
            self.metric.clone() if "augmented" in objective.weights else None
        )
        self.given: ConditionedEnergy | None = None

    def training_step(self, batch: Batch, index: int) -> None:
        self.given = self.conditioned(batch)
        for _ in range(self.guess_steps):
            self.move("inference", batch)
        if self.phase == "joint":
            if self.watch_network:
                self.watch("network_gradient", self.network_gradient(batch))
            self.move("energy", batch)
            if self.watch_network:
                gradients = [p.grad for p in self.part["energy"].learned if p.grad is not None]
                self.watch("energy_gradient", nn.utils.get_total_norm(gradients))
        self.given = None

    def networks_loss(self, batch: Batch) -> Tensor:
        """Minus the objective of F and A, and their supervision; in `tune` E(x, A(x)) and supervision.

        mean -[cost(F) - E(F)] + lambda E(A) + supervision   [InfNet+ eq. 6, §4.1]
        """
        objective = self.objective if self.phase == "joint" else Perceptron()
        logits, answers = self._answers(batch, [r for r in objective.weights if r in self.networks.learned])
        energy = self._given(batch).detached
        energies = self._energies(energy, batch, answers, truth=objective.networks_see_truth)
        return objective.network_loss(energies) + self._supervision(logits, batch)

    def energy_loss(self, batch: Batch) -> Tensor:
        """Mean of [cost(F) - E(F) + E(y)]_+ + lambda [E(y) - E(A)]_+.   [InfNet+ eq. 6]"""
        with torch.no_grad():
            _, answers = self._answers(batch, self.objective.weights)
        energies = self._energies(self._given(batch), batch, answers, truth=True)
        hinges = self.objective.hinges(energies)
        if "augmented" in answers:
            self.watch("cost_augmented", self.objective.violation("augmented", energies))
            self.watch("hinge", hinges["augmented"])
        return self.objective.weighted(hinges)

    def conditioned(self, batch: Batch) -> ConditionedEnergy:
        """E(x, .) for all steps of a batch; in `tune` a constant. Batch norm rests: answers get gradients."""
        self.draw_from(len(self.part), self.steps["inference"])
        with torch.set_grad_enabled(self.phase == "joint"), at_rest(batch_norms(self.energy)):
            return self.energy.over(batch.mask).given(batch.inputs)

    def parts(self) -> dict[str, Part]:
        learned: list[Any] = [p for p in self.networks.parameters() if p.requires_grad]
        if self.augmented_settings is not None:
            of_f = self._of_f_alone()
            of_a = [p for p in learned if p not in of_f]
            learned = [{"params": of_a}, {"params": [*of_f], **self.augmented_settings}]
        inference = Part(learned, self.inference_optimizer, self.networks_loss, **self.main_options)
        check_settings("augmented_settings", self.augmented_settings, inference.optimizer)
        energy = Part(self.energy.parameters(), self.energy_optimizer, self.energy_loss)
        return {"inference": inference, "energy": energy}

    def predictors(self) -> list[nn.Module]:
        return self.networks.predictors()

    def predict(self, batch: Batch) -> Tensor:
        return self.space.over(batch.mask).relax(self.networks.predict(batch.inputs))

    def enter(self, phase: str) -> None:
        """See Phased; `tune` goes on from the best epoch of `joint`.

        The optimizer forgets its averages. Its rate goes on as a schedule left it.
        """
        super().enter(phase)
        self.networks.fix_augmented()
        self.part["inference"].optimizer.state.clear()

    def validation_step(self, batch: Batch, index: int) -> None:
        """Add a batch to the metrics of A and F."""
        if self.augmented_metric is None:
            return super().validation_step(batch, index)
        self.draw_from(EVALUATION, 0)
        _, answers = self._answers(batch, ROLES)
        judge(self.metric, batch, answers["test"])
        judge(self.augmented_metric, batch, answers["augmented"])
        if self.changes is not None:
            judge(self.changes, batch, answers["test"], answers["augmented"])

    def report(self, stage: str) -> dict[str, Tensor]:
        """See Scheme; on validation also the scores of F, and what changes between A and F."""
        scores = super().report(stage)
        if stage == "val" and self.augmented_metric is not None:
            augmented = scores_of(self.augmented_metric, choose=True)
            for name, score in scores.items():
                self.log(f"val/augmented_{name}", augmented[name])
                self.log(f"val/ahead_{name}", score - augmented[name])
        if stage == "val" and self.changes is not None:
            self.findings["changes"] = self.changes.found()
            self.changes.reset()
        return scores

    def _check_roles(self) -> None:
        roles = self.objective.weights
        self.networks.check(roles, tuned="tune" in self.phases)
        if self.augmented_settings is not None and not self._of_f_alone():
            raise ValueError(
                "augmented_settings are for parameters of F alone, and "
                f"{type(self.networks).__name__} has none: leave them out."
            )
        if "tune" in self.phases and "augmented" not in roles:
            raise ValueError(
                "the objective trains A itself, and the phase `tune` goes on from F: leave `tune` out, or "
                "take an objective of F such as MarginRescaled."
            )
        if self.changes is not None and "augmented" not in roles:
            raise ValueError(
                "the objective has no F that could differ from A: leave `changes` out, or take an objective "
                "of F such as Compound."
            )
        if self.phases[0] != "joint":
            raise ValueError(f"phases is {self.phases}: begin with `joint`, in which the energy learns.")

    def _of_f_alone(self) -> dict[nn.Parameter, None]:
        """Parameters that A does not have, in order."""
        of_a = {p for module in self.predictors() for p in module.parameters()}
        return dict.fromkeys(p for p in self.networks.parameters() if p.requires_grad and p not in of_a)

    def _answers(
        self, batch: Batch, roles: Collection[Role]
    ) -> tuple[dict[Role, Tensor], dict[Role, Tensor]]:
        """The logits of roles that are learned, and the relaxed answer of each, each computed once."""
        space = self.space.over(batch.mask)
        relax = cache(space.relax)
        logits = self.networks(batch.inputs, batch.y, relax, roles)
        answers = {role: relax(values) for role, values in logits.items()}
        if set(roles) - logits.keys():
            answers |= self.networks.searched(self._given(batch), space, batch.y, logits)
        return logits, answers

    def _given(self, batch: Batch) -> ConditionedEnergy:
        return self.given or self.energy.over(batch.mask).given(batch.inputs)

    def _energies(
        self, energy: Callable[[Tensor], Tensor], batch: Batch, answers: dict[Role, Tensor], *, truth: bool
    ) -> RoleEnergies:
        """All answers, and the truth where it is asked for, through the energy in one call."""
        rows = energy(torch.stack([*answers.values(), batch.y] if truth else [*answers.values()]))
        cost: dict[Role, Tensor] = {}
        if "augmented" in answers:
            cost["augmented"] = self.space.over(batch.mask).cost(answers["augmented"], batch.y)
        guesses = dict(zip(answers, rows.unbind(0), strict=False))
        return RoleEnergies(guesses, cost, rows[-1] if truth else None, batch.observed)

    def _supervision(self, logits: dict[Role, Tensor], batch: Batch) -> Tensor:
        space = self.space.over(batch.mask)
        losses = [
            mean(space.supervise(logits[role], batch.y), batch.observed)
            for role in logits
            if role in self.networks.supervised
        ]
        return self.supervision_weight * torch.stack(losses).sum() if losses else batch.y.new_zeros(())

    def network_gradient(self, batch: Batch) -> Tensor:
        """The norm of dE(x, A(x))/dPsi, of the mean over the batch.   [InfNet+ Fig. 3]"""
        energy = self._given(batch).detached(self.predict(batch)).mean()
        learned = [p for net in self.predictors() for p in net.parameters() if p.requires_grad]
        found = torch.autograd.grad(energy, learned, materialize_grads=True, allow_unused=True)
        return nn.utils.get_total_norm(mean_over_processes(found))
