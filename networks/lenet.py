"""A convolutional network for handwritten letters.

Shapes: B words, T positions, S letters of the alphabet, N real letters of a batch.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from networks.inputs import Sequences
from networks.sizes import at_least

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "sigmoid": torch.sigmoid}


class LeNet(nn.Module):
    """A score for each letter of the alphabet at each position of a word.   [Scaling §6]

    Each 16 x 8 picture is padded with zeros to 32 x 32. The layers are: conv 5x5 to 10 channels, ReLU,
    maxpool 2, conv 5x5 to 20, ReLU, maxpool 2, linear 500 to 140, `last` activation, linear to S.

    The padding is constant, so the first layer is computed only where the picture reaches, and is the ReLU of
    its bias elsewhere. The second layer is applied to the difference from that constant. The result equals
    that of the padded picture at half the cost.

    Shapes:
        x: pixels (B, T, 16, 8).   returns: (B, T, S), 0 where padded.
    """

    def __init__(self, num_tags: int = 26, last: Literal["relu", "sigmoid"] = "relu") -> None:
        super().__init__()
        at_least(1, num_tags=num_tags)
        self.first, self.second = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.hidden, self.output = nn.Linear(500, 140), nn.Linear(140, num_tags)
        self.last = ACTIVATIONS[last]

    def forward(self, x: Sequences) -> Float[Tensor, "B T S"]:
        real = x.mask
        scores = self.output(self.last(self.hidden(self._features(x.values[real]))))
        return scores.new_zeros(*real.shape, scores.shape[-1]).index_put((real,), scores)

    def _features(self, pictures: Tensor) -> Tensor:
        """(N, 16, 8) to (N, 500)."""
        near = F.pad(pictures.to(self.first.weight.dtype), (4, 4, 4, 4)).unsqueeze(1)
        seen = self.first(near).contiguous(memory_format=torch.channels_last)  # pools faster so
        first = F.max_pool2d(seen, 2).relu()  # rows 2-11, columns 4-9 of the 14 x 14
        assert self.first.bias is not None and self.second.bias is not None
        around = self.first.bias.relu()
        difference = F.pad(first - around.view(1, -1, 1, 1), (4, 4, 2, 2))
        bias = self.second.bias + self.second.weight.sum((2, 3)) @ around
        second = F.conv2d(difference.contiguous(memory_format=torch.channels_last), self.second.weight)
        return (F.max_pool2d(second, 2) + bias.view(1, -1, 1, 1)).relu().flatten(1)
