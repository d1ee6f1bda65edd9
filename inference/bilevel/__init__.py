"""Bilevel training: hypergradients of an energy at the minimum of a task-net.   [Implicit §3]"""

from inference.bilevel.dual import Dual
from inference.bilevel.hypergradient import Hypergradient, hypergradient, largest_curvature, why_diverged
from inference.bilevel.products import (
    Bilevel,
    Curvature,
    Exact,
    FiniteDifference,
    ForwardDifference,
    Products,
)
from inference.bilevel.solvers import ConjugateGradient, Dropped, ExactSolve, Identity, Neumann, Solver

__all__ = [
    "Bilevel",
    "ConjugateGradient",
    "Curvature",
    "Dropped",
    "Dual",
    "Exact",
    "ExactSolve",
    "FiniteDifference",
    "ForwardDifference",
    "Hypergradient",
    "Identity",
    "Neumann",
    "Products",
    "Solver",
    "hypergradient",
    "largest_curvature",
    "why_diverged",
]
