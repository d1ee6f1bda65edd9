"""A small encoder and decoder with skip connections, for pictures.   [spec of Implicit's horses]

Shapes: B pictures, C channels, H x W pixels.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from networks.fcn import pixels
from networks.sizes import at_least


class EncoderDecoder(nn.Module):
    """A logit for each pixel; no batch norm, so derivatives of any order are those of one picture.

    Three convolutions 3x3 with stride 2 lead down to 1/8 of the size. On the way up the coarser map is
    enlarged bilinearly to twice its size, joined with the map of that size, at last with the picture itself,
    and convolved 3x3. All have `width` channels and ReLU. A last 1x1 layer gives the logit.
    [Implicit, horses: the encoder is that of cGLOW's conditioning network]

    Shapes:
        x: (B, C, H, W), bytes or floats, H and W multiples of 8.   returns: (B, H, W).

    Raises:
        ValueError: a side is no multiple of 8.
    """

    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        at_least(1, channels=channels, width=width)
        self.down = nn.ModuleList(
            [nn.Conv2d(before, width, 3, stride=2, padding=1) for before in (channels, width, width)]
        )
        self.up = nn.ModuleList(
            [nn.Conv2d(width + fine, width, 3, padding=1) for fine in (width, width, channels)]
        )
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x: Shaped[Tensor, "B C H W"]) -> Float[Tensor, "B H W"]:
        if x.shape[-2] % 8 or x.shape[-1] % 8:
            raise ValueError(
                f"pictures of {x.shape[-2]} x {x.shape[-1]} pixels: this network takes sides that are "
                "multiples of 8. Resize or crop them."
            )
        h, scales = pixels(x), []
        for down in self.down:
            scales.append(h)
            h = F.relu(down(h))
        for up, fine in zip(self.up, reversed(scales), strict=True):
            larger = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)
            h = F.relu(up(torch.cat([larger, fine], 1)))
        return self.last(h).squeeze(1)
