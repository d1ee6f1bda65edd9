"""Other ways than the Neumann series to find w = (H + damping I)^-1 v from products H z.   [Implicit §3]"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inference.bilevel.hypergradient import Neumann, Solver
from inference.linear import Dot, Product, Solution, Vector, conjugate_gradient, damped

LARGEST_SOLVE = 4096  # numbers of a vector, whose square is written out


@dataclass(frozen=True)
class Dropped(Solver):
    """No implicit term at all: the explicit gradient, which is InfNet+'s.   [Implicit §3, last paragraph]"""

    uses_hessian: ClassVar[bool] = False

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """No product, and 0 for w."""
        none = v[0].new_zeros(())
        return Solution([torch.zeros_like(t) for t in v], none.bool(), none, none + 1)


@dataclass(frozen=True)
class Identity(Solver):
    """w = v / c: the Hessian is taken for a multiple of the identity, no product is computed."""

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """A series of no terms."""
        return Neumann(0)(product, v, divisor=divisor, damping=damping, dot=dot)


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
                "inference.bilevel.ConjugateGradient() or Neumann() as solver."
            )

        def unflat(row: Tensor) -> Vector:
            return [part.view_as(t) for part, t in zip(row.split(sizes), v, strict=True)]

        def flat(z: Vector) -> Tensor:
            return torch.cat([t.flatten() for t in z])

        units = torch.eye(sum(sizes), dtype=v[0].dtype, device=v[0].device)
        dense = torch.stack([flat(damped(product(unflat(unit)), unflat(unit), damping)) for unit in units], 1)
        none = v[0].new_zeros(())
        return Solution(unflat(torch.linalg.pinv(dense) @ flat(v)), none.bool(), none, none)
