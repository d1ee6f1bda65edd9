"""What networks are built of: features, and layers that differ in training, with how they are put at rest.

With batch norm at rest one example's numbers do not depend on the others of its batch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Features(nn.Module):
    """A network with an output of `size` features in the last dimension; it is the input of others."""

    size: int


class Dropout(nn.Dropout):
    """Dropout as torch's; on the CPU its masks are those of `nn.Dropout` on AMD, bit by bit.

    There torch draws entry by entry what is drawn and compared here at once, in 0.6 of the time: some 8 % of
    a step of a BiLSTM. On Intel torch draws other masks, by MKL; this class draws the same on both.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or x.device.type != "cpu":
            return super().forward(x)
        keep = 1 - self.p
        with torch.no_grad():
            mask = (torch.rand_like(x, dtype=torch.float64) < keep).to(x.dtype).div_(keep)
        return x * mask


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """All batch norms within a module."""
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


def dropouts(module: nn.Module) -> list[nn.Module]:
    """All dropout within a module."""
    return [layer for layer in module.modules() if isinstance(layer, nn.Dropout)]


@contextmanager
def at_rest(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Within, these are as in evaluation: dropout does nothing, batch norm has its running statistics.

    Afterwards all is as before.
    """
    learning = [layer for layer in layers if layer.training]
    for layer in learning:
        layer.eval()
    try:
        yield
    finally:
        for layer in learning:
            layer.train()
