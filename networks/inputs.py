"""Inputs of networks that are more than one tensor: sparse rows, sequences, word pieces.

Dense rows and pictures are plain tensors. Every other kind is a small dataclass of tensors.

Shapes: N examples, D features, H outputs, M stored values, T positions, P word pieces.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


class NamedInputs(ABC):
    """Inputs of N examples as named tensors.

    Subclasses are dataclasses that compare by identity. Their fields are not changed after construction; they
    are not frozen only because Lightning converts them to another precision in place.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples, N."""

    @abstractmethod
    def rows(self, index: Tensor) -> Self:
        """The examples at these indices (a CPU tensor), padded to the longest of them."""

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next(iter(self._tensors().values())).device

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Self:
        """The same inputs on a device."""
        moved: dict[str, Any] = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self._tensors().items()
        }
        return replace(self, **moved)  # type: ignore[type-var]  # every kind is a dataclass

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


Inputs: TypeAlias = Tensor | NamedInputs


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """The dense tensors of inputs; of inputs of a kind of the user's own, none."""
    found = inputs._tensors().values() if isinstance(inputs, NamedInputs) else [inputs]
    return [one for one in found if isinstance(one, Tensor) and one.layout is torch.strided]


def rows_of(inputs: Inputs, index: Tensor) -> Any:  # noqa: ANN401  (the type of `inputs`)
    """The examples at these indices (a CPU tensor)."""
    return inputs[index.to(inputs.device)] if isinstance(inputs, Tensor) else inputs.rows(index)


@dataclass(eq=False)
class Sequences(NamedInputs):
    """Sequences of T positions, each with a value of any shape: ids of a token, the picture of a letter.

    `mask` says which positions are real; it is also the mask of answers that have these positions.
    """

    values: Shaped[Tensor, "N T ..."]
    mask: Bool[Tensor, "N T"]

    def __len__(self) -> int:
        return len(self.mask)

    @cached_property
    def lengths(self) -> Int[Tensor, " N"]:
        """`lengths_of` the mask; kept on the CPU, so that indexing does not wait for the device."""
        return lengths_of(self.mask)

    @cached_property
    def mirrored(self) -> Int[Tensor, " T_times_N"]:
        """Indices that reverse each sequence within its length; padding stays where it is.

        They index the flattened batch, positions first. All networks that read a batch share them.
        """
        with torch.inference_mode(False):  # a batch that is evaluated first may train later
            sequences = torch.arange(len(self), device=self.device)
            return (reversal(self.mask).T * len(self) + sequences).flatten()

    def rows(self, index: Tensor) -> "Sequences":
        here, longest = index.to(self.mask.device), int(self.lengths[index].max())
        return Sequences(self.values[:, :longest][here], self.mask[:, :longest][here])


@dataclass(eq=False)
class WordPieces(NamedInputs):
    """The input of a pretrained encoder: ids of word pieces, and the segment of each piece.

    `attention` says which pieces are real. Pieces are not positions of an answer. Where an answer has a
    position for each word, `words` is the place of each word's first piece, and `mask` says which words are
    real; it is also the mask of the answer. `segments` may mark pieces, as those of a predicate. `encoder` is
    whose pieces they are, if that is known.
    """

    ids: Int[Tensor, "N P"]
    attention: Bool[Tensor, "N P"]
    segments: Int[Tensor, "N P"]
    words: Int[Tensor, "N T"] | None = None
    mask: Bool[Tensor, "N T"] | None = None
    encoder: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def lengths(self) -> Int[Tensor, " N"]:
        """`lengths_of` the pieces; kept on the CPU, so that indexing does not wait for the device."""
        return lengths_of(self.attention)

    def rows(self, index: Tensor) -> "WordPieces":
        here, longest = index.to(self.device), int(self.lengths[index].max())
        ids, attention, segments = (
            part[:, :longest][here] for part in (self.ids, self.attention, self.segments)
        )
        words, mask = self.words, self.mask
        if words is not None and mask is not None:
            most = int(self._num_words[index].max())
            words, mask = words[:, :most][here], mask[:, :most][here]
        return WordPieces(ids, attention, segments, words, mask, self.encoder)

    @cached_property
    def _num_words(self) -> Tensor:
        assert self.mask is not None
        return lengths_of(self.mask)


def reversal(mask: Bool[Tensor, "N T"]) -> Int[Tensor, "N T"]:
    """Positions that reverse each sequence within its length; padding, at the end, stays where it is."""
    places, lengths = torch.arange(mask.shape[1], device=mask.device), mask.sum(1, keepdim=True)
    return torch.where(places < lengths, lengths - 1 - places, places)


def lengths_of(mask: Bool[Tensor, "N T"]) -> Int[Tensor, " N"]:
    """The index of the last real position of each example plus 1, on the CPU."""
    place = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return torch.cat([mask.new_zeros(len(mask), 1, dtype=torch.long), mask * place], 1).amax(1).cpu()


def places_of(
    offsets: Int[Tensor, " N_plus_1"], index: Int[Tensor, " B"]
) -> tuple[Int[Tensor, " K"], Int[Tensor, " B_plus_1"]]:
    """Where the values of these rows are, row i from `offsets[i]` to `offsets[i + 1]`; and their offsets."""
    starts = offsets[index]
    sizes = offsets[index + 1] - starts
    new = F.pad(sizes.cumsum(0), (1, 0))
    return torch.arange(int(new[-1])) + (starts - new[:-1]).repeat_interleave(sizes), new


@dataclass(eq=False)
class SparseRows(NamedInputs):
    """A sparse matrix in CSR format: rows of D features, most of them 0.

    Row i has the values from `offsets[i]` to `offsets[i + 1]`.
    """

    values: Float[Tensor, " M"]
    columns: Int[Tensor, " M"]
    offsets: Int[Tensor, " N_plus_1"]
    num_columns: int  # D

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, index: Tensor) -> "SparseRows":
        places, offsets = places_of(self._offsets, index)
        here = places.to(self.device)
        return SparseRows(self.values[here], self.columns[here], offsets.to(self.device), self.num_columns)

    def times(self, weight: Float[Tensor, "H D"]) -> Float[Tensor, "N H"]:
        """The rows times the weight of a linear layer, x W^T."""
        return _SparseProduct.apply(weight, self)

    @cached_property
    def _offsets(self) -> Tensor:
        """The offsets on the CPU, so that indexing does not wait for the device."""
        return self.offsets.cpu()

    @cached_property
    def used(self) -> tuple[Int[Tensor, " U"], Int[Tensor, " M"]]:
        """The columns that hold values, ascending, and for each value the index of its column among them."""
        return self.columns.unique(return_inverse=True)

    @cached_property
    def by_column(self) -> tuple[Int[Tensor, " M"], Int[Tensor, " U_plus_1"], Float[Tensor, " M"]]:
        """The transpose over used columns: the row of each value, the offset of each column, the values."""
        columns, place = self.used
        order = place.argsort(stable=True)
        row = torch.arange(len(self), device=order.device).repeat_interleave(self.offsets.diff())
        ends = torch.bincount(place, minlength=len(columns)).cumsum(0)
        return row[order], F.pad(ends, (1, 0)), self.values[order]


class _SparseProduct(torch.autograd.Function):
    """Sparse rows times W^T. Only the used columns of W are read."""

    @staticmethod
    def forward(weight: Tensor, x: SparseRows) -> Tensor:
        columns, place = x.used
        table = weight.index_select(1, columns).T.contiguous()
        return _bags(table, place, x.offsets, x.values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, SparseRows], output: Tensor) -> None:  # noqa: ANN401
        ctx.x = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return _WeightGradient.apply(gradient, ctx.x), None


class _WeightGradient(torch.autograd.Function):
    """g^T x for a gradient g (N, H) of the product: (H, D), 0 in unused columns."""

    @staticmethod
    def forward(gradient: Tensor, x: SparseRows) -> Tensor:
        full = gradient.new_zeros(gradient.shape[1], x.num_columns)
        full[:, x.used[0]] = _bags(gradient.contiguous(), *x.by_column).T
        return full

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, SparseRows], output: Tensor) -> None:  # noqa: ANN401
        ctx.x = inputs[1]

    @staticmethod
    def backward(ctx: Any, along: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return _SparseProduct.apply(along, ctx.x), None


def _bags(table: Tensor, indices: Tensor, begins: Tensor, weights: Tensor) -> Tensor:
    """For each bag the weighted sum of its rows of the table."""
    weights = weights.to(table.dtype)
    return F.embedding_bag(
        indices, table, begins, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
