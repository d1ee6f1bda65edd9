"""Three ways to write spans as tags, which say the same."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from datamodules.readers.span_tags import bio_from_iob1, bioes_from_bio, kinds_of


def iob1_from_bio(tags: Sequence[str]) -> list[str]:
    """B- stays only where the token before is in a span of the same kind."""
    return [
        "I" + tag[1:] if tag[0] == "B" and before[1:] != tag[1:] else tag
        for before, tag in zip(["O", *tags], tags, strict=False)
    ]


def bio_from_bioes(tags: Sequence[str]) -> list[str]:
    """E- is I-, S- is B-."""
    return [{"S": "B", "E": "I"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]


def test_tags_are_written_anew_by_hand() -> None:
    iob1 = "I-PER I-PER B-PER I-ORG O I-LOC B-LOC I-LOC I-LOC O I-PER".split()
    bio = "B-PER I-PER B-PER B-ORG O B-LOC B-LOC I-LOC I-LOC O B-PER".split()
    bioes = "B-PER E-PER S-PER S-ORG O S-LOC B-LOC I-LOC E-LOC O S-PER".split()
    assert bio_from_iob1(iob1) == bio == bio_from_bioes(bioes) and bioes_from_bio(bio) == bioes
    assert iob1_from_bio(bio) == iob1 and kinds_of(bioes) == ["LOC", "ORG", "PER"]
    assert bio_from_iob1([]) == bioes_from_bio([]) == []


SPANS = st.lists(st.tuples(st.sampled_from(["O", "A", "B-C"]), st.integers(1, 4)), max_size=8)


@given(SPANS)
def test_every_way_to_write_spans_says_the_same(spans: list[tuple[str, int]]) -> None:
    bio = []
    for kind, length in spans:
        bio += ["O"] * length if kind == "O" else [f"B-{kind}", *[f"I-{kind}"] * (length - 1)]
    assert bio_from_bioes(bioes_from_bio(bio)) == bio == bio_from_iob1(iob1_from_bio(bio))
    tags = bioes_from_bio(bio)
    assert sum(tag[0] in "ES" for tag in tags) == sum(tag[0] in "BS" for tag in tags)
    assert sum(tag[0] in "ES" for tag in tags) == sum(kind != "O" for kind, _ in spans)
