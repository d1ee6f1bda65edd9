"""The second derivatives of a bilevel problem as products: H z, and the cross term with the outer parameters.

theta are the parameters of a task-net, phi what the losses of its logits depend on besides: an energy's.
H = d2 inner / dtheta2. A vector is a list of tensors; those of theta have its shapes.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inference.linear import Vector, dot

Loss = Callable[[Tensor], Tensor]

# How torch words it that an operation can be derived only once, and the node that stands for one of ours
ONLY_ONCE = re.compile(r"derivative for '?(?P<name>[\w:.]+)'? is not implemented")
FORGOTTEN = "torch::autograd::Error"


@dataclass(frozen=True)
class Bilevel:
    """A task-net under two losses of its logits; phi is what they depend on besides.   [Implicit eqs. 4-6]

    theta are the parameters of `net` that ask for gradients. The losses close over what else they need: the
    energy, the truth, a mask. The net is asked as it stands, dropout included; batch norm belongs in eval
    mode. Where losses draw random numbers of their own, such as an energy's dropout, all products at a point
    meet the same ones; `Exact` draws others for the outer loss, `FiniteDifference` the same.
    """

    net: nn.Module
    x: Any  # what the net reads
    inner: Loss
    outer: Loss
    phi: Sequence[nn.Parameter]

    def check(self) -> None:
        """Refuse a phi that no gradient can be asked for.

        Raises:
            ValueError: it is empty or holds one that is fixed.
        """
        if not self.phi:
            raise ValueError("phi is empty: there is nothing whose gradient could be asked for.")
        if not all(p.requires_grad for p in self.phi):
            raise ValueError(
                "phi holds a parameter that requires no grad: leave it out, or call requires_grad_()."
            )

    def theta(self) -> list[nn.Parameter]:
        """The parameters that the inner loss trains.

        Raises:
            ValueError: there are none, or as `check` does.
        """
        self.check()
        found = [p for p in self.net.parameters() if p.requires_grad]
        if not found:
            raise ValueError(
                f"{type(self.net).__name__} has no parameter that requires grad: nothing to derive by."
            )
        return found


class Curvature(ABC):
    """What one point (theta, phi) has to say: gradients of the outer loss, products of the inner one.

    `explicit` is grad_phi outer, `slope` is v = grad_theta outer.
    """

    explicit: list[Tensor]
    slope: Vector

    @abstractmethod
    def product(self, z: Vector) -> Vector:
        """H z."""

    @abstractmethod
    def cross(self, w: Vector) -> list[Tensor]:
        """grad_phi <w, grad_theta inner>."""

    def dot(self, a: Vector, b: Vector) -> Tensor:
        """The inner product of what two vectors stand for."""
        return dot(a, b)

    def draw(self, generator: torch.Generator) -> Vector:
        """A random vector; drawn on the CPU, so that all devices draw the same."""
        return [torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device) for t in self.slope]


class Products(ABC):
    """How second derivatives are computed."""

    @abstractmethod
    def at(self, problem: Bilevel, *, shared: bool = False) -> Curvature:
        """The curvature where the parameters stand. `shared`: its vectors are averaged over processes."""


@dataclass(frozen=True)
class Exact(Products):
    """Double backward. One graph is kept for all products.

    Raises, at the first use:
        ValueError: the net or the loss uses an operation that can be derived only once.
    """

    def at(self, problem: Bilevel, *, shared: bool = False) -> Curvature:
        """Runs the net once, and both losses."""
        return _Graph(problem)


class _Graph(Curvature):
    """The gradient of the inner loss, with the graph it came by."""

    def __init__(self, problem: Bilevel) -> None:
        self.theta, self.phi = problem.theta(), list(problem.phi)
        with torch.enable_grad():
            logits = problem.net(problem.x)
            gradient = torch.autograd.grad(
                problem.inner(logits), self.theta, create_graph=True, materialize_grads=True
            )
            outer = problem.outer(logits)
        refuse_once_only(gradient)
        self.gradient = gradient
        found = torch.autograd.grad(
            outer, [*self.theta, *self.phi], retain_graph=True, materialize_grads=True
        )
        self.slope, self.explicit = list(found[: len(self.theta)]), list(found[len(self.theta) :])

    def product(self, z: Vector) -> Vector:
        return self._pulled(z, self.theta)

    def cross(self, w: Vector) -> list[Tensor]:
        return self._pulled(w, self.phi)

    def _pulled(self, z: Vector, by: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of <z, gradient>; what has no gradient of its own adds none."""
        bent = [(g, t) for g, t in zip(self.gradient, z, strict=True) if g.requires_grad]
        outputs, weights = zip(*bent, strict=True) if bent else ((), ())
        return pulled(outputs, weights, by)


@dataclass(frozen=True)
class FiniteDifference(Products):
    """Central differences of gradients, for what can be derived only once.          [Implicit §3; DARTS §2.3]

    H z ~ [grad_theta inner(theta + eps z) - grad_theta inner(theta - eps z)] / 2 eps, eps = `step` / |z|; the
    cross term alike. Both sides see the same dropout masks and noise. theta is put back from a copy, bit for
    bit, even if the loss raises.
    """

    step: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.step < math.inf:
            raise ValueError(
                f"{type(self).__name__} with step {self.step}: take a positive one, such as 0.01."
            )

    def at(self, problem: Bilevel, *, shared: bool = False) -> Curvature:
        """Runs the net and the outer loss once; each product runs net and inner loss twice."""
        return _Differences(problem, self.step)


@dataclass(frozen=True)
class ForwardDifference(FiniteDifference):
    """Differences to the one side, as the paper has them: half the cost, an error of eps and not its square.

    H z ~ [grad_theta inner(theta + eps z) - grad_theta inner(theta)] / eps; see FiniteDifference.
    """

    step: float = 0.001

    def at(self, problem: Bilevel, *, shared: bool = False) -> Curvature:
        """Runs the net and both losses once; each product runs net and inner loss once."""
        return _OneSided(problem, self.step)


class _Differences(Curvature):
    """Gradients beside where theta stands, drawn with the same random numbers each time."""

    def __init__(self, problem: Bilevel, step: float) -> None:
        self.problem, self.step = problem, step
        self.theta, self.phi = problem.theta(), list(problem.phi)
        self.kept = [p.detach().clone() for p in self.theta]
        self.devices = sorted({p.device.index or 0 for p in self.theta if p.is_cuda})
        self.random = torch.get_rng_state(), [torch.cuda.get_rng_state(d) for d in self.devices]
        with torch.enable_grad():
            outer = problem.outer(problem.net(problem.x))
        found = torch.autograd.grad(
            outer, [*self.theta, *self.phi], retain_graph=True, materialize_grads=True
        )
        self.slope, self.explicit = list(found[: len(self.theta)]), list(found[len(self.theta) :])

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
        """Of the inner loss, with theta there; theta is then put back."""
        values = [p.data for p in self.theta]  # their versions stay, as the values do in the end
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


class _OneSided(_Differences):
    """Gradients at one side of theta, and at theta itself."""

    def __init__(self, problem: Bilevel, step: float) -> None:
        super().__init__(problem, step)
        both: list[Tensor] = [*self.theta, *self.phi]
        self.here = dict(zip(both, self._gradient(both, self.kept), strict=True))

    def _difference(self, z: Vector, by: Sequence[Tensor]) -> list[Tensor]:
        eps = self._eps(z)
        ahead = self._gradient(by, torch._foreach_add(self.kept, torch._foreach_mul(z, eps)))
        return list(torch._foreach_div(torch._foreach_sub(ahead, [self.here[p] for p in by]), eps))


def explicit_gradient(problem: Bilevel) -> list[Tensor]:
    """grad_phi outer with theta held fixed; the inner loss is not looked at."""
    problem.theta()
    with torch.no_grad():
        logits = problem.net(problem.x)
    with torch.enable_grad():
        return list(torch.autograd.grad(problem.outer(logits), list(problem.phi), materialize_grads=True))


def pulled(
    outputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    by: Sequence[Tensor],
    *,
    differentiable: bool = False,
) -> list[Tensor]:
    """The gradient of <weights, outputs>, 0 where they do not depend on it; the graph is kept.

    This asks the engine behind `torch.autograd.grad`, whose checks take 50 us a call: as long as a product
    itself in a small net.

    Raises:
        ValueError: an operation can be derived only once.
    """
    if not outputs:
        return [torch.zeros_like(p) for p in by]
    engine = torch.autograd.Variable._execution_engine
    try:
        found = engine.run_backward(
            tuple(outputs),
            tuple(weights),
            True,
            differentiable,
            tuple(by),
            allow_unreachable=True,
            accumulate_grad=False,
        )
    except RuntimeError as error:
        once = ONLY_ONCE.search(str(error))
        if not once:
            raise
        raise ValueError(_only_once(once["name"])) from error
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, by, strict=True)]


def refuse_once_only(gradients: Sequence[Tensor]) -> None:
    """Look through the graph of a gradient for what was marked `once_differentiable`.

    torch complains only where such an error node is on the way to what is derived by. It is not: the function
    forgets what its gradient depends on, and its part of a product would be missing without a word.

    Raises:
        ValueError: there is such a function.
    """
    nodes = [g.grad_fn for g in gradients if g.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node.name() == FORGOTTEN:
            raise ValueError(_only_once("a custom autograd function"))
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                nodes.append(before)


def _only_once(name: str) -> str:
    return (
        f"{name} has no second derivative, so there is no exact product with the Hessian of the inner loss. "
        "Take inference.bilevel.FiniteDifference() for products."
    )
