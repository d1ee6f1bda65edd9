"""A linear-chain CRF as a layer, with its own transition scores.

Shapes: B examples, T positions, S tags. With `batch_first` inputs and answers begin (B, T), otherwise (T, B).
"""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from energies.potentials import ChainPotentials
from inference import chain

REDUCTIONS = ("sum", "mean", "token_mean", "none")


class CRF(nn.Module):
    """A CRF on emission scores of any network, with learned transition scores.

    Parameters have the names, shapes and initialisation of pytorch-crf's `CRF`, so its checkpoints load here.
    What differs: `forward` is a loss, masks may leave out any position, answers are tensors.

    Args:
        num_tags: S.
        batch_first: whether examples are the first dimension, positions the second.

    Attributes:
        transitions: (S, S), the score of a tag (row) followed by another (column).
        start_transitions: (S,), the score of the first real tag.
        end_transitions: (S,), the score of the last real tag.
    """

    def __init__(self, num_tags: int, batch_first: bool = False) -> None:
        super().__init__()
        if isinstance(num_tags, float) or num_tags < 1:
            raise ValueError(f"num_tags is {num_tags}: a chain needs a whole number of tags, one or more.")
        self.num_tags, self.batch_first = num_tags, batch_first
        self.start_transitions = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.end_transitions = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags).uniform_(-0.1, 0.1))

    def extra_repr(self) -> str:
        """What the module prints of itself."""
        return f"num_tags={self.num_tags}, batch_first={self.batch_first}"

    def forward(
        self,
        emissions: Float[Tensor, "..."],
        tags: Int[Tensor, "..."],
        mask: Tensor | None = None,
        reduction: str = "sum",
    ) -> Float[Tensor, "..."]:
        """Negative log-likelihood of the tags: a loss, never below 0.

        Args:
            emissions: (B, T, S) or (T, B, S).
            tags: (B, T) or (T, B); ignored where masked.
            mask: of the same shape, bool, True is real; None where every position is.
            reduction: `sum` or `mean` over examples, `token_mean` over real positions, or `none`: (B,).
        """
        if reduction not in REDUCTIONS:
            raise ValueError(f"there is no reduction {reduction!r}; there are {', '.join(REDUCTIONS)}.")
        if tags.shape != emissions.shape[:2]:
            raise ValueError(
                f"tags of shape {tuple(tags.shape)} do not fit emissions of shape {tuple(emissions.shape)}: "
                f"give one tag for each of {tuple(emissions.shape[:2])}."
            )
        p = self.potentials(emissions, mask)
        losses = chain.nll(p, self._swapped(tags))
        if reduction == "none":
            return losses
        if reduction == "mean":
            return losses.mean()
        return losses.sum() if reduction == "sum" else losses.sum() / p.real().sum().clamp(min=1)

    def decode(self, emissions: Float[Tensor, "..."], mask: Tensor | None = None) -> Int[Tensor, "..."]:
        """The best tags, (B, T) or (T, B), 0 where masked."""
        return self._swapped(chain.viterbi(self.potentials(emissions, mask)).tags)

    def marginals(self, emissions: Float[Tensor, "..."], mask: Tensor | None = None) -> Float[Tensor, "..."]:
        """The probability of each tag at each position, of the shape of the emissions, 0 where masked."""
        return self._swapped(chain.marginals(self.potentials(emissions, mask)))

    def potentials(self, emissions: Float[Tensor, "..."], mask: Tensor | None = None) -> ChainPotentials:
        """The argument of every function of `inference.chain`, with examples first."""
        if not isinstance(emissions, Tensor):
            raise TypeError(f"emissions are a {type(emissions).__name__}: give a tensor, as torch.as_tensor.")
        if emissions.dim() != 3 or emissions.shape[2] != self.num_tags:
            raise ValueError(
                f"emissions have shape {tuple(emissions.shape)}; they need three dimensions, the last one of "
                f"num_tags={self.num_tags}."
            )
        if mask is not None:
            if mask.shape != emissions.shape[:2]:
                raise ValueError(
                    f"a mask of shape {tuple(mask.shape)} does not fit emissions of shape "
                    f"{tuple(emissions.shape)}."
                )
            mask = self._swapped(mask)
        return ChainPotentials(
            self._swapped(emissions), self.transitions, mask, self.start_transitions, self.end_transitions
        )

    def _swapped(self, x: Shaped[Tensor, "..."]) -> Tensor:
        """Swap examples and positions unless `batch_first`."""
        return x if self.batch_first else x.transpose(0, 1)
