"""The gradient of a loss at the end of a minimisation, in what was held fixed there.   [Implicit §3]

theta, the task-net, minimises an inner loss that depends on phi, the energy. By the implicit function theorem

    d outer / dphi = grad_phi outer - grad_phi <w, grad_theta inner>,  w = H^-1 grad_theta outer,

the explicit gradient less the implicit one. A problem says what the losses are, products how H z is computed,
a solver how w is found from products.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from inference.bilevel.products import Bilevel, Products, explicit_gradient
from inference.bilevel.solvers import Dropped, Solver
from inference.linear import check_divisor

Reduce = Callable[[list[Tensor]], list[Tensor]]


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
