"""The rules of citations token by token, in plain Python: the twin of energies.citation."""

from collections.abc import Sequence
from itertools import combinations

from energies.citation.cues import CUES
from energies.citation.rules import AFTER_VENUE, CUED, KINDS, LONGEST, VENUES

PENALTIES = {"no_author_first": 100.0}


def violations(words: Sequence[str], tags: Sequence[str]) -> dict[str, int]:
    """How often the tags of one citation violate each rule."""
    words = [word.lower() for word in words]
    found = {f"cue_{cue}": 0 for cue in CUED}
    for place, (word, tag) in enumerate(zip(words, tags, strict=True)):
        for cue, allowed in CUED.items():
            around = words[max(place - 1, 0) : place] + words[place + 1 : place + 2]
            is_cue = word == "-" and "-" in around if cue == "range" else CUES[cue].fullmatch(word)
            found[f"cue_{cue}"] += bool(is_cue) and tag not in allowed
    starts = [place for place in range(1, len(tags)) if tags[place] != tags[place - 1]]
    found["change_after_open"] = sum(words[place - 1] == "(" for place in starts)
    found["change_at_close"] = sum(words[place] == ")" for place in starts)
    found["change_at_stop"] = sum(words[place] == "." for place in starts)
    joints = ("and", "-")
    found["change_at_joint"] = sum((words[p] in joints) + (words[p - 1] in joints) for p in starts)
    found["broken_field"] = 1 + len(starts) - len(set(tags))
    found["two_kinds"] = sum(a in tags and b in tags for a, b in combinations(KINDS, 2))
    found["no_author_first"] = tags[0] != "author"
    venue = ["venue" if tag in VENUES else tag for tag in tags]
    found["wrong_order"] = before(tags, "booktitle", "title")
    found["wrong_order"] += sum(before(venue, tag, "venue") for tag in AFTER_VENUE)
    found["too_long"] = sum(tags.count(tag) > longest for tag, longest in LONGEST.items())
    return {name: int(count) for name, count in found.items()}


def before(tags: Sequence[str], one: str, other: str) -> bool:
    """Whether both occur, the first of one before the first of the other."""
    return one in tags and other in tags and tags.index(one) < tags.index(other)


def energy(words: Sequence[str], tags: Sequence[str]) -> float:
    """-R: each violation with its penalty."""
    return sum(
        count * (10.0 if name.startswith("cue_") else PENALTIES.get(name, 1.0))
        for name, count in violations(words, tags).items()
    )
