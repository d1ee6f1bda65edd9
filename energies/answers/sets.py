"""Sets of labels, dense or sparse: samples of them, and sums over their labels.

A dense set is a tensor, relaxed or bool, and sums are matrix products. Sampled sets have few members: on the
CPU they are `SparseSets`, whose members alone are drawn and looked up.
`python -m scripts.benchmarks.training` measures the gain.

Shapes: B examples, L labels, G values per label; sets are (..., B, L).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

MANY = 1 / 8  # share of members above which the dense product is faster

Bags = tuple[Tensor, Tensor]  # indices of all bags one after the other, and where each bag begins


@dataclass(frozen=True)
class Members:
    """The members of sets of some shape: ascending indices into the flattened tensor."""

    places: Tensor
    shape: torch.Size

    @cached_property
    def sets(self) -> Tensor:
        """The set each member is in."""
        return self.places // self.shape[-1]

    @cached_property
    def labels(self) -> Tensor:
        """The label each member is."""
        return self.places % self.shape[-1]

    @cached_property
    def by_set(self) -> Bags:
        """The labels of each set."""
        return self.labels, _begins(self.sets, self.shape[:-1].numel())

    @cached_property
    def by_label(self) -> Bags:
        """The sets each label is in."""
        small = np.min_scalar_type(self.shape[-1])  # which NumPy sorts by radix
        order = np.argsort(self.labels.numpy().astype(small), kind="stable")
        return self.sets[torch.from_numpy(order)], _begins(self.labels, self.shape[-1])


class SparseSets(Tensor):
    """Bool sets, (..., L), a tensor that also stores its members.

    Results computed from it, views included, are plain tensors. `members` follows edits in place, of it or of
    a view, except those that PyTorch's version counter misses, through `.data` or `.numpy()`.
    """

    # results are plain tensors
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    _members: Members
    _members_version: int

    @classmethod
    def of(cls, sets: Bool[Tensor, "..."], places: Tensor) -> Self:
        """These sets, whose members are the ascending indices `places` of the flattened tensor."""
        found = sets.as_subclass(cls)
        found._members, found._members_version = Members(places, sets.shape), found._version
        return found

    @property
    def members(self) -> Members:
        """The members of the sets."""
        if self._version != self._members_version:
            self._members, self._members_version = Members(_places(self), self.shape), self._version
        return self._members


def draw(logits: Float[Tensor, "*sets L"], num_samples: int) -> Bool[Tensor, "K *sets L"]:
    """Sets whose labels are independent Bernoulli draws with these logits.

    A Poisson process of rate softplus(logit) = -log(1 - p) has a point within one unit of time with
    probability p. So where members are few, one process covers all entries of all samples, and the cost
    grows with the number of members, not of entries.
    """
    logits = logits.detach()
    if logits.device.type == "cpu" and logits.numel():
        rates = F.softplus(logits.double()).flatten().cumsum(0)
        if float(rates[-1]) <= MANY * len(rates):
            return _draw_members(rates, num_samples, logits.shape)
    p = logits.to(torch.promote_types(logits.dtype, torch.float32)).sigmoid()
    return torch.rand(num_samples, *p.shape, dtype=p.dtype, device=p.device) < p


def put_first(first: Shaped[Tensor, "*sets L"], sets: Shaped[Tensor, "K *sets L"]) -> Shaped[Tensor, "..."]:
    """One set before K others, (1 + K, ..., L), in their type; sparse if members are few."""
    joined = torch.cat([first.to(sets.dtype).unsqueeze(0), sets])
    if isinstance(sets, SparseSets):
        return SparseSets.of(joined, torch.cat([_places(first), sets.members.places + first.numel()]))
    if _may_be_sparse(joined) and len(places := _places(joined)) <= MANY * joined.numel():
        return SparseSets.of(joined, places)
    return joined


def sum_rows(table: Float[Tensor, "L G"], y: Tensor) -> Float[Tensor, "... B G"]:
    """For each set the sum of its labels' rows, weighted by membership: y @ table."""
    if not isinstance(y, SparseSets):
        return y.to(table.dtype) @ table
    return _SumBags.apply(table, y.members, False).unflatten(0, y.shape[:-1])


def sum_potentials(potentials: Float[Tensor, "B L"], y: Tensor) -> Float[Tensor, "... B"]:
    """For each set the sum of its labels' potentials in its own example."""
    if not isinstance(y, SparseSets):
        return torch.einsum("bl,...bl->...b", potentials, y.to(potentials.dtype))
    found = y.members
    values = potentials.flatten().index_select(0, found.places % potentials.numel())
    return values.new_zeros(y.shape[:-1].numel()).index_add(0, found.sets, values).view(y.shape[:-1])


class _SumBags(torch.autograd.Function):
    """The matrix of memberships, or its transpose, times a dense matrix.

    The gradient is the product with the transpose: 10 times faster than the gradient of `embedding_bag`.
    """

    @staticmethod
    def forward(table: Tensor, members: Members, transposed: bool) -> Tensor:
        indices, begins = members.by_label if transposed else members.by_set
        return F.embedding_bag(indices, table.contiguous(), begins, mode="sum")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Members, bool], output: Tensor) -> None:  # noqa: ANN401
        _, ctx.members, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        return _SumBags.apply(gradient, ctx.members, not ctx.transposed), None, None


def _may_be_sparse(y: Tensor) -> bool:
    """Whether its members can be stored and edits of it be noticed."""
    return y.dtype == torch.bool and y.device.type == "cpu" and not y.is_inference()


def _places(y: Tensor) -> Tensor:
    return y.flatten().nonzero().squeeze(1)


def _draw_members(rates: Float[Tensor, " coins"], num_samples: int, shape: torch.Size) -> Tensor:
    """Sets (K, *shape) of the entries at which a process has points; `rates` are cumulative sums."""
    points = _poisson_process(float(rates[-1]) * num_samples)
    within = torch.remainder(points, rates[-1])
    samples = ((points - within) / rates[-1]).round().long().clamp_max(num_samples - 1)
    coins = torch.from_numpy(np.searchsorted(rates.numpy(), within.numpy(), side="right"))
    places = (coins + samples * len(rates)).unique_consecutive()
    sets = torch.zeros(num_samples, *shape, dtype=torch.bool)
    sets.view(-1)[places] = True
    return SparseSets.of(sets, places) if _may_be_sparse(sets) else sets


def _begins(bags: Tensor, num_bags: int) -> Tensor:
    """Where each bag begins, given the bag of each index."""
    sizes = torch.bincount(bags, minlength=num_bags)
    return sizes.cumsum(0) - sizes


def _poisson_process(duration: float) -> Tensor:
    """The points of a Poisson process of rate 1, ascending, float64."""
    enough = int(duration + duration**0.5) + 1  # enough in five of six cases
    points = torch.empty(enough, dtype=torch.float64).exponential_().cumsum(0)
    while points[-1] < duration:
        more = torch.empty(enough, dtype=torch.float64).exponential_().cumsum(0)
        points = torch.cat([points, points[-1] + more])
    return points[: int(torch.searchsorted(points, duration))]
