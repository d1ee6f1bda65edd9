"""Checks of scores, gold tags and free memory; each error names the place and what to change."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from energies.answers.relaxed import FORBIDDEN
from energies.free_memory import free_bytes
from energies.potentials import ChainPotentials
from inference.chain.reference import Chain, forward_messages, log_partition


def detached(p: ChainPotentials) -> ChainPotentials:
    """The same potentials without their graph."""
    start, end = (None if v is None else v.detach() for v in (p.start, p.end))
    return replace(p, unary=p.unary.detach(), pairwise=p.pairwise.detach(), start=start, end=end)


def checked(values: Tensor, p: ChainPotentials) -> Tensor:
    """The rows (B,) of a result, after a check that all are finite; NaN and +inf in scores always reach them.

    Raises:
        ValueError: a row is not finite; the message names the score that is the cause.
    """
    if not torch.compiler.is_compiling() and not _all_finite(values.detach()):
        raise ValueError(explain(values.detach(), p))
    return values


def gold_checked(loss: Tensor, p: ChainPotentials, tags: Tensor) -> Tensor:
    """The rows (B,) of a loss, after a check that all are finite.

    Raises:
        ValueError: one is not; the message names the score that is the cause, or the first gold tag or pair
            that is forbidden.
    """
    if not torch.compiler.is_compiling() and not _all_finite(loss.detach()):
        checked(log_partition(detached(p)), p)
        row = int((~loss.detach().isfinite()).nonzero()[0])
        raise ValueError(_explain_gold(row, p, tags))
    return loss


def check_finite(chain: Chain, p: ChainPotentials, what: str) -> None:
    """Check that no score is NaN or infinite, for methods without -inf.

    If the sum of all scores is finite, each of them is; otherwise the sum may have overflowed.

    Raises:
        ValueError: a score is not finite; the message names the first.
    """
    if torch.compiler.is_compiling():
        return
    with torch.no_grad():
        if bool((chain.unary.sum() + p.pairwise.sum(dtype=chain.unary.dtype)).isfinite()):
            return
    for name, scores in _scores(p):
        found = _first(~scores.isfinite(), scores)
        if found:
            raise ValueError(
                f"{what} needs finite scores; a {name} score is {found}. If some are forbidden, take "
                "exact inference, `inference.chain`."
            )


def _all_finite(values: Tensor) -> bool:
    """Whether all are finite; numpy is faster on a CPU."""
    if values.device.type == "cpu":
        return bool(np.isfinite(values.numpy()).all())
    return bool(values.isfinite().all())


@torch.no_grad()
def explain(values: Tensor, p: ChainPotentials) -> str:
    """The error message for a result that is not finite."""
    for name, scores in _scores(p):
        found = _first(scores.isnan() | (scores == float("inf")), scores)
        if found:
            return f"a {name} score is {found}; scores must be finite, or -inf for what is forbidden."
    row = int((~values.isfinite()).nonzero()[0])
    if values[row] == FORBIDDEN:
        length = int(p.real()[row].sum())
        return (
            f"no answer of example {row} ({length} real positions) is allowed: {_dead_end(row, p)}. Its "
            "constraints contradict one another or its scores; allow more of them."
        )
    return f"the sum over answers of example {row} is {float(values[row])}: the scores are too large."


def _scores(p: ChainPotentials) -> Iterator[tuple[str, Tensor]]:
    """All scores that count, by name."""
    yield "unary", p.unary.masked_fill(~p.real().unsqueeze(-1), 0)
    yield "pairwise", p.pairwise
    if p.start is not None:
        yield "start", p.start
    if p.end is not None:
        yield "end", p.end


def _first(bad: Tensor, scores: Tensor) -> str:
    """The first of the bad scores and its index, or an empty text."""
    if not bool(bad.any()):
        return ""
    index = bad.nonzero()[0].tolist()
    return f"{float(scores[tuple(index)])} at index {index}"


def _dead_end(row: int, p: ChainPotentials) -> str:
    """The first position that no allowed answer of an example reaches."""
    one = slice(row, row + 1)
    pairwise = p.pairwise[one] if p.pairwise.dim() == 4 else p.pairwise
    alone = replace(p, unary=p.unary[one].double(), pairwise=pairwise, mask=p.real()[one], end=None)
    stuck = (forward_messages(Chain.of(alone))[0] == FORBIDDEN).all(-1).nonzero()
    if not len(stuck):
        return "none of the tags that can be reached at its last position may end it"
    position = alone.real()[0].nonzero()[int(stuck[0])]
    return f"no tag can be reached at position {int(position)}"


def _explain_gold(row: int, p: ChainPotentials, tags: Tensor) -> str:
    """The error message for a loss that is not finite although log Z is."""
    for score, name in _gold_scores(row, detached(p), tags):
        if score == FORBIDDEN:
            return (
                f"the gold tags of example {row} are forbidden: the {name} is -inf. Correct these tags, or "
                "allow what they do."
            )
    return f"the score of the gold tags of example {row} is not finite: the scores are too large."


def _gold_scores(row: int, p: ChainPotentials, tags: Tensor) -> Iterator[tuple[float, str]]:
    """Each score of the gold tags, from left to right, and its name."""
    places = p.real()[row].nonzero().flatten()
    positions, y = places.tolist(), tags[row, places].tolist()
    unary, pairwise = p.unary[row].tolist(), p.pairwise[row] if p.pairwise.dim() == 4 else p.pairwise
    if p.start is not None:
        yield float(p.start[y[0]]), f"start score of tag {y[0]} at position {positions[0]}"
    for n, (t, tag) in enumerate(zip(positions, y, strict=True)):
        if n > 0:
            table = pairwise[n - 1] if pairwise.dim() == 3 else pairwise
            yield (
                float(table[y[n - 1], tag]),
                f"pairwise score of tag {tag} at position {t} after tag {y[n - 1]}",
            )
        yield unary[t][tag], f"unary score of tag {tag} at position {t}"
    if p.end is not None:
        yield float(p.end[y[-1]]), f"end score of tag {y[-1]} at position {positions[-1]}"


def check_memory(numbers: int, like: Tensor, what: str, advice: str) -> None:
    """Check that so many numbers of the tensor's type fit into free memory.

    Raises:
        ValueError: they do not; the message gives both sizes and what to do.
    """
    need, free = numbers * max(like.element_size(), 4), free_bytes(like.device)
    if free is not None and need > free:
        raise ValueError(
            f"{what} would need about {need / 2**30:.1f} GiB for unaries of shape {tuple(like.shape)}, and "
            f"{free / 2**30:.1f} GiB are free: take {advice}."
        )
