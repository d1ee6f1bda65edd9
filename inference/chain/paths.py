"""The choice of a path for a chain."""

import importlib
import importlib.util
import os
import warnings
from functools import cache
from typing import Literal, get_args

import torch
from torch import Tensor

from energies.potentials import ChainPotentials
from inference.chain.kernels.problem import Problem

Path = Literal["auto", "reference", "fused", "compiled", "triton"]
MAX_TAGS = 128  # of the Triton kernels: a program keeps the transition matrix in registers
# From so many tags and examples on, matrix products are at least as fast as vector products; see
# `scripts.benchmarks.chain --wide`. Max-sum has no such products.
WIDE_TAGS, WIDE_EXAMPLES = 384, 16


def pick(p: ChainPotentials, path: str, *, maxima: bool = False) -> str:
    """The path for sums, or for maxima. Under torch.compile "auto" is resolved later, inside the operator.

    Raises:
        ValueError: the requested path does not support these potentials, or cannot be loaded.
    """
    if path not in get_args(Path):
        raise ValueError(f"there is no path {path!r} through a chain; there are {', '.join(get_args(Path))}.")
    simple = p.pairwise.dim() == 2 and p.unary.numel() > 0
    if path == "auto" and simple:
        return path if torch.compiler.is_compiling() else fastest(p.unary, maxima=maxima)
    if path in ("fused", "compiled", "triton") and p.pairwise.dim() > 2:
        raise ValueError(
            f"the {path} path takes one matrix of pairwise scores, (S, S), and these have one a step, "
            f'{tuple(p.pairwise.shape)}: use path="reference" or "auto".'
        )
    if path == "compiled":
        if p.unary.device.type != "cpu":
            raise ValueError(
                f'the compiled path runs on a CPU, and the scores are on {p.unary.device}: use path="auto".'
            )
        if not torch.compiler.is_compiling() and (fault := fault_of_numba()):
            raise ValueError(f'the compiled path cannot be taken: {fault}, or use path="auto".')
    if path == "triton" and not torch.compiler.is_compiling() and not installed("triton"):
        raise ValueError(
            'the triton path needs triton, which comes with a CUDA build of torch: use path="auto".'
        )
    return path if simple else "reference"


def fastest(unary: Tensor, *, maxima: bool = False) -> str:
    """The best path of this device for one matrix of pairwise scores."""
    if os.environ.get("STRUCTURED_KERNELS", "on") == "off":
        return "fused"
    examples, _, size = unary.shape
    if unary.is_cuda:
        return "triton" if installed("triton") and size <= MAX_TAGS else "fused"
    wide = size >= WIDE_TAGS and examples >= WIDE_EXAMPLES and not maxima
    return "fused" if wide or unary.device.type != "cpu" or not has_numba() else "compiled"


@cache
def installed(package: str) -> bool:
    """Whether a package can be found; it is not imported here."""
    return importlib.util.find_spec(package) is not None


@cache
def has_numba() -> bool:
    """Whether the compiled path is available; warns once if it is not although numba is installed."""
    fault = fault_of_numba()
    if fault and installed("numba"):
        warnings.warn(f"Chains take the fused path, which is slower: {fault}.", stacklevel=6)
    return not fault


@cache
def fault_of_numba() -> str:
    """Why the compiled path is unavailable, and what to do about it; empty if it is available."""
    if not installed("numba"):
        return "numba is not installed: pip install numba"
    try:
        if importlib.import_module("numba").config.DISABLE_JIT:
            return "NUMBA_DISABLE_JIT is set: unset it"
        importlib.import_module("inference.chain.kernels.compiled")
    except Exception as error:  # a broken installation may fail in any way
        if "no locator available" in str(error):
            return "numba cannot write its cache: set NUMBA_CACHE_DIR to a folder it can write to"
        why = (str(error).splitlines() or [""])[0]
        return f"importing numba fails ({type(error).__name__}: {why}): pip install --force-reinstall numba"
    return ""


def problem_of(p: ChainPotentials, tags: torch.Tensor | None = None) -> Problem:
    """The potentials as the kernels take them."""
    return Problem(p.unary, p.pairwise, p.start, p.end, p.mask, None if tags is None else tags.long())
