"""Scores of predicted masks.

Shapes: B pictures, H x W pixels.
"""

from base64 import b64encode
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

EXAMPLES = 8  # pictures whose answers are kept
MOST_PIXELS = EXAMPLES * 64 * 64  # of all kept answers; of larger pictures fewer are kept


class MaskScores(Metric):
    """Intersection over union of the object, and what is published beside it.

    - iou: of the object, hard masks, of each picture, averaged over pictures. Selects models.
    - class_iou: the mean of the object's and the background's, of each picture, averaged over pictures.
    - pixel_accuracy: the share of right pixels, over all pictures.
    - soft_iou: sum of minima over sum of maxima of the soft masks, averaged over pictures.

    A pixel is the object's where its probability reaches 1/2. Where neither mask has a pixel of a class, its
    IoU is 1. The first hard masks are kept, so that a figure of them needs no new run: see `examples`.
    """

    full_state_update = False
    sums: Tensor
    pictures: Tensor
    pixels: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(4, dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("pictures", "pixels"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        self._kept: list[tuple[Tensor, Tensor]] = []  # hard masks (H, W) and their IoU

    def update(self, probability: Tensor, y: Tensor) -> None:
        """Add a batch: soft masks and true masks, (B, H, W)."""
        soft, true = probability.flatten(1), y.flatten(1)
        found, real = soft >= 0.5, true >= 0.5
        iou, background = _ratio(found & real, found | real), _ratio(~found & ~real, ~found | ~real)
        room = min(EXAMPLES, MOST_PIXELS // found.shape[1]) - len(self._kept)
        self._kept += zip(found[: max(0, room)].view(-1, *y.shape[1:]), iou, strict=False)
        scores = (
            iou.sum(),
            (iou + background).sum() / 2,
            (found == real).sum(),
            _ratio(torch.minimum(soft, true), torch.maximum(soft, true)).sum(),
        )
        self.sums += torch.stack([score.double() for score in scores])
        self.pictures += len(y)
        self.pixels += y.numel()

    def examples(self) -> dict[str, Any]:
        """The first masks, if any: the bits of all, row by row, packed and in base64; the IoU of each."""
        if not self._kept:
            return {}
        masks = torch.stack([mask for mask, _ in self._kept]).cpu().numpy()
        return {
            "height": masks.shape[1],
            "width": masks.shape[2],
            "iou": [round(float(iou), 4) for _, iou in self._kept],
            "bits": b64encode(np.packbits(masks).tobytes()).decode(),
        }

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._kept = []

    def compute(self) -> dict[str, Tensor]:
        """All four, in [0, 1]."""
        iou, class_iou, right, soft = self.sums
        count = self.pictures.clamp_min(1)
        return {
            "iou": (iou / count).float(),
            "class_iou": (class_iou / count).float(),
            "pixel_accuracy": (right / self.pixels.clamp_min(1)).float(),
            "soft_iou": (soft / count).float(),
        }


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Of each row, 1 where the whole is empty."""
    size = whole.sum(1)
    return torch.where(size > 0, part.sum(1) / size, 1.0)
