"""One encoder instead of two: the energy reads a copy of the task-net's, without gradient."""

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from networks.transformer import Encoder


class StopGradientCopy(Callback):
    """Keep the encoders of one part equal to those of another; they do not train.   [Implicit: open choice]

    Weights are copied when training starts and after each batch. What a part adds to its encoder trains as
    before, and a checkpoint of the part holds the copy. Without this callback each part trains its own
    encoder, as the papers have it.

    Args:
        source: the part whose encoder trains.
        target: the part that reads the copy.

    Raises:
        ValueError: the parts have no encoders, or other ones.
    """

    def __init__(self, source: str = "task_net", target: str = "energy") -> None:
        self.source, self.target = source, target
        self.weights: tuple[list[Tensor], list[Tensor]] = ([], [])  # of the copy, and what it copies

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Freeze the copy; this precedes the optimizers."""
        pairs = self._pairs(pl_module)
        for _, copy in pairs:
            copy.requires_grad_(False)
        self.weights = (
            [p for _, copy in pairs for p in copy.parameters()],
            [p for own, _ in pairs for p in own.parameters()],
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Copy; a resumed run has equal weights already."""
        self._copy()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Copy what the batch has changed."""
        self._copy()

    @torch.no_grad()
    def _copy(self) -> None:
        if self.weights[0]:  # frozen encoders have none
            torch._foreach_copy_(*self.weights)

    def _pairs(self, module: LightningModule) -> list[tuple[Encoder, Encoder]]:
        """The encoders of both parts."""
        own, copies = (encoders(getattr(module, part, None)) for part in (self.source, self.target))
        if not own or len(own) != len(copies) or any(map(_differ, own, copies)):
            raise ValueError(
                f"StopGradientCopy copies the encoders of {self.source} to those of {self.target}: give both "
                "the same networks.transformer.Encoder, with the same settings."
            )
        return [*zip(own, copies, strict=True)]


def encoders(part: nn.Module | None) -> list[Encoder]:
    """The encoders within a part."""
    return [] if part is None else [one for one in part.modules() if isinstance(one, Encoder)]


def _differ(one: Encoder, other: Encoder) -> bool:
    first, second = ([(name, p.shape) for name, p in net.named_parameters()] for net in (one, other))
    return first != second or one.encoder != other.encoder
