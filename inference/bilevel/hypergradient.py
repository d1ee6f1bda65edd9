"""The gradient of the energy's loss through the minimum of the task-net's loss.   [Implicit §4]

theta, the task-net, minimises inner(theta, phi); phi, the energy, minimises outer(theta*(phi), phi). By the
implicit function theorem

    d outer / dphi = grad_phi outer - grad_phi <w, grad_theta inner>,  w = H^-1 grad_theta outer,    [eq. 4]

the explicit gradient minus the implicit one, with H = d2 inner / dtheta2. This file has, in this order: the
problem, Hessian products, the Neumann series for w, the hypergradient, and the outer step of training.

A vector is a list of tensors; those of theta have its shapes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from inference.bilevel.derivatives import refuse_once_differentiable, vjp
from inference.bilevel.reasons import why_stopped
from inference.linear import SLACK, Dot, Product, Solution, Vector, check_divisor, damped, dot, neumann
from losses.amounts import not_negative
from networks.sizes import at_least

Loss = Callable[[Tensor], Tensor]
Reduce = Callable[[list[Tensor]], list[Tensor]]

MARGIN = 1.1  # the divisor over the curvature that power iterations find, a lower bound


@dataclass(frozen=True)
class Bilevel:
    """A task-net with an inner and an outer loss of its logits and of phi.   [Implicit eqs. 4-6]

    theta are the parameters of `net` that require gradients. The losses are closures over the energy, the
    truth and the mask. The net runs in its current mode, with dropout in train mode; batch norm must be in
    eval mode. If losses draw random numbers, such as dropout masks of an energy, all products at a point use
    the same draws. For the outer loss `Exact` draws again, `FiniteDifference` repeats them.

    Raises:
        ValueError: phi is one tensor, not several.
    """

    net: nn.Module
    x: Any
    inner: Loss
    outer: Loss
    phi: Iterable[nn.Parameter]

    def __post_init__(self) -> None:
        if isinstance(self.phi, Tensor):
            raise ValueError("phi is one tensor: give a list of parameters, [phi].")
        object.__setattr__(self, "phi", list(self.phi))  # an iterator would be empty at its second use

    def check(self) -> None:
        """Check that gradients in phi exist.

        Raises:
            ValueError: phi is empty or holds a parameter that requires no gradient.
        """
        if not self.phi:
            raise ValueError("phi is empty: there is no parameter to differentiate by.")
        if not all(p.requires_grad for p in self.phi):
            raise ValueError(
                "phi holds a parameter that requires no grad: leave it out, or call requires_grad_()."
            )

    def theta(self) -> list[nn.Parameter]:
        """The parameters that the inner loss trains.

        Raises:
            ValueError: there are none, or see `check`.
        """
        self.check()
        found = [p for p in self.net.parameters() if p.requires_grad]
        if not found:
            raise ValueError(
                f"{type(self.net).__name__} has no parameter that requires grad: nothing to differentiate by."
            )
        return found


class HessianProducts(ABC):
    """Gradients of the outer loss and products with second derivatives of the inner loss, at one point.

    `loss` is outer, `explicit` is grad_phi outer, `v` is grad_theta outer.
    """

    loss: Tensor
    explicit: list[Tensor]
    v: Vector

    @abstractmethod
    def product(self, z: Vector) -> Vector:
        """H z = grad_theta <z, grad_theta inner>."""

    @abstractmethod
    def cross(self, w: Vector) -> list[Tensor]:
        """grad_phi <w, grad_theta inner>."""

    def dot(self, a: Vector, b: Vector) -> Tensor:
        """The inner product of two vectors in the space of theta."""
        return dot(a, b)

    def draw(self, generator: torch.Generator) -> Vector:
        """A random vector; drawn on the CPU, so that all devices draw the same."""
        return [torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device) for t in self.v]


class Products(ABC):
    """How second derivatives are computed."""

    @abstractmethod
    def at(self, problem: Bilevel, *, shared: bool = False) -> HessianProducts:
        """The products at the current parameters. `shared`: vectors are averaged over processes."""


@dataclass(frozen=True)
class Exact(Products):
    """Double backward. One graph is retained for all products.

    Raises, at the first use:
        ValueError: the net or the loss uses an operation that has no second derivative.
    """

    def at(self, problem: Bilevel, *, shared: bool = False) -> HessianProducts:
        """Runs the net once, and both losses."""
        return _DoubleBackward(problem)


class _DoubleBackward(HessianProducts):
    """The gradient of the inner loss, with its graph."""

    def __init__(self, problem: Bilevel) -> None:
        self.theta, self.phi = problem.theta(), list(problem.phi)
        with torch.enable_grad():
            logits = problem.net(problem.x)
            gradient = torch.autograd.grad(
                problem.inner(logits), self.theta, create_graph=True, materialize_grads=True
            )
            outer = problem.outer(logits)
        refuse_once_differentiable(gradient)
        self.gradient = gradient
        self.loss, self.v, self.explicit = outer_gradients(outer, self.theta, self.phi)

    def product(self, z: Vector) -> Vector:
        return self._vjp(z, self.theta)

    def cross(self, w: Vector) -> list[Tensor]:
        return self._vjp(w, self.phi)

    def _vjp(self, z: Vector, by: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of <z, gradient>; constant parts of the gradient are skipped."""
        varying = [(g, t) for g, t in zip(self.gradient, z, strict=True) if g.requires_grad]
        outputs, weights = zip(*varying, strict=True) if varying else ((), ())
        return vjp(outputs, weights, by)


def outer_gradients(
    outer: Tensor, theta: Sequence[Tensor], phi: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The value of the outer loss, grad_theta and grad_phi; the graph is retained."""
    found = torch.autograd.grad(outer, [*theta, *phi], retain_graph=True, materialize_grads=True)
    return outer.detach(), list(found[: len(theta)]), list(found[len(theta) :])


class Solver(ABC):
    """A solver of w = (H + damping I)^-1 v, or an approximation of w.

    `uses_hessian`: False if there is no implicit gradient.
    """

    uses_hessian: ClassVar[bool] = True

    @abstractmethod
    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """w, and how the solve ended."""


@dataclass(frozen=True)
class Neumann(Solver):
    """A power series of K = `terms` products: w = (1/c) sum_{i<=K} (I - H/c)^i v.   [Implicit §4, appendix]

    z_0 = a_0 = v;  z_{i+1} = z_i - H z_i / c;  a_{i+1} = a_i + z_{i+1};  w = a_K / c, with the divisor c and
    the damping in H. It ends before a term that is longer than the one before it; see `linear.neumann`, the
    same series without synchronisation.
    """

    terms: int = 5

    def __post_init__(self) -> None:
        at_least(0, terms=self.terms)

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        """The sum. This loop runs on a CPU, where reading a number does not wait for a device."""
        size = dot(v, v)
        if size.ndim or size.device.type != "cpu":
            return neumann(product, v, terms=self.terms, divisor=divisor, damping=damping, dot=dot)
        c, first = float(divisor), float(size)
        z, a, last = v, [t.clone() for t in v], first
        usable = torch.finfo(size.dtype).tiny <= c < math.inf
        diverged, curvature = not (first < math.inf and usable), 0.0
        for _ in range(0 if diverged else self.terms):
            after = list(torch._foreach_add(z, damped(product(z), z, damping), alpha=-1 / c))
            before, last = last, float(dot(after, after))
            if not last <= SLACK**2 * before:
                diverged = True
                if 0 < before and last < math.inf:
                    growth = math.sqrt(last / before)
                    curvature = c * (1 + growth if float(dot(after, z)) < 0 else 1 - growth)
                break
            torch._foreach_add_(a, after)
            z = after
        known = last < math.inf and usable
        w = [t.mul_(1 / c) if known else torch.zeros_like(t) for t in a]
        left = math.sqrt(last / first) if first else 0.0
        return Solution(w, torch.tensor(diverged), size.new_tensor(curvature), size.new_tensor(left))


@dataclass(frozen=True)
class Hypergradient:
    """The total gradient in two parts, each with a tensor for each of phi, and how the solve ended.

    `loss` is the outer loss. `diverged` and `curvature` are those of `linear.Solution`, for H with its
    damping; `why_stopped` explains them.
    """

    loss: Float[Tensor, ""]
    explicit: list[Tensor]
    implicit: list[Tensor]
    diverged: Bool[Tensor, ""]
    curvature: Float[Tensor, ""]

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
        ValueError: a divisor that is not a positive number; a negative damping; see also `products`.
    """
    check_divisor(divisor)
    if not isinstance(damping, Tensor):
        not_negative(damping=damping)
    mean = reduce or _as_it_is
    if not solver.uses_hessian:
        return _explicit_alone(problem, mean)
    here = products.at(problem, shared=reduce is not None)
    with torch.no_grad():
        found = solver(
            lambda z: mean(here.product(z)), mean(here.v), divisor=divisor, damping=damping, dot=here.dot
        )
        explicit, implicit = mean(here.explicit), mean(here.cross(found.x))
    return Hypergradient(here.loss, explicit, implicit, found.diverged, found.curvature)


def _explicit_alone(problem: Bilevel, mean: Reduce) -> Hypergradient:
    """grad_phi outer with theta fixed, and an implicit gradient of 0; the inner loss is not computed."""
    problem.theta()
    with torch.no_grad():
        logits = problem.net(problem.x)
    phi = list(problem.phi)
    with torch.enable_grad():
        outer = problem.outer(logits)
    if outer.requires_grad:
        loss, _, explicit = outer_gradients(outer, [], phi)
    else:  # phi acts by the minimum alone
        loss, explicit = outer, [torch.zeros_like(p) for p in phi]
    explicit = mean(explicit)
    none = explicit[0].new_zeros(())
    return Hypergradient(loss, explicit, [torch.zeros_like(t) for t in explicit], none.bool(), none)


def largest_curvature(
    problem: Bilevel, products: Products, *, iterations: int = 3, reduce: Reduce | None = None
) -> Float[Tensor, ""]:
    """A lower bound on the largest absolute eigenvalue of H, by power iterations from a fixed random start.

    Raises:
        ValueError: no iteration, or a curvature that is not finite.
    """
    at_least(1, iterations=iterations)
    mean = reduce or _as_it_is
    here = products.at(problem, shared=reduce is not None)
    with torch.no_grad():
        z = here.draw(torch.Generator().manual_seed(0))
        length = here.dot(z, z).sqrt()
        z, seen = list(torch._foreach_div(z, length)), torch.zeros_like(length)
        for _ in range(iterations):
            z = mean(here.product(z))
            size = here.dot(z, z).clamp_min(0).sqrt()
            seen = seen + size  # stays infinite, though z is 0 from then on
            z = list(torch._foreach_div(z, size.clamp_min(torch.finfo(size.dtype).tiny)))
    if not bool(seen.isfinite()):
        raise ValueError(
            f"the curvature of the inner loss is {seen.item()}: look for what is not finite in the logits or "
            "the energy, and clip gradients or lower the learning rates."
        )
    return size


class OuterStep(nn.Module):
    """The hypergradients of successive batches, with a divisor that is kept between them.

    The divisor is 1.1 times the largest known curvature, at least 1. Ten power iterations estimate it every
    `refresh` steps; in between a series that grows raises it. `damping` times the divisor is added to the
    diagonal of H.
    """

    divisor: Tensor

    def __init__(self, solver: Solver, products: Products, *, damping: float, refresh: int) -> None:
        super().__init__()
        self.solver, self.products, self.damping, self.refresh = solver, products, damping, refresh
        self.register_buffer("divisor", torch.ones(()))
        self.stop: Tensor | None = None  # curvature and divisor where the solver last stopped early

    def forward(
        self, problem: Callable[[], Bilevel], index: int, reduce: Reduce | None = None
    ) -> Hypergradient:
        """The gradient of step `index`, counted from 0. Each call of `problem` makes its own draws."""
        if self.solver.uses_hessian and index % self.refresh == 0:
            curvature = largest_curvature(problem(), self.products, iterations=10, reduce=reduce)
            self.divisor.copy_((MARGIN * curvature).clamp_min(1))
        c = self.divisor.clone()
        found = hypergradient(
            problem(), self.solver, self.products, divisor=c, damping=self.damping * c, reduce=reduce
        )
        stop = torch.stack([found.curvature, c])
        self.stop = stop if self.stop is None else torch.where(found.diverged, stop, self.stop)
        self.divisor.copy_(torch.where(found.curvature > c, MARGIN * found.curvature, c))
        return found

    def why_stopped(self) -> str:
        """Why the solver last stopped early, and what helps; waits for the device."""
        assert self.stop is not None, "no step yet"
        return why_stopped(*self.stop.tolist(), damping=self.damping)


def _as_it_is(tensors: list[Tensor]) -> list[Tensor]:
    return tensors
