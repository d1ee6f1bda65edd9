"""Compiles the chain's CUDA kernels for a card that is not there; run by test_chain_triton.py.

Interpreted kernels skip Triton's compiler, which treats sizes of 1 as constants and has opinions on types.
"""

import os

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from inference.chain.kernels import triton_chain as kernels

SHAPES = [((1, 1, 1), torch.float64), ((2, 16, 26), torch.bfloat16)]


class AbsentCard:
    """As much of a device's driver as compiling takes."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class Compile:
    """A kernel whose launch stops before it would run."""

    def __init__(self, kernel) -> None:  # noqa: ANN001
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]):  # noqa: ANN204
        return lambda *args, **options: self.kernel.warmup(*args, grid=grid, **options)


def main() -> None:
    """Compile for sizes of 1 and others, wide scores and half ones."""
    driver.set_active(AbsentCard())
    kernels.INTERPRETED = True  # tensors on the CPU will do
    for name in ("sweep_kernel", "finish_kernel", "check_kernel", "viterbi_kernel"):
        setattr(kernels, name, Compile(getattr(kernels, name)))
    for (batch, time, tags), dtype in SHAPES:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        unary, pairwise = torch.zeros(batch, time, tags, dtype=dtype), torch.zeros(tags, tags, dtype=wide)
        ends, lengths = torch.zeros(tags, dtype=wide), torch.full((batch,), time)
        kernels.sweep(unary, pairwise, ends, ends, lengths)
        kernels.viterbi(unary, pairwise, ends, ends, lengths)


if __name__ == "__main__":
    assert "TRITON_INTERPRET" not in os.environ
    main()
