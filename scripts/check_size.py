"""Check sizes: a file has at most 400 lines, a function at most 60, a folder at most 15 modules.

Run by `make check` as `python -m scripts.check_size`. In well-known code of the field the median file has 130
lines and the median function 10; longer ones usually do two things.
"""

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

FILE_LINES = 400
FUNCTION_LINES = 60
MODULES = 15  # of one folder; tests may be more
SCIENCE = ("networks", "losses", "energies", "inference", "datamodules", "lightning_modules")
FOLDERS = (*SCIENCE, "experiments", "scripts", "tests")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(root: Path) -> list[Path]:
    """All Python files under the project's own folders."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def functions(tree: ast.Module) -> Iterator[tuple[Function, int]]:
    """Each function with its length in lines, from `def` to the last line of its body."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node, (node.end_lineno or node.lineno) - node.lineno + 1


def too_long(path: Path, name: str) -> tuple[list[str], int, list[int]]:
    """What breaks the budget in one file, with the file's length and the lengths of its functions."""
    text = path.read_text(encoding="utf-8")
    length = len(text.splitlines())
    problems = []
    if length > FILE_LINES:
        problems.append(f"{name}: {length} lines, at most {FILE_LINES}: split it by what it does")
    found = list(functions(ast.parse(text, filename=name)))
    problems += [
        f"{name}:{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES}: split it"
        for node, lines in found
        if lines > FUNCTION_LINES
    ]
    return problems, length, [lines for _, lines in found]


def too_full(root: Path) -> list[str]:
    """Folders with more modules side by side than the budget allows."""
    modules = Counter(path.parent for path in sources(root) if path.name != "__init__.py")
    return [
        f"{folder.relative_to(root).as_posix()}: {count} modules, at most {MODULES}: make folders in it"
        for folder, count in modules.items()
        if count > MODULES and folder != root / "tests"
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print what is too long (or the medians, when nothing is) and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.check_size", description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(), help="the repository (default: here)")
    root = parser.parse_args(arguments).root
    problems, files, lengths = too_full(root), [], []
    for path in sources(root):
        found, file_length, function_lengths = too_long(path, path.relative_to(root).as_posix())
        problems += found
        files.append(file_length)
        lengths += function_lengths
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    print(
        f"Size budget kept: {len(files)} files (median {median(files or [0]):.0f} lines), "
        f"{len(lengths)} functions (median {median(lengths or [0]):.0f} lines)."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
