"""Hold config files to one place a fact: no block of more than six lines stands in two files of conf/.

Run by `make check` as `python -m scripts.check_conf`. Comments, empty lines and indentation do not count.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

BLOCK = 7  # lines that may not come twice

Line = tuple[int, str]


def repeated(root: Path) -> Iterator[str]:
    """Each block that stands in two files, as long as it is, with both places."""
    paths = sorted((root / "conf").rglob("*.yaml"))
    files = {path.relative_to(root).as_posix(): _lines(path) for path in paths}
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    for name, lines in files.items():
        told = -1  # the last line of a block that was told
        for start in range(len(lines) - BLOCK + 1):
            block = tuple(text for _, text in lines[start : start + BLOCK])
            other, there = seen.setdefault(block, (name, start))
            if other == name or start <= told:
                continue
            length = _length(files[other][there:], lines[start:])
            told = start + length - 1
            yield (
                f"conf: {length} lines stand in two files, from {other}:{files[other][there][0]} and from "
                f"{name}:{lines[start][0]}. Say them once: let one file lie `over` the other."
            )


def _lines(path: Path) -> list[Line]:
    """The lines of a file that say something, with their numbers."""
    numbered = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    texts = ((number, text.partition(" #")[0].strip()) for number, text in numbered)
    return [(number, text) for number, text in texts if text and not text.startswith("#")]


def _length(one: list[Line], other: list[Line]) -> int:
    """How many lines both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, ((_, a), (_, b)) in pairs if a != b), min(len(one), len(other)))


def main(arguments: list[str] | None = None) -> int:
    """Print what stands twice; the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if problems := [*repeated(Path(given[0]) if given else Path())]:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    print("No block of conf/ stands in two files.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
