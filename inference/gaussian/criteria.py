"""Training criteria of a Gaussian field, each with its prediction.   [Scaling §4.2]

Shapes: B examples; positions and answers as in `energies.gaussian`.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from energies.gaussian import GaussianPotentials
from inference import gaussian
from inference.base import Criterion


@dataclass(frozen=True)
class CrossEntropy(Criterion[GaussianPotentials]):
    """Mean over positions of -log softmax(s*)_gold, for the point s* of highest score.   [Scaling eqs. 5, 14]

    The marginals are softmax(s*), and their argmax is the answer. The field is made definite by its policy.
    """

    def loss(self, p: GaussianPotentials, y: Float[Tensor, "B ..."]) -> Float[Tensor, " B"]:
        """See Criterion; y is a mask with two labels, one-hot with more."""
        return _cross_entropy(gaussian.mode(p.definite()), p, y)

    def losses(
        self, p: GaussianPotentials, y: Float[Tensor, "B ..."], alphas: Float[Tensor, " K"]
    ) -> Float[Tensor, "K B"]:
        """See Criterion. s* is linear in U, so the system is solved once for all alphas.   [Scaling eq. 12]

        A loss is NaN where alpha s* is not finite.
        """
        s = gaussian.mode(p.definite())
        return _cross_entropy(alphas.view(-1, *[1] * s.dim()) * s, p, y)

    def predict(self, p: GaussianPotentials) -> Float[Tensor, "B ..."]:
        """See Criterion: the marginals; with two labels only those of label 1."""
        marginals = gaussian.mode(p.definite()).softmax(-1)
        if p.mask is not None:
            marginals = marginals.masked_fill(~p.mask.unsqueeze(-1), 0)
        return marginals[..., 1] if marginals.shape[-1] == 2 else marginals


def _cross_entropy(
    s: Float[Tensor, "*K_B_N M"], p: GaussianPotentials, y: Float[Tensor, "B ..."]
) -> Float[Tensor, "... B"]:
    """Mean over real positions of -log softmax(s)_gold."""
    logs = (s.log_softmax(-1) * p.point(y)).sum(-1)  # (..., B, *N)
    if p.mask is not None:
        logs = logs.masked_fill(~p.mask, 0)
    return -logs.flatten(2 - p.unary.dim()).sum(-1) / p.num_positions()
