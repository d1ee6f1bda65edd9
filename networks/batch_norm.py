"""Batch norm at rest, where one example's numbers may not depend on the others of its batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """All batch norms within a module."""
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


@contextmanager
def at_rest(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Within, these use their running statistics and leave them as they are; afterwards all is as before."""
    learning = [norm for norm in norms if norm.training]
    for norm in learning:
        norm.eval()
    try:
        yield
    finally:
        for norm in learning:
            norm.train()
