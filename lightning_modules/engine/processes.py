"""Data-parallel training: each process has a share of a step's examples, and gradients are means over all.

Each process computes the gradients of its own examples, in any way its scheme needs. They are averaged here,
so all processes take the same step. DistributedDataParallel would average them during the backward pass, and
that pass has to reach every parameter. Parts that learn in turns on one graph, and gradients made by hand, do
not.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from pytorch_lightning.strategies import Strategy
from torch import Tensor, nn

from lightning_modules.engine.gradients import set_gradients
from networks.layers import batch_norms


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
    """The mean of each tensor over all processes, by one all-reduce."""
    several = world_size()
    if several == 1 or not tensors:
        return list(tensors)
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    torch.distributed.all_reduce(flat)
    parts = flat.div_(several).split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]


def share_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by its mean over all processes; None stays where no process has one."""
    if world_size() == 1:
        return
    here = [p.grad is not None for p in parameters]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    *means, share = mean_over_processes([*gradients, gradients[0].new_tensor(here)])
    known = [one or float(several) > 0 for one, several in zip(here, share, strict=True)]
    set_gradients(parameters, [mean if known[place] else None for place, mean in enumerate(means)])


def share_statistics(module: nn.Module) -> None:
    """Replace the running statistics of each batch norm by their means over all processes."""
    kept = [
        value
        for norm in batch_norms(module)
        for value in (norm.running_mean, norm.running_var)
        if value is not None
    ]
    for value, mean in zip(kept, mean_over_processes(kept), strict=True):
        value.copy_(mean)
