"""Compile the chain's loops for this processor in advance; `make setup` runs this once.

    python -m scripts.compile_chain

numba caches them on disk, beside the code or in NUMBA_CACHE_DIR. Its cache depends on the file of a loop
alone, not on the functions compiled into it, so cached loops of older code are removed first.
"""

import sys
from pathlib import Path

import torch
from rich.console import Console

from energies.potentials import ChainPotentials
from inference import chain
from inference.chain import kernels
from inference.chain.paths import fault_of_numba
from scripts.options import alone


def every_loop() -> None:
    """Call every compiled loop once in each float type."""
    for dtype in (torch.float32, torch.float64):
        scores = [torch.zeros(s, dtype=dtype, requires_grad=True) for s in ((2, 3, 2), (2, 2), (2,), (2,))]
        unary, pairwise, start, end = scores
        p = ChainPotentials(unary, pairwise, torch.ones(2, 3, dtype=torch.bool), start, end)
        loss = chain.nll(p, torch.zeros(2, 3, dtype=torch.long), path="compiled").sum()
        slopes = torch.autograd.grad(loss, scores, create_graph=True)
        torch.autograd.grad([slope.square().sum() for slope in slopes], scores)
        chain.viterbi(p, path="compiled")


def main() -> None:
    """Compile, or print why nothing can be compiled."""
    if fault := fault_of_numba():
        Console(stderr=True).print(f"Nothing to compile, chains will take the slower fused path: {fault}.")
        return
    for folder in kernels.__path__:
        for old in Path(folder, "__pycache__").glob("*.nb[ic]"):
            old.unlink()
    every_loop()


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
