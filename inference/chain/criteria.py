"""What a chain is trained by, each with the answer that goes with it.   [Scaling §4.1]

Shapes: B examples, T positions, S tags.
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
from inference.chain.kernels import log_space
from inference.chain.mean_field import MeanField
from inference.chain.reference import Chain
from losses import crf as losses

Tags = Float[Tensor, "B T S"]
Rows = Float[Tensor, " B"]

# Examples with gold probabilities below these go through float64, and in float64 through logarithms; at once
# where no gradient is wanted, for then logarithms are the quicker way.
SMALL, SMALLER = 1e-20, 1e-200


@dataclass(frozen=True)
class Likelihood(Criterion[ChainPotentials]):
    """-log P(gold), summed over positions; the best answer.   [Scaling eq. 4]"""

    def loss(self, p: ChainPotentials, y: Tags) -> Rows:
        return chain.nll(p, y.argmax(-1))

    def predict(self, p: ChainPotentials) -> Tags:
        return _best(p)


@dataclass(frozen=True)
class MarginalCrossEntropy(Criterion[ChainPotentials]):
    """Mean over positions of -log p_t(gold_t); the marginals p, whose argmax decides.   [Scaling eq. 5]"""

    def loss(self, p: ChainPotentials, y: Tags) -> Rows:
        gold = losses.gold_probability(chain.marginals(p), y)
        wide = p.unary.dtype == torch.float64
        hard = (gold.detach() < (SMALLER if wide else SMALL)).any(1)
        if not bool(hard.any()):
            return losses.cross_entropy(gold, y)
        rows = losses.cross_entropy(gold.masked_fill(hard.unsqueeze(1), 1), y)
        again = p.rows(hard)
        if wide or not torch.is_grad_enabled():
            redone = _in_logs(again.to(torch.float64), y[hard])
        else:
            redone = self.loss(again.to(torch.float64), y[hard].double())
        return rows.index_put((hard,), redone.to(rows.dtype))

    def predict(self, p: ChainPotentials) -> Tags:
        return chain.marginals(p)


@dataclass(frozen=True)
class StructuredSVM(Criterion[ChainPotentials]):
    """The worst violation of a margin, the share of wrong tags; the best answer.   [Scaling eqs. 7, 8]"""

    def loss(self, p: ChainPotentials, y: Tags) -> Rows:
        cost, gold = losses.hamming(y.to(p.state)), y.argmax(-1)
        with torch.no_grad():
            worst = chain.loss_augmented(p, cost).tags
        price = cost.gather(-1, worst.unsqueeze(-1)).squeeze(-1).sum(-1)
        return losses.structured_hinge(p.lead(worst, gold), price)

    def predict(self, p: ChainPotentials) -> Tags:
        return _best(p)


@dataclass(frozen=True)
class MeanFieldCrossEntropy(Criterion[ChainPotentials]):
    """Mean over positions of -log q_t(gold_t) for mean-field q; q, whose argmax is the answer.

    [Scaling eqs. 5, 6]
    """

    search: MeanField = MeanField()  # noqa: RUF009  (frozen)

    def loss(self, p: ChainPotentials, y: Tags) -> Rows:
        return losses.log_cross_entropy(self.search.scores(p), y)

    def predict(self, p: ChainPotentials) -> Tags:
        found = self.search(p)
        if found.status is Status.OUT_OF_STEPS:
            warnings.warn(
                f"mean field had not settled after {self.search.sweeps} sweeps: the last one still raised "
                f"the bound of some example by more than {self.search.tolerance}. Give it more `sweeps`.",
                stacklevel=1,
            )
        return found.y


def _in_logs(p: ChainPotentials, y: Tags) -> Rows:
    """The loss without ever leaving log space."""
    c, way = Chain.of(p), log_space if p.pairwise.dim() == 2 else chain_reference
    return losses.log_cross_entropy(c.restore(way.forward_messages(c) + way.backward_messages(c)), y)


def _best(p: ChainPotentials) -> Tags:
    tags = F.one_hot(chain.viterbi(p).tags, p.unary.shape[-1]).to(p.state)
    return tags if p.mask is None else tags * p.mask.unsqueeze(-1)
