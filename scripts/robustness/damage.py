"""Ways to damage a checkpoint, for tests and fuzzing."""

import io
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import torch

Way = Callable[[bytes, Random], bytes]
STRANGE: tuple[Any, ...] = (None, "word", -1, 2**70, [], {}, 0.5, True, [[]], {"a": None})


def damaged_checkpoint(content: bytes, draw: Random) -> bytes:
    """A checkpoint with one fault, in its bytes or in its content."""
    return draw.choice([*BYTES, *HELD])(content, draw)


def cut(content: bytes, draw: Random) -> bytes:
    """Truncate it."""
    return content[: draw.randrange(len(content))]


def flip(content: bytes, draw: Random) -> bytes:
    """Flip one bit."""
    return _flipped(content, draw.randrange(len(content)), draw)


def flip_directory(content: bytes, draw: Random) -> bytes:
    """Flip one bit in the zip's directory, which has no checksum."""
    return _flipped(content, draw.randrange(content.rfind(b"PK\1\2", 0, -1000), len(content)), draw)


def blank(content: bytes, draw: Random) -> bytes:
    """Overwrite a block with zeros, as after a crash of the machine."""
    size, start = draw.randrange(1, 4096), draw.randrange(len(content))
    return content[:start] + bytes(len(content[start : start + size])) + content[start + size :]


def swap(content: bytes, draw: Random) -> bytes:
    """Swap two parts."""
    place = draw.randrange(len(content))
    return content[place:] + content[:place]


def replace(content: bytes, draw: Random) -> bytes:
    """Replace the file: empty, text, noise, another zip, a pickle without a zip."""
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme.txt", "hello")
    old = io.BytesIO()
    torch.save({"state_dict": {}}, old, _use_new_zipfile_serialization=False)
    return draw.choice([b"", b"state_dict: {}\n", draw.randbytes(999), other.getvalue(), old.getvalue()])


def drop(content: bytes, draw: Random) -> bytes:
    """Remove a key."""

    def change(owner: Any, key: Any) -> None:  # noqa: ANN401
        del owner[key]

    return _edited(content, draw, change)


def add(content: bytes, draw: Random) -> bytes:
    """Add an unknown key."""

    def change(owner: Any, key: Any) -> None:  # noqa: ANN401
        if isinstance(owner, dict):
            owner["stranger"] = owner[key]
        else:
            owner.append(owner[key])

    return _edited(content, draw, change)


def mistype(content: bytes, draw: Random) -> bytes:
    """Change the type of a value."""

    def change(owner: Any, key: Any) -> None:  # noqa: ANN401
        owner[key] = draw.choice(STRANGE)

    return _edited(content, draw, change)


def reshape(content: bytes, draw: Random) -> bytes:
    """Change the shape of a tensor."""

    def change(owner: Any, key: Any) -> None:  # noqa: ANN401
        owner[key] = torch.zeros(draw.choice([(), (0,), (1, 2, 3), (7,)]))

    return _edited(content, draw, change, tensors=True)


def hollow(content: bytes, draw: Random) -> bytes:
    """Replace the whole content."""
    return saved(draw.choice([*STRANGE, torch.ones(3)]))


BYTES: tuple[Way, ...] = (cut, flip, flip_directory, blank, swap, replace)
HELD: tuple[Way, ...] = (drop, add, mistype, reshape, hollow)


def _flipped(content: bytes, place: int, draw: Random) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def _edited(
    content: bytes, draw: Random, change: Callable[[Any, Any], None], *, tensors: bool = False
) -> bytes:
    tree = torch.load(io.BytesIO(content), weights_only=True)
    places = [p for p in _places(tree) if not tensors or isinstance(p[0][p[1]], torch.Tensor)]
    change(*draw.choice(places))
    return saved(tree)


def _places(tree: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401
    """Every container in a tree with each of its keys."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [place for key in keys for place in [(tree, key), *_places(tree[key])]]


def saved(tree: object) -> bytes:
    """The bytes of a checkpoint that holds the tree."""
    file = io.BytesIO()
    torch.save(tree, file)
    return file.getvalue()
