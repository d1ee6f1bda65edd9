"""Check that each fact is in one config file: no block of more than six lines is in two files of conf/.

Run by `make check` as `python -m scripts.check_conf`. Comments, empty lines and indentation do not count.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

BLOCK = 7  # lines that may not be in two files

Line = tuple[int, str]


def repeated(root: Path) -> Iterator[str]:
    """Each longest block that is in two files, with both places."""
    paths = sorted((root / "conf").rglob("*.yaml"))
    files = {path.relative_to(root).as_posix(): _lines(path) for path in paths}
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    for name, lines in files.items():
        reported = -1  # the last line of a reported block
        for start in range(len(lines) - BLOCK + 1):
            block = tuple(text for _, text in lines[start : start + BLOCK])
            other, there = seen.setdefault(block, (name, start))
            if other == name or start <= reported:
                continue
            length = _length(files[other][there:], lines[start:])
            reported = start + length - 1
            yield (
                f"conf: {length} lines are in two files, from {other}:{files[other][there][0]} and from "
                f"{name}:{lines[start][0]}. Keep one: let one file lie `over` the other."
            )


def _lines(path: Path) -> list[Line]:
    """The lines of a file with content, with their numbers."""
    numbered = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    texts = ((number, text.partition(" #")[0].strip()) for number, text in numbered)
    return [(number, text) for number, text in texts if text and not text.startswith("#")]


def _length(one: list[Line], other: list[Line]) -> int:
    """The number of lines that both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, ((_, a), (_, b)) in pairs if a != b), min(len(one), len(other)))


def main(arguments: list[str] | None = None) -> int:
    """Print repeated blocks; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.check_conf", description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(), help="the repository (default: here)")
    root = parser.parse_args(arguments).root
    if not (root / "conf").is_dir():
        parser.error(f"{root} has no folder conf.")
    if problems := [*repeated(root)]:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    print("No block of conf/ is in two files.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
