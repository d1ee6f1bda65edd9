"""Layers -> one resolved config per cell.

A cell is parsed once; its seeds, run folders and the checkpoints it needs are filled in afterwards. Parsing
takes a tenth of a second and more, so the result is kept on disk under the contents of all it is made from.
"""

import hashlib
import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.errors import ConfigError
from experiments.identity import Tree

if TYPE_CHECKING:
    from experiments.cli import ParseOnly

SEED = 790_190_017  # stands for the seed while a cell is parsed
RUN_DIR = "@run_dir"
BASE = "conf/trainer/default.yaml"
CACHE = Path("runs/.cells")
ROOMS = ("networks", "losses", "energies", "inference", "datamodules", "lightning_modules")

Composed = dict[str, Any] | str  # a config, or what is wrong with it


@dataclass(frozen=True)
class Layers:
    """What a cell is made from: files left to right, settings, then keys that take a row's checkpoint."""

    files: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    needs: tuple[tuple[str, str], ...] = ()

    def arguments(self) -> list[str]:
        """The command line that builds this cell."""
        files = [part for f in self.files for part in ("--config", f)]
        settings = [f"--{key}={value}" for key, value in self.settings]
        needs = [f"--{key}={needed(row)}" for key, row in self.needs]
        return [*files, *settings, f"--seed_everything={SEED}", *needs]


def needed(row: str) -> str:
    """What stands for the checkpoint of a row while a cell is parsed."""
    return f"@needs/{row}"


def compose(layers: Layers) -> Composed:
    """Parse one cell: its config with places left open, or the message of what is wrong with it."""
    try:
        return _parser().resolve(layers.arguments())
    except ConfigError as error:
        return f"{error} [in {', '.join(layers.files)}]"


def fill(tree: Tree, places: dict[Any, Any]) -> Tree:
    """Put values where places were left open; inside a string too."""
    if isinstance(tree, dict):
        return {key: fill(value, places) for key, value in tree.items()}
    if isinstance(tree, list):
        return [fill(value, places) for value in tree]
    if isinstance(tree, str):
        for place, value in places.items():
            tree = value if tree == str(place) else tree.replace(str(place), str(value))
            if not isinstance(tree, str):
                break
        return tree
    return places.get(tree, tree) if isinstance(tree, int) and not isinstance(tree, bool) else tree


def remembered(layers: Layers) -> dict[str, Any] | None:
    """The resolved config of a cell if nothing it is made from has changed since it was parsed."""
    try:
        return json.loads(_note(layers).read_text())
    except (OSError, ValueError):
        return None


def remember(layers: Layers, config: dict[str, Any]) -> None:
    """Keep a resolved config for the next start."""
    path = _note(layers)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))


def _note(layers: Layers) -> Path:
    mark = hashlib.sha256(repr((layers.arguments(), _code())).encode())
    for name in (BASE, *layers.files):
        mark.update(Path(name).read_bytes() if Path(name).exists() else b"-")
    for module in modules(layers):
        if module.split(".")[0] not in (*ROOMS, "torch", "pytorch_lightning", "torchmetrics"):
            spec = importlib.util.find_spec(module)
            mark.update(Path(spec.origin).read_bytes() if spec and spec.origin else b"-")
    return CACHE / f"{mark.hexdigest()[:24]}.json"


def modules(layers: Layers) -> list[str]:
    """The modules a cell's class paths name, in order."""
    text = "".join(Path(name).read_text() for name in layers.files if Path(name).exists())
    paths = re.findall(r"class_path: *[\"']?([A-Za-z_][\w.]*)\.\w+", text)
    return list(dict.fromkeys(paths))


@cache
def _code() -> str:
    """What decides how a config resolves, besides the files themselves."""
    mark = hashlib.sha256()
    root = Path(__file__).parents[1]
    own = [root / "experiments" / name for name in ("cli.py", "compose.py")]
    for path in (*own, *(p for room in ROOMS for p in sorted((root / room).rglob("*.py")))):
        mark.update(path.read_bytes())
    for package in ("torch", "pytorch-lightning", "jsonargparse", "omegaconf", "torchmetrics"):
        mark.update(version(package).encode())
    return mark.hexdigest()


@cache
def _parser() -> "ParseOnly":
    from experiments.cli import ParseOnly

    return ParseOnly()
