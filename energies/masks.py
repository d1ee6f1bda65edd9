"""The energy of a mask on a picture, by a network that reads both.

Shapes: B pictures, C channels, H x W pixels; "..." stands for leading sample dimensions of an answer.
"""

import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from energies.base import ConditionedEnergy, Energy
from networks.fcn import pixels
from networks.inputs import Inputs
from networks.sizes import at_least


class MaskEnergy(Energy):
    """E(x, y) = -net(x, y), a number for a picture and its mask.   [SEAL code, horses; DVN]

    Convolutions 5x5 to `width`, 2 `width` and 2 `width` channels, the last two with stride 2, then layers of
    384 and 192 with dropout between them, and a score; ReLU after each. The mask is a further channel of the
    picture. The first layer is linear, so its part of the picture is computed once for many masks.

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
            nn.Dropout(dropout),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, 1),
        )

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

        def energy(y: Tensor) -> Tensor:
            masks = y.to(of_picture.dtype).reshape(-1, 1, self.size, self.size)
            of_mask = F.conv2d(masks, self.first.weight[:, channels:], padding=2)
            several = of_mask.unflatten(0, (-1, len(of_picture))) + of_picture
            h = F.relu(self.third(F.relu(self.second(F.relu(several.flatten(0, 1))))))
            return -self.head(h.flatten(1)).view(y.shape[:-2])

        return ConditionedEnergy(energy)
