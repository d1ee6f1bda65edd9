"""The header of an ARFF file: relation and attributes."""

import re
from dataclasses import dataclass
from functools import cached_property

from datamodules.errors import ArffError, quoted, short

# Possessive repetition (*+) keeps the time linear in the length of any line.
QUOTED = r"""'(?:\\.|[^'\\])*+'|"(?:\\.|[^"\\])*+\""""
ATTRIBUTE = re.compile(rf"""@attribute\s++({QUOTED}|(?!['"])(?:\\.|[^\s{{\\])++)\s*+(.*)""", re.IGNORECASE)
NUMERIC = re.compile(r"(?:numeric|real|integer)\s*+(?:\[.*\]\s*+)?(?:%.*)?", re.IGNORECASE)
HIERARCHICAL = re.compile(r"hierarchical\s++(.+)", re.IGNORECASE)
NOMINAL = re.compile(rf"""\{{((?:{QUOTED}|\\.|[^'"}}\\])*+)\}}\s*+(?:%.*)?""")
CELL = re.compile(rf"""\s*+({QUOTED}|(?:\\.|[^,'"\\])*+)\s*+(,|\Z)""")
MEKA = re.compile(r"-C\s++(-?\d{1,9})(?!\d)")
ESCAPE = re.compile(r"\\(['\"\\%])")
DEEPEST = 50  # levels of a class hierarchy


class Bad(ValueError):
    """An error in a line; the caller adds file and line and raises an ArffError."""


@dataclass(frozen=True)
class Attribute:
    """A column: numeric where `values` is None, else nominal with these values, in the order declared."""

    name: str
    values: tuple[str, ...] | None = None
    line: int = 0

    @cached_property
    def codes(self) -> dict[str, float]:
        """The position of each value."""
        return {value: float(i) for i, value in enumerate(self.values or ())}

    @property
    def domain(self) -> str:
        """The values, shortened for a message."""
        values = self.values or ()
        return (
            "{"
            + ", ".join(map(short, values[:6]))
            + (f", ... {len(values)} in all" if len(values) > 6 else "")
            + "}"
        )


@dataclass(frozen=True)
class Header:
    """Attributes; the column of a Clus class hierarchy; MEKA's number of labels (negative: at the end)."""

    attributes: tuple[Attribute, ...]
    first_row: int
    hierarchy: int | None = None
    meka_labels: int = 0
    relation_line: int = 0


def read_header(lines: list[str], where: str, *, repeats: bool = False) -> Header:
    """Read up to @data; `first_row` is the index of the line after it. `repeats`: see `read_arff`."""
    attributes: list[Attribute] = []
    line_of: dict[str, int] = {}
    hierarchy, meka, relation_line = None, 0, 0
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        keyword = line[:10].split(None, 1)[0].lower() if line else ""
        try:
            if keyword == "@relation":
                found = MEKA.search(line, line.find(":")) if ":" in line else None
                meka, relation_line = int(found[1]) if found else 0, number
            elif keyword.startswith("@attribute"):
                attribute, is_hierarchy = _attribute(line, number)
                if is_hierarchy and hierarchy is not None:
                    raise Bad("a second hierarchical class attribute; only one is supported")
                if (first := line_of.setdefault(attribute.name, number)) != number and not repeats:
                    raise Bad(f"the attribute {quoted(attribute.name)} is declared in line {first} already")
                hierarchy = len(attributes) if is_hierarchy else hierarchy
                attributes.append(attribute)
            elif keyword == "@data":
                if not attributes:
                    raise Bad("no attribute is declared before @data")
                return Header(tuple(attributes), number, hierarchy, meka, relation_line)
            elif line and not line.startswith("%"):
                raise Bad(f"{quoted(line)} is neither @relation, @attribute, @data nor a comment")
        except Bad as error:
            raise ArffError(f"{where}, line {number}: {error}. Correct this line.") from None
    raise ArffError(f"{where}: there is no @data line, so no rows. Is the file truncated, or no ARFF file?")


def _attribute(line: str, number: int) -> tuple[Attribute, bool]:
    match = ATTRIBUTE.fullmatch(line)
    if not match:
        raise Bad("an attribute is declared as: @attribute name type")
    name, kind = unquote(match[1]), match[2].strip()
    if NUMERIC.fullmatch(kind):
        return Attribute(name, None, number), False
    if nominal := NOMINAL.fullmatch(kind):
        values = split_cells(nominal[1])
    elif hierarchical := HIERARCHICAL.fullmatch(kind):
        values = [value.strip() for value in hierarchical[1].split(",")]
    else:
        raise Bad(
            f"the attribute {short(name)} has the type {quoted(kind) if kind else 'missing'}; "
            "give numeric or {value, ...}"
        )
    if "" in values or len(set(values)) < len(values):
        raise Bad(f"the values of {short(name)} have to be different and not empty")
    if not nominal and any(value.count("/") >= DEEPEST for value in values):
        raise Bad(f"a class of {short(name)} has more than {DEEPEST} levels")
    return Attribute(name, tuple(values), number), not nominal


def split_cells(text: str) -> list[str]:
    """The cells of a comma-separated line, quotes and escapes resolved."""
    cells, position, ended = [], 0, False
    while not ended:
        match = CELL.match(text, position)
        if not match:
            raise Bad(f"a quote is not closed, or not set around the whole value: {quoted(text[position:])}")
        cells.append(unquote(match[1].rstrip()))
        position, ended = match.end(), match[2] == ""
    return cells


def unquote(token: str) -> str:
    """A name or value without its quotes and backslashes."""
    if len(token) >= 2 and token[0] in "'\"" and token[-1] == token[0]:
        token = token[1:-1]
    return ESCAPE.sub(r"\1", token) if "\\" in token else token
