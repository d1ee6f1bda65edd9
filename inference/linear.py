"""Solvers of A x = b for a symmetric A that is given by its products alone.

A vector is a list of tensors: the parameters of a network, or one tensor (B, N) for B systems at once. `dot`
is the inner product of two vectors. If it returns one number for each system, as `row_dot` does, each system
has its own step sizes. Nothing waits for the device: flags of how a solve ended are tensors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Vector = list[Tensor]
Product = Callable[[Vector], Vector]
Dot = Callable[[Vector, Vector], Tensor]

SLACK = 1.0001  # ratios of lengths up to this are rounding, not growth


@dataclass(frozen=True)
class Solution:
    """A solution x and how the solve ended: one number for each system, or one for all.

    `diverged`: the solver stopped early; x is its last estimate. `curvature`: a bound on the eigenvalue that
    stopped it, see each solver; 0 if none did. `left`: the norm of the last residual over that of b; of a
    Neumann series, of its last term, which is the residual one term earlier. `steps`: the products that each
    system needed, where a solver counts them.
    """

    x: Vector
    diverged: Bool[Tensor, "..."]
    curvature: Float[Tensor, "..."]
    left: Float[Tensor, "..."]
    steps: Int[Tensor, "..."] | None = None


def dot(a: Vector, b: Vector) -> Float[Tensor, ""]:
    """The sum of all products, over all tensors of the list."""
    return torch.stack([torch.dot(p.flatten(), q.flatten()) for p, q in zip(a, b, strict=True)]).sum()


def row_dot(a: Vector, b: Vector) -> Float[Tensor, "*B 1"]:
    """One inner product for each system; a vector is one tensor (*B, N)."""
    (p,), (q,) = a, b
    return (p * q).sum(-1, keepdim=True)


def neumann(
    product: Product,
    b: Vector,
    *,
    terms: int,
    divisor: float | Tensor,
    damping: float | Tensor = 0.0,
    dot: Dot = dot,
) -> Solution:
    """A^-1 b as a power series: (1/c) sum_{i<=K} (I - A/c)^i b.             [Implicit, appendix]

    z_0 = a_0 = b;  z_{i+1} = z_i - A z_i / c;  a_{i+1} = a_i + z_{i+1};  x = a_K / c. K = `terms` products,
    c = `divisor`; `damping` is added to the diagonal of A. The series converges if all eigenvalues of A lie
    between 0 and 2c, and then no term is longer than the one before it. So a longer term shows an eigenvalue
    outside: that term and the following ones are left out, and the series has `diverged`. If the term is r
    times as long, A has an eigenvalue of at least c (1 + r), or a negative one of at most c (1 - r).
    `curvature` is the first of the two if the term and the one before it have a negative inner product, as a
    large eigenvalue produces, and the second otherwise. If a product is not finite, x is 0.

    Raises:
        ValueError: fewer than 0 terms, or a divisor that is not a positive number. A tensor is not checked:
            if it is not positive and finite, x is 0 and `diverged` is true.
    """
    if terms < 0:
        raise ValueError(f"a Neumann series of {terms} terms: ask for 0 products or more.")
    check_divisor(divisor)
    size = dot(b, b)
    c, good = _usable(divisor, b[0])
    z, total, sizes, turns = b, [t.clone() for t in b], [size], []
    alive = ((size < math.inf) & good).to(c.dtype)
    for _ in range(terms):
        step = alive / -c  # a step of 0 leaves the term as it is
        after = list(torch._foreach_addcmul(z, damped(product(z), z, damping), [step] * len(z)))
        sizes.append(dot(after, after))
        turns.append(dot(after, z))
        alive = alive * (sizes[-1] <= SLACK**2 * sizes[-2])
        torch._foreach_addcmul_(total, after, [alive] * len(z))
        z = after
    lengths = torch.stack(sizes).sqrt()
    factor = ((lengths < math.inf).all(0) & good) / c
    x = [t.mul_(factor).nan_to_num_(0.0, 0.0, 0.0) for t in total]
    left = torch.where(lengths[0] == 0, 0.0, lengths[-1] / lengths[0])
    return Solution(x, alive == 0, c * _first_growth(lengths, turns), left)


def conjugate_gradient(
    product: Product,
    b: Vector,
    *,
    steps: int,
    tolerance: float = 0.0,
    damping: float | Tensor = 0.0,
    dot: Dot = dot,
    until_done: bool = False,
) -> Solution:
    """A^-1 b for a positive definite A, exact after as many steps as A has distinct eigenvalues.

    A system stops once the norm of its residual is at most `tolerance` times that of b. A system with a
    direction p of curvature <= 0 has `diverged`, with `curvature` = p.Ap / p.p, and keeps its last x.
    `damping` is added to the diagonal of A. With `until_done` no product is computed once all systems have
    stopped, at the price of waiting for the device after each step.

    Raises:
        ValueError: fewer than 0 steps.
    """
    if steps < 0:
        raise ValueError(f"conjugate gradient of {steps} steps: ask for 0 products or more.")
    x, r, p = [torch.zeros_like(t) for t in b], b, b
    size = first = dot(b, b)
    alive, curvature = size > 0, torch.zeros_like(size)
    diverged = ~(size < math.inf)
    taken = torch.zeros_like(alive, dtype=torch.long)
    for _ in range(steps):
        if until_done and not bool(alive.any()):
            break
        ap = damped(product(p), p, damping)
        pap = dot(p, ap)
        wrong = alive & ~((pap > 0) & (pap < math.inf))
        curvature, diverged = torch.where(wrong, pap / dot(p, p), curvature), diverged | wrong
        alive = alive & ~wrong
        taken = taken + alive
        step = size / pap
        x = [torch.where(alive, s + step * t, s) for s, t in zip(x, p, strict=True)]
        r = [torch.where(alive, s - step * t, s) for s, t in zip(r, ap, strict=True)]
        before, size = size, dot(r, r)
        alive = alive & (size > tolerance**2 * first)
        p = [torch.where(alive, s + (size / before) * t, t) for s, t in zip(r, p, strict=True)]
    return Solution(x, diverged, curvature, torch.where(first > 0, (size / first).sqrt(), 0.0), taken)


def damped(product: Vector, z: Vector, damping: float | Tensor) -> Vector:
    """(A + damping I) z, from A z."""
    if isinstance(damping, Tensor):
        return [s + damping * t for s, t in zip(product, z, strict=True)]
    return list(torch._foreach_add(product, z, alpha=damping)) if damping else product


def check_divisor(divisor: float | Tensor) -> None:
    """Check the divisor of a series. A tensor is not checked, since that would wait for the device.

    Raises:
        ValueError: not positive, or not finite.
    """
    if not isinstance(divisor, Tensor) and not (math.isfinite(divisor) and divisor > 0):
        raise ValueError(
            f"the divisor of a Neumann series is {divisor}: take a positive number, at least the largest "
            "curvature (inference.bilevel.largest_curvature)."
        )


def _usable(divisor: float | Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The divisor as a tensor, or 1 if it is not positive and finite, and whether it is."""
    c = torch.as_tensor(divisor, dtype=like.dtype, device=like.device)
    if not isinstance(divisor, Tensor):
        return c, c.isfinite()
    good = (c > 0) & (c < math.inf)
    return torch.where(good, c, 1.0), good


def _first_growth(lengths: Float[Tensor, "terms *systems"], turns: list[Tensor]) -> Tensor:
    """An eigenvalue of A / c from the first term that grew, by a factor r: 1 + r or 1 - r, see `neumann`.

    0 if no term grew.
    """
    if not turns:
        return torch.zeros_like(lengths[0])
    growth = lengths[1:] / lengths[:-1]
    grown = growth > SLACK
    eigenvalue = 1 + torch.where(torch.stack(turns) < 0, growth, -growth)
    return (eigenvalue * (grown & (grown.cumsum(0) == 1))).nan_to_num(0.0, 0.0, 0.0).sum(0)
