"""The system of a Gaussian field, solved without its matrix.

W = (J - I) kron K acts on the mean over labels as (M-1) K, and on what is left of each label as -K. So with
u_m = mean + d_m the solution is

    s_m = ((M-1) K + lambda I)^-1 mean + (lambda I - K)^-1 d_m.     [Scaling eqs. 12, 16]

`Cholesky` factors both matrices as D x D, or as N x N where positions are fewer than features.
`ConjugateGradient` needs products with A alone. Both solve for any right-hand side, so one solver serves the
solution, its gradient, and the gradient's own gradient.

Shapes: B examples, N positions, M labels, D features; A (B, N, D), right-hand sides and solutions (B, N, M).
"""

import warnings
from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from energies.gaussian import lower_gram
from energies.potentials import Factor
from inference.linear import conjugate_gradient, row_dot


class NotDefinite(ValueError):
    """In the precision of the scores, lambda I - K is not positive definite for an example."""

    def __init__(self, row: int) -> None:
        super().__init__(
            f"example {row} has no best answer: lambda I - K is not positive definite. "
            "GaussianPotentials.definite() scales its embeddings down, or raises the ridge."
        )


class Solver(ABC):
    """(W + lambda I)^-1 of one batch of embeddings, which are constants here."""

    def __init__(self, a: Float[Tensor, "B N D"], ridge: Factor, labels: int) -> None:
        self.a, self.ridge, self.others = a.detach(), ridge_of(a, ridge), labels - 1

    @abstractmethod
    def __call__(self, rhs: Float[Tensor, "B N M"]) -> Float[Tensor, "B N M"]:
        """The solution for a right-hand side; no gradient."""


class Cholesky(Solver):
    """Exact. With D <= N by the Woodbury identity:

        (lambda I - A A^T)^-1 b = (b + A (lambda I_D - A^T A)^-1 A^T b) / lambda

    and the same with -(M-1) in place of 1. It costs N D^2 for A^T A and D^3 / 3 for each factor, once; each
    solution costs 4 N D M.

    Raises:
        NotDefinite: a factor does not exist.
    """

    def __init__(self, a: Float[Tensor, "B N D"], ridge: Factor, labels: int) -> None:
        super().__init__(a, ridge, labels)
        self.by_features = a.shape[2] <= a.shape[1]
        gram = lower_gram(self.a if self.by_features else self.a.mT)
        self.rest, failed = torch.linalg.cholesky_ex(self._plus_ridge(-gram))
        if bool(failed.any()):
            raise NotDefinite(int(failed.nonzero()[0]))
        self.mean = torch.linalg.cholesky(self._plus_ridge(self.others * gram))

    def __call__(self, rhs: Float[Tensor, "B N M"]) -> Float[Tensor, "B N M"]:
        z = rhs.mT.contiguous()  # (B, M, N): products of this layout are many times faster
        b = z @ self.a if self.by_features else z
        mean = b.mean(1, keepdim=True)
        rest, mean = self._divide(b - mean, self.rest), self._divide(mean, self.mean)
        if not self.by_features:
            return (mean + rest).mT
        return torch.baddbmm(z, rest - self.others * mean, self.a.mT).div_(self.ridge).mT

    def _divide(self, rows: Float[Tensor, "B R C"], factor: Tensor) -> Float[Tensor, "B R C"]:
        return torch.cholesky_solve(rows.mT, factor).mT

    def variances(self) -> Float[Tensor, "B N"]:
        """The diagonal of (W + lambda I)^-1, the same for each label."""
        rest, mean = self._diagonal(self.rest, 1), self._diagonal(self.mean, -self.others)
        return (self.others * rest + mean) / (self.others + 1)

    def _diagonal(self, factor: Tensor, sign: int) -> Float[Tensor, "B N"]:
        """That of (lambda I - sign K)^-1."""
        if not self.by_features:
            return torch.cholesky_inverse(factor).diagonal(0, 1, 2)
        halves = torch.linalg.solve_triangular(factor, self.a.mT, upper=False)
        return (1 + sign * halves.square().sum(1)) / self.ridge[:, 0]

    def _plus_ridge(self, matrix: Tensor) -> Tensor:
        matrix.diagonal(0, 1, 2).add_(self.ridge[:, 0])
        return matrix


class ConjugateGradient(Solver):
    """Matrix-free, M columns at once, each with its own step size.

    A column stops when the norm of its residual is at most `tolerance` times that of its right-hand side.
    `steps` has the number of products of each system of the last call, (B, M): the mean, then labels 1..M-1.
    In exact arithmetic D + 1 are enough, since K has at most D + 1 distinct eigenvalues. A solve that ends
    after 2 D + 20 without that warns, and names the example.

    Raises, where it is called:
        NotDefinite: a direction of negative curvature was met.
    """

    steps: Tensor

    def __init__(
        self, a: Float[Tensor, "B N D"], ridge: Factor, labels: int, *, tolerance: float = 1e-5
    ) -> None:
        super().__init__(a, ridge, labels)
        self.tolerance, self.most = tolerance, 2 * min(a.shape[1:]) + 20
        self.sign = a.new_full((labels, 1), -1.0)
        self.sign[0] = self.others

    def __call__(self, rhs: Float[Tensor, "B N M"]) -> Float[Tensor, "B N M"]:
        mean = rhs.mean(-1, keepdim=True)
        columns = torch.cat([mean, (rhs - mean)[..., 1:]], -1).mT.contiguous()  # (B, M, N)
        found = conjugate_gradient(
            lambda z: [self.product(z[0])],
            [columns],
            steps=self.most,
            tolerance=self.tolerance,
            dot=row_dot,
            until_done=True,
        )
        failed = found.diverged.flatten(1).any(1)
        if bool(failed.any()):
            raise NotDefinite(int(failed.nonzero()[0]))
        if bool((short := (found.left > self.tolerance).flatten(1).any(1)).any()):
            row = int(short.nonzero()[0])
            warnings.warn(
                f"conjugate gradient ran out of its {self.most} steps: in example {row} a relative residual "
                f"of {float(found.left[row].max()):.1e} is left, {self.tolerance:g} was asked for. Take "
                "path='woodbury', with float64 scores where the largest eigenvalue is close to the ridge.",
                stacklevel=2,
            )
        assert found.steps is not None
        self.steps = found.steps.squeeze(-1)
        mean, rest = found.x[0].mT.split([1, self.others], -1)
        return mean + torch.cat([-rest.sum(-1, keepdim=True), rest], -1)

    def product(self, z: Float[Tensor, "B M N"]) -> Float[Tensor, "B M N"]:
        """((M-1) K + lambda I) z for the mean, (lambda I - K) z for the others."""
        return torch.baddbmm(self.ridge * z, self.sign * (z @ self.a), self.a.mT)


def ridge_of(a: Float[Tensor, "B N D"], ridge: Factor) -> Float[Tensor, "#B 1 1"]:
    """lambda, a constant; one number is (1, 1, 1)."""
    return torch.as_tensor(ridge, dtype=a.dtype, device=a.device).detach().view(-1, 1, 1)


def log_determinant(a: Float[Tensor, "B N D"], ridge: Factor, labels: int) -> Float[Tensor, " B"]:
    """Of W + lambda I: that of lambda I - K, M-1 times, and that of (M-1) K + lambda I.

    With D <= N, det(lambda I_N - A A^T) = lambda^(N - D) det(lambda I_D - A^T A).
    """
    gram = a.mT @ a if a.shape[2] <= a.shape[1] else a @ a.mT
    each = ridge_of(a, ridge)
    eye = each * torch.eye(gram.shape[1], dtype=a.dtype, device=a.device)
    rest, mean = (
        2 * torch.linalg.cholesky(matrix).diagonal(0, 1, 2).log().sum(1)
        for matrix in (eye - gram, eye + (labels - 1) * gram)
    )
    return (labels - 1) * rest + mean + labels * (a.shape[1] - gram.shape[1]) * each.log().flatten()


class Solved(torch.autograd.Function):
    """The solution, with gradients of any order by further solves.   [Scaling eq. 15]

    g = dL/dU solves the same system for dL/ds; dL/dA = -sum_m (g_m r_m^T A + r_m g_m^T A), with r_m the sum
    of s over all labels but m. One product writes both terms: to write N D numbers takes most of the time.
    """

    @staticmethod
    def forward(ctx: Any, unary: Tensor, a: Tensor, solver: Solver) -> Tensor:  # noqa: ANN401
        s = solver(unary)
        ctx.solver = solver
        ctx.save_for_backward(a, s)
        return s

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # noqa: ANN401
        a, s = ctx.saved_tensors
        g = Solved.apply(gradient, a, ctx.solver)
        if not ctx.needs_input_grad[1]:
            return g, None, None
        r = s.sum(-1, keepdim=True) - s
        sums = torch.cat([r, g], -1).mT @ a  # (B, 2 M, D)
        return g, torch.cat([g, r], -1) @ -sums, None
