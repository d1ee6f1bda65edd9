"""The files that git has: a user's own beside them, and their results, are none of the tests' business."""

import shutil
import subprocess
from pathlib import Path

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
