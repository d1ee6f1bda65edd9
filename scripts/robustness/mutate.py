"""Ways to damage a text file: its bytes and lines, or its tree of values."""

import copy
import random
import re
from collections.abc import Iterator
from typing import Any

Tree = Any  # parsed YAML or JSON

BITS = (
    b"\x00 \xff \xc3\x28 \xef\xbb\xbf \r \r\n \t ' \" \\ \\' , ; : { } [ ] ( ) % # @ & * ! | > ? - _ = < ` $ "
    b"@data @relation @attribute {0,1} numeric -C nan NaN inf -inf 1e999 -1 1_0 +1 0x10 1.5 \xd9\xa1 "
    b"-DOCSTART- null true [] {} __class__ ../.. javascript:x \x1b[2J"
).split(b" ")
NUMBERS = (
    b"-1 0 00 1_0 +1 1.5 1e9 1e999 nan inf -0 99999999999999999999 4294967296 0x1f \xd9\xa1 - true "
).split(b" ")
LARGE = 100_000  # bytes that a repetition makes


def damaged_text(content: bytes, draw: random.Random) -> bytes:
    """The bytes after one to four random changes."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        content = draw.choice(WAYS)(content, draw)
    return content


def damaged_tree(tree: Tree, draw: random.Random) -> Tree:
    """A copy of the tree after one to three random changes."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        box = [tree]
        _change(*draw.choice([*_places(box)]), draw)
        (tree,) = box
    return tree


def _places(tree: Tree) -> Iterator[tuple[Tree, Tree]]:
    """Every list or dict in a tree with each index or key of it."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def _change(parent: Tree, key: Tree, draw: random.Random) -> None:
    found = parent[key]
    match draw.randrange(8):
        case 0:
            del parent[key]
            if isinstance(parent, list) and not parent:
                parent.append(None)
        case 1 if isinstance(parent, dict):
            parent[draw.choice(("x", "", "a/b", "a,b", "1", "title", "rows", "[a](b)", " a", "x" * 300))] = (
                found
            )
        case 2 if isinstance(found, list) and found:
            found.append(copy.deepcopy(found[0]))
        case 3:
            parent[key] = draw.choice(([found], {"x": found}, str(found), [[found]]))
        case _:
            parent[key] = copy.deepcopy(draw.choice(VALUES))


def _nested(depth: int) -> Tree:
    tree: Tree = 1
    for level in range(depth):
        tree = [tree] if level % 2 else {"a": tree}
    return tree


VALUES: list[Tree] = [
    None, True, False, -1, 0, 1, 13, 2**40, 2**64, 10**400, 0.5, -0.0, float("nan"), float("inf"), 1e-320,
    1e308, "", "x", " ", "../x", "a/b", "a\x00b", "\x1b[2J", "\u202eé", "x" * 20_000, "1_0", "[/b]",
    "[a](javascript:b)", "$\\frac{$", "`<b>`", [], {}, [[]], [1, 2], ["x"], {"a": 1}, {"a": {"b": {}}},
    _nested(20), _nested(150),
]  # fmt: skip


def _span(content: bytes, draw: random.Random, longest: int = 40) -> tuple[int, int]:
    start = draw.randrange(len(content) + 1)
    return start, min(len(content), start + draw.randrange(1, longest))


def _set(content: bytes, draw: random.Random) -> bytes:
    start, _ = _span(content, draw)
    return content[:start] + draw.randbytes(1) + content[start + 1 :]


def _insert(content: bytes, draw: random.Random) -> bytes:
    start, _ = _span(content, draw)
    return content[:start] + draw.choice(BITS) + content[start:]


def _replace(content: bytes, draw: random.Random) -> bytes:
    start, end = _span(content, draw, 12)
    return content[:start] + draw.choice(BITS) + content[end:]


def _delete(content: bytes, draw: random.Random) -> bytes:
    start, end = _span(content, draw)
    return content[:start] + content[end:]


def _move(content: bytes, draw: random.Random) -> bytes:
    (start, end), (place, _) = _span(content, draw), _span(content, draw)
    return content[:place] + content[start:end] + content[place:]


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _number(content: bytes, draw: random.Random) -> bytes:
    found = list(re.finditer(rb"\d+", content))
    if not found:
        return content
    place = draw.choice(found)
    return content[: place.start()] + draw.choice(NUMBERS) + content[place.end() :]


def _lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.split(b"\n")
    first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(4):
        case 0:
            lines[first], lines[second] = lines[second], lines[first]
        case 1:
            lines.insert(second, lines[first])
        case 2:
            del lines[first]
        case _:
            lines[first] = lines[first] * 2
    return b"\n".join(lines)


def _repeat(content: bytes, draw: random.Random) -> bytes:
    """Repeat a few bytes up to LARGE, which makes quadratic searches slow."""
    start, end = _span(content, draw, 4)
    unit = draw.choice((content[start:end] or b" ", draw.choice(BITS), b" ", b":", b"'"))
    return content[:start] + unit * (LARGE // max(1, len(unit))) + content[start:]


def _strange(content: bytes, draw: random.Random) -> bytes:
    if draw.randrange(5):
        return _set(content, draw)
    return draw.choice((b"", b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n"), draw.randbytes(200)))


WAYS = (
    _set,
    _insert,
    _insert,
    _replace,
    _delete,
    _move,
    _cut,
    _number,
    _number,
    _lines,
    _lines,
    _repeat,
    _strange,
)
