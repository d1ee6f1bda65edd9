"""The Gaussian field: one network scores each position, another embeds the positions.   [Scaling §4.2]

Shapes: B examples, N positions (the pixels of a picture), M labels, D features. Positions may have several
dimensions, such as (H, W), in place of N.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from energies.base import ConditionedEnergy, StructuredEnergy
from energies.potentials import Factor, Potentials, check_tensors
from losses.amounts import above_zero
from networks.inputs import Inputs

BLOCKS = 4  # that A^T A is computed in
PAIRS = 2048  # of positions, from which a mean over more pairs is estimated   [Scaling §5.2]


class Definite(ABC):
    """A policy by which a field gets a maximum: lambda above mu_max(K).   [Scaling §4.2]

    It is applied to each example, after any scaling. No gradient flows through mu_max: the eigenvector would
    pull on the embeddings of one direction alone, and where two eigenvalues are equal there is no gradient.
    """

    @abstractmethod
    def __call__(self, p: "GaussianPotentials") -> "GaussianPotentials":
        """The field with a maximum; applying it once more changes nothing."""


@dataclass(frozen=True)
class CapEmbeddings(Definite):
    """lambda stays, so the temperature of all examples is the same; mu_max is at most `share` of it.

    Where mu_max is above, the embeddings of that example are scaled down. Other examples are unchanged.
    """

    share: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share is {self.share}: take a number between 0 and 1.")

    def __call__(self, p: "GaussianPotentials") -> "GaussianPotentials":
        """See Definite."""
        top, most = p.largest_eigenvalue().detach(), self.share * p.ridge
        return p.times(1.0, most / top.clamp_min(most))


@dataclass(frozen=True)
class RaiseRidge(Definite):
    """lambda = mu_max + `margin`, whatever the ridge of the field; the embeddings stay."""

    margin: float = 0.1

    def __post_init__(self) -> None:
        above_zero(margin=self.margin)

    def __call__(self, p: "GaussianPotentials") -> "GaussianPotentials":
        """See Definite."""
        return replace(p, ridge=p.largest_eigenvalue().detach() + self.margin)


@dataclass(frozen=True)
class GaussianPotentials:
    """The scores of a Gaussian field: F(s) = -1/2 s^T (W + lambda I) s + U^T s.   [Scaling eqs. 9, 16]

    s holds one number for each position and label. W = (J - I) kron K with K = A A^T and J the M x M matrix
    of ones: different labels at positions with similar embeddings lower the score. Eigenvalues of W are
    -mu and (M-1) mu for each eigenvalue mu of K, so F has a maximum where lambda is above the largest mu.

    A discrete or relaxed answer y is a point s: with two labels y (..., B, N) is a mask, the share of label
    1, and s = (1 - y, y); with more, y (..., B, N, M) is s.

    Attributes:
        unary: U, (B, N, M), two labels or more. Half precision is converted to float32, here and in A; if one
            of the two is float64, so is the other.
        embedding: A, (B, N, D).
        ridge: lambda, above 0 and finite, or (B,), one for each example; a constant, which gets no gradient.
        mask: (B, N) bool, True is real; scores at masked positions do not count.
        policy: how `definite` makes sure that F has a maximum.
    """

    unary: Shaped[Tensor, "B *N M"]
    embedding: Shaped[Tensor, "..."]
    ridge: Factor = 1.0
    mask: Tensor | None = None
    policy: Definite = CapEmbeddings()

    def __post_init__(self) -> None:
        check_tensors(unary=self.unary, embedding=self.embedding, mask=self.mask)
        *positions, labels = self.unary.shape
        if len(positions) < 2 or labels < 2 or list(self.embedding.shape[:-1]) != positions:
            raise ValueError(
                f"unary scores of shape {tuple(self.unary.shape)} and embeddings of shape "
                f"{tuple(self.embedding.shape)} make no Gaussian field: give (examples, positions, labels), "
                "two labels or more, and (examples, positions, features)."
            )
        if 0 in self.embedding.shape[1:]:
            raise ValueError(
                f"embeddings of shape {tuple(self.embedding.shape)} have no positions or no features: give "
                "one or more of each."
            )
        if isinstance(self.ridge, Tensor) and not self.ridge.dim():
            object.__setattr__(self, "ridge", float(self.ridge))
        fits = not isinstance(self.ridge, Tensor) or self.ridge.shape == self.unary.shape[:1]
        ridge = torch.as_tensor(self.ridge)
        if not (fits and bool(((ridge > 0) & (ridge < math.inf)).all())):
            raise ValueError(
                f"ridge is {self.ridge}: take a finite number above 0, or one for each of the "
                f"{len(self.unary)} examples."
            )
        self._convert()
        if self.mask is not None and (
            self.mask.shape != self.unary.shape[:-1] or self.mask.dtype != torch.bool
        ):
            raise ValueError(
                f"the mask is {self.mask.dtype} of shape {tuple(self.mask.shape)}; unary scores of shape "
                f"{tuple(self.unary.shape)} need bool of shape {tuple(self.unary.shape[:-1])}."
            )

    def _convert(self) -> None:
        """Give both kinds of scores one type that a factor can use; integers are no scores."""
        for name in ("unary", "embedding"):
            scores = getattr(self, name)
            if not scores.is_floating_point():
                raise ValueError(f"the {name} scores are {scores.dtype}: call .float() on them.")
            if scores.dtype in (torch.float16, torch.bfloat16):  # as mixed precision makes them
                object.__setattr__(self, name, scores.float())
        wide = torch.promote_types(self.unary.dtype, self.embedding.dtype)
        object.__setattr__(self, "unary", self.unary.to(wide))
        object.__setattr__(self, "embedding", self.embedding.to(wide))

    @property
    def numbers(self) -> int:
        """See Potentials."""
        return self.unary.numel() + self.embedding.numel()

    @property
    def pairwise_unit(self) -> Factor:
        """The norm(W) of a K with mean 1 / 2N; norm(W) = 1 would need a ridge of order N.   [eqs. 20, 21]"""
        labels = self.unary.shape[-1]
        return 0.5 * (labels - 1) / (labels * self.num_positions())

    def score(self, y: Float[Tensor, "..."]) -> Float[Tensor, "... B"]:
        """F of each answer y."""
        return self.quadratic(self.point(y))

    def quadratic(self, s: Float[Tensor, "*K_B_N M"]) -> Float[Tensor, "... B"]:
        """F of each point s; K is never formed.

        s^T W s = |A^T t|^2 - sum_m |A^T s_m|^2 with t the sum of s over labels.
        """
        unary, features = self.flat()
        s = self._hide(s).flatten(-1 - len(self.unary.shape[1:-1]), -2)  # (..., B, N, M)
        sums = features.mT @ s  # (..., B, D, M)
        pairwise = sums.sum(-1).square().sum(-1) - sums.square().sum((-2, -1))
        return (unary * s).sum((-2, -1)) - (pairwise + self.ridge * s.square().sum((-2, -1))) / 2

    def point(self, y: Float[Tensor, "..."]) -> Float[Tensor, "*K_B_N M"]:
        """The point s of each answer y."""
        return torch.stack([1 - y, y], -1) if self.unary.shape[-1] == 2 else y

    def logits(self) -> Float[Tensor, "..."]:
        """See Potentials: with two labels one logit a position, with more one a label."""
        return self.logits_of(self.unary)

    def logits_of(self, s: Float[Tensor, "*K_B_N M"]) -> Float[Tensor, "..."]:
        """A point as the logits of an answer; with two labels their difference."""
        return s[..., 1] - s[..., 0] if self.unary.shape[-1] == 2 else s

    def unary_norm(self) -> Float[Tensor, " B"]:
        """See Potentials."""
        return self.flat()[0].abs().mean(-1).sum(-1) / self.num_positions()

    def pairwise_norm(self) -> Float[Tensor, " B"]:
        """norm(W) = norm(K) (M - 1) / M, since the diagonal blocks of W are 0.

        If no embedding is negative, norm(K) is the squared length of their mean. Otherwise all pairs of
        positions are counted where they are few, and where they are many 2,048 of them, always the same.
        """
        features, labels, size = self.flat()[1], self.unary.shape[-1], self.unary[0, ..., 0].numel()
        if bool((features >= 0).all()):
            total = features.sum(1).square().sum(-1)
        elif size**2 <= PAIRS:
            total = (features @ features.mT).abs().sum((1, 2))
        else:
            draw = torch.Generator().manual_seed(0)
            if self.mask is None:
                one, other = features[:, torch.randint(size, (2, PAIRS), generator=draw)].unbind(1)
            else:
                one, other = self._real(features, torch.rand(2, PAIRS, generator=draw))
            total = (one * other).sum(-1).abs().mean(1) * self.num_positions() ** 2
        return total / self.num_positions() ** 2 * (labels - 1) / labels

    def _real(self, features: Float[Tensor, "B N D"], place: Float[Tensor, "2 P"]) -> tuple[Tensor, Tensor]:
        """The features at places in [0, 1) of each example's real positions, twice (B, P, D)."""
        assert self.mask is not None
        mask = self.mask.flatten(1)
        order = mask.byte().argsort(dim=1, descending=True, stable=True)  # the real ones first
        index = (place.to(features.device).flatten() * mask.sum(1, keepdim=True)).long()
        rows = order.gather(1, index).unsqueeze(-1).expand(-1, -1, features.shape[-1])
        one, other = features.gather(1, rows).chunk(2, 1)
        return one, other

    def balances(self) -> dict[str, Float[Tensor, ""]]:
        """See Potentials; `share` is the mean of mu_max / lambda of the field in use.   [§4.2]"""
        p = self.definite()
        share = (p.largest_eigenvalue() / p.ridge).mean()
        return {"ratio": self.unary_norm().mean() / self.pairwise_norm().mean(), "share": share}

    def times(self, unary: Factor, rest: Factor | None = None) -> Self:
        """See Potentials; the ridge is unchanged, and W is multiplied through the embeddings."""
        unary = self._each(unary) * self.unary
        if rest is None:
            return replace(self, unary=unary)
        return replace(self, unary=unary, embedding=self._each(rest) ** 0.5 * self.embedding)

    def repeat(self, k: int) -> Self:
        """See Potentials."""
        return self.rows(torch.arange(len(self.unary), device=self.unary.device).repeat(k))

    def rows(self, index: Tensor) -> Self:
        """See Potentials."""
        mask = None if self.mask is None else self.mask[index]
        ridge = self.ridge[index] if isinstance(self.ridge, Tensor) else self.ridge
        return replace(self, unary=self.unary[index], embedding=self.embedding[index], ridge=ridge, mask=mask)

    def definite(self) -> "GaussianPotentials":
        """The field with a maximum, as the policy makes it."""
        return self.policy(self)

    def largest_eigenvalue(self) -> Float[Tensor, " B"]:
        """mu_max, the largest eigenvalue of K, from the smaller of A^T A and A A^T.

        Raises:
            ValueError: an embedding is not finite, or too large for a product of two; the message names its
                example.
        """
        a = self.flat()[1]
        gram = lower_gram(a if a.shape[1] >= a.shape[2] else a.mT)
        if not bool((fine := gram.isfinite().flatten(1).all(1)).all()):
            self.check_finite()
            raise ValueError(
                f"example {int((~fine).nonzero()[0])} has embeddings whose products are not finite in "
                f"{str(a.dtype).removeprefix('torch.')}: look for what makes them so large in the network."
            )
        return torch.linalg.eigvalsh(gram)[..., -1]

    def check_finite(self) -> None:
        """Raise an error that names the example if a score at a real position is not finite.

        Raises:
            ValueError: one is not.
        """
        for name, scores in zip(("a unary score", "an embedding"), self.flat(), strict=True):
            if not bool(scores.isfinite().all()):
                row = int((~scores.isfinite()).flatten(1).any(1).nonzero()[0])
                raise ValueError(
                    f"example {row} has {name} that is not finite: look for its cause in the networks."
                )

    def flat(self) -> tuple[Float[Tensor, "B N M"], Float[Tensor, "B N D"]]:
        """U and A with one dimension of positions, 0 where masked."""
        return self._hide(self.unary).flatten(1, -2), self._hide(self.embedding).flatten(1, -2)

    def num_positions(self) -> Tensor | float:
        """The number of real positions: N, or (B,) with a mask."""
        if self.mask is None:
            return float(self.unary[0, ..., 0].numel())
        return self.mask.flatten(1).sum(1).clamp_min(1)

    def _hide(self, rows: Float[Tensor, "..."]) -> Tensor:
        return rows if self.mask is None else rows.masked_fill(~self.mask.unsqueeze(-1), 0)

    def _each(self, factor: Factor) -> Factor:
        """A factor, or one for each example, shaped to multiply scores."""
        if isinstance(factor, Tensor) and factor.dim():
            return factor.view(-1, *[1] * (self.unary.dim() - 1))
        return factor


def lower_gram(a: Float[Tensor, "B N D"]) -> Float[Tensor, "B D D"]:
    """A^T A on and below the diagonal, which is all that factors and eigenvalues read.

    Above it only blocks on the diagonal are filled: with four that is 5/8 of the work.
    """
    size = a.shape[2]
    width = -(-size // BLOCKS)
    gram = a.new_zeros(len(a), size, size)
    with torch.autocast(a.device.type, enabled=False):
        for i in range(0, size, width):
            rows = slice(i, i + width)
            gram[:, rows, : i + width] = a[:, :, rows].mT @ a[:, :, : i + width]
    return gram


class GaussianEnergy(StructuredEnergy):
    """E(x, y) = -F(y) of a Gaussian field.   [Scaling eqs. 9, 16]

    U = unary_net(x), and A = embedding_net(x) / sqrt(N), so that eigenvalues of K do not grow with the number
    of positions. Both the energy and its criteria use the field made definite, as `policy` says.

    Shapes:
        x: (B, ...), from which `unary_net` makes (B, *positions, M) and `embedding_net` (B, *positions, D).
        y: masks (..., B, *positions) with two labels; (..., B, *positions, M) with more.   returns: (..., B).
    """

    def __init__(
        self,
        unary_net: nn.Module,
        embedding_net: nn.Module,
        ridge: float = 1.0,
        policy: Definite = CapEmbeddings(),
    ) -> None:
        super().__init__()
        self.unary_net, self.embedding_net, self.ridge, self.policy = unary_net, embedding_net, ridge, policy

    def minus_score(self, p: Potentials) -> ConditionedEnergy:
        """See StructuredEnergy."""
        assert isinstance(p, GaussianPotentials)
        definite = p.definite()
        return ConditionedEnergy(lambda y: -definite.score(y))

    def potentials(self, x: Inputs, mask: Tensor | None) -> GaussianPotentials:
        """The scores of a batch; `mask` is (B, *positions) bool, or None where every position is real."""
        p = GaussianPotentials(self.unary_net(x), self.embedding_net(x), self.ridge, mask, self.policy)
        return p.times(1.0, 1 / p.num_positions())

    def unary_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the unary network."""
        return self.unary_net.parameters()

    def pairwise_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the embedding network."""
        return self.embedding_net.parameters()
