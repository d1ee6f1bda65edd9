"""Inputs whose frozen layers were computed once.

Shapes: N examples, M pieces of all distinct texts, U distinct texts, P pieces of the longest,
T words, H features.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import ref

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from networks.inputs import NamedInputs, lengths_of, places_of

SHARE = 0.5  # of a GPU's free memory that states may take


@dataclass(eq=False)
class Kept(NamedInputs):
    """Texts as the states of an encoder's lowest layers, in place of `WordPieces`.

    Text i has the states from `offsets[i]` to `offsets[i + 1]`; example n reads text `texts[n]`, so several
    examples (the predicates of a sentence) share one. States may be mapped from a file. `to` moves them to a
    GPU if they fit there; otherwise those of each batch are moved. Indices stay on the CPU.

    `num_layers` is how many layers were computed. With `pooling` a text has one state, pooled that way.
    `segments`, `words`, `mask` and `encoder` are as in WordPieces.
    """

    states: Float[Tensor, "M H"]
    offsets: Int[Tensor, " U_plus_1"]
    texts: Int[Tensor, " N"]
    num_layers: int
    pooling: str | None = None
    segments: Int[Tensor, "N P"] | None = None
    words: Int[Tensor, "N T"] | None = None
    mask: Bool[Tensor, "N T"] | None = None
    encoder: str = ""
    target: torch.device = torch.device("cpu")  # noqa: RUF009  (a device cannot be changed)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def device(self) -> torch.device:
        """The device of batches."""
        return self.target

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "Kept":
        """The same inputs for a device."""
        there: dict[str, Any] = {
            name: None if value is None else value.to(device, non_blocking=non_blocking)
            for name, value in (("segments", self.segments), ("words", self.words), ("mask", self.mask))
        }
        return replace(self, states=_there(self.states, device, non_blocking), target=device, **there)

    @cached_property
    def lengths(self) -> Int[Tensor, " N"]:
        """The pieces of each example."""
        return self.offsets.diff()[self.texts]

    def rows(self, index: Tensor) -> "Kept":
        """The examples at these indices (a CPU tensor), with the states of their texts only."""
        texts, place = self.texts[index].unique(return_inverse=True)
        rows, offsets = places_of(self.offsets, texts)
        states = self.states[rows.to(self.states.device)].to(self.target, non_blocking=True)
        here, longest = index.to(self.target), int(offsets.diff().max())
        words, mask = self.words, self.mask
        if mask is not None and words is not None:
            most = int(self._num_words[index].max())
            words, mask = words[:, :most][here], mask[:, :most][here]
        segments = None if self.segments is None else self.segments[:, :longest][here]
        return replace(
            self, states=states, offsets=offsets, texts=place, segments=segments, words=words, mask=mask
        )

    @cached_property
    def padded(self) -> Float[Tensor, "N P H"]:
        """The states of each example, 0 where padded, in float32 or what they were converted to."""
        start = self.offsets[self.texts].unsqueeze(1)
        place = torch.arange(int(self.lengths.max()))
        rows = (start + place).clamp_max(len(self.states) - 1).to(self.states.device)
        dtype = torch.promote_types(self.states.dtype, torch.float32)
        return self.states[rows].to(self.target, dtype) * self.attention.unsqueeze(-1)

    @cached_property
    def attention(self) -> Bool[Tensor, "N P"]:
        """Which pieces are real."""
        return (torch.arange(int(self.lengths.max())) < self.lengths.unsqueeze(1)).to(self.target)

    @cached_property
    def _num_words(self) -> Tensor:
        assert self.mask is not None
        return lengths_of(self.mask)


MOVED = WeakTensorKeyDictionary()  # states -> device -> a weak reference to their copy there


def _there(states: Tensor, device: torch.device, non_blocking: bool) -> Tensor:
    """The states on a device if they fit; the parts of the data share them, and their copy."""
    copies = MOVED.setdefault(states, {})
    known = copies[device]() if device in copies else None
    if known is None and _fits(states, device):
        known = states.to(device, non_blocking=non_blocking)
        copies[device] = ref(known)
    return states if known is None else known


def _fits(states: Tensor, device: torch.device) -> bool:
    if device.type != "cuda":
        return device.type != "cpu"
    free, _ = torch.cuda.mem_get_info(device)
    return states.nbytes < SHARE * free
