"""Layers -> one resolved config per cell.

A cell is parsed once; its seeds, run folders and the checkpoints it needs are filled in afterwards. Parsing
takes a tenth of a second or more, so the result is cached on disk with a digest of all its sources.
"""

import ast
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from experiments import store
from experiments.errors import ConfigError, StoreError
from experiments.plan.identity import Tree
from experiments.plan.layers import BASE, file_and_row

if TYPE_CHECKING:
    from experiments.plan.parser import ParseOnly

SEED = 790_190_017  # placeholder of the seed while a cell is parsed
RUN_DIR = "@run_dir"
CACHE = Path("runs/.cells")
RESOLVER = re.compile(r"\$\{[^}]*:")  # a reference that calls something, such as ${oc.env:HOME}
CONFIG = re.compile(r"[\w./-]+\.(?:ya?ml|json)\b")
ROOMS = ("networks", "losses", "energies", "inference", "datamodules", "lightning_modules")

Composed = dict[str, Any] | str  # a config, or what is wrong with it
Parse = Callable[[list["Layers"]], list[Composed]]  # many cells at once, in other processes
Key = TypeVar("Key")


@dataclass(frozen=True)
class Layers:
    """The sources of a cell: files left to right, settings, then keys that take a row's checkpoint."""

    files: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    needs: tuple[tuple[str, str], ...] = ()

    def arguments(self) -> list[str]:
        """The command line that builds this cell."""
        files = [part for f in self.files for part in ("--config", f)]
        settings = [f"--{key}={value}" for key, value in self.settings]
        needs = [f"--{key}={needed(row)}" for key, row in self.needs]
        return [*files, *settings, f"--seed_everything={SEED}", *needs]


def settings_of(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Values by dotted key as the texts of options."""
    return tuple(
        (key, value if isinstance(value, str) else json.dumps(value)) for key, value in values.items()
    )


def compose_all(cells: Mapping[Key, Layers], parse: Parse) -> dict[Key, Composed]:
    """The configs of many cells: cached ones, and the others parsed at once."""
    marks = {cell: mark(layers) for cell, layers in cells.items()}
    found: dict[Key, Composed | None] = {c: remembered(layers, marks[c]) for c, layers in cells.items()}
    unknown = [cell for cell, config in found.items() if config is None]
    for cell, config in zip(unknown, parse([cells[c] for c in unknown]) if unknown else [], strict=True):
        if not isinstance(config, str):
            remember(cells[cell], marks[cell], config)
        found[cell] = config
    return {cell: config for cell, config in found.items() if config is not None}


def needed(row: str) -> str:
    """The placeholder for the checkpoint of a row while a cell is parsed."""
    return f"@needs/{row}"


def compose(layers: Layers) -> Composed:
    """Parse one cell: its config with placeholders, or an error message."""
    try:
        return _parser().resolve(layers.arguments())
    except ConfigError as error:
        return f"{error}{files_of(layers)}"


def files_of(layers: Layers) -> str:
    """The end of an error message of a cell."""
    return f" [in {', '.join(layers.files)}]"


def fill(tree: Tree, places: dict[Any, Any]) -> Tree:
    """Replace placeholders by values, inside strings too."""
    if isinstance(tree, dict):
        return {key: fill(value, places) for key, value in tree.items()}
    if isinstance(tree, list):
        return [fill(value, places) for value in tree]
    if isinstance(tree, str):
        for place, value in sorted(places.items(), key=lambda one: -len(str(one[0]))):  # ce_3 before ce
            tree = value if tree == str(place) else tree.replace(str(place), str(value))
            if not isinstance(tree, str):
                break
        return tree
    return places.get(tree, tree) if isinstance(tree, int) and not isinstance(tree, bool) else tree


def remembered(layers: Layers, mark: str) -> dict[str, Any] | None:
    """The cached config of a cell, if none of its sources has changed since it was parsed."""
    return _read(repr(layers.arguments()), mark)


def remember(layers: Layers, mark: str, config: dict[str, Any]) -> None:
    """Cache a resolved config, replacing an earlier one."""
    if any(RESOLVER.search(text) for text in (*_texts(layers).values(), *layers.arguments())):
        return  # such a reference may read from outside, such as the environment
    _write(repr(layers.arguments()), mark, config)


def remembered_files(data: dict[str, Any]) -> dict[str, Any] | None:
    """The cached config of a data module's SourceFiles."""
    return _read(json.dumps(data), _module_mark(data))


def remember_files(data: dict[str, Any], files: dict[str, Any]) -> None:
    """Cache the config of a data module's SourceFiles; it depends on its arguments and code alone."""
    _write(json.dumps(data), _module_mark(data), files)


def _read(key: str, mark: str) -> dict[str, Any] | None:
    try:
        of, checksum, text = _note(key).read_text().split("\n", 2)
    except (OSError, ValueError):
        return None
    return json.loads(text) if of == mark and checksum == _checksum(text) else None


def _write(key: str, mark: str, tree: dict[str, Any]) -> None:
    text = json.dumps(tree)
    with suppress(StoreError):
        store.write(_note(key), f"{mark}\n{_checksum(text)}\n{text}", sure=False)


def _note(key: str) -> Path:
    return CACHE / f"{_checksum(key)[:24]}.txt"


def _module_mark(config: dict[str, Any]) -> str:
    own = _own_modules((config["class_path"].rpartition(".")[0],))
    return _checksum("\n".join([_code(), *(path.read_text(errors="replace") for path in own)]))


def mark(layers: Layers) -> str:
    """A digest of all that a resolved config depends on, to be taken before it is parsed."""
    found = hashlib.sha256(_code().encode())
    for name, text in _texts(layers).items():
        found.update(f"{name}\n{text}\n".encode())
    for path in _own_modules(tuple(modules(layers))):
        found.update(path.read_bytes())
    return found.hexdigest()


def _texts(layers: Layers) -> dict[str, str]:
    """The text of a cell's files, and of files that these refer to, by name."""
    named = [str(BASE), *(file_and_row(name)[0] for name in layers.files)]
    texts = {}
    for name in named:  # grows during the loop
        text = texts[name] = Path(name).read_text(errors="replace") if Path(name).is_file() else ""
        beside = Path(name).parent
        others = [str(place / other) for other in CONFIG.findall(text) for place in (Path(), beside)]
        named += [other for other in dict.fromkeys(others) if other not in named and Path(other).is_file()]
    return texts


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def modules(layers: Layers) -> list[str]:
    """The modules a cell's class paths name, in order."""
    settings = [f"{key}: {value}" for key, value in layers.settings]
    text = "\n".join([*_texts(layers).values(), *settings])
    paths = re.findall(r"class_path[\"']?: *[\"']?([A-Za-z_][\w.]*)\.\w+", text)
    return list(dict.fromkeys(paths))


def _own_modules(names: tuple[str, ...]) -> list[Path]:
    """The files of modules that are neither of this project nor installed, and of those that they import."""
    found: dict[str, Path | None] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found or name.split(".")[0] in (*ROOMS, *sys.stdlib_module_names):
            continue
        found[name] = path = _source(name)
        if path is not None:
            todo += _imports(path, name)
    return sorted({path for path in found.values() if path is not None})


def _source(module: str) -> Path | None:
    """The file of a module, unless it is installed: then the version of its package identifies it."""
    if _installed(module.partition(".")[0]):
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None  # as for a class or function that is imported from a module
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


@cache
def _installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module without a known origin
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
    return any({"site-packages", "dist-packages"} & set(Path(place).parts) for place in places)


def _imports(path: Path, module: str) -> list[str]:
    """What a module imports, and the packages around it."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = [package] if package else []
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return names  # importing it will raise the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(base, package) if node.level else base
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


@cache
def _code() -> str:
    """A digest of the code and packages that resolve a config."""
    mark = hashlib.sha256(sys.version.encode())
    root = Path(__file__).parents[2]
    own = [Path(__file__).with_name(name) for name in ("parser.py", "layers.py", "compose.py", "sharing.py")]
    for path in (*own, *(p for room in ROOMS for p in sorted((root / room).rglob("*.py")))):
        mark.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    folders = [Path(place) for place in sys.path if Path(place).is_dir()]
    installed = {found.name for folder in folders for found in folder.glob("*.*-info")}  # name and version
    mark.update("\n".join(sorted(installed)).encode())
    return mark.hexdigest()


@cache
def _parser() -> "ParseOnly":
    from experiments.plan.parser import ParseOnly

    return ParseOnly()
