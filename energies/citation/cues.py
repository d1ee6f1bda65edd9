"""Cue words of bibliographies: what a rule reads of a citation.

Shapes: V word ids, C cues.
"""

import re
from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

MONTHS = (
    "january|february|march|april|may|june|july|august|september|october|november|december|"
    "jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec"
)
PATTERNS = {  # of a whole word in lower case
    "date": rf"{MONTHS}|(?:19|20)\d\d",
    "pages": r"pages?|pp",
    "volume": r"vol|volumes?",
    "booktitle": r"proceedings?|conference|proc|ijcai",
    "journal": r"journal",
    "society": r"ieee|acm|siam",
    "editor": r"editors?|eds?",
    "tech": r"technical|preprint",
    "institution": r"university|univ|institute",
    "title": r"[\"“”]|novel|methods?|approach(?:es)?|techniques?|with|propert\w*|efficient(?:ly)?",
    "open": r"\(",
    "close": r"\)",
    "stop": r"\.",
    "dash": r"-",
    "joint": r"-|and",
}
CUES = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}


def cue_table(words: Mapping[str, int]) -> Bool[Tensor, "V C"]:
    """Which cues each word id is, in the order of `CUES`; ids 0 (padding) and 1 (unknown) are none.

    `words` has the id of each spelling, from 2 on.
    """
    table = torch.zeros(len(words) + 2, len(CUES), dtype=torch.bool)
    for word, number in words.items():
        form = word.lower()
        table[number] = torch.tensor([pattern.fullmatch(form) is not None for pattern in CUES.values()])
    return table
