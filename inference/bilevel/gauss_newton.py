"""Products with the Gauss-Newton matrix in place of the Hessian of the inner loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.bilevel.derivatives import refuse_once_differentiable, refuse_other_ways, vjp
from inference.bilevel.hypergradient import Bilevel, HessianProducts, Products, outer_gradients
from inference.linear import Vector


@dataclass(frozen=True)
class GaussNewton(Products):
    """G z = J^T H_out J z: J is d logits / d theta, H_out the Hessian of the inner loss in the logits.

    It is H without sum_i (d inner / d logit_i) (d2 logit_i / dtheta2). So it equals H if the net is linear in
    theta. It is positive semi-definite where inner is convex in the logits: supervision is, the energy of a
    relaxed answer need not be. The cross term is that of `Exact`. Not in the paper: [Schraudolph 2002].

    Raises, at the first use:
        ValueError: the net or the loss uses an operation that has no second derivative, or the inner loss
            depends on the weights of the net not by its logits alone.
    """

    def at(self, problem: Bilevel, *, shared: bool = False) -> HessianProducts:
        """Runs the net once, and both losses."""
        return _ThroughLogits(problem)


class _ThroughLogits(HessianProducts):
    """The logits with their graph, and the gradient of the inner loss in them with its own.

    The derivative of u -> J^T u along z is J z. So J z is a second backward pass, and no forward mode is
    needed.
    """

    def __init__(self, problem: Bilevel) -> None:
        self.theta, self.phi = problem.theta(), list(problem.phi)
        with torch.enable_grad():
            self.logits = problem.net(problem.x)
            self.leaf = self.logits.detach().requires_grad_()
            inner = problem.inner(self.leaf)
            (self.gradient,) = vjp([inner], [torch.ones_like(inner)], [self.leaf], create_graph=True)
            self.u = torch.zeros_like(self.leaf, requires_grad=True)
            self.pulled = vjp([self.logits], [self.u], self.theta, create_graph=True)
            outer = problem.outer(self.logits)
        refuse_once_differentiable([self.gradient, *self.pulled])
        refuse_other_ways([inner], self.theta)
        self.loss, self.v, self.explicit = outer_gradients(outer, self.theta, self.phi)

    def product(self, z: Vector) -> Vector:
        (curved,) = self._along(self._tangent(z), [self.leaf])
        return vjp([self.logits], [curved], self.theta)

    def cross(self, w: Vector) -> list[Tensor]:
        return self._along(self._tangent(w), self.phi)

    def _tangent(self, z: Vector) -> Tensor:
        """J z, the change of the logits along z."""
        varying = [(g, t) for g, t in zip(self.pulled, z, strict=True) if g.requires_grad]
        outputs, weights = zip(*varying, strict=True) if varying else ((), ())
        return vjp(outputs, weights, [self.u])[0]

    def _along(self, tangent: Tensor, by: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of <tangent, gradient of inner in the logits>; 0 if that gradient is constant."""
        if not self.gradient.requires_grad:
            return vjp((), (), by)
        return vjp([self.gradient], [tangent], by)
