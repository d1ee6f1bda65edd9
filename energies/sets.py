"""Sums over the labels of a set, for sets given in full or by what is in them.

A relaxed set is float and multiplied as it is. A discrete set is bool and mostly empty: on the CPU only its
labels are looked up, unless they are many. `python -m scripts.benchmark_training` shows what that is worth.

Shapes: B examples, L labels, G values per label; sets are (..., B, L).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

MANY = 1 / 12  # share of members above which multiplying is faster

_MEMBERS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def sum_rows(table: Float[Tensor, "L G"], y: Tensor) -> Float[Tensor, "... B G"]:
    """For each set the sum of its labels' rows, weighted by membership: y @ table."""
    found = _members(y)
    if found is None:
        return y.to(table.dtype) @ table
    members, offsets = found
    return F.embedding_bag(members % len(table), table, offsets, mode="sum").unflatten(0, y.shape[:-1])


def sum_potentials(potentials: Float[Tensor, "B L"], y: Tensor) -> Float[Tensor, "... B"]:
    """For each set the sum of its labels' potentials in its own example."""
    found = _members(y)
    if found is None:
        return torch.einsum("bl,...bl->...b", potentials, y.to(potentials.dtype))
    members, offsets = found
    rows = F.embedding_bag(members % potentials.numel(), potentials.reshape(-1, 1), offsets, mode="sum")
    return rows.view(y.shape[:-1])


def _members(y: Shaped[Tensor, "*sets"]) -> tuple[Tensor, Tensor] | None:
    """Positions of the members in y laid flat, and where each set begins among them; found once per tensor.

    None where multiplying is the better way.
    """
    if y.dtype != torch.bool or y.is_cuda:
        return None
    if y not in _MEMBERS:
        members = y.flatten().nonzero().squeeze(1)
        sizes = torch.bincount(members // y.shape[-1], minlength=y.numel() // y.shape[-1])
        few = len(members) <= MANY * y.numel()
        _MEMBERS[y] = (members, sizes.cumsum(0) - sizes) if few else None
    return _MEMBERS[y]
