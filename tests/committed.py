"""The files that git has: a user's own beside them, and their results, are none of the tests' business."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from experiments.plan.layers import merge

ROOT = Path(__file__).resolve().parent.parent


def committed(pattern: str, root: Path = ROOT) -> list[Path]:
    """The files of a pattern, such as "conf/data/*.yaml", that git has, from the root; sorted.

    Where there is no git, as in an archive of the sources, nothing tells whose a file is: all of them.
    """
    if shutil.which("git") and (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--", f":(glob){pattern}"]
        names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        return sorted(Path(name) for name in names.split("\0") if (root / name).is_file())
    return sorted(path.relative_to(root) for path in root.glob(pattern) if path.is_file())


def data_of(path: Path) -> dict[str, Any]:
    """The data module's config in a file of conf/data and the files below it."""
    tree = yaml.safe_load(path.read_text())
    below = data_of(path.parent / tree["over"]) if "over" in tree else {}
    return merge(below, tree.get("data", {}))
