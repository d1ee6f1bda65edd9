"""Hessian products by finite differences, for operations without a second derivative."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.bilevel.hypergradient import Bilevel, HessianProducts, Products, outer_gradients
from inference.linear import Vector
from losses.amounts import above_zero


@dataclass(frozen=True)
class FiniteDifference(Products):
    """Central differences of gradients; no second derivatives needed.   [Implicit §4; DARTS §2.3]

    H z ~ [grad_theta inner(theta + eps z) - grad_theta inner(theta - eps z)] / 2 eps, eps = `step` / |z|; the
    cross term is analogous. Both sides use the same dropout masks and noise. theta is restored exactly from a
    copy, even if the loss raises an error.
    """

    step: float = 0.01

    def __post_init__(self) -> None:
        above_zero(step=self.step)

    def at(self, problem: Bilevel, *, shared: bool = False) -> HessianProducts:
        """Runs the net and the outer loss once; each product runs net and inner loss twice."""
        return _Central(problem, self.step)


@dataclass(frozen=True)
class ForwardDifference(FiniteDifference):
    """One-sided differences, as in the paper: half the cost, an error of order eps instead of eps^2.

    H z ~ [grad_theta inner(theta + eps z) - grad_theta inner(theta)] / eps; see FiniteDifference.
    """

    step: float = 0.001

    def at(self, problem: Bilevel, *, shared: bool = False) -> HessianProducts:
        """Runs the net and both losses once; each product runs net and inner loss once."""
        return _OneSided(problem, self.step)


class _Central(HessianProducts):
    """Gradients at points near theta, each computed with the same random numbers."""

    def __init__(self, problem: Bilevel, step: float) -> None:
        self.problem, self.step = problem, step
        self.theta, self.phi = problem.theta(), list(problem.phi)
        self.kept = [p.detach().clone() for p in self.theta]
        self.devices = sorted({p.device.index or 0 for p in self.theta if p.is_cuda})
        self.random = torch.get_rng_state(), [torch.cuda.get_rng_state(d) for d in self.devices]
        with torch.enable_grad():
            outer = problem.outer(problem.net(problem.x))
        self.loss, self.v, self.explicit = outer_gradients(outer, self.theta, self.phi)

    def product(self, z: Vector) -> Vector:
        return self._difference(z, self.theta)

    def cross(self, w: Vector) -> list[Tensor]:
        return self._difference(w, self.phi)

    def _difference(self, z: Vector, by: Sequence[Tensor]) -> list[Tensor]:
        """The change of the inner loss's gradient along z."""
        eps = self._eps(z)
        way = torch._foreach_mul(z, eps)
        ahead = self._gradient(by, torch._foreach_add(self.kept, way))
        behind = self._gradient(by, torch._foreach_sub(self.kept, way))
        return list(torch._foreach_div(torch._foreach_sub(ahead, behind), 2 * eps))

    def _eps(self, z: Vector) -> Tensor:
        length = torch.stack(torch._foreach_norm(z)).norm()
        return self.step / length.clamp_min(torch.finfo(length.dtype).tiny ** 0.5)

    def _gradient(self, by: Sequence[Tensor], there: list[Tensor] | tuple[Tensor, ...]) -> list[Tensor]:
        """The gradient of the inner loss at theta = `there`; theta is then restored."""
        values = [p.data for p in self.theta]  # .data keeps version counters, since the values are restored
        try:
            torch._foreach_copy_(values, there)
            with torch.random.fork_rng(self.devices), torch.enable_grad():
                cpu, cuda = self.random
                torch.set_rng_state(cpu)
                for device, state in zip(self.devices, cuda, strict=True):
                    torch.cuda.set_rng_state(state, device)
                inner = self.problem.inner(self.problem.net(self.problem.x))
                return list(torch.autograd.grad(inner, by, retain_graph=True, materialize_grads=True))
        finally:
            torch._foreach_copy_(values, self.kept)


class _OneSided(_Central):
    """Gradients on one side of theta, and at theta itself."""

    def __init__(self, problem: Bilevel, step: float) -> None:
        super().__init__(problem, step)
        both: list[Tensor] = [*self.theta, *self.phi]
        self.here = dict(zip(both, self._gradient(both, self.kept), strict=True))

    def _difference(self, z: Vector, by: Sequence[Tensor]) -> list[Tensor]:
        eps = self._eps(z)
        ahead = self._gradient(by, torch._foreach_add(self.kept, torch._foreach_mul(z, eps)))
        return list(torch._foreach_div(torch._foreach_sub(ahead, [self.here[p] for p in by]), eps))
