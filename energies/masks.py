"""Energies of a mask on a picture: of each pixel on its own, and by a network that reads both.

Shapes: B pictures, C channels, H x W pixels; "..." stands for leading sample dimensions of an answer.
"""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from energies.base import ConditionedEnergy, Energy, linear
from energies.free_memory import free_bytes
from networks.fcn import pixels
from networks.inputs import Inputs
from networks.layers import Dropout
from networks.sizes import at_least

SHARE = 0.5  # of the free memory that the masks of one call may take


class PixelEnergy(Energy):
    """Each pixel on its own: E(x, y) = - sum_i y_i net(x)_i.   [Implicit, horses]

    `net` maps a picture to a potential for each pixel, (B, H, W).

    Shapes:
        x: (B, C, H, W).   y: (..., B, H, W).   returns: (..., B).
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Inputs, y: Shaped[Tensor, "... B H W"]) -> Float[Tensor, "... B"]:
        return self.given(x)(y)

    def given(self, x: Inputs) -> ConditionedEnergy:
        """The potentials are computed once; dE/dy = -net(x)."""
        return linear(
            self.net(x), lambda scores, y: torch.einsum("bhw,...bhw->...b", scores, y.to(scores.dtype))
        )


class MaskEnergy(Energy):
    """E(x, y) = -net(x, y), a number for a picture and its mask.   [SEAL code, horses; DVN]

    Convolutions 5x5 to `width`, 2 `width` and 2 `width` channels, the last two with stride 2, then layers of
    384 and 192 with dropout between them, and a score; ReLU after each. The mask is a further channel of the
    picture. The first layer is linear, so its part of the picture is computed once for many masks.

    Many masks go through the convolutions in chunks, if memory is short. The backward pass computes a chunk
    again instead of keeping it. Values, gradients and dropout do not depend on the size of a chunk.

    Shapes:
        x: (B, C, H, W), bytes or floats, H = W = `size`.   y: (..., B, H, W).   returns: (..., B).

    Raises:
        ValueError: pictures of another size.
    """

    def __init__(self, size: int = 24, channels: int = 3, width: int = 64, dropout: float = 0.25) -> None:
        super().__init__()
        at_least(1, size=size, channels=channels, width=width)
        self.size = size
        self.first = nn.Conv2d(channels + 1, width, 5, padding=2)
        self.second = nn.Conv2d(width, 2 * width, 5, stride=2, padding=2)
        self.third = nn.Conv2d(2 * width, 2 * width, 5, stride=2, padding=2)
        side = -(-size // 4)
        self.head = nn.Sequential(
            nn.Linear(2 * width * side * side, 384),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, 1),
        )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a tenth faster on a CPU

    def forward(self, x: Inputs, y: Shaped[Tensor, "... B H W"]) -> Float[Tensor, "... B"]:
        return self.given(x)(y)

    def given(self, x: Inputs) -> ConditionedEnergy:
        """The picture's part of the first layer is computed once."""
        assert isinstance(x, Tensor)
        if x.shape[-2:] != (self.size, self.size):
            raise ValueError(
                f"pictures of {x.shape[-2]} x {x.shape[-1]} pixels: this energy reads {self.size} x "
                f"{self.size}. Crop them (datamodules.transforms.RandomCrop), or set `size`."
            )
        channels = x.shape[1]
        of_picture = F.conv2d(pixels(x), self.first.weight[:, :channels], self.first.bias, padding=2)

        def convolved(masks: Tensor) -> Tensor:
            """Features (K, B, F) of masks (K, B, H, W)."""
            of_mask = F.conv2d(masks.flatten(0, 1).unsqueeze(1), self.first.weight[:, channels:], padding=2)
            several = of_mask.unflatten(0, masks.shape[:2]) + of_picture
            h = F.relu(self.third(F.relu(self.second(F.relu(several.flatten(0, 1))))))
            return h.flatten(1).unflatten(0, masks.shape[:2])

        def energy(y: Tensor) -> Tensor:
            chunks = self._chunks(y.to(of_picture.dtype).reshape(-1, *of_picture.shape[:1], *y.shape[-2:]))
            if len(chunks) == 1:
                features = convolved(chunks[0])
            else:
                again = partial(checkpoint, convolved, use_reentrant=False, preserve_rng_state=False)
                features = torch.cat([again(masks) for masks in chunks])
            return -self.head(features).view(y.shape[:-2])

        return ConditionedEnergy(energy)

    def _chunks(self, masks: Tensor) -> tuple[Tensor, ...]:
        """Masks (K, B, H, W) in parts that leave free what they must; all in one if they fit.

        A mask takes what its convolutions return three times: kept for the backward pass, as its gradient,
        and in passing.
        """
        free = free_bytes(masks.device) if len(masks) > 1 else None
        if free is None:
            return (masks,)
        numbers = 3 * self.first.out_channels * self.size**2 * (1 + 2 / 4 + 2 / 16) * masks.shape[1]
        fit = int(SHARE * free / (numbers * masks.element_size()))
        return masks.split(min(len(masks), max(1, fit)))
