"""Solvers of w = (H + damping I)^-1 v from products H z, other than the Neumann series.   [Implicit §4]"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inference.bilevel.hypergradient import Neumann, Solver
from inference.linear import Dot, Product, Solution, Vector, conjugate_gradient
from losses.amounts import not_negative
from networks.sizes import at_least


@dataclass(frozen=True)
class Dropped(Solver):
    """No implicit term: the explicit gradient alone, as in InfNet+.   [Implicit §4, bi-level view]"""

    uses_hessian: ClassVar[bool] = False

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """The solution 0, without a product."""
        none = v[0].new_zeros(())
        return Solution([torch.zeros_like(t) for t in v], none.bool(), none, none + 1)


@dataclass(frozen=True)
class Identity(Solver):
    """w = v / c: the Hessian is approximated by c I, without a product."""

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """A Neumann series of 0 products."""
        return Neumann(0)(product, v, divisor=divisor, damping=damping, dot=dot)


@dataclass(frozen=True)
class ConjugateGradient(Solver):
    """Conjugate gradient, if damping makes H positive definite; it does not use the divisor.

    `damping` is added to the damping of the call.
    """

    steps: int = 10
    tolerance: float = 1e-6
    damping: float = 0.0

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps)  # none would leave w at 0, as Dropped does
        not_negative(tolerance=self.tolerance, damping=self.damping)

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """See `linear.conjugate_gradient`."""
        return conjugate_gradient(
            product, v, steps=self.steps, tolerance=self.tolerance, damping=damping + self.damping, dot=dot
        )
