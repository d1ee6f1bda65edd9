"""What stops inference in a chain, told so that a person can mend it."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from energies.potentials import ChainPotentials

BOTTOM = float("-inf")


def detached(p: ChainPotentials) -> ChainPotentials:
    """The same potentials, cut from what made them."""
    start, end = (None if v is None else v.detach() for v in (p.start, p.end))
    return replace(p, unary=p.unary.detach(), pairwise=p.pairwise.detach(), start=start, end=end)


def checked(values: Tensor, p: ChainPotentials) -> Tensor:
    """The rows (B,) of a result, when all are finite; NaN and infinities in scores always show there.

    Raises:
        ValueError: that names what in the potentials is to blame.
    """
    if not torch.compiler.is_compiling() and not _all_finite(values.detach()):
        raise ValueError(blame(values.detach(), p))
    return values


def _all_finite(values: Tensor) -> bool:
    """On a CPU numpy is the quicker one to ask."""
    if values.device.type == "cpu":
        return bool(np.isfinite(values.numpy()).all())
    return bool(values.isfinite().all())


@torch.no_grad()
def blame(values: Tensor, p: ChainPotentials) -> str:
    """The sentence for a result that is not finite."""
    real = p.real().unsqueeze(-1)
    for name, scores in (("unary", p.unary.masked_fill(~real, 0)), ("pairwise", p.pairwise)):
        found = _first_bad(scores)
        if found:
            return f"a {name} score is {found}; scores must be finite, or -inf for what is forbidden."
    for name, vector in (("start", p.start), ("end", p.end)):
        found = _first_bad(vector) if vector is not None else ""
        if found:
            return f"a {name} score is {found}; scores must be finite, or -inf for what is forbidden."
    row = int((~values.isfinite()).nonzero()[0])
    if values[row] == BOTTOM:
        length = int(p.real()[row].sum())
        return (
            f"no answer of example {row} ({length} real positions) is allowed: every sequence of tags has "
            "score -inf. Its constraints contradict one another or its scores; allow more of them."
        )
    return f"the sum over answers of example {row} is {float(values[row])}: the scores are too large."


def _first_bad(scores: Tensor) -> str:
    """The first NaN or +inf and its index, or nothing."""
    bad = scores.isnan() | (scores == float("inf"))
    if not bool(bad.any()):
        return ""
    index = bad.nonzero()[0].tolist()
    return f"{float(scores[tuple(index)])} at index {index}"


def check_room(numbers: int, like: Tensor, what: str, advice: str) -> None:
    """Raise where so many numbers of the tensor's type would not fit the memory that is free.

    Raises:
        ValueError: with the need, what there is, and what to do.
    """
    need, free = numbers * max(like.element_size(), 4), _free_bytes(like.device)
    if free is not None and need > free:
        raise ValueError(
            f"{what} would need about {need / 2**30:.1f} GiB for unaries of shape {tuple(like.shape)}, and "
            f"{free / 2**30:.1f} GiB are free: take {advice}."
        )


def _free_bytes(device: torch.device) -> int | None:
    """Free memory of the device, or None where that cannot be asked."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    return int(available.split()[1]) * 1024
