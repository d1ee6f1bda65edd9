"""How far a task-net follows the energy it learns from."""

from typing import Any

import torch
from pytorch_lightning import Trainer
from torch import Tensor

from datamodules.batches import Batch
from inference.exact import lowest
from lightning_modules.engine.processes import mean_over_processes
from lightning_modules.metrics.energy import EnergyCallback

MEASURES = ("agreement", "excess", "relaxed_excess", "alignment", "confidence")


class Following(EnergyCallback):
    """Compares the task-net's answer with the lowest answer y* of the energy, a linear chain.

    With q the relaxed answer and d its decoded one, means over positions:

    - `agreement`: the share at which d is y*.
    - `excess`: E(d) - E(y*), and `relaxed_excess`: E(q) - E(y*). The score of a chain is linear in each
      position, so no relaxed answer is below y*: both are 0 or more.
    - `alignment`: the cosine of the gradients of E(q) and of cross-entropy in the logits, a mean over
      examples. Below 0 the two disagree.
    - `confidence`: the largest probability of q. Both gradients vanish where it is 1.

    Logged as `val/follow_...` and `test/follow_...`; after the test also of the training examples, as
    `test/follow_train_...`.

    Raises:
        ValueError: the scheme has no energy; on validation, if its energy is not a chain.
    """

    sums: Tensor

    def begin(self, scheme: Any) -> None:  # noqa: ANN401
        """Empty sums: one of each measure, then examples and positions."""
        self.sums = torch.zeros(len(MEASURES) + 2, dtype=torch.float64, device=scheme.device)

    def add(self, scheme: Any, batch: Batch) -> None:  # noqa: ANN401
        assert batch.mask is not None, "a chain's answers have positions"
        energy = scheme.model_energy().over(batch.mask).given(batch.inputs)
        space = scheme.space.over(batch.mask)
        q, best = scheme.predict(batch), lowest(energy)
        decoded = space.decode(q)
        least, (value, slope) = energy(best), energy.value_and_gradient(q)
        of_energy = (q * (slope - (slope * q).sum(-1, keepdim=True))).flatten(1)
        rows = (
            (decoded * best).sum((1, 2)),
            energy(decoded) - least,
            value - least,
            torch.cosine_similarity(of_energy, (q - batch.y).flatten(1)),
            q.amax(-1).sum(1),
        )
        counts = torch.stack([batch.y.new_tensor(len(batch.y)), batch.mask.sum()])
        self.sums += torch.cat([torch.stack([row.sum() for row in rows]), counts])

    def found(self, stage: str) -> dict[str, Any]:
        *sums, examples, positions = self.sums.tolist()
        counts = (examples if name == "alignment" else positions for name in MEASURES)
        return {f"{stage}/follow_{name}": s / n for name, s, n in zip(MEASURES, sums, counts, strict=True)}

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:  # noqa: ANN401
        """Log the means of the test examples, and those of the training examples."""
        super().on_test_epoch_end(trainer, pl_module)
        self.begin(pl_module)
        for batch in trainer.datamodule.train_dataloader():  # type: ignore[attr-defined]
            self.add(pl_module, batch)
        (self.sums,) = mean_over_processes([self.sums])  # each has a part of the training examples
        found = self.found("test")
        pl_module.log_dict({name.replace("follow", "follow_train"): value for name, value in found.items()})
