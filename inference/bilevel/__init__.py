"""Bilevel training: the hypergradient of an energy at the minimum of a task-net.   [Implicit §4]"""

from inference.bilevel.differences import FiniteDifference, ForwardDifference
from inference.bilevel.dual import Dual
from inference.bilevel.gauss_newton import GaussNewton
from inference.bilevel.hypergradient import (
    Bilevel,
    Exact,
    HessianProducts,
    Hypergradient,
    Neumann,
    OuterStep,
    Products,
    Solver,
    hypergradient,
    largest_curvature,
)
from inference.bilevel.reasons import why_stopped
from inference.bilevel.solvers import ConjugateGradient, Dropped, Identity

__all__ = [
    "Bilevel",
    "ConjugateGradient",
    "Dropped",
    "Dual",
    "Exact",
    "FiniteDifference",
    "ForwardDifference",
    "GaussNewton",
    "HessianProducts",
    "Hypergradient",
    "Identity",
    "Neumann",
    "OuterStep",
    "Products",
    "Solver",
    "hypergradient",
    "largest_curvature",
    "why_stopped",
]
