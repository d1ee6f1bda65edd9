"""Which recursion a chain takes."""

import importlib.util
import os
from functools import cache
from typing import Literal, get_args

import torch

from energies.potentials import ChainPotentials
from inference.kernels.problem import Problem

Path = Literal["auto", "reference", "fused", "compiled", "triton"]
TRITON_TAGS = 128
INSTALL = "pip install 'structured-prediction-suite[fast]'"


def pick(p: ChainPotentials, path: str) -> str:
    """The path to take.

    Raises:
        ValueError: where the path that was asked for cannot take these potentials, or is not installed.
    """
    if path not in get_args(Path):
        raise ValueError(f"there is no path {path!r} through a chain; there are {', '.join(get_args(Path))}.")
    simple = p.pairwise.dim() == 2 and p.unary.numel() > 0
    if path == "auto":
        return fastest(p) if simple else "reference"
    if path in ("fused", "compiled", "triton") and p.pairwise.dim() > 2:
        raise ValueError(
            f"the {path} path takes one table of pairwise scores, (S, S), and these have a table a step, "
            f'{tuple(p.pairwise.shape)}: use path="reference" or "auto".'
        )
    if path == "compiled":
        if p.unary.device.type != "cpu":
            raise ValueError(
                f'the compiled path runs on a CPU, and the scores are on {p.unary.device}: use path="auto".'
            )
        if not installed("numba"):
            raise ValueError(f'the compiled path needs numba: {INSTALL}, or use path="auto".')
    if path == "triton" and not installed("triton"):
        raise ValueError(
            'the triton path needs triton, which comes with a CUDA build of torch: use path="auto".'
        )
    return path if simple else "reference"


def fastest(p: ChainPotentials) -> str:
    """The best path of this device for one table of pairwise scores."""
    if os.environ.get("STRUCTURED_KERNELS", "on") == "off":
        return "fused"
    if p.unary.is_cuda:
        return "triton" if installed("triton") and p.unary.shape[2] <= TRITON_TAGS else "fused"
    return "compiled" if p.unary.device.type == "cpu" and installed("numba") else "fused"


@torch.compiler.assume_constant_result
def installed(package: str) -> bool:
    """Whether a package can be imported; it is not imported here."""
    return _is_found(package)


@cache
def _is_found(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def problem_of(p: ChainPotentials, tags: torch.Tensor | None = None) -> Problem:
    """The potentials as the kernels take them."""
    return Problem(p.unary, p.pairwise, p.start, p.end, p.mask, None if tags is None else tags.long())
