"""Small bilevel problems for the tests of hypergradients."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from energies.mlc import LabelMixEnergy
from inference.bilevel import (
    Bilevel,
    FiniteDifference,
    ForwardDifference,
    Hypergradient,
    Neumann,
    Products,
    Solver,
    hypergradient,
)
from inference.linear import Dot, Product, Solution, Vector, damped
from networks.mlp import LabelMLP

DOUBLE = torch.float64
FINE, ONE_SIDED = FiniteDifference(1e-4), ForwardDifference(1e-7)


class Point(nn.Module):
    """A net whose logits are its parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(size, dtype=DOUBLE))

    def forward(self, x: Tensor) -> Tensor:
        return self.place


class Quadratic:
    """inner = 1/2 t A t - t B p, so that t* = A^-1 B p; outer = 1/2 |t - c|^2 + t D p + 1/2 p p."""

    def __init__(self, size: int = 6, num_phi: int = 4) -> None:
        g = torch.Generator().manual_seed(4)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=DOUBLE)

        root = draw(size, size)
        self.a = root @ root.T / size + 0.3 * torch.eye(size, dtype=DOUBLE)
        self.b, self.c, self.d = draw(size, num_phi), draw(size), draw(size, num_phi)
        self.phi = nn.Parameter(draw(num_phi))
        self.net = Point(size)
        self.net.place.data.copy_(self.best(self.phi.detach()))

    def best(self, phi: Tensor) -> Tensor:
        return torch.linalg.solve(self.a, self.b @ phi)

    def outer(self, t: Tensor, phi: Tensor) -> Tensor:
        return (t - self.c).square().sum() / 2 + t @ self.d @ phi + phi @ phi / 2

    def problem(self) -> Bilevel:
        return Bilevel(
            self.net,
            torch.zeros(1),
            lambda t: t @ self.a @ t / 2 - t @ self.b @ self.phi,
            lambda t: self.outer(t, self.phi),
            [self.phi],
        )

    def total_by_differences(self) -> Tensor:
        step, phi = 1e-5, self.phi.detach()
        ways = step * torch.eye(len(phi), dtype=DOUBLE)
        ends = [[self.outer(self.best(phi + s * way), phi + s * way) for s in (1, -1)] for way in ways]
        return torch.stack([(ahead - behind) / (2 * step) for ahead, behind in ends])


def mlc(
    net: nn.Module | None = None, *, dtype: torch.dtype = DOUBLE, rows: int = 5, weight: float = 1.0
) -> Bilevel:
    """An MLP of 30 inputs and 7 labels under a cross-entropy with an energy, and under a hinge."""
    torch.manual_seed(0)
    net = (net or LabelMLP(30, 7, num_layers=2, width=8)).to(dtype)
    energy = LabelMixEnergy(7, 4).to(dtype)
    x = torch.randn(rows, 30, dtype=dtype)
    y = (torch.rand(rows, 7) < 0.3).to(dtype)

    def inner(logits: Tensor) -> Tensor:
        supervision = F.binary_cross_entropy_with_logits(logits, y, reduction="none").sum(-1)
        return (supervision + weight * energy(x, logits.sigmoid())).mean()

    def outer(logits: Tensor) -> Tensor:
        guess = logits.sigmoid()
        return F.softplus((guess - y).abs().sum(-1) - energy(x, guess) + energy(x, y)).mean()

    return Bilevel(net, x, inner, outer, list(energy.parameters()))


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


@dataclass(frozen=True)
class ExactSolve(Solver):
    """The pseudo-inverse of a dense H, from one product for each column: the w of least norm."""

    def __call__(
        self, product: Product, v: Vector, *, divisor: float | Tensor, damping: float | Tensor, dot: Dot
    ) -> Solution:
        def unflat(row: Tensor) -> Vector:
            return [part.view_as(t) for part, t in zip(row.split([t.numel() for t in v]), v, strict=True)]

        units = torch.eye(len(flat(v)), dtype=v[0].dtype)
        dense = torch.stack([flat(damped(product(unflat(unit)), unflat(unit), damping)) for unit in units], 1)
        none = v[0].new_zeros(())
        return Solution(unflat(torch.linalg.pinv(dense) @ flat(v)), none.bool(), none, none)


def apart(found: list[Tensor], right: list[Tensor]) -> float:
    """Relative error of all tensors together."""
    return ((flat(found) - flat(right)).norm() / flat(right).norm()).item()


def solved(problem: Bilevel, products: Products, terms: int = 10, *, divisor: float = 60.0) -> Hypergradient:
    """With the same draws each time."""
    torch.manual_seed(7)
    return hypergradient(problem, Neumann(terms), products, divisor=divisor)
