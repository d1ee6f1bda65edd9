"""Gaussian fields of random scores, and their matrix written out."""

import numpy as np
import torch

from energies.gaussian import CapEmbeddings, GaussianPotentials


def field(
    b: int, n: int, m: int, d: int, *, seed: int = 0, signs: bool = True, masked: bool = False
) -> GaussianPotentials:
    """A definite field of random scores in float64."""
    draw = torch.Generator().manual_seed(seed)
    unary = torch.randn(b, n, m, generator=draw, dtype=torch.float64)
    embedding = torch.randn(b, n, d, generator=draw, dtype=torch.float64)
    mask = torch.rand(b, n, generator=draw) < 0.6 if masked else None
    return GaussianPotentials(
        unary, embedding if signs else embedding.abs(), 1.5, mask, CapEmbeddings(0.8)
    ).definite()


def written_out(p: GaussianPotentials, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W (n M, n M) of one example's real positions by its definition; U, stacked alike; what is real."""
    real = np.ones(p.unary.shape[1], bool) if p.mask is None else p.mask[row].numpy()
    a, u = p.embedding[row].detach().numpy()[real], p.unary[row].detach().numpy()[real]
    labels = u.shape[1]
    return np.kron(np.ones((labels, labels)) - np.eye(labels), a @ a.T), u.T.reshape(-1), real
