"""A ranking loss on the task-net itself, without a loss-net."""

from typing import Any

from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn

from datamodules.batches import Batch
from lightning_modules.base import Part, TaskNetScheme
from losses.objectives import ranking
from losses.observed import mean
from networks.sizes import at_least


class RankedNet(TaskNetScheme):
    """A task-net ranks the truth among samples of its own by s(x, y) = sum_i log P(y_i | x; Phi).

    [SEAL §5, "a ranking loss directly on F"; eq. 8 with this score]

    The control of SEAL-dynamic NCE that asks whether it gains by its loss-net or by its loss. The score has
    no noise term. With one, s less a constant log P_N = s, the loss would always be log(K + 1), and its
    gradient on average K / (K + 1) of cross-entropy's.

    Raises:
        ValueError: fewer than 1 sample.
    """

    def __init__(
        self, task_net: nn.Module, task_optimizer: OptimizerCallable, *, num_samples: int = 20, **scheme: Any
    ) -> None:
        super().__init__(**scheme)
        at_least(1, num_samples=num_samples)
        self.save_hyperparameters()
        self.task_net, self.task_optimizer, self.num_samples = task_net, task_optimizer, num_samples

    def training_step(self, batch: Batch, index: int) -> None:
        self.move("task", batch)

    def task_loss(self, batch: Batch) -> Tensor:
        """Mean over the batch of the ranking loss; no gradient passes through the samples."""
        logits, space = self.task_net(batch.inputs), self.space.over(batch.mask)
        samples = space.sample(logits.detach(), self.num_samples)
        score = space.log_prob(logits, space.put_first(batch.y, samples))
        return mean(ranking(score[0], score[1:]), batch.observed)

    def parts(self) -> dict[str, Part]:
        learned = self.task_net.parameters()
        return {"task": Part(learned, self.task_optimizer, self.task_loss, **self.main_options)}
