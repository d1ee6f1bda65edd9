"""Exact inference in linear chains: log Z, probabilities, best answers, samples.   [Scaling §4.1]

One recursion, many answers. `inference.chain.reference` runs it in log space; fast twins run it on rescaled
probabilities (`chain.kernels`), and what they cannot do safely goes to a wider float type, then to log
space. Each function takes `path`:

    auto       the fastest that fits device, size, float type and what is installed
    reference  log space, differentiable to any order
    fused      PyTorch with one hand-written backward pass
    compiled   numba, on a CPU
    triton     on a CUDA device

STRUCTURED_KERNELS=off in the environment lets `auto` choose among reference and fused only. Sums have first
and second derivatives on every path, the others on the reference path, whatever `path` says. Scores of
float16 and bfloat16 are read as such; state and results are float32, or float64 where any score is. Empty
sequences give 0. What no position uses, such as the table of chains of length 1, counts for nothing and has a
gradient of 0.

Every function raises ValueError where a score that is used is NaN or +inf (it names the place) and where
constraints leave a sequence without any answer; `nll` also where they forbid the gold tags.

Shapes: B examples, T positions, S tags, K answers.
"""

from contextlib import suppress
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from energies.potentials import ChainPotentials
from inference.chain import autograd as fast
from inference.chain import reference as reference
from inference.chain.checks import check_memory, checked, detached, gold_checked
from inference.chain.crf import CRF as CRF
from inference.chain.paths import Path, pick, problem_of

MANY = 2**28  # numbers; below, free memory is not looked up


class Decoded(NamedTuple):
    """The best answers (B, T), 0 at masked positions, and their scores (B,)."""

    tags: Tensor
    score: Tensor


def log_partition(p: ChainPotentials, *, path: Path = "auto") -> Float[Tensor, " B"]:
    """Log Z = log sum_y exp F(y)."""
    chosen = _pick_that_fits(p, path, "log_partition")
    if chosen == "reference":
        return checked(reference.log_partition(p), p)
    return fast.rows(problem_of(p), chosen)


def nll(p: ChainPotentials, tags: Int[Tensor, "B T"], *, path: Path = "auto") -> Float[Tensor, " B"]:
    """Negative log-likelihood of each example, log Z - F(tags): a loss, never below 0.   [Scaling eq. 4]

    Not divided by length. Tags at masked positions are ignored; -100 is fine there.
    """
    if tags.dim() != 2:
        raise ValueError(
            f"a likelihood is of one answer an example, (examples, positions), not {tuple(tags.shape)}."
        )
    p.check_shape(tags)
    chosen = _pick_that_fits(p, path, "nll")
    loss = reference.nll(p, tags) if chosen == "reference" else _loss_in_one(p, tags, chosen)
    return gold_checked(loss, p, tags)


def marginals(p: ChainPotentials, *, path: Path = "auto") -> Float[Tensor, "B T S"]:
    """Tag probabilities, 0 at masked positions: the gradient of log Z in the unaries. Differentiable.

    They are right absolutely: in float32 one under 1e-8 / (T S) may come back as 0. For the logarithm of such
    a one see `criteria.MarginalCrossEntropy`, or take float64, where it is 1e-43.
    """
    chosen = _pick_that_fits(p, path, "marginals")
    if chosen == "reference":
        checked(reference.log_partition(detached(p)), p)
        return reference.marginals(p)
    return fast.marginals(problem_of(p), chosen)


def entropy(p: ChainPotentials, *, path: Path = "auto") -> Float[Tensor, " B"]:
    """Entropy of the distribution over answers, log Z - E[F]. Differentiable."""
    chosen = _pick_that_fits(p, path, "entropy")
    if chosen == "reference":
        checked(reference.log_partition(detached(p)), p)
        return reference.entropy(p)
    return fast.entropy(problem_of(p), chosen)


def pairwise_marginals(p: ChainPotentials, *, path: Path = "auto") -> Float[Tensor, "B steps S S"]:
    """Probabilities of neighbouring tags (B, T-1, S, S), each at the left one's position; else 0.

    Differentiable. They take several times the memory of their shape; more than is free raises an error.
    """
    pick(p, path)
    examples, length, size = p.unary.shape
    check_memory(
        3 * examples * max(length - 1, 0) * size**2, p.unary, "pairwise_marginals", "fewer examples at a time"
    )
    log_z = reference.log_partition(detached(p))
    checked(log_z, p)
    return reference.pairwise_marginals(p)


def viterbi(p: ChainPotentials, *, path: Path = "auto") -> Decoded:
    """The best answers and their scores. Among equals, one of them."""
    chosen = _pick_that_fits(p, path, "viterbi")
    tags, score = fast.best(p, chosen)
    return Decoded(tags, checked(score, p))


def loss_augmented(p: ChainPotentials, cost: Float[Tensor, "B T S"], *, path: Path = "auto") -> Decoded:
    """Argmax F(y) + cost(y), for a cost that is a sum over positions, and that maximum.   [Scaling eq. 7]

    Of a cost that is 1/T at every wrong tag this is what a structured SVM needs.
    """
    return viterbi(p.plus(cost), path=path)


def max_marginals(p: ChainPotentials, *, path: Path = "auto") -> Float[Tensor, "B T S"]:
    """The best score of any answer with a given tag at a given position; 0 where masked."""
    _pick_that_fits(p, path, "max_marginals")
    checked(reference.viterbi(detached(p))[1], p)
    return reference.max_marginals(p)


def k_best(
    p: ChainPotentials, k: int, *, path: Path = "auto"
) -> tuple[Int[Tensor, "K B T"], Float[Tensor, "K B"]]:
    """The k best answers, best first, and their scores; -inf where a sequence has fewer answers."""
    _check_count(k)
    pick(p, path)
    examples, length, size = p.unary.shape
    check_memory(
        examples * size * k * (2 * length + 2 * size),
        p.unary,
        "k_best",
        "a smaller k, or fewer examples at a time",
    )
    with torch.no_grad():
        tags, scores = reference.k_best(p, k)
    checked(scores[0], p)
    return tags, scores


def sample(
    p: ChainPotentials, n: int, generator: torch.Generator | None = None, *, path: Path = "auto"
) -> Int[Tensor, "N B T"]:
    """N exact, independent draws of answers; 0 at masked positions."""
    _check_count(n)
    _pick_that_fits(p, path, "sample")
    with torch.no_grad():
        checked(reference.log_partition(p), p)
        return reference.sample(p, n, generator)


def _loss_in_one(p: ChainPotentials, tags: Tensor, path: str) -> Tensor:
    """Log Z less the gold score in one sweep, or in two steps where that fails, to name the cause."""
    if torch.compiler.is_compiling():
        return fast.rows(problem_of(p, tags), path)
    with suppress(ValueError):
        return fast.rows(problem_of(p, tags), path)
    return fast.rows(problem_of(p), path) - p.score(tags)


def _pick_that_fits(p: ChainPotentials, path: Path, what: str) -> str:
    """The path to take; raises where scores, messages of both directions and a gradient would not fit.

    For a gradient, log space keeps all pairs of tags at each position.
    """
    chosen = pick(p, path, maxima=what == "viterbi")
    if torch.compiler.is_compiling():
        return chosen
    pairs = chosen == "reference" and torch.is_grad_enabled() and _needs_gradient(p)
    numbers = 4 * p.unary.numel() * (p.unary.shape[2] if pairs else 1)
    if numbers > MANY:
        check_memory(numbers, p.unary, what, "fewer examples at a time")
    return chosen


def _needs_gradient(p: ChainPotentials) -> bool:
    scores = (p.unary, p.pairwise, p.start, p.end)
    return any(s is not None and s.requires_grad for s in scores)


def _check_count(wanted: int) -> None:
    if wanted < 1:
        raise ValueError(f"{wanted} answers are requested; take 1 or more.")
