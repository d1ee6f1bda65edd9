"""Batches, and the loader that cuts them from tensors on the device.

Shapes: B examples of a batch, N examples of a split.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from datamodules.errors import DataMismatch
from losses.observed import blank
from networks.inputs import Inputs, lengths_of, rows_of


@dataclass(slots=True)
class Batch:
    """Inputs of B examples, true answers y (B, ...), which positions are real and which answers are known.

    `mask` is bool, True is real; None where every position of every answer is real (label sets).
    `observed` (B,) is bool, True where the answer is known; None where all are. An answer that is not
    known is set to zero.
    """

    inputs: Any  # a tensor or one of networks.inputs: what the networks read
    y: Tensor
    mask: Tensor | None = None
    observed: Tensor | None = None

    def __post_init__(self) -> None:
        if self.observed is not None:
            self.y = blank(self.y, self.observed)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "Batch":
        """The same batch on a device."""

        def there(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=non_blocking)

        inputs, y = (part.to(device, non_blocking=non_blocking) for part in (self.inputs, self.y))
        return Batch(inputs, y, there(self.mask), there(self.observed))


class Batches:
    """Slices of one permutation of a split, drawn anew each epoch from (seed, epoch).

    The order depends on nothing else, so a run that resumes at the start of an epoch sees the batches of an
    uninterrupted run. `seed=None`, for evaluation, keeps the order of the split; examples that have lengths,
    those of the inputs or else of the mask, are sorted by them. Answers may be stored in a narrow type; a
    batch holds them as float32. A mask (N, T) may be given, or come with the inputs; then answers of a batch
    are cut to its longest example. Inputs cut themselves.

    `pool` above 1 reduces padding. That many batches at a time are taken from the permutation; their examples
    are sorted by length (ties keep their order) and cut into new batches. The order of all batches of the
    epoch is drawn last. So an example shares its batch with examples of similar length. A pool needs lengths
    and a seed.

    A `transform` changes each batch by numbers that depend on (seed, epoch, step) only.

    With several processes each takes every `world_size`-th example of a step, from the same permutation.
    Training drops the examples left over where their number does not divide. Evaluation is meant for one
    process.

    Raises:
        DataMismatch: `pool` is below 1, or above 1 without lengths and a seed; some answers are hidden
            (`observed`) and there are several processes.
    """

    batch_sampler = None  # Lightning asks for one wherever there is a sampler

    def __init__(
        self,
        inputs: Inputs,
        y: Tensor,
        *,
        batch_size: int,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        mask: Tensor | None = None,
        observed: Tensor | None = None,
        pool: int = 1,
        transform: "Transform | None" = None,
    ) -> None:
        mask = getattr(inputs, "mask", None) if mask is None else mask
        self.inputs: Any = inputs
        self.y, self.mask, self.observed, self.pool = y, mask, observed, pool
        self.transform = transform
        self.lengths = None if mask is None else lengths_of(mask)
        self.sizes = getattr(inputs, "lengths", self.lengths)
        if pool < 1 or (pool > 1 and (self.sizes is None or seed is None)):
            raise DataMismatch(
                f"pool is {pool}: take 1, or more for sentences (a mask) in random order (a seed)."
            )
        if world_size > 1 and observed is not None:
            raise DataMismatch(
                f"some answers are hidden, and {world_size} processes do not weigh the others alike: their "
                "means are over different numbers. Train on one: --trainer.devices 1."
            )
        self.batch_size, self.seed = batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.epoch = 0

    @property
    def sampler(self) -> "Batches":
        """Lightning calls `set_epoch` on a loader's sampler; here that is the loader itself."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-(len(self.inputs) // self.world_size) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for place, step in enumerate(self.steps()):
            batch = self.rows(step[self.rank :: self.world_size])
            if self.transform is not None:
                batch = self.transform(batch, self._draws(place, len(step))[self.rank :: self.world_size])
            yield batch

    def rows(self, rows: Tensor) -> Batch:
        """The batch of some examples, given by their indices on the CPU."""
        here = rows.to(self.y.device)
        inputs, y = rows_of(self.inputs, rows), self.y
        mask = getattr(inputs, "mask", None)
        if self.mask is not None and self.lengths is not None:
            longest = int(self.lengths[rows].max())
            y, mask = y[:, :longest], self.mask[:, :longest][here] if mask is None else mask
        observed = None if self.observed is None else self.observed[here]
        return Batch(inputs, y[here].to(torch.float32), mask, observed)

    def _draws(self, place: int, count: int) -> Tensor:
        """The random numbers of a step's transforms, on the CPU."""
        assert self.transform is not None
        seed = ((self.seed or 0) * 1_000_003 + self.epoch) * 1_000_003 + place + 1
        generator = torch.Generator().manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
        return torch.rand(count, self.transform.num_draws, generator=generator)

    def steps(self) -> list[Tensor]:
        """The examples that all processes together take in each step, in the order of this epoch."""
        share = len(self.inputs) // self.world_size * self.world_size
        at_once = self.batch_size * self.world_size
        if self.seed is None:
            order = torch.arange(len(self.inputs)) if self.sizes is None else self.sizes.argsort(stable=True)
            return _cut(order[:share], at_once)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.inputs), generator=generator)[:share]
        if self.pool == 1:
            return _cut(order, at_once)
        assert self.sizes is not None
        pools = _cut(order, at_once * self.pool)
        ranked = [pool[self.sizes[pool].argsort(stable=True)] for pool in pools]
        steps = [step for pool in ranked for step in _cut(pool, at_once)]
        return [steps[place] for place in torch.randperm(len(steps), generator=generator).tolist()]


class Transform(ABC):
    """A change of the examples of a training batch, inputs and answers together.

    It gets `num_draws` numbers an example, uniform in [0, 1), and draws nothing else. They depend on (seed,
    epoch, step) and the index of the example in the step, not on the number of processes.
    """

    num_draws: int

    @abstractmethod
    def __call__(self, batch: Batch, draws: Float[Tensor, "B num_draws"]) -> Batch:
        """The changed batch."""


def _cut(rows: Tensor, size: int) -> list[Tensor]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
