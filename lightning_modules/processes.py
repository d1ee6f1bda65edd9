"""Several processes as one: each has its share of a step's examples, and gradients are those of all.

A replica computes gradients by itself, in whatever way its scheme asks for, and shares them here, so all
take the same step. DistributedDataParallel would share them while a backward pass runs, and takes only passes
that reach every parameter of the graph: parts that learn in turns on one graph, and gradients made by hand,
are none of these.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from pytorch_lightning.strategies import Strategy
from torch import Tensor, nn


def world_size() -> int:
    """How many processes train together."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def unshared(strategy: Strategy) -> AbstractContextManager[None]:
    """A backward pass whose gradients stay in this process."""
    return getattr(strategy, "block_backward_sync", nullcontext)()


def over_processes(loss: Tensor, *, summed: bool) -> Tensor:
    """A loss of this process's examples such that its mean over processes is the loss of all examples."""
    several = world_size()
    return several * loss if summed and several > 1 else loss


def mean_over_processes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The mean of each tensor over all processes, by one exchange for all of them."""
    several = world_size()
    if several == 1 or not tensors:
        return list(tensors)
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    torch.distributed.all_reduce(flat)
    parts = flat.div_(several).split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]


def share_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Put the mean over all processes in the place of each gradient; None stays where no process has one."""
    if world_size() == 1:
        return
    here = [p.grad is not None for p in parameters]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    *means, share = mean_over_processes([*gradients, gradients[0].new_tensor(here)])
    for place, (p, mean) in enumerate(zip(parameters, means, strict=True)):
        p.grad = mean if here[place] or share[place] > 0 else None
