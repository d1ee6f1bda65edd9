"""Semantic roles of sentences, as PropBank over the English Web Treebank has them in columns.

A sentence opens with a line `# document number`. Then comes a line a token, with tabs between its columns:
number from 1, word, part of speech, lemma and sense of its frame or `-`, and a column of BIO tags for each
predicate, in the order of the tokens that have a sense. An empty line ends the sentence.

Shapes: U sentences, N predicates.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from datamodules.errors import FormatError, bad_line, not_utf8, quoted

FIXED = 5  # columns before the tags
SENSE = 4
NONE = "-"
VERB = "V"  # the role of the predicate itself
Columns = list[tuple[str, ...]]


@dataclass(frozen=True)
class Propositions:
    """Words of U sentences; of N predicates the sentence, the position and the tags of the sentence."""

    words: tuple[tuple[str, ...], ...]
    sentence: tuple[int, ...]
    place: tuple[int, ...]
    tags: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.tags)

    def roles(self) -> set[str]:
        """The roles that occur."""
        return {tag[2:] for tag in {tag for column in self.tags for tag in column} if tag != "O"}


def read_propositions(
    content: bytes, *, where: str, roles: Collection[str] = (), untagged: bool = False
) -> Propositions:
    """Read a file; Windows line ends are accepted, and several empty lines count as one.

    Args:
        content: the file's bytes.
        where: the file's name, for the errors.
        roles: the known roles; left out, any.
        untagged: whether a sentence may lack the columns of its tags, which are then empty.

    Raises:
        FormatError: with the line: this is not UTF-8, a column too few or too many, another number of columns
            than predicates, a token out of order or without a word, an unknown role, tags that are not BIO, a
            predicate without its V, no predicate in the file.
    """
    words: list[tuple[str, ...]] = []
    sentence: list[int] = []
    place: list[int] = []
    tags: list[tuple[str, ...]] = []
    for first, rows in _blocks(content, where):
        predicates, columns = _checked(first, rows, where, untagged)
        for column, (at, of_tokens) in enumerate(zip(predicates, columns, strict=True), FIXED + 1):
            if not untagged or any(of_tokens):
                _check_tags(of_tokens, first, column, where, roles)
            sentence.append(len(words))
            place.append(at)
            tags.append(of_tokens)
        words.append(tuple(row[1] for row in rows))
    if not tags:
        raise FormatError(f"{where}: the file has no predicate. Is it truncated?")
    return Propositions(tuple(words), tuple(sentence), tuple(place), tuple(tags))


def _blocks(content: bytes, where: str) -> list[tuple[int, list[list[str]]]]:
    """The tokens of each sentence, split into columns, and the line of the first."""
    found: list[tuple[int, list[list[str]]]] = []
    opens = True  # whether a sentence would open here
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        line = line.removesuffix(b"\r")
        if not line:
            opens = True
        elif opens and line.startswith(b"#"):
            opens = False
            found.append((number + 1, []))
        else:
            if opens:
                found.append((number, []))
                opens = False
            try:
                found[-1][1].append(line.decode().split("\t"))
            except UnicodeDecodeError:
                raise not_utf8(where, number) from None
    return [(first, rows) for first, rows in found if rows]


def _checked(first: int, rows: list[list[str]], where: str, untagged: bool) -> tuple[list[int], Columns]:
    """The positions of the predicates of a sentence and their tags, after a check of its columns."""
    width = Counter(map(len, rows)).most_common(1)[0][0]
    for at, row in enumerate(rows):
        if len(row) < FIXED or len(row) != width:
            fits = f"{FIXED} or more" if len(row) < FIXED else f"{width} as the others of its sentence"
            text = "\t".join(row)
            raise bad_line(where, first + at, f"{len(row)} columns, a token has {fits}: {quoted(text)}")
        if not row[1].strip():
            raise bad_line(where, first + at, f"token {at + 1} of its sentence has no word")
        if row[0] != str(at + 1):
            raise bad_line(
                where, first + at, f"token {at + 1} of its sentence has the number {quoted(row[0])}"
            )
    predicates = [at for at, row in enumerate(rows) if row[SENSE] != NONE]
    if untagged and width == FIXED:
        return predicates, [("",) * len(rows)] * len(predicates)
    if width != FIXED + len(predicates):
        found = width - FIXED
        reason = f"the sentence has {len(predicates)} predicates and {found} columns of tags"
        raise bad_line(where, first, reason)
    return predicates, list(zip(*rows, strict=True))[FIXED:]


def _check_tags(tags: tuple[str, ...], first: int, column: int, where: str, roles: Collection[str]) -> None:
    """Check a column: every tag is O, B- or I- and a known role, an I- continues, and there is a V."""
    before = "O"
    for at, tag in enumerate(tags):
        if tag != "O":
            if tag[:2] not in ("B-", "I-") or len(tag) < 3:
                raise bad_line(where, first + at, f"column {column}: {quoted(tag)} is none of O, B- and I-")
            if roles and tag[2:] not in roles:
                raise bad_line(
                    where, first + at, f"column {column}: the role {quoted(tag[2:])} is none of {len(roles)}"
                )
            if tag[0] == "I" and before[2:] != tag[2:]:
                raise bad_line(where, first + at, f"column {column}: {quoted(tag)} follows {quoted(before)}")
        before = tag
    if f"B-{VERB}" not in tags:
        raise bad_line(where, first, f"column {column} of the sentence has no B-{VERB}, its predicate")
