"""Hypergradients as other packages compute them, behind one interface for `scripts.benchmarks.hypergradient`.

None of them is a dependency of this project, and a package that cannot be imported is reported, not required.
Each adapter does what the package's users do: the whole gradient from a batch, without state from the last
one.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from energies.base import Energy
from inference.bilevel import Bilevel

Contender = Callable[[], list[Tensor]]  # the gradient of the outer loss in the energy's parameters


@dataclass(frozen=True)
class Task:
    """A partly trained task-net and energy; a series of `terms` products.

    inner = cross-entropy + E(A(x)), outer = [L1 cost - E(A(x)) + E(y)]_+, means over the batch.
    """

    net: nn.Module
    energy: Energy
    x: Tensor
    y: Tensor
    divisor: float
    terms: int

    def double(self) -> Self:
        """The same in float64."""
        net, energy = deepcopy(self.net).double(), deepcopy(self.energy).double()
        return replace(self, net=net, energy=energy, x=self.x.double(), y=self.y.double())

    def inner(self, logits: Tensor, energy: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
        """The inner loss."""
        supervision = F.binary_cross_entropy_with_logits(logits, self.y, reduction="none").sum(-1)
        return (supervision + (energy or self.energy)(self.x, logits.sigmoid())).mean()

    def outer(self, logits: Tensor) -> Tensor:
        """The outer loss."""
        guess = logits.sigmoid()
        cost = (guess - self.y).abs().sum(-1)
        return (cost - self.energy(self.x, guess) + self.energy(self.x, self.y)).clamp_min(0).mean()

    def bilevel(self) -> Bilevel:
        """The problem as this project's Bilevel."""
        return Bilevel(self.net, self.x, self.inner, self.outer, list(self.energy.parameters()))

    def outer_gradients(self, logits: Tensor, *, again: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients in theta and phi; with `again` the graph is kept."""
        theta, phi = list(self.net.parameters()), list(self.energy.parameters())
        found = torch.autograd.grad(self.outer(logits), [*theta, *phi], retain_graph=again)
        return list(found[: len(theta)]), list(found[len(theta) :])


def less(explicit: list[Tensor], implicit: list[Tensor]) -> list[Tensor]:
    """The total gradient."""
    return [a - b for a, b in zip(explicit, implicit, strict=True)]


def betty(t: Task) -> Contender:
    """Its `neumann`, called as its engine does: the loss of the lower problem is computed inside."""
    module = import_module("betty.hypergradient.neumann")
    lower = SimpleNamespace(
        paths=[],
        config=SimpleNamespace(neumann_iterations=t.terms, neumann_alpha=1 / t.divisor),
        cur_batch=None,
        training_step_exec=lambda batch: t.inner(t.net(t.x)),
        trainable_parameters=lambda: list(t.net.parameters()),
    )
    upper = SimpleNamespace(trainable_parameters=lambda: list(t.energy.parameters()))

    def run() -> list[Tensor]:
        v, explicit = t.outer_gradients(t.net(t.x), again=False)
        minus_implicit = module.neumann(v, lower, upper, False)
        return [a + b for a, b in zip(explicit, minus_implicit, strict=True)]

    return run


def torchopt(t: Task) -> Contender:
    """`linalg.ns`, with products over a graph that is kept."""
    series = import_module("torchopt.linalg").ns
    theta, phi = list(t.net.parameters()), list(t.energy.parameters())

    def run() -> list[Tensor]:
        logits = t.net(t.x)
        gradient = torch.autograd.grad(t.inner(logits), theta, create_graph=True)
        v, explicit = t.outer_gradients(logits, again=True)

        def product(z: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return torch.autograd.grad(gradient, theta, z, retain_graph=True)

        w = series(product, tuple(v), maxiter=t.terms, alpha=1 / t.divisor)
        return less(explicit, list(torch.autograd.grad(gradient, phi, w)))

    return run


def functional(t: Task) -> Contender:
    """torch.func: one vjp of the gradient, called for each product."""

    def inner(theta: dict[str, Tensor], phi: dict[str, Tensor]) -> Tensor:
        logits = torch.func.functional_call(t.net, theta, (t.x,))
        return t.inner(logits, lambda x, y: torch.func.functional_call(t.energy, phi, (x, y)))

    theta = {name: p.detach() for name, p in t.net.named_parameters()}
    phi = {name: p.detach() for name, p in t.energy.named_parameters()}

    def run() -> list[Tensor]:
        v, explicit = t.outer_gradients(t.net(t.x), again=False)
        z = dict(zip(theta, v, strict=True))
        pull = torch.func.vjp(torch.func.grad(inner), theta, phi)[1]
        total = z
        for _ in range(t.terms):
            product = pull(z)[0]
            z = {name: s - product[name] / t.divisor for name, s in z.items()}
            total = {name: s + z[name] for name, s in total.items()}
        implicit = pull({name: s / t.divisor for name, s in total.items()})[1]
        return less(explicit, list(implicit.values()))

    return run


PEERS: dict[str, Callable[[Task], Contender]] = {
    "betty-ml 0.2.1 neumann": betty,
    "torchopt 0.7.3 linalg.ns": torchopt,
    "torch.func, vjp of grad": functional,
}
