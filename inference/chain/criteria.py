"""Training criteria of a chain, each with its prediction.   [Scaling §4.1]

`inference.chain.reference` defines log Z, marginals and the best answer; `inference.chain` computes them on
the fastest path.

Shapes: B examples, T positions, S tags. y is one-hot, (B, T, S); what it says at masked positions of the
potentials counts in no loss.
"""

import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from energies.potentials import ChainPotentials
from inference import chain
from inference.base import Criterion, Status
from inference.chain import reference as chain_reference
from inference.chain.checks import gold_checked
from inference.chain.kernels import log_space
from inference.chain.mean_field import MeanField
from inference.chain.reference import Chain

Tags = Float[Tensor, "B T S"]
Rows = Float[Tensor, " B"]

# Examples with gold probabilities below SMALL are computed again in float64, and in float64 those below
# SMALLER in log space. Without gradients log space is faster and used directly.
SMALL, SMALLER = 1e-20, 1e-200


@dataclass(frozen=True)
class Likelihood(Criterion[ChainPotentials]):
    """Loss: -log P(gold) of the whole sequence. Prediction: the best answer.   [Scaling eq. 4]"""

    def loss(self, p: ChainPotentials, y: Tags) -> Rows:
        return chain.nll(p, y.argmax(-1))

    def predict(self, p: ChainPotentials) -> Tags:
        return best(p)


@dataclass(frozen=True)
class MarginalCrossEntropy(Criterion[ChainPotentials]):
    """Loss: mean over positions of -log p_t(gold_t). Prediction: the marginals p.   [Scaling eq. 5]"""

    def loss(self, p: ChainPotentials, y: Tags) -> Rows:
        return gold_checked(self.unchecked(p, real(p, y)), p, y.argmax(-1))

    def unchecked(self, p: ChainPotentials, y: Tags) -> Rows:
        """The loss, infinite where gold tags are forbidden."""
        gold = gold_probability(chain.marginals(p), y)
        wide = p.unary.dtype == torch.float64
        hard = (gold.detach() < (SMALLER if wide else SMALL)).any(1)
        if not bool(hard.any()):
            return cross_entropy(gold, y)
        rows = cross_entropy(gold.masked_fill(hard.unsqueeze(1), 1), y)
        again = p.rows(hard)
        if wide or not torch.is_grad_enabled():
            redone = _in_logs(again.to(torch.float64), y[hard])
        else:
            redone = self.unchecked(again.to(torch.float64), y[hard].double())
        return rows.index_put((hard,), redone.to(rows.dtype))

    def predict(self, p: ChainPotentials) -> Tags:
        return chain.marginals(p)


@dataclass(frozen=True)
class StructuredSVM(Criterion[ChainPotentials]):
    """Loss: structured hinge with Hamming cost. Prediction: the best answer.   [Scaling eqs. 7, 8]"""

    def loss(self, p: ChainPotentials, y: Tags) -> Rows:
        cost, gold = hamming(real(p, y).to(p.state)), y.argmax(-1)
        with torch.no_grad():
            worst = chain.loss_augmented(p, cost).tags
        price = cost.gather(-1, worst.unsqueeze(-1)).squeeze(-1).sum(-1)
        return gold_checked(structured_hinge(p.score_difference(worst, gold), price), p, gold)

    def predict(self, p: ChainPotentials) -> Tags:
        return best(p)


@dataclass(frozen=True)
class MeanFieldCrossEntropy(Criterion[ChainPotentials]):
    """Loss: mean over positions of -log q_t(gold_t), for mean-field q. Prediction: q.

    [Scaling eqs. 5, 6]
    """

    search: MeanField = MeanField()  # noqa: RUF009  (frozen)

    def loss(self, p: ChainPotentials, y: Tags) -> Rows:
        return log_cross_entropy(self.search.scores(p), real(p, y))

    def predict(self, p: ChainPotentials) -> Tags:
        found = self.search(p)
        if found.status is Status.OUT_OF_STEPS:
            warnings.warn(
                f"mean field had not converged after {self.search.sweeps} sweeps: the last one still raised "
                f"the bound of some example by more than {self.search.tolerance}. Give it more `sweeps`.",
                stacklevel=1,
            )
        return found.y


def real(p: ChainPotentials, y: Tags) -> Tags:
    """y, 0 at masked positions."""
    return y if p.mask is None else y * p.mask.unsqueeze(-1)


def gold_probability(marginals: Tags, y: Tags) -> Float[Tensor, "B T"]:
    """p_t(gold_t), and 1 where y is 0."""
    return (marginals * y).sum(-1) + (1 - y.sum(-1))


def cross_entropy(probability: Float[Tensor, "B T"], y: Tags) -> Rows:
    """Mean over the real positions of -log p_t(gold_t).   [Scaling eq. 5]

    `probability` is that of `gold_probability`. It is clamped to the smallest normal number of its type, with
    no gradient below; for such answers take `log_cross_entropy`.
    """
    tiny = torch.finfo(probability.dtype).tiny
    return -probability.clamp_min(tiny).log().sum(-1) / length(y)


def log_cross_entropy(scores: Tags, y: Tags) -> Rows:
    """Mean over the real positions of -log softmax(scores)_t(gold_t), however small that is.

    The scores are the logarithms of marginals, up to a constant a position.   [Scaling eqs. 5, 6]
    """
    logs = torch.where(y > 0, scores.log_softmax(-1), 0)
    return -(logs * y).sum((-2, -1)) / length(y)


def structured_hinge(lead: Rows, cost: Rows) -> Rows:
    """max_y [F(y) + Delta(y, gold)] - F(gold), never below 0.   [Scaling eq. 7]

    For the answer that attains the maximum, `lead` is F(y) - F(gold) and `cost` is Delta. No gradient flows
    through the answer.
    """
    return (lead + cost).clamp_min(0)


def hamming(y: Tags) -> Tags:
    """Delta by position and tag: 1 / length for a wrong tag at a real position, else 0.   [Scaling eq. 8]"""
    return (y.sum(-1, keepdim=True) - y) / length(y).view(-1, 1, 1)


def length(y: Tags) -> Rows:
    """The number of real positions of each example, at least 1."""
    return y.sum((-2, -1)).clamp_min(1)


def _in_logs(p: ChainPotentials, y: Tags) -> Rows:
    """The loss computed in log space."""
    c, way = Chain.of(p), log_space if p.pairwise.dim() == 2 else chain_reference
    return log_cross_entropy(c.restore(way.forward_messages(c) + way.backward_messages(c)), y)


def best(p: ChainPotentials) -> Tags:
    """The best answer, one-hot, 0 at masked positions."""
    return real(p, F.one_hot(chain.viterbi(p).tags, p.unary.shape[-1]).to(p.state))
