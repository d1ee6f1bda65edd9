"""Fully convolutional networks for pictures.

Shapes: B pictures, C channels, H x W pixels.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

OFFSETS = (0, 2, 3, 4, 6, 8)  # [SEAL code]


def pixels(x: Shaped[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
    """Bytes as numbers from 0 to 1; floats as they are."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


class FCN(nn.Module):
    """A logit for each pixel, from three scales.   [SEAL code, horses; spec of the task-net]

    Convolutions 5x5 to `width`, 2 `width` and 2 `width` channels, the last two with stride 2, each with ReLU;
    a 1x1 layer to two channels, background and object, after each of them; the coarser scores are added to
    the finer ones, up by transposed convolutions. The logit is the difference of the two channels, so its
    sigmoid is their softmax.

    Shapes:
        x: (B, 3, H, W), bytes or floats, H and W multiples of 4.   returns: (B, H, W).

    Raises:
        ValueError: a side is no multiple of 4.
    """

    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [
                nn.Conv2d(channels, width, 5, padding=2),
                nn.Conv2d(width, 2 * width, 5, stride=2, padding=2),
                nn.Conv2d(2 * width, 2 * width, 5, stride=2, padding=2),
            ]
        )
        self.score = nn.ModuleList([nn.Conv2d(wide, 2, 1) for wide in (width, 2 * width, 2 * width)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(2, 2, 4, stride=2, padding=1, bias=False) for _ in "12"])

    def forward(self, x: Shaped[Tensor, "B C H W"]) -> Float[Tensor, "B H W"]:
        if x.shape[-2] % 4 or x.shape[-1] % 4:
            raise ValueError(
                f"pictures of {x.shape[-2]} x {x.shape[-1]} pixels: this network takes sides that are "
                "multiples of 4. Resize or crop them."
            )
        h, scales = pixels(x), []
        for down, score in zip(self.down, self.score, strict=True):
            h = F.relu(down(h))
            scales.append(score(h))
        first, second, third = scales
        both = first + self.up[1](second + self.up[0](third))
        return both[:, 1] - both[:, 0]


class AveragedCrops(nn.Module):
    """The mean of a network's soft masks over windows of a picture, where a picture is larger than a window.

    A network that learns from random crops answers whole pictures so. Windows of `size` x `size` pixels stand
    at all pairs of `offsets`; each pixel's probability is the mean over the windows that cover it.
    [SEAL code; DVN: 36 crops]

    Shapes:
        x: (B, C, H, W).   returns: logits (B, H, W).

    Raises:
        ValueError: the windows leave pixels of the picture uncovered, or reach beyond it.
    """

    def __init__(self, net: nn.Module, size: int = 24, offsets: Sequence[int] = OFFSETS) -> None:
        super().__init__()
        self.net, self.size, self.offsets = net, size, tuple(offsets)

    def forward(self, x: Shaped[Tensor, "B C H W"]) -> Float[Tensor, "B H W"]:
        height, width = x.shape[-2:]
        if (height, width) == (self.size, self.size):
            return self.net(x)
        for side in (height, width):
            self._check(side)
        places = [(top, left) for top in self.offsets for left in self.offsets]
        windows = torch.cat([x[..., t : t + self.size, left : left + self.size] for t, left in places])
        found = self.net(windows).sigmoid().unflatten(0, (len(places), -1))
        total, count = found.new_zeros(len(x), height, width), found.new_zeros(height, width)
        for (top, left), window in zip(places, found, strict=True):
            rows, columns = slice(top, top + self.size), slice(left, left + self.size)
            total[:, rows, columns] += window
            count[rows, columns] += 1
        return (total / count).logit(eps=1e-6)

    def _check(self, side: int) -> None:
        steps = sorted(self.offsets)
        gaps = any(b - a > self.size for a, b in pairwise(steps))
        if steps[0] != 0 or gaps or steps[-1] + self.size != side:
            raise ValueError(
                f"windows of {self.size} pixels at {list(self.offsets)} do not cover a side of {side} pixels "
                "exactly: choose other offsets."
            )
