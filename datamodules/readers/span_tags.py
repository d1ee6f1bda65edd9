"""Conversion between tagging schemes of spans (IOB1, BIO or IOB2, BIOES), one sentence at a time.

IOB1 has B- only where a span follows another of its kind at once, BIO at the start of every span; BIOES also
marks the last token (E-) and a span of one token (S-).
"""

import re
from collections.abc import Collection, Sequence

TAG = re.compile(r"O|[BIES]-.+")
FROM_BIO = {"B": "S", "I": "E"}  # where a span ends


def bio_from_iob1(tags: Sequence[str]) -> list[str]:
    """A span begins at I- after O or another kind too; what is BIO already stays as it is."""
    return [
        "B" + tag[1:] if tag[0] == "I" and before[1:] != tag[1:] else tag
        for before, tag in zip(["O", *tags], tags, strict=False)
    ]


def bioes_from_bio(tags: Sequence[str]) -> list[str]:
    """The last token of a span gets E-, or S- where it is the only one."""
    return [
        tag if after == "I" + tag[1:] else FROM_BIO.get(tag[0], tag[0]) + tag[1:]
        for tag, after in zip(tags, [*tags[1:], "O"], strict=False)
    ]


def kinds_of(tags: Collection[str]) -> list[str]:
    """The kinds of span that a set of tags is for, in alphabetical order."""
    return sorted({tag[2:] for tag in tags if tag != "O"})
