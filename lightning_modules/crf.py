"""What the schemes of CRFs share: an energy with potentials, a criterion, a training curve of their ratio."""

from typing import Any

import torch
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import StructuredEnergy
from energies.potentials import Potentials
from inference.base import Criterion
from lightning_modules.base import Scheme
from losses.observed import mean

POINTS = 8  # of the curve per epoch


class CRFScheme(Scheme):
    """A structured energy learns by a criterion and predicts by the decoding that belongs to it.

    Training curves of the scaled potentials, one mean an eighth of an epoch: `ratio` is norm(U) / norm(W)
    [Scaling Fig. 1]; a Gaussian field also has `share`, see `GaussianPotentials.balances`.

    Raises:
        ValueError: the criterion is declared for other potentials than the energy's.
    """

    def __init__(self, energy: StructuredEnergy, criterion: Criterion, **scheme: Any) -> None:
        super().__init__(**scheme)
        _check_fits(energy, criterion)
        self.energy, self.criterion = energy, criterion

    def predictors(self) -> list[nn.Module]:
        return [self.energy]

    def model_energy(self) -> StructuredEnergy:
        return self.energy

    def predict(self, batch: Batch) -> Tensor:
        return self.criterion.predict(self.model_energy().potentials(batch.inputs, batch.mask))

    def crf_loss(self, batch: Batch) -> Tensor:
        """Mean over the batch of the criterion's L(y, U, W).   [Scaling eqs. 4-8]"""
        p = self.energy.potentials(batch.inputs, batch.mask)
        self.watch_balance(p)
        return mean(self.criterion.loss(p, batch.y), batch.observed)

    @torch.no_grad()
    def watch_balance(self, p: Potentials) -> None:
        """Keep how unary and pairwise scores of a training batch compare, for the curves."""
        for curve, value in p.balances().items():
            self.watch(curve, value, points=POINTS)


def _check_fits(energy: StructuredEnergy, criterion: Criterion) -> None:
    has = type(energy).potentials.__annotations__.get("return", Any)
    kinds = getattr(has, "__mro__", ())  # a hint that is no class says nothing
    for takes in criterion.declared_for():
        if kinds and has not in (Any, Potentials) and takes not in kinds:
            raise ValueError(
                f"criterion is {type(criterion).__name__}, which takes {takes.__name__}, and "
                f"{type(energy).__name__} has {has.__name__}: take another, such as one of conf/objective/."
            )
