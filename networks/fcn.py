"""Fully convolutional networks for pictures.

Shapes: B pictures, C channels, H x W pixels.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from networks.sizes import at_least

OFFSETS = (0, 2, 3, 4, 6, 8)  # [SEAL code]


def pixels(x: Shaped[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
    """Bytes as numbers from 0 to 1; floats as they are."""
    return x.to(torch.get_default_dtype()) / 255 if x.dtype == torch.uint8 else x


class FCN(nn.Module):
    """A logit for each pixel, from three scales.   [SEAL code, horses; spec of the task-net]

    Convolutions 5x5 to `width`, 2 `width` and 2 `width` channels, the last two with stride 2, each with ReLU;
    a 1x1 layer to two channels, background and object, after each of them; the coarser scores are added to
    the finer ones, up by transposed convolutions. The logit is the difference of the two channels, so its
    sigmoid is their softmax.

    Shapes:
        x: (B, C, H, W), bytes or floats, H and W multiples of 4.   returns: (B, H, W).

    Raises:
        ValueError: a side is no multiple of 4.
    """

    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        at_least(1, channels=channels, width=width)
        self.down = nn.ModuleList(
            [
                nn.Conv2d(channels, width, 5, padding=2),
                nn.Conv2d(width, 2 * width, 5, stride=2, padding=2),
                nn.Conv2d(2 * width, 2 * width, 5, stride=2, padding=2),
            ]
        )
        self.score = nn.ModuleList([nn.Conv2d(wide, 2, 1) for wide in (width, 2 * width, 2 * width)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(2, 2, 4, stride=2, padding=1, bias=False) for _ in "12"])
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a fifth faster on a CPU

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


class Windows:
    """Windows of `size` x `size` pixels at all pairs of `offsets`; a picture of their size is one window.

    [SEAL code; DVN: 36 crops]
    """

    def __init__(self, size: int = 24, offsets: Sequence[int] = OFFSETS) -> None:
        at_least(1, size=size)
        self.size, self.offsets = size, tuple(offsets)

    def whole(self, x: Tensor) -> bool:
        """Whether pictures (..., H, W) have the size of a window."""
        return x.shape[-2:] == (self.size, self.size)

    def cut(self, *pictures: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """The same window (B, ..., s, s) of each argument (B, ..., H, W), one window after the other.

        Raises:
            ValueError: the windows leave pixels of the picture uncovered, or reach beyond it.
        """
        for top, left in self._corners(pictures[0]):
            yield tuple(x[..., top : top + self.size, left : left + self.size] for x in pictures)

    def mean(self, masks: Iterable[Tensor], like: Tensor) -> Tensor:
        """Soft masks (B, s, s), in the order of `cut`, to (B, H, W): each pixel's mean over its windows.

        `like` are the pictures (..., H, W) that were cut.
        """
        height, width = like.shape[-2:]
        total = cover = torch.zeros(height, width, device=like.device)
        for (top, left), mask in zip(self._corners(like), masks, strict=True):
            around = (left, width - self.size - left, top, height - self.size - top)
            total, cover = total + F.pad(mask, around), cover + F.pad(torch.ones_like(mask[0]), around)
        return total / cover

    def _corners(self, x: Tensor) -> list[tuple[int, int]]:
        if self.whole(x):
            return [(0, 0)]
        steps = sorted(self.offsets)
        gaps = any(b - a > self.size for a, b in pairwise(steps))
        for side in x.shape[-2:]:
            if steps[:1] != [0] or gaps or steps[-1] + self.size != side:
                raise ValueError(
                    f"windows of {self.size} pixels at {list(self.offsets)} do not cover a side of {side} "
                    "pixels exactly: choose other offsets."
                )
        return [*product(self.offsets, self.offsets)]


class AveragedCrops(nn.Module):
    """The mean of a network's soft masks over windows of a picture, where a picture is larger than a window.

    A network that learns from random crops answers whole pictures so.   [SEAL code; DVN: 36 crops]

    Shapes:
        x: (B, C, H, W).   returns: logits (B, H, W).

    Raises:
        ValueError: the windows leave pixels of the picture uncovered, or reach beyond it.
    """

    def __init__(self, net: nn.Module, size: int = 24, offsets: Sequence[int] = OFFSETS) -> None:
        super().__init__()
        self.net, self.windows = net, Windows(size, offsets)

    def forward(self, x: Shaped[Tensor, "B C H W"]) -> Float[Tensor, "B H W"]:
        if self.windows.whole(x):
            return self.net(x)
        soft = (self.net(window).sigmoid() for (window,) in self.windows.cut(x))
        return self.windows.mean(soft, like=x).logit(eps=1e-6)
