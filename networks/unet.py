"""A U-Net for pictures: scores or embeddings of pixels.   [Scaling §6; Ronneberger et al. 2015]

Shapes: B pictures, C channels, H x W pixels, M labels, D features.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from networks.fcn import pixels
from networks.sizes import at_least


class UNet(nn.Module):
    """Blocks of two convolutions 3x3, each with batch norm and ReLU, at 1, 1/2, 1/4, ... of the size.

    On the way down a block follows each max-pooling; on the way up the coarser map is enlarged bilinearly and
    joined with the finer one. A last 1x1 layer gives `num_outputs` numbers a pixel: scores of labels, or
    features of any sign. Without it, the features of the finest block are returned, none of them negative.

    Shapes:
        x: (B, C, H, W), bytes or floats.   returns: (B, H, W, M); (B, H, W) with one output, the logits of a
        mask; (B, H, W, D) without a last layer, with D = widths[0].

    Raises:
        ValueError: a side is no multiple of 2 to the number of poolings.
    """

    def __init__(
        self, num_outputs: int | None = 2, channels: int = 3, widths: Sequence[int] = (16, 32, 64, 128)
    ) -> None:
        super().__init__()
        at_least(1, channels=channels, num_outputs=1 if num_outputs is None else num_outputs)
        at_least(1, widths=len(widths), **{f"widths.{place}": width for place, width in enumerate(widths)})
        self.down = nn.ModuleList(
            [block(before, after) for before, after in zip((channels, *widths), widths, strict=False)]
        )
        self.up = nn.ModuleList([block(fine + coarse, fine) for fine, coarse in pairwise(widths)])
        self.last = None if num_outputs is None else nn.Conv2d(widths[0], num_outputs, 1)

    def forward(self, x: Shaped[Tensor, "B C H W"]) -> Float[Tensor, "B H W *M"]:
        unit = 2 ** len(self.up)
        if x.shape[-2] % unit or x.shape[-1] % unit:
            raise ValueError(
                f"pictures of {x.shape[-2]} x {x.shape[-1]} pixels: a U-Net of {len(self.down)} scales takes "
                f"sides that are multiples of {unit}. Resize them (--data.size), or take fewer widths."
            )
        h, scales = pixels(x), []
        for i, down in enumerate(self.down):
            h = down(F.max_pool2d(h, 2) if i else h)
            scales.append(h)
        for up, fine in zip(reversed(self.up), reversed(scales[:-1]), strict=True):
            larger = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)
            h = up(torch.cat([fine, larger], 1))
        found = (h if self.last is None else self.last(h)).movedim(1, -1)
        return found.squeeze(-1) if self.last is not None else found


def block(before: int, after: int) -> nn.Sequential:
    """Two convolutions, each with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)
