"""The gradient of a loss at the end of a minimisation, in what was held fixed there.   [Implicit §3]

theta, the task-net, minimises an inner loss that depends on phi, the energy. By the implicit function theorem

    d outer / dphi = grad_phi outer - grad_phi <w, grad_theta inner>,  w = H^-1 grad_theta outer,

the explicit gradient less the implicit one. A problem says what the losses are, products how H z is computed,
a solver how w is found from products.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from inference.curvature import (
    Bilevel,
    Curvature,
    Exact,
    FiniteDifference,
    ForwardDifference,
    Products,
    explicit_gradient,
)
from inference.hypergradient_dual import Dual
from inference.linear import (
    Dot,
    Product,
    Solution,
    Vector,
    check_divisor,
    conjugate_gradient,
    damped,
    neumann,
)

__all__ = [
    "Bilevel",
    "ConjugateGradient",
    "Curvature",
    "Dropped",
    "Dual",
    "Exact",
    "ExactSolve",
    "FiniteDifference",
    "ForwardDifference",
    "Hypergradient",
    "Identity",
    "Neumann",
    "Products",
    "Solver",
    "hypergradient",
    "largest_curvature",
    "why_diverged",
]

Reduce = Callable[[list[Tensor]], list[Tensor]]

LARGEST_SOLVE = 4096  # numbers of a vector, whose square is written out


class Solver(ABC):
    """How w = (H + damping I)^-1 v is found, or what is taken for it."""

    @abstractmethod
    def __call__(
        self,
        product: Product,
        v: Vector,
        *,
        divisor: float | Tensor,
        damping: float | Tensor,
        dot: Dot,
    ) -> Solution:
        """w, and how it was found."""


@dataclass(frozen=True)
class Dropped(Solver):
    """No implicit term at all: the explicit gradient, which is InfNet+'s.   [Implicit §3, last paragraph]"""

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """No product, and 0 for w."""
        none = v[0].new_zeros(())
        return Solution([torch.zeros_like(t) for t in v], none.bool(), none, none + 1)


@dataclass(frozen=True)
class Neumann(Solver):
    """A power series, `terms` products long.   [Implicit §3, appendix]"""

    terms: int = 5

    def __post_init__(self) -> None:
        if self.terms < 0:
            raise ValueError(f"Neumann(terms={self.terms}): a series has 0 products or more.")

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """See `linear.neumann`."""
        return neumann(product, v, terms=self.terms, divisor=divisor, damping=damping, dot=dot)


@dataclass(frozen=True)
class Identity(Solver):
    """w = v / c: the Hessian is taken for a multiple of the identity, no product is computed."""

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """A series of no terms."""
        return neumann(product, v, terms=0, divisor=divisor, dot=dot)


@dataclass(frozen=True)
class ConjugateGradient(Solver):
    """Conjugate gradient, for where damping makes H positive definite; needs no divisor.

    `damping` is added to that which the problem has.
    """

    steps: int = 10
    tolerance: float = 1e-6
    damping: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"ConjugateGradient(steps={self.steps}): ask for 0 products or more.")
        for name, value in (("tolerance", self.tolerance), ("damping", self.damping)):
            if not 0 <= value < math.inf:
                raise ValueError(f"ConjugateGradient({name}={value}): take a finite number, 0 or more.")

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """See `linear.conjugate_gradient`."""
        return conjugate_gradient(
            product, v, steps=self.steps, tolerance=self.tolerance, damping=damping + self.damping, dot=dot
        )


@dataclass(frozen=True)
class ExactSolve(Solver):
    """H in full, a product for each column, and its pseudo-inverse: for tests.

    Raises, at the first use:
        ValueError: H would have more than 4,096 columns.
    """

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """w, of the least length if H is singular and products are those of `Exact`."""
        sizes = [t.numel() for t in v]
        if sum(sizes) > LARGEST_SOLVE:
            raise ValueError(
                f"ExactSolve writes H out, {sum(sizes):,} columns here, and stops at {LARGEST_SOLVE:,}. Take "
                "inference.hypergradient.ConjugateGradient() or Neumann() as solver."
            )

        def unflat(row: Tensor) -> Vector:
            return [part.view_as(t) for part, t in zip(row.split(sizes), v, strict=True)]

        def flat(z: Vector) -> Tensor:
            return torch.cat([t.flatten() for t in z])

        units = torch.eye(sum(sizes), dtype=v[0].dtype, device=v[0].device)
        dense = torch.stack([flat(damped(product(unflat(unit)), unflat(unit), damping)) for unit in units], 1)
        none = v[0].new_zeros(())
        return Solution(unflat(torch.linalg.pinv(dense) @ flat(v)), none.bool(), none, none)


@dataclass(frozen=True)
class Hypergradient:
    """The total gradient in two parts, a tensor for each of phi, and how the second was found.

    `diverged` and `curvature` are those of `linear.Solution`, of H with its damping; `why_diverged` puts them
    into words.
    """

    explicit: list[Tensor]
    implicit: list[Tensor]
    diverged: Bool[Tensor, ""]
    curvature: Float[Tensor, ""]
    divisor: float | Tensor

    @property
    def gradient(self) -> list[Tensor]:
        """The total, explicit - implicit."""
        return list(torch._foreach_sub(self.explicit, self.implicit))


def hypergradient(
    problem: Bilevel,
    solver: Solver,
    products: Products,
    *,
    divisor: float | Tensor,
    damping: float | Tensor = 0.0,
    reduce: Reduce | None = None,
) -> Hypergradient:
    """The gradient of the outer loss in phi, theta being a minimum of the inner one.   [Implicit eq. 4]

    `divisor` is the c of a Neumann series, at least the largest curvature; `damping` is added to the diagonal
    of H. `reduce` averages a list of tensors over processes: with it the losses are the means over all.

    Raises:
        ValueError: a divisor that is not a positive number; a negative damping; what `products` cannot do.
    """
    check_divisor(divisor)
    if not isinstance(damping, Tensor) and not 0 <= damping < math.inf:
        raise ValueError(f"the damping of H is {damping}: take a finite number, 0 or more.")
    mean = reduce or _as_it_is
    if isinstance(solver, Dropped):
        explicit = mean(explicit_gradient(problem))
        none = problem.x.new_zeros((), dtype=explicit[0].dtype)
        return Hypergradient(explicit, [torch.zeros_like(t) for t in explicit], none.bool(), none, divisor)
    here = products.at(problem, shared=reduce is not None)
    with torch.no_grad():
        found = solver(
            lambda z: mean(here.product(z)),
            mean(here.slope),
            divisor=divisor,
            damping=damping,
            dot=here.dot,
        )
        explicit, implicit = mean(here.explicit), mean(here.cross(found.x))
    return Hypergradient(explicit, implicit, found.diverged, found.curvature, divisor)


def largest_curvature(
    problem: Bilevel,
    products: Products,
    *,
    iterations: int = 3,
    seed: int = 0,
    reduce: Reduce | None = None,
) -> Float[Tensor, ""]:
    """The size of the largest eigenvalue of H, from below, by power iterations from a random start.

    Raises:
        ValueError: no iteration, or a curvature that is not finite.
    """
    if iterations < 1:
        raise ValueError(f"largest_curvature of {iterations} iterations: ask for 1 product or more.")
    mean = reduce or _as_it_is
    here = products.at(problem, shared=reduce is not None)
    with torch.no_grad():
        z = here.draw(torch.Generator().manual_seed(seed))
        length = here.dot(z, z).sqrt()
        z, seen = list(torch._foreach_div(z, length)), torch.zeros_like(length)
        for _ in range(iterations):
            z = mean(here.product(z))
            size = here.dot(z, z).clamp_min(0).sqrt()
            seen = seen + size  # infinite for good, though z is 0 from then on
            z = list(torch._foreach_div(z, size.clamp_min(torch.finfo(size.dtype).tiny)))
    if not bool(seen.isfinite()):
        raise ValueError(
            f"the curvature of the inner loss is {seen.item()}: look for what is not finite in the logits or "
            "the energy, and clip gradients or lower the learning rates."
        )
    return size


def why_diverged(found: Hypergradient) -> str:
    """What stopped the solver, and what to change; waits for the device.

    Raises:
        ValueError: nothing stopped it.
    """
    if not bool(found.diverged):
        raise ValueError("the hypergradient did not diverge: ask where `diverged` is true.")
    curvature, divisor = float(found.curvature), float(found.divisor)
    if curvature > 0:
        return (
            f"the series grew at divisor {divisor:.4g}: H with its damping has a curvature of "
            f"{curvature:.4g} or more. Take a divisor as large."
        )
    if curvature < 0:
        return (
            f"H with its damping has a negative curvature, {curvature:.4g} or less: take more damping, by "
            f"more than {-curvature:.4g}."
        )
    return (
        f"at divisor {divisor:.4g} a product with H, the outer gradient or the divisor itself is not a "
        "number to go on with: look at the logits and the energy."
    )


def _as_it_is(tensors: list[Tensor]) -> list[Tensor]:
    return tensors
