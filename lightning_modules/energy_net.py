"""Energy networks alone (SPEN, DVN, NCE); a search predicts."""

from dataclasses import replace
from typing import Any

import torch
from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import Energy
from inference.gradient import Search
from inference.guesses import Guess, GuessContext, Minimum
from lightning_modules.base import Part, Scheme
from lightning_modules.engine.processes import over_processes
from losses.objectives import Objective
from networks.fcn import Windows
from networks.layers import at_rest, dropouts


class EnergyNet(Scheme):
    """An energy learns from guesses and predicts by gradient-based inference.

    [SPEN; DVN; SEAL §4.1, "+ GBI"]

    `guesser` is the frozen task-net of a finished run. It gives starts of searches, or noise samples. None:
    guesses come from searches alone. While the energy trains, dropout is on in its searches and in the
    guesser, as in the released code; False for `search_dropout` or `guesser_dropout` has it off there.

    `windows` are for pictures larger than those that the energy reads: each window is searched, and a
    pixel's prediction is the mean over its windows. `validation_windows` are those of the score that stops
    training, where fewer will do; None: `windows`.
    """

    def __init__(
        self,
        energy: Energy,
        objective: Objective,
        guess: Guess,
        inference: Search,
        energy_optimizer: OptimizerCallable,
        *,
        guesser: nn.Module | None = None,
        windows: Windows | None = None,
        validation_windows: Windows | None = None,
        search_dropout: bool | None = None,  # None is on, and keeps the ids of older runs
        guesser_dropout: bool | None = None,
        **scheme: Any,
    ) -> None:
        super().__init__(**scheme)
        self.save_hyperparameters()
        self.energy, self.objective, self.guess, self.inference = energy, objective, guess, inference
        self.energy_optimizer, self.guesser = energy_optimizer, guesser
        self.windows, self.validation_windows = windows, validation_windows or windows
        self.without_dropout: list[nn.Module] = dropouts(energy) if search_dropout is False else []
        self.without_dropout += dropouts(guesser) if guesser is not None and guesser_dropout is False else []

    def training_step(self, batch: Batch, index: int) -> None:
        self.move("energy", batch)

    def energy_loss(self, batch: Batch) -> Tensor:
        """The objective of guesses from a search or from noise.   [SEAL eqs. 6, 7, 9]"""
        with torch.no_grad(), at_rest(self.without_dropout):
            case = self._context(batch)
            guesses = self.guess(case)
        loss = self.objective(case.energy, case.space, case.x, case.y, guesses, batch.observed)
        return over_processes(loss, summed=self.objective.summed)

    def parts(self) -> dict[str, Part]:
        learned = self.energy.parameters()
        return {"energy": Part(learned, self.energy_optimizer, self.energy_loss, **self.main_options)}

    def predictors(self) -> list[nn.Module]:
        return [self.energy]

    def predict(self, batch: Batch) -> Tensor:
        blank = torch.zeros_like(batch.y)  # searches see the shape of an answer, never the truth
        validating = self._trainer is not None and self._trainer.validating
        windows = self.validation_windows if validating else self.windows
        if windows is None:
            return self._minimum(replace(batch, y=blank))
        masks = (self._minimum(Batch(x, y)) for x, y in windows.cut(batch.inputs, blank))
        return windows.mean(masks, like=blank)

    def _minimum(self, batch: Batch) -> Tensor:
        return Minimum(self.inference)(self._context(batch)).y[0]

    @torch.no_grad()
    def _context(self, batch: Batch) -> GuessContext:
        logits = self.guesser(batch.inputs) if self.guesser is not None else None
        return GuessContext(
            self.energy.over(batch.mask),
            self.objective,
            self.space.over(batch.mask),
            batch.inputs,
            batch.y,
            logits,
        )
