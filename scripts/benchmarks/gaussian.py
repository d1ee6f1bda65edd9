"""The mode of a Gaussian field, and its gradient, against the packages that people use.

    python -m scripts.benchmarks.gaussian [--device cuda]

Parity first: all solutions agree with float64. One example, two labels; one thread in CPU time, or a GPU by
events. A mode takes
two systems, (lambda I + K) x = mean and (lambda I - K) x = difference of the labels' scores. The low-rank
solve of linear_operator has no minus sign: it solves the first system twice, and is compared on that. K has
eigenvalues from 0.9 lambda down to a hundredth of that. Memory is what torch allocates at once, beside U and
A. Then follow the cost by N and D, and the steps of conjugate gradient. linear_operator is no dependency:

    pip install --no-deps --target peers linear_operator
    PYTHONPATH=peers python -m scripts.benchmarks.gaussian
"""

import argparse
import math
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

import numpy as np
import torch
from rich.console import Console
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor

from energies.gaussian import GaussianPotentials
from inference import gaussian
from inference.gaussian.solve import ConjugateGradient
from scripts.peers.timing import by_events, peak_memory, print_table, show, side_by_side

SIZES = [(32, 64), (32, 128), (128, 64), (128, 128)]  # side of a square picture, features
SIDES, FEATURES = (32, 64, 96, 128), (16, 64, 128, 256, 512, 1024)
TOLERANCE = 1e-5
RIGHT = 1e-3  # largest relative error that counts as equal, in float32

LOW_RANK, BY_SCIPY = "linear_operator, low rank", "scipy, cg"
Contenders = dict[str, Callable[[], Tensor]]


def field(side: int, features: int, device: str) -> GaussianPotentials:
    """Random scores; the embeddings are scaled to the largest eigenvalue that training allows."""
    draw = torch.Generator().manual_seed(0)
    positions = side * side
    unary = torch.randn(1, positions, 2, generator=draw, dtype=torch.float64)
    a = torch.randn(1, positions, features, generator=draw, dtype=torch.float64)
    a = a * torch.logspace(0, -1, features, dtype=torch.float64)
    p = GaussianPotentials(unary, 10 * a / math.sqrt(positions)).definite()
    return GaussianPotentials(unary.to(device, torch.float32), p.embedding.to(device, torch.float32))


def parts(p: GaussianPotentials) -> tuple[Tensor, Tensor]:
    """A (N, D), and the right-hand sides (N, 2): the mean over labels, and half their difference."""
    first, second = p.unary[0].unbind(-1)
    return p.embedding[0], torch.stack([first + second, first - second], -1) / 2


def ours(p: GaussianPotentials, path: gaussian.Path) -> Tensor:
    """The mode, as its mean over labels and half their difference."""
    first, second = gaussian.mode(p, path, tolerance=TOLERANCE)[0].unbind(-1)
    return torch.stack([first + second, first - second], -1) / 2


def by_low_rank(p: GaussianPotentials) -> Tensor:
    """linear_operator's Woodbury solve, of (lambda I + K) twice."""
    operators = import_module("linear_operator.operators")
    a, b = parts(p)
    diagonal = operators.ConstantDiagLinearOperator(a.new_full((1,), float(p.ridge)), len(a))

    def solve(rhs: Tensor) -> Tensor:
        root = operators.LowRankRootLinearOperator(a)
        return operators.LowRankRootAddedDiagLinearOperator(root, diagonal).solve(rhs)

    return torch.cat([solve(b[:, :1]), solve(b[:, 1:])], -1)


def by_cg(p: GaussianPotentials) -> Tensor:
    """linear_operator's conjugate gradient."""
    operators, settings = (import_module(f"linear_operator.{name}") for name in ("operators", "settings"))
    a, b = parts(p)
    diagonal = operators.ConstantDiagLinearOperator(a.new_full((1,), float(p.ridge)), len(a))
    found = []
    with settings.max_cholesky_size(0), settings.cg_tolerance(TOLERANCE), settings.max_preconditioner_size(0):
        for column, sign in enumerate((1.0, -1.0)):
            root = operators.RootLinearOperator(a).mul(a.new_tensor(sign))
            found.append(operators.AddedDiagLinearOperator(root, diagonal).solve(b[:, column : column + 1]))
    return torch.cat(found, -1)


def by_scipy(p: GaussianPotentials) -> Tensor:
    """The same of scipy, which has no gradient."""
    a, b = (x.detach().numpy() for x in parts(p))

    def solve(rhs: np.ndarray, sign: int) -> np.ndarray:
        product = LinearOperator(
            (len(a), len(a)), lambda x: sign * (a @ (a.T @ x)) + p.ridge * x, dtype=a.dtype
        )
        return cg(product, rhs, rtol=TOLERANCE)[0]

    return torch.from_numpy(np.stack([solve(b[:, 0], 1), solve(b[:, 1], -1)], -1))


def by_dense(p: GaussianPotentials) -> Tensor:
    """Cholesky factors of N x N numbers."""
    a, b = parts(p)
    gram, ridge = a @ a.T, p.ridge * torch.eye(len(a), device=a.device)
    halves = [
        torch.cholesky_solve(rhs.unsqueeze(-1), torch.linalg.cholesky(ridge + sign * gram))
        for rhs, sign in zip(b.unbind(-1), (1, -1), strict=True)
    ]
    return torch.cat(halves, -1)


def contenders(p: GaussianPotentials, console: Console) -> Contenders:
    """Those that are installed, fit in memory and agree with float64."""
    wide = GaussianPotentials(p.unary.double(), p.embedding.double())
    right = ours(wide, "woodbury").detach()
    makers: Contenders = {
        "woodbury": partial(ours, p, "woodbury"),
        "cg": partial(ours, p, "cg"),
        LOW_RANK: partial(by_low_rank, p),
        "linear_operator, cg": partial(by_cg, p),
    }
    if not p.unary.requires_grad and not p.unary.is_cuda:
        makers[BY_SCIPY] = partial(by_scipy, p)
    if p.unary.shape[1] <= 1024:
        makers["dense Cholesky"] = partial(by_dense, p)
    found: Contenders = {}
    for name, call in makers.items():
        try:
            apart = call().detach().double() - right
        except ImportError:
            console.print(f"{name}: not installed, left out")
            continue
        compared = slice(0, 1) if name == LOW_RANK else slice(0, 2)
        error = float(apart[:, compared].norm() / right[:, compared].norm())
        if error > RIGHT:
            console.print(f"{name}: wrong by {error:.1e}, left out")
        else:
            found[name] = call
    return found


def with_gradient(call: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], object]:
    """The solution, and its gradient in U and A."""
    return lambda: torch.autograd.grad(call().square().sum(), leaves)


def timed(calls: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Microseconds a call."""
    return side_by_side(calls, repeats) if device == "cpu" else by_events(calls, repeats)


def compare(console: Console, device: str) -> None:
    """A column for each size, with and without the gradient."""
    for title in ("the mode", "the mode and its gradient in U and A"):
        times, memory = {}, {}
        for side, features in SIZES:
            size = f"{side}x{side} D={features}"
            p = field(side, features, device)
            if "gradient" in title:
                p = GaussianPotentials(p.unary.requires_grad_(), p.embedding.requires_grad_())
                leaves = [p.unary, p.embedding]
                calls = {name: with_gradient(call, leaves) for name, call in contenders(p, console).items()}
            else:
                calls = dict(contenders(p, console))
            times[size] = timed(calls, 20 if side == 32 else 3, device)
            memory[size] = {
                name: f"{peak_memory(call, device):.2f} MiB"
                for name, call in calls.items()
                if name != BY_SCIPY  # its vectors are numpy's, which torch does not count
            }
        names = list(next(iter(times.values())))
        padded = {size: {name: t.get(name, math.nan) for name in names} for size, t in times.items()}
        show(title, padded, "woodbury")
        print_table(f"memory of {title}", memory)


def by_size(device: str) -> None:
    """Both paths by N and D, with the steps of conjugate gradient."""
    for side in SIDES:
        rows = {}
        for features in FEATURES:
            p = field(side, features, device)
            calls = {path: partial(gaussian.mode, p, path) for path in ("woodbury", "cg")}
            solver = ConjugateGradient(p.embedding, p.ridge, 2, tolerance=TOLERANCE)
            solver(p.unary)
            rows[f"D={features}, {int(solver.steps.max())} steps"] = timed(calls, 5, device)
        show(f"{side}x{side}", rows, "woodbury")


def main() -> None:
    """Check, time, print."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.benchmarks.gaussian", description="Time the mode of a Gaussian field."
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    compare(Console(), device)
    by_size(device)


if __name__ == "__main__":
    main()
