"""Data augmentation of training batches: crops and flips of pictures and their masks.

Shapes: B examples, inputs (B, ..., H, W), answers (B, H, W), h x w pixels of a crop.
"""

from dataclasses import replace

import torch
from torch import Tensor

from datamodules.batches import Batch, Transform
from networks.sizes import at_least


class RandomCrop(Transform):
    """A window of h x w pixels, at a random position in each picture."""

    num_draws = 2

    def __init__(self, height: int, width: int) -> None:
        at_least(1, height=height, width=width)
        self.height, self.width = height, width

    def __call__(self, batch: Batch, draws: Tensor) -> Batch:
        room = [
            whole - part for whole, part in zip(batch.y.shape[-2:], (self.height, self.width), strict=True)
        ]
        if min(room) < 0:
            raise ValueError(
                f"a crop of {self.height} x {self.width} does not fit into pictures of "
                f"{batch.y.shape[-2]} x {batch.y.shape[-1]}: take a smaller one."
            )
        corners = (draws * (torch.tensor(room) + 1)).long().tolist()

        def cropped(pictures: Tensor) -> Tensor:
            windows = [
                picture[..., top : top + self.height, left : left + self.width]
                for picture, (top, left) in zip(pictures, corners, strict=True)
            ]
            return torch.stack(windows)

        return replace(batch, inputs=cropped(batch.inputs), y=cropped(batch.y))


class HorizontalFlip(Transform):
    """Mirror each picture with probability 1/2."""

    num_draws = 1

    def __call__(self, batch: Batch, draws: Tensor) -> Batch:
        turned = draws[:, 0] < 0.5

        def flipped(pictures: Tensor) -> Tensor:
            which = turned.to(pictures.device).view(-1, *[1] * (pictures.dim() - 1))
            return torch.where(which, pictures.flip(-1), pictures)

        return replace(batch, inputs=flipped(batch.inputs), y=flipped(batch.y))


def middle(pictures: Tensor, size: int) -> Tensor:
    """The middle window of pictures (..., H, W), (..., size, size)."""
    top, left = ((side - size) // 2 for side in pictures.shape[-2:])
    return pictures[..., top : top + size, left : left + size]
