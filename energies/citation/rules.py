"""Rules of bibliographies: how often an answer violates each.   [SG-SPEN; Implicit §5, citations]

Each rule maps a citation and an answer to a number of violations. For one-hot answers it is a count. For a
relaxed answer it is the count's expectation when the tags of different tokens are independent; `too_long`
alone takes the expected length instead. So every other rule is affine in the tag of each token.

Shapes: B citations, T tokens, S tags; "..." stands for leading sample dimensions of an answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

VENUES = ("booktitle", "journal")
KINDS = (*VENUES, "tech")  # a reference is one of these
CUED = {  # the tags that a cue word may have
    "date": ("date",),
    "pages": ("pages",),
    "volume": ("volume",),
    "booktitle": ("booktitle",),
    "journal": ("journal",),
    "society": VENUES,
    "editor": ("editor",),
    "tech": ("tech",),
    "institution": ("institution",),
    "title": ("title",),
    "range": ("pages",),
}
AFTER_VENUE = ("location", "pages", "volume", "publisher")
LONGEST = {"title": 20, "author": 15, "booktitle": 10, "journal": 10, "note": 10, "publisher": 10, "pages": 7}
LONGEST |= {"editor": 6, "date": 5, "location": 5, "tech": 5, "volume": 5, "institution": 5}
CUE_PENALTY, START_PENALTY = 10.0, 100.0  # of one violation; all others 1


@dataclass(frozen=True)
class Citation:
    """What rules read of B citations: their cues, which tokens are real, and the number of each tag."""

    cues: Mapping[str, Bool[Tensor, "B T"]]
    mask: Bool[Tensor, "B T"]
    number: Mapping[str, int]

    def of(self, y: Float[Tensor, "... T S"], *tags: str) -> Float[Tensor, "... T"]:
        """How much of each token has one of these tags."""
        first, *others = (y[..., self.number[tag]] for tag in tags)
        return sum(others, first)

    def changes(self, y: Float[Tensor, "... T S"]) -> Float[Tensor, "... T_less_1"]:
        """Whether the tag differs between each token and the next, both real."""
        return (1 - (y[..., :-1, :] * y[..., 1:, :]).sum(-1)) * self.mask[:, 1:]


Answer = Float[Tensor, "... B T S"]
Counts = Float[Tensor, "... B"]
Rule = Callable[[Citation, Answer], Counts]


def ranges(dash: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Dashes next to a dash: they part the two numbers of a range."""
    return dash & (F.pad(dash[:, :-1], (1, 0)) | F.pad(dash[:, 1:], (0, 1)))


def miscued(c: Citation, y: Answer, *, cue: str) -> Counts:
    """Tokens with a cue that do not have its tag: 1994 that is no date, `pp` that is not of the pages."""
    return (c.cues[cue] * (1 - c.of(y, *CUED[cue]))).sum(-1)


def miscued_penalties(c: Citation) -> Float[Tensor, "B T S"]:
    """The penalty of each tag at each token by all of `miscued`."""
    wrong = [[tag not in CUED[cue] for tag in c.number] for cue in CUED]
    cues = torch.stack([c.cues[cue] for cue in CUED], -1).float()
    return CUE_PENALTY * cues @ cues.new_tensor(wrong)


def change_after_open(c: Citation, y: Answer) -> Counts:
    """Opening brackets whose tag is not that of the next token."""
    return (c.changes(y) * c.cues["open"][:, :-1]).sum(-1)


def change_at_close(c: Citation, y: Answer) -> Counts:
    """Closing brackets whose tag is not that of the token before."""
    return (c.changes(y) * c.cues["close"][:, 1:]).sum(-1)


def change_at_stop(c: Citation, y: Answer) -> Counts:
    """Full stops whose tag is not that of the token before."""
    return (c.changes(y) * c.cues["stop"][:, 1:]).sum(-1)


def change_at_joint(c: Citation, y: Answer) -> Counts:
    """Changes of the tag on either side of `and` or a dash."""
    joint = c.cues["joint"]
    return (c.changes(y) * (joint[:, :-1].float() + joint[:, 1:].float())).sum(-1)


def broken_field(c: Citation, y: Answer) -> Counts:
    """How many fields begin anew after another: for each tag its runs less one."""
    begins = y[..., 0, :] + (y[..., 1:, :] * (1 - y[..., :-1, :])).sum(-2)
    return (begins - _present(y)).sum(-1)


def two_kinds(c: Citation, y: Answer) -> Counts:
    """Pairs of booktitle, journal and tech that both occur."""
    present = {tag: _present(c.of(y, tag).unsqueeze(-1)).squeeze(-1) for tag in KINDS}
    either = {pair: _present(c.of(y, *pair).unsqueeze(-1)).squeeze(-1) for pair in combinations(KINDS, 2)}
    return torch.stack([present[a] + present[b] - both for (a, b), both in either.items()]).sum(0)


def no_author_first(c: Citation, y: Answer) -> Counts:
    """1 unless the citation begins with an author."""
    return (1 - c.of(y, "author")[..., 0]) * c.mask[:, 0]


def wrong_order(c: Citation, y: Answer) -> Counts:
    """Fields that begin before one they should follow, where both occur.

    The booktitle before the title; location, pages, volume or publisher before the booktitle or journal.
    """
    venue = c.of(y, *VENUES)
    pairs = [(c.of(y, "booktitle"), c.of(y, "title"))] + [(c.of(y, tag), venue) for tag in AFTER_VENUE]
    one, other = (torch.stack(tags, -1) for tags in zip(*pairs, strict=True))  # (..., T, 5)
    return _begins_before(one, other).sum(-1)


def too_long(c: Citation, y: Answer) -> Counts:
    """Tags with more tokens than a field of theirs has."""
    longest = y.new_tensor([LONGEST[tag] for tag in c.number])
    return (y.sum(-2) - longest).clamp(0, 1).sum(-1)


OTHERS: dict[str, tuple[float, Rule]] = {  # the penalty of one violation, and what counts them
    "change_after_open": (1.0, change_after_open),
    "change_at_close": (1.0, change_at_close),
    "change_at_stop": (1.0, change_at_stop),
    "change_at_joint": (1.0, change_at_joint),
    "broken_field": (1.0, broken_field),
    "two_kinds": (1.0, two_kinds),
    "no_author_first": (START_PENALTY, no_author_first),
    "wrong_order": (1.0, wrong_order),
    "too_long": (1.0, too_long),
}
RULES: dict[str, Rule] = {f"cue_{cue}": partial(miscued, cue=cue) for cue in CUED}
RULES |= {name: rule for name, (_, rule) in OTHERS.items()}


def _present(y: Float[Tensor, "... T S"]) -> Float[Tensor, "... S"]:
    """Whether each tag occurs."""
    return 1 - (1 - y).prod(-2)


def _begins_before(one: Float[Tensor, "... T P"], other: Float[Tensor, "... T P"]) -> Float[Tensor, "... P"]:
    """For each pair whether both occur, the first of `one` before the first of `other`."""
    unbegun = _until(1 - one - other)
    later = 1 - _until((1 - other).flip(-2)).flip(-2)
    return (unbegun * one * later).sum(-2)


def _until(factors: Float[Tensor, "... T P"]) -> Float[Tensor, "... T P"]:
    """The product of all factors before each token."""
    return torch.cat([torch.ones_like(factors[..., :1, :]), factors[..., :-1, :].cumprod(-2)], -2)
