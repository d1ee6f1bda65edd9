"""A tiny scheme and data module that obey the contract of the real ones: the engine's tests train these.

Shapes: B examples, D features, L labels.
"""

import time
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules.batches import Batch, Batches


class ToyNet(nn.Module):
    """One hidden layer."""

    def __init__(self, num_features: int, num_labels: int, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_features, width), nn.ReLU(), nn.Linear(width, num_labels))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def example_f1(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over examples of the F1 of the labels above one half."""
    guess = (logits > 0).float()
    return (2 * (guess * y).sum(-1) / (guess.sum(-1) + y.sum(-1)).clamp_min(1)).mean()


class ToyScheme(LightningModule):
    """Cross-entropy with noise on the input, seeded step by step, so that resuming is exact.

    `diverge_at` makes the loss NaN from that epoch on, `teacher` must be another run's checkpoint, `pause`
    slows each epoch down, so that a test has time to kill it.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerCallable = lambda p: torch.optim.Adam(p, lr=0.01),
        noise: float = 0.1,
        seed: int = 0,
        diverge_at: int | None = None,
        teacher: str | None = None,
        pause: float = 0.0,
    ) -> None:
        super().__init__()
        self.net, self.make_optimizer, self.noise, self.seed = net, optimizer, noise, seed
        self.diverge_at, self.pause = diverge_at, pause
        self.automatic_optimization = False
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        if teacher is not None:
            state = torch.load(teacher, weights_only=True)["state_dict"]
            self.net.load_state_dict({k.removeprefix("net."): v for k, v in state.items() if "net." in k})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make_optimizer(self.net.parameters())

    def training_step(self, batch: Batch, index: int) -> None:
        torch.manual_seed(self.seed * 1_000_003 + int(self.steps))
        self.steps += 1
        optimizer = self.optimizers()
        logits = self.net(batch.inputs + self.noise * torch.randn_like(batch.inputs))
        loss = F.binary_cross_entropy_with_logits(logits, batch.y)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.last = loss.detach()

    def on_train_epoch_end(self) -> None:
        time.sleep(self.pause)
        if self.diverge_at is not None and self.current_epoch >= self.diverge_at:
            raise ValueError(f"the loss is NaN in epoch {self.current_epoch}: try a smaller learning rate")
        self.log("train/task_loss", self.last)

    def validation_step(self, batch: Batch, index: int) -> None:
        self.log("val/example_f1", example_f1(self.net(batch.inputs), batch.y), batch_size=len(batch.inputs))

    def test_step(self, batch: Batch, index: int) -> None:
        self.log("test/example_f1", example_f1(self.net(batch.inputs), batch.y), batch_size=len(batch.inputs))


class ToyData(LightningDataModule):
    """Labels that are noisy linear functions of Gaussian inputs; `absent` names a file that must exist."""

    def __init__(
        self,
        num_features: int = 5,
        num_labels: int = 4,
        batch_size: int = 16,
        num_examples: int = 120,
        seed: int = 0,
        absent: str | None = None,
        folder: str = "data",
    ) -> None:
        super().__init__()
        self.sizes, self.batch_size, self.num_examples = (num_features, num_labels), batch_size, num_examples
        self.seed, self.absent = seed, absent

    def missing(self) -> str | None:
        if self.absent is None or Path(self.absent).exists():
            return None
        return f"{self.absent} is not there. Run:  make data DATASET=toy"

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, index: int) -> Batch:
        return batch

    def setup(self, stage: str) -> None:
        draw = torch.Generator().manual_seed(7)
        features, labels = self.sizes
        x = torch.randn(self.num_examples, features, generator=draw)
        y = (x @ torch.randn(features, labels, generator=draw) > 0).to(torch.uint8)
        third = self.num_examples // 3
        names = ("fit", "val", "test")
        self.parts = dict(zip(names, zip(x.split(third), y.split(third), strict=True), strict=True))

    def train_dataloader(self) -> Batches:
        return Batches(*self.parts["fit"], batch_size=self.batch_size, seed=self.seed)

    def val_dataloader(self) -> Batches:
        return Batches(*self.parts["val"], batch_size=self.batch_size)

    def test_dataloader(self) -> Batches:
        return Batches(*self.parts["test"], batch_size=self.batch_size)
