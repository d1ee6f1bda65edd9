"""Joint training of a CRF whose unary and pairwise scores are kept in proportion."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from jaxtyping import Float
from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor

from datamodules.batches import Batch, Batches
from energies.base import StructuredEnergy
from energies.scaling import ScaledEnergy, Scaling
from inference.base import Criterion
from lightning_modules.base import Part
from lightning_modules.crf import CRFScheme
from lightning_modules.engine.bookkeeping import mix
from lightning_modules.engine.processes import mean_over_processes, share_statistics
from losses.observed import over_observed

SUBSET = 1_000_003  # the random stream of the subset, apart from those of the parts
ROWS = 128  # examples of the subset per pass, at most
NUMBERS = 2**24  # that a layer of 64 channels over a pass may have


class CRFScaled(CRFScheme):
    """The network and the pairwise scores learn together; the criterion sees them rescaled.

    [Scaling §5] Online scaling chooses alpha after the training batches of each epoch. The choice holds for
    that epoch's validation and the next epoch's training, and is appended to the training curve `alpha`.
    """

    def __init__(
        self,
        energy: StructuredEnergy,
        criterion: Criterion,
        scaling: Scaling,
        energy_optimizer: OptimizerCallable,
        **scheme: Any,
    ) -> None:
        super().__init__(energy, criterion, **scheme)
        self.save_hyperparameters()
        self.scaling, self.energy_optimizer = scaling, energy_optimizer

    def model_energy(self) -> StructuredEnergy:
        return ScaledEnergy(self.energy, self.scaling)

    def training_step(self, batch: Batch, index: int) -> None:
        self.move("energy", batch)
        if self.trainer.is_last_batch and self.scaling.subset:
            self.choose_alpha(cast(Batches, self.trainer.train_dataloader))

    def energy_loss(self, batch: Batch) -> Tensor:
        """Mean over the batch of L(y, U, W) of the scaled potentials, plus the scaling's penalty.

        [Scaling eqs. 4-8, 18, 20, 21]
        """
        p = self.energy.potentials(batch.inputs, batch.mask)
        scaled = self.scaling(p)
        self.watch_balance(scaled)
        rows = over_observed(self.criterion.loss(scaled, batch.y), batch.observed)
        return (rows + self.scaling.penalty(p)).mean()

    @torch.no_grad()
    def choose_alpha(self, data: Batches) -> None:
        """Take the alpha with the least loss on a subset of the training examples.

        Lines 10 to 12 of [Scaling algorithm 1], once an epoch, after its last training batch:

        10: D := a subset of the training set, new in each epoch, the same in all processes
            (and so are the running statistics of batch norm, and with them alpha)
        11: alpha_best := argmin over the grid of L_alpha(D)
        12: alpha := alpha_best
        """
        training = [module for module in self.modules() if module.training]
        self.eval()
        share_statistics(self)
        (losses,) = mean_over_processes([self.mean_losses(self.subset(data))])
        self.scaling.choose(losses)
        for module in training:
            module.training = True
        self.watch("alpha", torch.as_tensor(self.scaling.alpha))

    def subset(self, data: Batches) -> Iterator[Batch]:
        """The examples of this epoch's D, of those whose answers are known."""
        draw = torch.Generator().manual_seed(mix(self.seed, SUBSET, self.current_epoch))
        rows = torch.randperm(len(data.inputs), generator=draw)
        if data.observed is not None:
            rows = rows[data.observed.cpu()[rows]]
        rows = rows[: self.scaling.subset]
        if data.lengths is not None:
            rows = rows[data.lengths[rows].argsort(stable=True)]  # little padding
        return map(data.rows, rows.split(max(1, min(ROWS, NUMBERS // (64 * data.y[0].numel())))))

    def mean_losses(self, subset: Iterable[Batch]) -> Float[Tensor, " K"]:
        """L_alpha(D), the mean over examples of L(y, alpha U, W), for each alpha of the grid.   [eq. 19]"""
        alphas, count = self.scaling.grid, 0
        total = alphas.new_zeros(len(alphas), dtype=torch.float64)
        for batch in subset:
            p = self.energy.potentials(batch.inputs, batch.mask)
            total += self.criterion.losses(p, batch.y, alphas).sum(1, dtype=torch.float64)
            count += len(batch.y)
        return total / count

    def parts(self) -> dict[str, Part]:
        learned = self.energy.parameters()
        return {"energy": Part(learned, self.energy_optimizer, self.energy_loss, **self.main_options)}
