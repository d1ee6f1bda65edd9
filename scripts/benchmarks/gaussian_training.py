"""An epoch of training a Gaussian field on pictures, against an epoch of its two U-Nets alone.

    python -m scripts.benchmarks.gaussian_training

The U-Nets alone have the same passes: the unary network learns by cross-entropy, and the embeddings enter its
scores times 0, so their network is differentiated too. Random pictures of 32 x 32 and 64 x 64 pixels, batches
of four, CPU time, one thread.
"""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from datamodules.batches import Batches
from energies.gaussian import GaussianEnergy
from energies.scaling import Offline, Online
from energies.spaces import PixelMasks
from experiments.run.cli import quiet_lightning
from inference.gaussian.criteria import CrossEntropy as FieldCrossEntropy
from lightning_modules.crf_joint import CRFJoint
from lightning_modules.crf_scaled import CRFScaled
from lightning_modules.cross_entropy import CrossEntropy
from lightning_modules.metrics.masks import MaskScores
from networks.unet import UNet
from scripts.options import alone
from scripts.peers.bare import trainer
from scripts.peers.timing import show, side_by_side

SIDES, FEATURES = (32, 64), 16
PICTURES = 24
SEARCHED = 100 / 222  # of the training pictures of four folds


class Alone(nn.Module):
    """The logits of the unary network; the embeddings are computed and count nothing."""

    def __init__(self, unary: nn.Module, embedding: nn.Module) -> None:
        super().__init__()
        self.unary, self.embedding = unary, embedding

    def forward(self, x: Tensor) -> Tensor:
        scores = self.unary(x)
        return scores[..., 1] - scores[..., 0] + 0 * self.embedding(x).sum(-1)


def pictures(side: int) -> Batches:
    """Random pictures with random masks."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (PICTURES, 3, side, side), generator=draw, dtype=torch.uint8)
    y = (torch.rand(PICTURES, side, side, generator=draw) < 0.25).float()
    return Batches(x, y, batch_size=4, seed=0)


def epochs(side: int) -> dict[str, float]:
    """Microseconds an epoch of the U-Nets alone and of each way to train the field."""
    adam, data = partial(torch.optim.Adam, lr=1e-3, fused=True), pictures(side)

    def common() -> dict[str, Any]:
        return {"space": PixelMasks(), "metric": MaskScores(), "clip_norm": None}

    def nets() -> tuple[UNet, UNet]:
        torch.manual_seed(0)
        return UNet(), UNet(FEATURES)

    def alone() -> None:
        trainer().fit(CrossEntropy(Alone(*nets()), adam, **common()), data)

    def joint() -> None:
        trainer().fit(CRFJoint(GaussianEnergy(*nets()), FieldCrossEntropy(), adam, **common()), data)

    def offline() -> None:
        energy, scaling = GaussianEnergy(*nets()), Offline(4.0)
        trainer().fit(CRFScaled(energy, FieldCrossEntropy(), scaling, adam, **common()), data)

    online = Online(subset=round(SEARCHED * PICTURES))
    scaled = CRFScaled(GaussianEnergy(*nets()), FieldCrossEntropy(), online, adam, **common())
    trainer().fit(scaled, data)
    calls: dict[str, Callable[[], object]] = {
        "its U-Nets alone": alone,
        "joint": joint,
        "offline": offline,
        "search of alpha": partial(scaled.choose_alpha, data),
    }
    return side_by_side(calls, repeats=1)


def main() -> None:
    """Time, print."""
    quiet_lightning()
    warnings.filterwarnings("ignore")
    found = {f"{side}x{side}": epochs(side) for side in SIDES}
    show("one epoch of a Gaussian field", found, "its U-Nets alone")


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
