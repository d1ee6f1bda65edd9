"""Exact inference in Gaussian fields: the point of highest score.   [Scaling §3]

Shapes: B examples, N positions, M labels, D features; positions may have several dimensions.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from energies.gaussian import GaussianPotentials


def mode(p: GaussianPotentials) -> Float[Tensor, "B *N M"]:
    """s* = argmax_s F(s), the solution of (W + lambda I) s = U; 0 where masked.   [Scaling eq. 12]

    The system of N M equations is built as a dense matrix of B (N M)^2 numbers and solved; gradients reach U
    and A.

    Raises:
        ValueError: the system of an example is not positive definite, so F has no maximum.
    """
    _check_definite(p)
    unary, a = p.flat()
    labels = unary.shape[-1]
    others = 1 - torch.eye(labels, dtype=a.dtype, device=a.device)  # J - I
    pairwise = torch.einsum("bij,mn->bimjn", a @ a.mT, others).flatten(3, 4).flatten(1, 2)  # W
    ridge = p.ridge * torch.eye(pairwise.shape[-1], dtype=a.dtype, device=a.device)
    return torch.linalg.solve(pairwise + ridge, unary.flatten(1)).view_as(p.unary)


@torch.no_grad()
def _check_definite(p: GaussianPotentials) -> None:
    for name, scores in zip(("unary score", "embedding"), p.flat(), strict=True):
        if not bool(scores.isfinite().all()):
            row = int((~scores.isfinite()).flatten(1).any(1).nonzero()[0])
            raise ValueError(
                f"example {row} has a {name} that is not finite: look for its cause in the networks."
            )
    top = p.largest_eigenvalue()
    if bool((top >= p.ridge).any()):
        row = int((top >= p.ridge).nonzero()[0])
        raise ValueError(
            f"example {row} has no best answer: the largest eigenvalue of A A^T is {float(top[row]):.4g} and "
            f"must be below the ridge, {p.ridge:g}. Raise the ridge, or scale the embeddings down, as "
            "GaussianPotentials.definite() does."
        )
