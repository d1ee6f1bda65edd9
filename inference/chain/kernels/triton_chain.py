"""Chains on a CUDA device, of up to 128 tags: both sweeps at once, and Viterbi, each in one launch.

Scores of float16 and bfloat16 are read as they are; state and results are float32, or float64 for float64
unaries. To run it on a CPU, slowly, set TRITON_INTERPRET=1 before anything imports triton.

Shapes: B examples, T positions, S tags.
"""

from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from energies.potentials import state_type
from inference.chain.kernels.triton_programs import (
    check_kernel,
    finish_kernel,
    sweep_kernel,
    viterbi_kernel,
)
from inference.chain.paths import MAX_TAGS

WARPS = {16: 1, 32: 1, 64: 4, 128: 8}  # of a program that goes over a sequence, by padded number of tags
ROWS = 8  # positions that one program finishes
SPAN = 128  # positions that `check_kernel` looks at together
# Below the floor a path lost to underflow could still matter: by at most 1e-38 / 1e-28 of a marginal.
FLOOR = {torch.float32: 1e-28, torch.float64: 1e-280}
DISAGREEMENT = 1e-4
STATES = {torch.float32: tl.float32, torch.float64: tl.float64}


class Sweep(NamedTuple):
    """What one sweep from each end leaves.

    The expected number of transitions of sequence b is exp(pairwise - its maximum) times the sum over t of
    alpha[b, t] (outer) right[b, t + 1].
    """

    log_z: Float[Tensor, " B"]  # float64
    marginals: Float[Tensor, "B T S"]  # zero at padding, as are the next two
    alpha: Float[Tensor, "B T S"]  # forward probabilities, each row sums to one
    right: Float[Tensor, "B T S"]  # zero at the first position
    safe: Bool[Tensor, " B"]  # False: underflow may have spoilt this sequence, do it again in log space


INTERPRETED = not isinstance(sweep_kernel, triton.JITFunction)


class Operands(NamedTuple):
    """Scores and lengths as the kernels take them: contiguous and on one device."""

    unary: Tensor
    pairwise: Tensor
    start: Tensor
    end: Tensor
    lengths: Tensor

    @property
    def state(self) -> torch.dtype:
        """Type of everything that is computed."""
        return state_type(self.unary)

    @property
    def padded(self) -> int:
        """Number of tags as the kernels see it: a power of two from 16 on."""
        return max(16, triton.next_power_of_2(self.unary.shape[2]))

    def empty(self, *shape: int) -> Tensor:
        """Room of the state's type."""
        return torch.empty(shape, dtype=self.state, device=self.unary.device)

    def device(self) -> AbstractContextManager:
        """Launches go to the card that holds the tensors."""
        return torch.cuda.device_of(self.unary)


def operands(unary: Tensor, pairwise: Tensor, start: Tensor, end: Tensor, lengths: Tensor) -> Operands:
    """Check what the kernels cannot take, and lay the rest out for them.

    Raises:
        ValueError: there are more tags than a program can hold, or the tensors are on no CUDA device.
    """
    if unary.shape[2] > MAX_TAGS:
        raise ValueError(
            f"The Triton kernels hold at most {MAX_TAGS} tags and these potentials have {unary.shape[2]}: "
            'leave path="auto", or name another path.'
        )
    if not (unary.is_cuda or INTERPRETED):
        raise ValueError(
            f"The Triton kernels need CUDA tensors and these potentials are on {unary.device}: move them, "
            'leave path="auto", or set TRITON_INTERPRET=1 before triton is imported to interpret them.'
        )
    tensors = (unary, pairwise, start, end, lengths.to(unary.device))
    return Operands(*(tensor.detach().contiguous() for tensor in tensors))


def sweep(
    unary: Float[Tensor, "B T S"],
    pairwise: Float[Tensor, "S S"],
    start: Float[Tensor, " S"],
    end: Float[Tensor, " S"],
    lengths: Int[Tensor, " B"],
) -> Sweep:
    """Log Z, marginals and what the transitions' gradient needs, from one sweep from each end.

    Sequence b fills the first lengths[b] positions; what stands after them is not read. An empty one has
    log Z 0.

    Raises:
        ValueError: S is over MAX_TAGS, or the tensors are on no CUDA device.
    """
    p = operands(unary, pairwise, start, end, lengths)
    B, T, S = unary.shape
    alpha, beta, marginals, right = (p.empty(B, T, S) for _ in range(4))
    norms, tops, overlaps = p.empty(2, B, T), p.empty(B, T), p.empty(B, T)
    shifts, log_z = (torch.empty(B, dtype=torch.float64, device=unary.device) for _ in range(2))
    safe = torch.empty(B, dtype=torch.bool, device=unary.device)
    sizes = {"P": p.padded, "STATE": STATES[p.state]}
    with p.device():
        sweep_kernel[(B, 2)](*p, alpha, beta, norms, tops, shifts, T, S, **sizes, num_warps=WARPS[p.padded])
        finish_kernel[(B, triton.cdiv(T, ROWS))](
            p.unary, p.lengths, alpha, beta, norms, tops, marginals, right, overlaps, T, S, **sizes, ROWS=ROWS
        )  # fmt: skip
        check_kernel[(B,)](
            p.lengths, norms, tops, overlaps, shifts, log_z, safe, T,
            FLOOR=FLOOR[p.state], DISAGREEMENT=DISAGREEMENT, SPAN=SPAN,
        )  # fmt: skip
    return Sweep(log_z, marginals, alpha, right, safe)


def viterbi(
    unary: Float[Tensor, "B T S"],
    pairwise: Float[Tensor, "S S"],
    start: Float[Tensor, " S"],
    end: Float[Tensor, " S"],
    lengths: Int[Tensor, " B"],
) -> tuple[Int[Tensor, "B T"], Float[Tensor, " B"]]:
    """The best tags, 0 at padding, and their score.

    Raises:
        ValueError: S is over MAX_TAGS, or the tensors are on no CUDA device.
    """
    p = operands(unary, pairwise, start, end, lengths)
    B, T, S = unary.shape
    best, score = p.empty(B, T, S), p.empty(B)
    tags = torch.zeros(B, T, dtype=torch.int64, device=unary.device)
    with p.device():
        viterbi_kernel[(B,)](
            *p, best, tags, score, T, S, P=p.padded, STATE=STATES[p.state], num_warps=WARPS[p.padded]
        )
    return tags, score
