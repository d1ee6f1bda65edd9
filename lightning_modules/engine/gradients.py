"""Gradients that no backward pass has put into their parameters."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def set_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """Give each parameter its gradient, laid out in memory as the parameter is.

    Fused optimizers read both in the order of memory. A gradient in another order, such as that of a
    convolution with its channels last, would move the wrong weights, without an error.
    """
    for p, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and gradient.stride() != p.stride():
            gradient = torch.empty_like(p).copy_(gradient)
        p.grad = gradient
