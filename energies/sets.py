"""Sums over the labels of a set, for sets given in full or by what is in them.

A relaxed set is float and multiplied as it is. A discrete set is bool and mostly empty: only its labels are
looked up, which is several times faster for the samples of noise-contrastive training.

Shapes: B examples, L labels, G values per label; sets are (..., B, L).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_MEMBERS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def sum_rows(table: Float[Tensor, "L G"], y: Tensor) -> Float[Tensor, "... B G"]:
    """For each set the sum of its labels' rows, weighted by membership: y @ table."""
    if y.dtype != torch.bool:
        return y @ table
    members, offsets = _members(y)
    return F.embedding_bag(members % len(table), table, offsets, mode="sum").unflatten(0, y.shape[:-1])


def sum_potentials(potentials: Float[Tensor, "B L"], y: Tensor) -> Float[Tensor, "... B"]:
    """For each set the sum of its labels' potentials in its own example."""
    if y.dtype != torch.bool:
        return torch.einsum("bl,...bl->...b", potentials, y)
    members, offsets = _members(y)
    rows = F.embedding_bag(members % potentials.numel(), potentials.reshape(-1, 1), offsets, mode="sum")
    return rows.view(y.shape[:-1])


def _members(y: Bool[Tensor, "*sets"]) -> tuple[Tensor, Tensor]:
    """Positions of the members in y laid flat, and where each set begins among them; found once per tensor."""
    found = _MEMBERS.get(y)
    if found is None:
        members = y.flatten().nonzero().squeeze(1)
        sizes = torch.bincount(members // y.shape[-1], minlength=y.numel() // y.shape[-1])
        found = members, sizes.cumsum(0) - sizes
        _MEMBERS[y] = found
    return found
