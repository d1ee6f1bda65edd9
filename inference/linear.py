"""x with A x = b, for a symmetric A that is known by its products alone.

A vector is a list of tensors, whatever they stand for: the parameters of a network, or (B, N) for B systems
at once. `dot` says what the inner product of two vectors is. Where it is a number for each system, as with
`row_dot`, each system has steps of its own. Nothing waits for the device: how it ended stays a tensor.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Vector = list[Tensor]
Product = Callable[[Vector], Vector]
Dot = Callable[[Vector, Vector], Tensor]

SLACK = 1.0001  # what is no longer than this by the term before it has not grown but for rounding


@dataclass(frozen=True)
class Solution:
    """An x, and how it came about: a number for each system, or one where there is one.

    `diverged`: it had to stop early, and x is what it had by then. `curvature`: the eigenvalue that stopped
    it, as the procedure says; 0 where none did. `left`: the length of the last residual seen, over that of b.
    """

    x: Vector
    diverged: Bool[Tensor, "..."]
    curvature: Float[Tensor, "..."]
    left: Float[Tensor, "..."]


def dot(a: Vector, b: Vector) -> Float[Tensor, ""]:
    """The sum of all products, over all tensors of the list."""
    return torch.stack([torch.dot(p.flatten(), q.flatten()) for p, q in zip(a, b, strict=True)]).sum()


def row_dot(a: Vector, b: Vector) -> Float[Tensor, "B 1"]:
    """For vectors of one tensor (B, N), which are B systems: one inner product each."""
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
    c = `divisor`; `damping` is added to the diagonal of A. The series tends to the answer where all
    eigenvalues of A lie between 0 and 2c, and then no term is longer than the one before it. So the first
    that is shows an eigenvalue outside: it and those after it are left out, and the series has `diverged`.
    Grown r-fold, A has an eigenvalue of c (1 + r) or more, or a negative one, of c (1 - r) or less.
    `curvature` is the first of these where the term points against the one before it, as it does where a
    large eigenvalue made it grow, and the second elsewhere. If a product is not finite, x is 0.

    Raises:
        ValueError: fewer than 0 terms, or a divisor that is not a positive number. One that is a tensor is
            not refused: if it is none, x is 0 and `diverged` is true.
    """
    if terms < 0:
        raise ValueError(f"a Neumann series of {terms} terms: ask for 0 products or more.")
    check_divisor(divisor)
    size = dot(b, b)
    c, good = _usable(divisor, b[0])
    z, total, sizes, turns = b, [t.clone() for t in b], [size], []
    alive = ((size < math.inf) & good).to(c.dtype)
    for _ in range(terms):
        step = alive / -c  # at 0 a term is kept as it is, and grows no further
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
) -> Solution:
    """A^-1 b for a positive definite A, exact after as many steps as A has eigenvalues.

    A system whose residual is at most `tolerance` times as long as b is left as it is. One in which a
    direction p of no positive curvature turns up has `diverged`, with `curvature` = p.Ap / p.p; x is what it
    was. `damping` is added to the diagonal of A.

    Raises:
        ValueError: fewer than 0 steps.
    """
    if steps < 0:
        raise ValueError(f"conjugate gradient of {steps} steps: ask for 0 products or more.")
    x, r, p = [torch.zeros_like(t) for t in b], b, b
    size = first = dot(b, b)
    alive, curvature = size > 0, torch.zeros_like(size)
    diverged = ~(size < math.inf)
    for _ in range(steps):
        ap = damped(product(p), p, damping)
        bent = dot(p, ap)
        wrong = alive & ~((bent > 0) & (bent < math.inf))
        curvature, diverged = torch.where(wrong, bent / dot(p, p), curvature), diverged | wrong
        alive = alive & ~wrong
        step = size / bent
        x = [torch.where(alive, s + step * t, s) for s, t in zip(x, p, strict=True)]
        r = [torch.where(alive, s - step * t, s) for s, t in zip(r, ap, strict=True)]
        before, size = size, dot(r, r)
        alive = alive & (size > tolerance**2 * first)
        p = [torch.where(alive, s + (size / before) * t, t) for s, t in zip(r, p, strict=True)]
    return Solution(x, diverged, curvature, torch.where(first > 0, (size / first).sqrt(), 0.0))


def damped(product: Vector, z: Vector, damping: float | Tensor) -> Vector:
    """(A + damping I) z of A z."""
    if isinstance(damping, Tensor):
        return [s + damping * t for s, t in zip(product, z, strict=True)]
    return list(torch._foreach_add(product, z, alpha=damping)) if damping else product


def check_divisor(divisor: float | Tensor) -> None:
    """Refuse what no series can be divided by; a tensor is not looked at, which would wait for the device.

    Raises:
        ValueError: not positive, or not finite.
    """
    if not isinstance(divisor, Tensor) and not (math.isfinite(divisor) and divisor > 0):
        raise ValueError(
            f"the divisor of a Neumann series is {divisor}: take a positive number, at least the largest "
            "curvature (inference.bilevel.largest_curvature)."
        )


def _usable(divisor: float | Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The divisor as a tensor, 1 if it is none, and whether it is one; a number is known to be positive."""
    c = torch.as_tensor(divisor, dtype=like.dtype, device=like.device)
    if not isinstance(divisor, Tensor):
        return c, c.isfinite()
    good = (c > 0) & (c < math.inf)
    return torch.where(good, c, 1.0), good


def _first_growth(lengths: Float[Tensor, "terms *systems"], turns: list[Tensor]) -> Tensor:
    """Of the first term that is r times as long as the one before, r over 1: 1 + r if it turned, else 1 - r.

    0 if there is none.
    """
    if not turns:
        return torch.zeros_like(lengths[0])
    growth = lengths[1:] / lengths[:-1]
    grown = growth > SLACK
    eigenvalue = 1 + torch.where(torch.stack(turns) < 0, growth, -growth)
    return (eigenvalue * (grown & (grown.cumsum(0) == 1))).nan_to_num(0.0, 0.0, 0.0).sum(0)
