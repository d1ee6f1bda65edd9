"""Which tag may follow which: spans written as tags.

BIO: B- begins a span, I- goes on in it, O is outside. BIOES adds E- for the last tag of a span and S- for a
span of one tag.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool
from torch import Tensor

from energies.potentials import ChainPotentials

FORBIDDEN = float("-inf")


@dataclass(frozen=True)
class Constraints:
    """What a chain may do.

    Attributes:
        allowed: (S, S), True where a tag (row) may be followed by another (column).
        starts: (S,), True where a chain may begin.
        ends: (S,), True where a chain may end.
    """

    allowed: Bool[Tensor, "S S"]
    starts: Bool[Tensor, " S"]
    ends: Bool[Tensor, " S"]

    @classmethod
    def for_spans(cls, tags: Sequence[str], scheme: str = "BIO") -> Self:
        """The rules of spans for these tag names, in this order, such as O, B-NP, I-NP.

        Raises:
            ValueError: at a scheme other than BIO and BIOES, and at a tag that its scheme does not know.
        """
        if scheme not in RULES:
            raise ValueError(f"spans are written as {' or '.join(RULES)}, not as {scheme!r}.")
        parts = [_split(tag, scheme) for tag in tags]
        allowed = [[_may_follow(before, after, scheme) for after in parts] for before in parts]
        starts = [_may_follow(("O", ""), part, scheme) for part in parts]
        ends = [_may_follow(part, ("O", ""), scheme) for part in parts]
        return cls(torch.tensor(allowed), torch.tensor(starts), torch.tensor(ends))

    def on(self, p: ChainPotentials) -> ChainPotentials:
        """The potentials with a score of -inf on everything that is not allowed."""
        device, zero = p.unary.device, p.unary.new_zeros(p.unary.shape[2])
        return replace(
            p,
            pairwise=p.pairwise.masked_fill(~self.allowed.to(device), FORBIDDEN),
            start=(zero if p.start is None else p.start).masked_fill(~self.starts.to(device), FORBIDDEN),
            end=(zero if p.end is None else p.end).masked_fill(~self.ends.to(device), FORBIDDEN),
        )


RULES = {"BIO": "BIO", "BIOES": "BIOES"}  # a scheme and the prefixes it knows
OPEN = {"BIO": "BI", "BIOES": "BI"}  # after these a span may go on
GOES_ON = {"BIO": "I", "BIOES": "IE"}  # these need an open span of the same kind before them


def _split(tag: str, scheme: str) -> tuple[str, str]:
    """Prefix and kind of a tag."""
    prefix, _, kind = tag.partition("-")
    known = len(prefix) == 1 and prefix in RULES[scheme]
    if not known or (tag != "O" and (prefix == "O" or not kind)):
        raise ValueError(
            f"{tag!r} is no tag of {scheme}: a tag is O, or {', '.join(RULES[scheme].replace('O', ''))}"
            " with a dash and the kind of span, such as B-NP."
        )
    return prefix, kind


def _may_follow(before: tuple[str, str], after: tuple[str, str], scheme: str) -> bool:
    """Whether a tag may stand after another: one that goes on only inside a span of its kind."""
    if after[0] in GOES_ON[scheme]:
        return before[0] in OPEN[scheme] and before[1] == after[1]
    return scheme == "BIO" or before[0] not in OPEN[scheme]
