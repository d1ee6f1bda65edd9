"""Exact inference in linear chains: log Z, marginals, best answers, samples.   [Scaling §4.1]

`inference.chain.reference` runs the recursions in log space. `chain.kernels` has fast versions on rescaled
probabilities; sequences for which those are unsafe are computed again in float64, then in log space. Each
function takes `path`:

    auto       the fastest for the device, the size and the installed packages
    reference  log space, differentiable to any order
    fused      PyTorch with one hand-written backward pass
    compiled   numba, on a CPU
    triton     on a CUDA device

With STRUCTURED_KERNELS=off in the environment `auto` chooses between reference and fused only. log Z and
nll have first and second derivatives on every path; `path="reference"` is differentiable to any order. Scores
may be float16 or bfloat16; results are float32, or float64 if any score is. Empty
sequences give 0. Scores that no position uses, such as the transition matrix of chains of length 1, have a
gradient of 0.

Every function raises ValueError if a score that is used is NaN or +inf (the message names its index), and if
no answer of a sequence is allowed; `nll` also if the gold tags are forbidden.

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

MANY = 2**28  # free memory is checked from so many numbers on


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

    The absolute error is small, not the relative one: in float32 a marginal below 1e-8 / (T S) may be 0, in
    float64 one below 1e-43. For logarithms of such marginals see `criteria.MarginalCrossEntropy`.
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
    """Probabilities of neighbouring tags (B, T-1, S, S), at the position of the left tag; 0 where masked.

    Differentiable. They need several times the memory of their shape, and raise an error if that is not free.
    """
    pick(p, path)
    examples, length, size = p.unary.shape
    check_memory(
        6 * examples * max(length - 1, 0) * size**2, p.unary, "pairwise_marginals", "fewer examples at a time"
    )
    log_z = reference.log_partition(detached(p))
    checked(log_z, p)
    return reference.pairwise_marginals(p)


def viterbi(p: ChainPotentials, *, path: Path = "auto") -> Decoded:
    """The best answers and their scores. On a tie, one of them."""
    chosen = _pick_that_fits(p, path, "viterbi")
    tags, score = fast.best(p, chosen)
    return Decoded(tags, checked(score, p))


def loss_augmented(p: ChainPotentials, cost: Float[Tensor, "B T S"], *, path: Path = "auto") -> Decoded:
    """Argmax F(y) + cost(y), for a cost that is a sum over positions, and that maximum.   [Scaling eq. 7]

    With a cost of 1/T for each wrong tag this is the loss-augmented answer of a structured SVM.
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
    """Log Z minus the gold score in one sweep; in two steps if that fails, to name the cause."""
    if torch.compiler.is_compiling():
        return fast.rows(problem_of(p, tags), path)
    with suppress(ValueError):
        return fast.rows(problem_of(p, tags), path)
    return fast.rows(problem_of(p), path) - p.score(tags)


def _pick_that_fits(p: ChainPotentials, path: Path, what: str) -> str:
    """The path to take, after a check that scores, messages and gradients fit into free memory.

    For a gradient, the reference path stores all pairs of tags at each position.
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
    if isinstance(wanted, float) or wanted < 1:
        raise ValueError(f"{wanted} answers are requested; take a whole number from 1.")
