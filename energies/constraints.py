"""Which tag may follow which, for spans encoded as tags.

BIO: B- begins a span, I- continues it, O is outside. BIOES adds E- for the last tag of a span and S- for a
span of one tag.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool
from torch import Tensor

from energies.answers.relaxed import FORBIDDEN
from energies.potentials import ChainPotentials


@dataclass(frozen=True)
class Constraints:
    """The tag sequences that a chain allows.

    For exact inference, which obeys them. A relaxed answer with a weight on what is forbidden has an energy
    of infinity, so a search by gradient rarely ends at an answer that is allowed.

    Attributes:
        allowed: (S, S), True where a tag (row) may be followed by another (column).
        starts: (S,), True where a chain may begin; anywhere by default.
        ends: (S,), True where a chain may end; anywhere by default.
    """

    allowed: Bool[Tensor, "S S"]
    starts: Bool[Tensor, " S"] | None = None
    ends: Bool[Tensor, " S"] | None = None

    @classmethod
    def for_spans(cls, tags: Sequence[str], encoding: str = "BIO") -> Self:
        """The constraints of an encoding on these tag names, such as O, B-NP, I-NP, in this order.

        Raises:
            ValueError: the encoding is neither BIO nor BIOES, or a tag is not one of the encoding.
        """
        if encoding not in ENCODINGS:
            raise ValueError(f"spans are written as {' or '.join(ENCODINGS)}, not as {encoding!r}.")
        parts = [split_tag(tag, encoding) for tag in tags]
        allowed = [[_may_follow(before, after, encoding) for after in parts] for before in parts]
        starts = [_may_follow(("O", ""), part, encoding) for part in parts]
        ends = [_may_follow(part, ("O", ""), encoding) for part in parts]
        return cls(torch.tensor(allowed), torch.tensor(starts), torch.tensor(ends))

    def on(self, p: ChainPotentials) -> ChainPotentials:
        """The potentials with a score of -inf wherever a tag is not allowed.

        Raises:
            ValueError: the constraints have another number of tags.
        """
        size = p.unary.shape[2]
        if self.allowed.shape != (size, size):
            raise ValueError(
                f"the constraints are a matrix of {tuple(self.allowed.shape)}, and the potentials have "
                f"{size} tags."
            )

        def forbid(scores: Tensor | None, allowed: Tensor | None) -> Tensor | None:
            if allowed is None:
                return scores
            scores = p.unary.new_zeros(size) if scores is None else scores
            return scores.masked_fill(~allowed.to(scores.device), FORBIDDEN)

        pairwise = p.pairwise.masked_fill(~self.allowed.to(p.pairwise.device), FORBIDDEN)
        return replace(p, pairwise=pairwise, start=forbid(p.start, self.starts), end=forbid(p.end, self.ends))


def bio_tags(kinds: Sequence[str]) -> list[str]:
    """The tags of spans of these kinds, in the order of their numbers: O, then B- and I- of each kind."""
    return ["O", *(f"{mark}-{kind}" for kind in kinds for mark in "BI")]


ENCODINGS = ("BIO", "BIOES")  # each is named by its prefixes


def split_tag(tag: str, encoding: str) -> tuple[str, str]:
    """Prefix and kind of a tag; the kind of O is empty.

    Raises:
        ValueError: it is no tag of the encoding.
    """
    prefix, _, kind = tag.partition("-")
    known = len(prefix) == 1 and prefix in encoding
    if not known or (tag != "O" and (prefix == "O" or not kind)):
        raise ValueError(
            f"{tag!r} is no tag of {encoding}: a tag is O, or {', '.join(encoding.replace('O', ''))}"
            " followed by a dash and the kind of span, such as B-NP."
        )
    return prefix, kind


def _may_follow(before: tuple[str, str], after: tuple[str, str], encoding: str) -> bool:
    """Whether a tag may follow another: a tag that continues a span needs an open span of its kind."""
    is_open = before[0] in "BI"
    if after[0] in "IE":
        return is_open and before[1] == after[1]
    return encoding == "BIO" or not is_open
