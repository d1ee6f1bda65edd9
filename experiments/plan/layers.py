"""Config files -> one config: layers are merged, and references to parts are replaced by copies.

A layer is a file, or a row of a file of settings (conf/tuned/seal_mlc/bibtex.yaml:ce). Its key `over` names
the layers below it, in the same folder; a name without .yaml is another row of the same file. Keys that are
not those of a run, such as `net` or `objective`, are parts. `${net}` is a copy of one, `${stop.monitor}` of a
value in it. Keys that a layer sets below such a reference override those of the copy. All other `${...}` are
left to the parser, which resolves them last.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import yaml

from experiments.errors import ConfigError, TableError, suggest
from experiments.plan.yaml_file import Tree, read_yaml

OWN = ("model", "data", "trainer", "seed_everything", "run_dir", "ckpt_path")  # keys of a run
OF_OBJECT = ("class_path", "init_args", "dict_kwargs")  # keys of an object
CONF = Path("conf")
BASE = CONF / "trainer/default.yaml"  # the layer below every other file
SINGLE = ("data", "scheme", "objective")  # folders of conf of which a run has one file
TAKERS = ("scheme", "objective", "data/kinds")  # folders of conf whose files refer to parts
Read = tuple[str, list[tuple[str, dict[str, Tree]]]]  # a name, and its layers with their files
REFERENCE = re.compile(r"\$\{(\w+)((?:\.\w+)*)\}")


@dataclass(frozen=True)
class Changed:
    """A reference, and the keys that a later layer sets below it."""

    reference: str
    changes: dict[str, Tree]


@dataclass
class Layered:
    """The config from a command line's files and options of parts, and the remaining options."""

    tree: dict[str, Tree]
    files: list[str]
    options: list[str]
    used: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)

    def arguments(self) -> list[str]:
        """The arguments for the parser: one config, then options."""
        return ["--config", json.dumps(self.tree), *self.options] if self.tree else self.options


def layered(arguments: list[str], base: Path | None = BASE) -> Layered:
    """Merge the files of a command line, the first lowest; options of parts override all files.

    Raises:
        ConfigError: no such file or row, not YAML, a part is missing, two files of one kind, or a file or
            option has no effect.
    """
    given, options = split(arguments)
    below = [str(base)] if base is not None and base.exists() else []
    read = [(name, list(_read(name))) for name in (*below, *given)]
    _refuse_two(read)
    tree = _merged(layer for _, layers in read for _, layer in layers)
    found = Layered({}, [file for _, layers in read for file, _ in layers], options)
    parts = {key: value for key, value in tree.items() if key not in OWN}
    set_parts = [*_take_options(found, parts)]
    found.tree = {key: _put_in(value, parts, found) for key, value in tree.items() if key in OWN}
    found.options = [_with_parts(word, parts, found) for word in found.options]
    if "--help" in options:
        return found
    unknown = {key for _, layers in read[len(below) :] for key in layers[-1][1]}  # not of what it lies over
    unknown = unknown & parts.keys() - found.used
    if unknown:
        unknown -= {reference.partition(".")[0] for reference in _referred(found.files)}
    found.tree |= {key: tree[key] for key in unknown}  # the parser suggests what was meant
    if found.missing and not unknown:
        _refuse_missing(found, given, "data" in tree or any(o.startswith("--data") for o in options))
    _refuse_idle(found, read[len(below) :], set_parts)
    _refuse_strange(found, parts)
    return found


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The config files of a command line, and its other arguments."""
    files, others, words = [], [], iter(arguments)
    for word in words:
        option, equals, name = word.partition("=")
        if option not in ("--config", "-c"):
            others.append(word)
        elif not (name := name if equals else next(words, "")) or name.startswith("-"):
            raise ConfigError(f"{option} takes a file, such as conf/data/yeast.yaml.")
        else:
            files.append(name)
    return files, others


def file_and_row(name: str) -> tuple[str, str]:
    """File and row of a layer's name; the row is empty for a whole file."""
    found = re.fullmatch(r"(.*\.(?:ya?ml|json)):([^/]*)", name)
    return (found[1], found[2]) if found else (name, "")


def rows_of(path: Path) -> dict[str, Tree]:
    """The settings in a file, by row."""
    tree = _load(path)
    return tree if isinstance(tree, dict) else {}


def merged_files(*names: str) -> Tree:
    """Files, each over those that its `over` names and over the ones before it."""
    return _merged(layer for name in names for _, layer in _read(name))


def merge(lower: Tree, upper: Tree) -> Tree:
    """`upper` merged over `lower`, key by key; lists and other classes are replaced whole; `key+` appends.

    Arguments of an object may stand without `init_args` where the lower layer names its class.
    """
    if not isinstance(upper, dict):
        return upper
    if isinstance(lower, Changed):
        return Changed(lower.reference, merge(lower.changes, upper))
    if isinstance(lower, str) and _root(lower):
        return Changed(lower, upper)
    merged = dict(lower) if isinstance(lower, dict) else {}
    if "class_path" in merged and upper.keys().isdisjoint(OF_OBJECT):
        upper = {"init_args": upper}
    if "class_path" in upper and upper["class_path"] != merged.get("class_path"):
        merged = {}
    for key, value in upper.items():
        name = key.removesuffix("+")
        if name != key and isinstance(value, list):
            merged[name] = [*(merged.get(name) or []), *value]
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def nested(files: Iterable[str], options: Mapping[str, Tree]) -> Tree:
    """Options as a layer over these files; `init_args` that a dotted key leaves out are filled in."""
    below = merged_files(*files)
    tree: Tree = {}
    for key, value in options.items():
        words, node = list[str](), below
        for word in key.split("."):
            node = _node(node, below)
            if "class_path" in node and word not in OF_OBJECT:
                words, node = [*words, "init_args"], _node(node.get("init_args"), below)
            words, node = [*words, word], node.get(word)
        for word in reversed(words):
            value = {word: value}
        tree = merge(tree, value)
    return tree


def _node(node: Tree, tree: Tree) -> dict[str, Tree]:
    """A node below which there may be keys: references are followed."""
    if isinstance(node, Changed):
        return merge(_node(node.reference, tree), node.changes)
    if isinstance(node, str) and (root := _root(node)):
        node = tree.get(root)
        return _node(node, tree) if not isinstance(node, str) else {}
    return node if isinstance(node, dict) else {}


def _merged(layers: Iterable[Tree]) -> Tree:
    tree: Tree = {}
    for layer in layers:
        tree = merge(tree, layer)
    return tree


def _root(text: str) -> str:
    """The part that the whole text refers to, if any."""
    found = REFERENCE.fullmatch(text)
    return found[1] if found and found[1] not in OWN else ""


def _put_in(node: Tree, parts: dict[str, Tree], found: Layered, inside: tuple[str, ...] = ()) -> Tree:
    """Replace references by copies of parts; keep track of used and missing parts."""
    if isinstance(node, dict):
        return {key: _put_in(value, parts, found, inside) for key, value in node.items()}
    if isinstance(node, list):
        return [_put_in(value, parts, found, inside) for value in node]
    if isinstance(node, Changed):
        changes = _put_in(node.changes, parts, found, inside)
        whole = "class_path" in changes and _root(node.reference) not in parts
        return changes if whole else merge(_put_in(node.reference, parts, found, inside), changes)
    if not isinstance(node, str) or not (root := _root(node)):
        return node
    if root in inside:
        raise ConfigError(f"${{{root}}} refers to itself. Write out one of: {', '.join(inside)}.")
    if root not in parts:
        found.missing.add(root)
        return node
    found.used.add(root)
    value = _put_in(parts[root], parts, found, (*inside, root))
    for key in filter(None, REFERENCE.fullmatch(node)[2].split(".")):  # type: ignore[index]
        if not isinstance(value, dict) or key not in value:
            raise ConfigError(f"{node} refers to a key that no file sets: {key}. Is it misspelt?")
        value = value[key]
    return value


def _read(name: str, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Tree]]]:
    """The layers of a name, the lowest first, each with its file."""
    if name in inside:
        raise ConfigError(f"{name} lies over itself: {' over '.join([*inside, name])}.")
    file, row = file_and_row(name)
    tree = _load(Path(file))
    if row:
        tree = _row(file, row, tree)
    elif "tuned" in Path(file).parts and isinstance(tree, dict) and not tree.keys() & {*OWN}:
        raise ConfigError(f"{file} holds settings by row. Write {file}:ROW. {suggest('', tree)}")
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"No keys in {name}: write some, or leave it out.")
    if dotted := next((key for key in map(str, tree) if "." in key), None):
        first, _, rest = dotted.partition(".")
        raise ConfigError(f"{name}: a key of a file has no dots. Write {dotted} as  {first}: {{{rest}: ...}}")
    tree = dict(tree)
    below = tree.pop("over", [])
    for one in [below] if isinstance(below, str) else below:
        other, _ = file_and_row(one)
        whole = f"{file}:{one}" if row and not other.endswith(".yaml") else str(Path(file).parent / one)
        yield from _read(whole, (*inside, name))
    yield file, tree


def _row(file: str, row: str, tree: Tree) -> Tree:
    rows = tree if isinstance(tree, dict) else {}
    if row not in rows:
        raise ConfigError(f"There is no row {row!r} in {file}. {suggest(row, rows)}")
    found = rows[row]
    return {"over": found} if isinstance(found, str) else found


def _load(path: Path) -> Tree:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: --config takes a file, such as conf/data/yeast.yaml.")
    if not path.is_file():
        here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        others = sorted(here.parent.glob(f"*{here.suffix}")) or sorted(CONF.rglob("*.yaml"))
        raise ConfigError(f"There is no file {here}. {suggest(str(here), map(str, others))}")
    try:
        return _parsed(path.absolute(), path, path.stat().st_mtime_ns)
    except TableError as error:
        raise ConfigError(str(error)) from None


@lru_cache(maxsize=1000)
def _parsed(place: Path, path: Path, changed: int) -> Tree:
    """What a file holds; every cell of a table reads the same few."""
    return read_yaml(path).tree


def _take_options(found: Layered, parts: dict[str, Tree]) -> Iterator[tuple[str, str]]:
    """Apply options of parts, such as --net.width=300; yield each option with its part."""
    words, found.options = iter(found.options), []
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or (name := key.split(".")[0]) not in parts:
            found.options.append(word)
            continue
        said, keys = value_of(value if equals else next(words, "")), key.split(".")[1:]
        if not keys and isinstance(said, str) and not _root(said) and "class_path" in _keys(parts[name]):
            said = {"class_path": said}
        parts[name] = merge(parts[name], _nested(parts[name], keys, said))
        yield word, name


def _nested(node: Tree, keys: list[str], value: Tree) -> Tree:
    """A value below keys, of which `init_args` may be left out."""
    if not keys:
        return value
    inner = node if isinstance(node, dict) else {}
    if "class_path" in inner and keys[0] not in OF_OBJECT:
        keys = ["init_args", *keys]
    return {keys[0]: _nested(inner.get(keys[0]), keys[1:], value)}


def _with_parts(word: str, parts: dict[str, Tree], found: Layered) -> str:
    """A word of the options with references to known parts replaced."""
    key, equals, text = word.partition("=") if word.startswith("--") else ("", "", word)
    roots = {reference[1] for reference in REFERENCE.finditer(text)} - {*OWN}
    if not roots or not roots <= parts.keys():
        return word
    value = _put_in(value_of(text), parts, found)
    return f"{key}{equals}{value if isinstance(value, str) else json.dumps(value)}"


def value_of(text: str) -> Tree:
    """The value of an option's text."""
    with suppress(ValueError):
        return json.loads(text)  # 1e-3 is a number there
    with suppress(yaml.YAMLError):
        return yaml.safe_load(text)
    return text


def _referred(files: list[str]) -> set[str]:
    """All parts, and values in them, that these files and those of conf refer to."""
    others = [path for folder in TAKERS for path in _files(folder)]
    return {part for name in dict.fromkeys([*files, *others]) for part in _references(name)}


def _refuse_two(given: list[Read]) -> None:
    """Raise an error for two files of a kind that name the same object: their settings would be mixed."""
    read: dict[Path, list[Read]] = {}
    for name, layers in given:
        read.setdefault(Path(name).parent.resolve(), []).append((name, layers))
    for folder in (CONF / name for name in SINGLE):
        named: dict[str, str] = {}  # keys of objects, and the file that names their class
        for name, layers in read.get(folder.resolve(), []):
            objects = {key for _, layer in layers for key in layer if "class_path" in _keys(layer[key])}
            for key in sorted(objects):
                if (other := named.setdefault(key, name)) != name:
                    raise ConfigError(
                        f"A run takes one file of {folder}/, and {_listed((other, name))} both set {key}. To "
                        "change one, give options, or a file of your own whose key `over` names it."
                    )


def _keys(tree: Tree) -> set[str]:
    return set(tree) if isinstance(tree, dict) else set()


def _refuse_missing(found: Layered, given: list[str], has_data: bool) -> None:
    """Raise an error for a missing part; name files that define it."""
    if not has_data:
        raise ConfigError("No data is given. Add a --config, such as conf/data/yeast.yaml.")
    asking = next(file for file in reversed(found.files) if found.missing & _referred_by(file))
    said = {name: _said_by(name) for name in given}
    idle = [name for name, keys in said.items() if not keys & {*found.used, *OWN}]
    unused = "".join(f" {name} sets {_listed(said[name])}, which it does not take." for name in idle)
    kinds = [path for path in _files("data/kinds") if found.missing & _said_by(path)]
    fitting = [path for path in _files("objective") if found.missing <= _said_by(path)]
    fitting.sort(key=lambda path: len(_said_by(path)))
    such = f"`over: kinds/{Path(kinds[0]).name}` in the data's file" if kinds else " or ".join(fitting[:6])
    what = f"{asking} takes {_listed(found.missing)}, which no --config sets."
    raise ConfigError(f"{what}{unused} Add one that does{f', such as {such}' if such else ''}.")


def _refuse_idle(found: Layered, given: list[Read], options: list[tuple[str, str]]) -> None:
    """Raise an error for a file or option that has no effect."""
    for option, part in options:
        if part not in found.used:
            files = ", ".join(found.files)
            raise ConfigError(
                f"{option} changes nothing: no file refers to ${{{part}}} ({files}). Set the object's own "
                "option, such as --model.init_args.task_net.init_args.width."
            )
    for name, layers in given:
        said = {key for _, layer in layers for key in layer}
        if not said & (found.used | found.tree.keys()):
            unused = f"it sets {_listed(said)}, to which no other file refers"
            raise ConfigError(f"{name} changes nothing: {unused}. Leave it out.")


def _refuse_strange(found: Layered, parts: dict[str, Tree]) -> None:
    """Raise an error for a key within a part of plain values, such as `stop`, to which no file refers."""
    used = {name: part for name, part in parts.items() if name in found.used and isinstance(part, dict)}
    own = {f"{name}.{key}" for name, part in used.items() if "class_path" not in part for key in part}
    if not own:
        return
    known = _referred(found.files)
    whole = {reference for reference in known if "." not in reference}
    if strange := sorted(key for key in own - known if key.partition(".")[0] not in whole):
        raise ConfigError(f"No file refers to {strange[0]}. {suggest(strange[0], known)}")


def _files(folder: str) -> list[str]:
    return sorted(str(path) for path in (CONF / folder).glob("*.yaml"))


def _referred_by(file: str) -> set[str]:
    return {reference.partition(".")[0] for reference in _references(file)}


def _references(file: str) -> set[str]:
    return _found_in(os.path.abspath(file), os.stat(file).st_mtime_ns)


@lru_cache(maxsize=1000)
def _found_in(path: str, changed: int) -> set[str]:
    return {found[1] + found[2] for found in REFERENCE.finditer(Path(path).read_text(errors="replace"))}


def _said_by(name: str) -> set[str]:
    return {key for _, layer in _read(name) for key in layer}


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))
