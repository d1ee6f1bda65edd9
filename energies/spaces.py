"""The three answer spaces, with one interface: sets of labels, tag sequences, pixel masks.

Schemes, objectives and searches use only `AnswerSpace`, so each of them runs on every space.

Shapes: B examples, K samples, L labels, T positions, S tags, H x W pixels. Logits and answers of a batch
have the same shape, (B, L), (B, T, S) or (B, H, W); "..." stands for leading sample dimensions of an answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from energies.answers import sets
from losses import costs
from networks.sizes import at_least, match_answers

Cost = Callable[..., Any]  # (guess, y) -> rows; a closer type would keep config files from naming a function

LOG_FLOOR = -100.0  # where binary cross-entropy, and so the released code, clamps log p


class AnswerSpace(ABC):
    """The set of possible answers: how to relax, sample, score, evaluate and search them.

    `simplex`: the last dimension of a relaxed answer sums to 1; otherwise entries are independent.
    """

    simplex: ClassVar[bool] = False

    def over(self, mask: Tensor | None) -> Self:
        """This space with the mask of one batch; the space itself where answers have no positions."""
        return self

    @abstractmethod
    def relax(self, logits: Tensor) -> Tensor:
        """Logits to the relaxed answer: probabilities, of the same shape, 0 at masked positions."""

    @abstractmethod
    def sample(self, logits: Tensor, num_samples: int) -> Tensor:
        """Independent discrete samples from the factorised distribution of the logits, (K, B, ...).

        Sets of labels are bool, for which energies over sets have a faster product; other answers are float.
        """

    @abstractmethod
    def log_prob(self, logits: Tensor, y: Tensor) -> Tensor:
        """Log-probability of discrete answers y (..., B, ...) under the logits, (..., B)."""

    def put_first(self, y: Tensor, guesses: Tensor) -> Tensor:
        """The truth (B, ...), then the guesses (K, B, ...), so that one call of the energy covers all."""
        return torch.cat([y.to(guesses.dtype).unsqueeze(0), guesses])

    @abstractmethod
    def decode(self, relaxed: Tensor) -> Tensor:
        """The discrete answer nearest to a relaxed one, as float, of the same shape."""

    @abstractmethod
    def supervise(self, logits: Tensor, y: Tensor) -> Tensor:
        """Supervised loss of each example, (B,)."""

    @abstractmethod
    def cost(self, guess: Tensor, y: Tensor) -> Tensor:
        """How wrong a guess (..., B, ...) is, (..., B): 0 for the truth; differentiable in the guess."""

    def tag_costs(self, y: Tensor) -> Tensor:
        """The cost (B, T, S) of each tag at each position, whose sum over an answer is its cost.

        Raises:
            ValueError: answers are no tags.
        """
        raise ValueError(
            f"the exact cost-augmented answer is found for tags, not for {type(self).__name__}. Take "
            "inference.networks.SampledAugmented as model.networks."
        )

    @abstractmethod
    def quality(self, guess: Tensor, y: Tensor) -> Tensor:
        """How good a guess (..., B, ...) is, (..., B): 1 for the truth, in [0, 1]."""

    @abstractmethod
    def project(self, y: Tensor) -> Tensor:
        """The relaxed answer nearest to a point."""

    @abstractmethod
    def start(self, like: Tensor) -> Tensor:
        """The uninformed start of a search, of the shape (B, ...) and the type of `like`."""

    @abstractmethod
    def random(self, like: Tensor, num_samples: int) -> Tensor:
        """Relaxed answers drawn uniformly, (K, B, ...), for the shape (B, ...) and the type of `like`."""


class _Binary(AnswerSpace):
    """Answers of independent binary entries; costs are computed over the entries of an example."""

    @abstractmethod
    def flat(self, y: Tensor) -> Tensor:
        """The entries of an example in one last dimension."""

    def relax(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def sample(self, logits: Tensor, num_samples: int) -> Tensor:
        return sets.draw(logits, num_samples)

    def log_prob(self, logits: Tensor, y: Tensor) -> Tensor:
        logits = self.flat(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        on, off = F.logsigmoid(logits).clamp_min(LOG_FLOOR), F.logsigmoid(-logits).clamp_min(LOG_FLOOR)
        with torch.autocast(logits.device.type, enabled=False):
            return sets.sum_potentials(on - off, self.flat(y)) + off.sum(-1)

    def decode(self, relaxed: Tensor) -> Tensor:
        return (relaxed >= 0.5).to(relaxed.dtype)

    def project(self, y: Tensor) -> Tensor:
        return y.clamp(0, 1)

    def start(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def random(self, like: Tensor, num_samples: int) -> Tensor:
        return torch.rand(num_samples, *like.shape, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class LabelSets(_Binary):
    """Sets of labels: y in {0, 1}^L, relaxed to [0, 1]^L.

    Supervision is binary cross-entropy summed over labels [SEAL eq. 1]; quality is soft F1; `cost` is the
    mean absolute difference unless another function of `losses.costs` is given.

    Raises:
        ValueError: fewer than 1 label.
    """

    num_labels: int
    cost_function: Cost = costs.l1

    def __post_init__(self) -> None:
        at_least(1, num_labels=self.num_labels)

    def check_answers(self, y: Tensor) -> None:
        match_answers(y, num_labels=self.num_labels)

    def flat(self, y: Tensor) -> Tensor:
        return y

    def supervise(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, y, reduction="none").sum(-1)

    def put_first(self, y: Tensor, guesses: Tensor) -> Tensor:
        return sets.put_first(y, guesses)

    def cost(self, guess: Tensor, y: Tensor) -> Tensor:
        return self.cost_function(guess.to(y.dtype), y)

    def quality(self, guess: Tensor, y: Tensor) -> Tensor:
        return costs.soft_f1(guess.to(y.dtype), y)


@dataclass(frozen=True)
class PixelMasks(_Binary):
    """Binary images: y in {0, 1}^(H x W), relaxed to [0, 1]; one logit a pixel. H and W may differ by batch.

    Supervision is the cross-entropy of the pixels: their mean, or with `reduction: sum` their sum. Quality is
    soft IoU and cost its complement, in [0, 1] with either.   [SEAL §4.4; DVN; Implicit eq. 6, horses]
    """

    reduction: Literal["mean", "sum"] | None = None  # None is the mean; it keeps the ids of older runs

    def flat(self, y: Tensor) -> Tensor:
        return y.flatten(-2)

    def sample(self, logits: Tensor, num_samples: int) -> Tensor:
        return super().sample(logits, num_samples).to(logits.dtype)

    def supervise(self, logits: Tensor, y: Tensor) -> Tensor:
        rows = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
        return rows.sum((-2, -1)) if self.reduction == "sum" else rows.mean((-2, -1))

    def cost(self, guess: Tensor, y: Tensor) -> Tensor:
        return costs.iou_cost(self.flat(guess), self.flat(y))

    def quality(self, guess: Tensor, y: Tensor) -> Tensor:
        return costs.soft_iou(self.flat(guess), self.flat(y))


@dataclass(frozen=True)
class TagSequences(AnswerSpace):
    """One tag a position: y one-hot (B, T, S), relaxed to a simplex at each position, all zero where padded.

    Quality is the expected share of correct tags; an empty sequence has quality 1. Supervision and cost are
    the cross-entropy and the complement of the quality, means over the real positions of a sequence.

    With `reduction: sum` they are sums: supervision is the summed cross-entropy, cost the L1 distance of the
    one-hot answers, 2 for each wrong tag: Delta = sum_t |guess_t - y_t| = 2 (T - sum_t guess_t . y_t), in
    [0, 2T].
    [InfNet+ §2, eqs. 3, 4]

    Raises:
        ValueError: fewer than 1 tag.
    """

    simplex = True
    num_tags: int
    mask: Tensor | None = None  # (B, T) bool, True is real; bound by `over`
    reduction: Literal["mean", "sum"] | None = None  # None is the mean; it keeps the ids of older runs

    def __post_init__(self) -> None:
        at_least(1, num_tags=self.num_tags)

    def check_answers(self, y: Tensor) -> None:
        match_answers(y, num_tags=self.num_tags)

    def over(self, mask: Tensor | None) -> Self:
        return replace(self, mask=mask)

    @property
    def real(self) -> Tensor:
        """The mask (B, T).

        Raises:
            ValueError: the space is not bound to a batch.
        """
        if self.mask is None:
            raise ValueError(
                "TagSequences has no mask: bind it to a batch, space.over(mask), with a mask of ones where "
                "all positions are real."
            )
        return self.mask

    def relax(self, logits: Tensor) -> Tensor:
        return self._hide(logits.softmax(-1))

    def sample(self, logits: Tensor, num_samples: int) -> Tensor:
        probability = logits.detach().softmax(-1).flatten(0, -2)  # (B T, S)
        tags = probability.multinomial(num_samples, replacement=True).T.unflatten(1, logits.shape[:-1])
        return self._hide(F.one_hot(tags, self.num_tags).to(logits.dtype))

    def log_prob(self, logits: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("bts,...bts->...b", self._hide(logits.log_softmax(-1)), y)

    def decode(self, relaxed: Tensor) -> Tensor:
        return self._hide(F.one_hot(relaxed.argmax(-1), self.num_tags).to(relaxed.dtype))

    def supervise(self, logits: Tensor, y: Tensor) -> Tensor:
        summed = -(self._hide(logits.log_softmax(-1)) * y).sum((-2, -1))
        return summed if self.reduction == "sum" else summed / self._length()

    def cost(self, guess: Tensor, y: Tensor) -> Tensor:
        if self.reduction == "sum":
            return 2 * (self.real.sum(-1) - self._right(guess, y))
        return 1 - self.quality(guess, y)

    def tag_costs(self, y: Tensor) -> Tensor:
        wrong = self._hide(1 - y)
        return 2 * wrong if self.reduction == "sum" else wrong / self._length().view(-1, 1, 1)

    def quality(self, guess: Tensor, y: Tensor) -> Tensor:
        right = self._right(guess, y)
        return torch.where(self.real.any(-1), right / self._length(), torch.ones_like(right))

    def project(self, y: Tensor) -> Tensor:
        """Euclidean projection of each position on the simplex, by sorting.   [Duchi et al. 2008, fig. 1]"""
        descending = y.sort(-1, descending=True).values
        excess = descending.cumsum(-1) - 1
        rank = torch.arange(1, self.num_tags + 1, device=y.device, dtype=y.dtype)
        support = (descending * rank > excess).sum(-1, keepdim=True)
        return self._hide((y - excess.gather(-1, support - 1) / support).clamp_min(0))

    def start(self, like: Tensor) -> Tensor:
        return self._hide(torch.full_like(like, 1 / self.num_tags))

    def random(self, like: Tensor, num_samples: int) -> Tensor:
        weights = like.new_empty(num_samples, *like.shape).exponential_()
        return self._hide(weights / weights.sum(-1, keepdim=True))  # uniform on the simplex

    def _right(self, guess: Tensor, y: Tensor) -> Tensor:
        """The weight of the right tags at real positions."""
        return (guess * self._hide(y)).sum((-2, -1))

    def _hide(self, y: Tensor) -> Tensor:
        return y * self.real.unsqueeze(-1)

    def _length(self) -> Tensor:
        return self.real.sum(-1).clamp_min(1)
