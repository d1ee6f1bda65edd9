"""Mean field on a chain: a factorised distribution q that maximises a lower bound of log Z.   [Scaling eq. 6]

The bound ELBO(q) = sum_t q_t . u_t + sum_t q_t W q_t+1 + sum_t H(q_t) <= log Z increases with each update

    q_t(s) ~ exp(u_t(s) + sum_r q_t-1(r) W(r, s) + sum_r W(s, r) q_t+1(r)).

No two positions that are updated at once are neighbours, so the bound never falls. Gradients flow back
through all sweeps. Scores must be finite, since a factorised distribution cannot exclude a transition;
otherwise ValueError names the first that is not.

Shapes: B examples, T positions, S tags; `scores` (B, T, S) are log q up to a constant a position.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from energies.potentials import ChainPotentials
from inference.base import Prediction, Status
from inference.chain.checks import check_finite
from inference.chain.reference import Chain
from losses.amounts import not_negative

Tags = Float[Tensor, "B T S"]
Rows = Float[Tensor, " B"]


@dataclass(frozen=True)
class MeanField:
    """Coordinate ascent from q = softmax(u).

    Args:
        sweeps: each updates every position once.
        order: `odd_even`: the first, third, fifth ... position at once, then the others. `sequential`: one
            position after the other.
        tolerance: converged if the last sweep increases the bound of no example by more.
    """

    sweeps: int = 10
    order: Literal["odd_even", "sequential"] = "odd_even"
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        if self.sweeps < 1:
            raise ValueError(f"mean field needs at least 1 sweep, not {self.sweeps}.")
        if self.order not in ORDERS:
            raise ValueError(f"there is no order {self.order!r} of sweeps; there are {', '.join(ORDERS)}.")
        not_negative(tolerance=self.tolerance)

    def scores(self, p: ChainPotentials) -> Tags:
        """The logarithm of q up to a constant, differentiable in all potentials; undefined where masked."""
        chain, pairwise = _ready(p)
        with torch.autocast(chain.unary.device.type, enabled=False):
            return chain.restore(ORDERS[self.order](chain, pairwise, chain.unary, self.sweeps))

    @torch.no_grad()
    def __call__(self, p: ChainPotentials) -> Prediction:
        """q, 0 where masked, with -ELBO as its energy, and how the search ended."""
        chain, pairwise = _ready(p)
        update = ORDERS[self.order]
        with torch.autocast(chain.unary.device.type, enabled=False):
            before = update(chain, pairwise, chain.unary, self.sweeps - 1)
            after = update(chain, pairwise, before, 1)
        compact = ChainPotentials(chain.unary, pairwise, chain.real)
        q = _simplex(after, chain.real)
        bound = elbo(compact, q)
        change = bound - elbo(compact, _simplex(before, chain.real))
        settled = bool((change <= self.tolerance).all())
        status = Status.CONVERGED if settled else Status.OUT_OF_STEPS
        return Prediction(chain.restore(q), -bound, status, self.sweeps)


def elbo(p: ChainPotentials, q: Tags) -> Rows:
    """The bound on log Z for q; padding is at the tail, and q is 0 there."""
    return p.score(q) + torch.special.entr(q).sum((-2, -1))


def odd_even(chain: Chain, pairwise: Tensor, scores: Tensor, sweeps: int) -> Tensor:
    """Every other position at once; the neighbours of each position are in the other half."""
    if not sweeps or not scores.shape[1]:
        return scores
    odd = scores.shape[1] % 2
    unary, begin = F.pad(chain.unary, (0, 0, 0, odd)), F.pad(scores, (0, 0, 0, odd))
    real = F.pad(chain.real.unsqueeze(-1).to(scores.dtype), (0, 0, 0, odd))
    both = torch.cat([pairwise, pairwise.T], 1)  # messages to the next position, and to the one before
    second = begin[:, 1::2].softmax(-1) * real[:, 1::2]
    for _ in range(sweeps):
        onward, back = (second @ both).chunk(2, -1)
        first_scores = unary[:, 0::2] + _shift(onward, 1) + back
        first = first_scores.softmax(-1) * real[:, 0::2]
        onward, back = (first @ both).chunk(2, -1)
        second_scores = unary[:, 1::2] + onward + _shift(back, -1)
        second = second_scores.softmax(-1) * real[:, 1::2]
    return torch.stack([first_scores, second_scores], 2).flatten(1, 2)[:, : scores.shape[1]]


def sequential(chain: Chain, pairwise: Tensor, scores: Tensor, sweeps: int) -> Tensor:
    """One position after the other, each from the current values of its neighbours."""
    q, found = list(_simplex(scores, chain.real).unbind(1)), list(scores.unbind(1))
    for _ in range(sweeps):
        for t in range(len(q)):
            found[t] = chain.unary[:, t]
            if t > 0:
                found[t] = found[t] + q[t - 1] @ pairwise
            if t + 1 < len(q):
                found[t] = found[t] + q[t + 1] @ pairwise.T
            q[t] = _simplex(found[t], chain.real[:, t])
    return torch.stack(found, 1) if found else scores


ORDERS: dict[str, Callable[[Chain, Tensor, Tensor, int], Tensor]] = {
    "odd_even": odd_even,
    "sequential": sequential,
}


def _ready(p: ChainPotentials) -> tuple[Chain, Tensor]:
    if p.pairwise.dim() != 2:
        raise ValueError(
            "mean field takes one matrix of pairwise scores for all steps, (S, S), not one of shape "
            f"{tuple(p.pairwise.shape)}."
        )
    chain = Chain.of(p)
    check_finite(chain, p, "mean field")
    return chain, p.pairwise.to(chain.unary.dtype)


def _simplex(scores: Tensor, real: Tensor) -> Tensor:
    return scores.softmax(-1) * real.unsqueeze(-1)


def _shift(x: Tensor, by: int) -> Tensor:
    """The entries of dimension 1 shifted by one position, with 0 at the free end."""
    return F.pad(x, (0, 0, by, -by))
