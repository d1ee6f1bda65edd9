"""Exact inference in Gaussian fields: the point of highest score, its value, and variances.   [Scaling §4.2]

Shapes: B examples, N positions, M labels, D features; positions may have several dimensions.
"""

import math
import warnings
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from energies.gaussian import GaussianPotentials
from inference.gaussian.solve import (
    Cholesky,
    ConjugateGradient,
    NotDefinite,
    Solved,
    Solver,
    log_determinant,
    ridge_of,
)

Path = Literal["auto", "dense", "cg", "woodbury"]

# Features up to which factors are faster, and the same with `MANY` positions a feature: docs/benchmarks.md
LARGEST = {"cpu": (256, 1024), "cuda": (512, 512)}
MANY = 16


def mode(p: GaussianPotentials, path: Path = "auto", *, tolerance: float = 1e-5) -> Float[Tensor, "B *N M"]:
    """s* = argmax_s F(s), the solution of (W + lambda I) s = U; 0 where masked.   [Scaling eq. 12]

    Gradients of any order reach U and A.

    - `woodbury` factors D x D matrices (N x N where N < D).
    - `cg` needs products with A alone; each column stops at a relative residual of `tolerance`.
    - `dense` is the reference: it solves the system of N M equations, which has B (N M)^2 numbers.
    - `auto` is `woodbury`, or `cg` where features are many and positions are not many times more.

    Where the system of an example is not positive definite, F has no maximum: `dense` raises an error, the
    others warn and take the mode of `p.definite()`. `cg` notices it where its search meets a direction in
    which F grows without end. Where U has no part in one, it returns the point at which F is stationary, and
    the backward pass may raise NotDefinite. A `cg` that runs out of steps warns. Rounding errors grow
    as 1 / (1 - mu_max / lambda): where that is above 1e4, take float64 scores.

    Raises:
        ValueError: an unknown path; a score that is not finite; with `dense`, F has no maximum.
    """
    if path == "dense":
        _check_definite(p)
        return _dense(p)
    try:
        found = _solved(p, path, tolerance)
    except NotDefinite as error:
        p.check_finite()
        definite = p.definite()
        warnings.warn(f"{error} This was done here.", stacklevel=2)
        found = _solved(definite, path, tolerance)
    if not bool(found.isfinite().all()):
        p.check_finite()
    return found


def _solved(p: GaussianPotentials, path: Path = "auto", tolerance: float = 1e-5) -> Tensor:
    unary, a = p.flat()
    return Solved.apply(unary, a, _solver(path, a, p, tolerance)).reshape(p.unary.shape)


def log_partition(p: GaussianPotentials) -> Float[Tensor, " B"]:
    """The log of the integral of exp F over all points s of real positions.

    1/2 U^T s* + 1/2 (N M log 2 pi - log det(W + lambda I)).

    Raises:
        ValueError: the system of an example is not positive definite, so the integral is infinite; a score
            that is not finite.
    """
    try:
        best = _solved(p)
    except NotDefinite:
        _check_definite(p)
        raise
    (unary, a), labels = p.flat(), p.unary.shape[-1]
    hidden = a.new_zeros(len(a)) if p.mask is None else labels * (~p.mask).flatten(1).sum(1).to(a.dtype)
    count = unary.shape[1:].numel() - hidden  # a masked position adds log lambda for each label
    determinant = log_determinant(a, p.ridge, labels) - hidden * ridge_of(a, p.ridge).log().flatten()
    value = (unary * best.reshape(unary.shape)).sum((1, 2))
    value = (value + count * math.log(2 * math.pi) - determinant) / 2
    if not bool(value.isfinite().all()):
        p.check_finite()
    return value


def variances(p: GaussianPotentials) -> Float[Tensor, "B *N"]:
    """The variance of s at each position under exp F, the same for each label; 1 / lambda where masked.

    Raises:
        ValueError: the system of an example is not positive definite.
    """
    try:
        solver = Cholesky(p.flat()[1], p.ridge, p.unary.shape[-1])
    except NotDefinite:
        _check_definite(p)
        raise
    return solver.variances().view(p.unary.shape[:-1])


def _solver(path: Path, a: Tensor, p: GaussianPotentials, tolerance: float) -> Solver:
    labels = p.unary.shape[-1]
    if path == "auto":
        usual, with_many = LARGEST.get(a.device.type, LARGEST["cpu"])
        positions, features = a.shape[1:]
        most = with_many if positions >= MANY * features else usual
        path = "woodbury" if min(positions, features) <= most else "cg"
    if path == "cg":
        return ConjugateGradient(a, p.ridge, labels, tolerance=tolerance)
    if path == "woodbury":
        return Cholesky(a, p.ridge, labels)
    raise ValueError(f"there is no path {path!r}: take auto, dense, cg or woodbury.")


def _dense(p: GaussianPotentials) -> Tensor:
    unary, a = p.flat()
    labels = unary.shape[-1]
    others = 1 - torch.eye(labels, dtype=a.dtype, device=a.device)  # J - I
    pairwise = torch.einsum("bij,mn->bimjn", a @ a.mT, others).flatten(3, 4).flatten(1, 2)  # W
    ridge = ridge_of(a, p.ridge) * torch.eye(pairwise.shape[-1], dtype=a.dtype, device=a.device)
    return torch.linalg.solve(pairwise + ridge, unary.flatten(1)).view_as(p.unary)


@torch.no_grad()
def _check_definite(p: GaussianPotentials) -> None:
    p.check_finite()
    top = p.largest_eigenvalue()
    ridge = torch.as_tensor(p.ridge, dtype=top.dtype, device=top.device).expand_as(top)
    if bool((top >= ridge).any()):
        row = int((top >= ridge).nonzero()[0])
        raise ValueError(
            f"example {row} has no best answer: the largest eigenvalue of A A^T is {float(top[row]):.4g} and "
            f"must be below the ridge, {float(ridge[row]):g}. Raise the ridge, or scale the embeddings down, "
            "as GaussianPotentials.definite() does."
        )
