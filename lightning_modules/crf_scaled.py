"""Joint training of a chain whose unary and pairwise scores are kept in proportion."""

from typing import Any

import torch
from pytorch_lightning.cli import OptimizerCallable
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from datamodules.batches import Batch, Batches
from energies.base import StructuredEnergy
from energies.scaling import Scaling, under_each
from inference.base import Criterion
from lightning_modules.base import Part
from lightning_modules.bookkeeping import mix
from lightning_modules.crf import ChainScheme
from losses.observed import shared_out

SEARCH = 1_000_003  # sets the draws of the subset apart from those of the parts
ROWS = 128  # examples of the subset at once; each comes once for every alpha


class CRFScaled(ChainScheme):
    """The network and the pairwise scores learn together, rescaled on their way to the criterion.

    [Scaling §5] Where the scaling is online, alpha is chosen after the training batches of each epoch, by the
    mean loss of a fresh subset of the training examples, and holds for that epoch's validation and for the
    next one's training [algorithm 1]; the curve `alpha` has what each epoch chose. Every process searches the
    same subset of all examples.
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
        self._chosen = -1  # the epoch that alpha was last chosen in

    def training_step(self, batch: Batch, index: int) -> None:
        self.move("energy", batch)

    def parts(self) -> dict[str, Part]:
        learned = self.energy.parameters()
        return {"energy": Part(learned, self.energy_optimizer, self.energy_loss, **self.main_options)}

    def energy_loss(self, batch: Batch) -> Tensor:
        """Mean over the batch of the criterion's loss of the scaled potentials, and the scaling's penalty."""
        p = self.potentials(batch)
        scaled = self.scaling(p)
        self.watch_ratio(scaled)
        rows = shared_out(self.criterion.loss(scaled, batch.y), batch.observed)
        return (rows + self.scaling.penalty(p)).mean()

    def predict(self, batch: Batch) -> Tensor:
        return self.criterion.predict(self.scaling(self.potentials(batch)))

    def on_validation_epoch_start(self) -> None:
        """Choose alpha, with the weights this epoch's training has left."""
        if self.trainer.state.fn == TrainerFn.FITTING and not self.trainer.sanity_checking:
            self._choose()

    def _choose(self) -> None:
        if self.scaling.search_size() and self._chosen != self.current_epoch:
            data = self.trainer.train_dataloader
            assert isinstance(data, Batches)
            training = self.training
            self.eval()
            self.scaling.choose(self.search(data))
            self.train(training)
            self._chosen = self.current_epoch

    @torch.no_grad()
    def search(self, data: Batches) -> Tensor:
        """Mean loss of the subset of this epoch under each alpha of the grid, (K,), in float64."""
        draw = torch.Generator().manual_seed(mix(self.seed, SEARCH, self.current_epoch))
        rows = torch.randperm(len(data.inputs), generator=draw)
        if data.observed is not None:
            rows = rows[data.observed.cpu()[rows]]
        rows = rows[: self.scaling.search_size()]
        if data.lengths is not None:
            rows = rows[data.lengths[rows].argsort(stable=True)]  # little padding
        alphas = self.scaling.candidates()
        total = alphas.new_zeros(len(alphas), dtype=torch.float64)
        for some in rows.split(ROWS):
            batch = data.rows(some)
            p = under_each(self.potentials(batch), alphas)
            losses = self.criterion.loss(p, batch.y.repeat(len(alphas), *[1] * (batch.y.dim() - 1)))
            total += losses.unflatten(0, (len(alphas), -1)).sum(1, dtype=torch.float64)
        return total / len(rows)

    def on_train_epoch_end(self) -> None:
        """Log alpha where it is chosen, at the latest now; see ChainScheme."""
        self._choose()
        super().on_train_epoch_end()
        if self.scaling.search_size():
            alpha = float(self.scaling.alpha)
            self.append_to_curve("alpha", alpha)
            self.log("train/alpha", alpha)
