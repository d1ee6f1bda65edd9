"""A YAML file with line numbers, so that an error can name line and key."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from experiments.errors import TableError, short

Tree = Any  # parsed YAML

LARGEST = 100_000  # bytes; the largest of ours has a seventh of it, and parsing YAML is slow
MOST = 100_000  # values in a file; each alias counts again
DEEPEST = 30


@dataclass(frozen=True)
class YamlFile:
    """The path, the parsed file, and its nodes with line numbers."""

    path: Path
    tree: Tree
    root: yaml.Node | None

    def line(self, place: str) -> int:
        """The line of a place such as claims[0].on, or of what encloses it if the place is absent."""
        node, line, rest = self.root, 1, place
        while node is not None and rest:
            step = _step(node, rest)
            if step is None:
                break
            line, node, rest = step
        return line


def read_yaml(path: Path) -> YamlFile:
    """Read the file.

    Raises:
        TableError: not UTF-8, not YAML, a key twice, or too deeply nested; the message names the line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}).") from None
    if len(content) > LARGEST:
        raise TableError(f"{path} has {len(content):,} bytes; it may have at most {LARGEST:,}.")
    try:
        loader = _Loader(content.decode())
        root = loader.get_single_node()
        tree = loader.construct_document(root) if root is not None else None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TableError(f"{path}, line {line} is not UTF-8. Save the file as UTF-8.") from None
    except RecursionError:
        raise TableError(f"{path} is nested over {DEEPEST} levels deep.") from None
    except yaml.YAMLError as error:
        raise TableError(_refusal(path, _told_by_python(content.decode()) or error)) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # !!int x, 2026-13-01
        raise TableError(f"{path} is not YAML: {str(error)[:200]}.") from None
    _bound(path, tree)
    return YamlFile(path, tree, root)


class _PythonEvents(Reader, Scanner, Parser):
    """Python's own parser."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


Events: Any = _PythonEvents
if yaml.__with_libyaml__:
    from yaml.cyaml import CParser as Events  # type: ignore[attr-defined]


class _Loader(Composer, Events, SafeConstructor, Resolver):
    """YAML 1.2 booleans: `on` is a word, as it is in claims. A key is text as written, and comes once.

    libyaml's parser is many times as fast as Python's, and differs from it in corner cases, such as a tab
    after a colon. Its composer is not used: it has no limit of depth.
    """

    def __init__(self, text: str) -> None:
        Events.__init__(self, text)
        for base in (Composer, SafeConstructor, Resolver):
            base.__init__(self)

    def compose_mapping_node(self, anchor: Tree) -> yaml.MappingNode:
        """Raise an error for a repeated key, which the constructor would let override the first."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"
                if key.value in seen:
                    twice = f"the key {short(key.value)} comes twice"
                    raise yaml.composer.ComposerError(None, None, twice, key.start_mark)
                seen.add(key.value)
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:bool"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|false|False)$"), list("tTfF")
)


def _told_by_python(text: str) -> yaml.YAMLError | None:
    """A fault of syntax as Python's parser says it, which names the character; None if it finds none."""
    try:
        yaml.SafeLoader(text).get_single_node()
    except yaml.YAMLError as error:
        return error
    except (RecursionError, ValueError, TypeError, OverflowError):  # such as "\\U00110000"
        pass
    return None


def _refusal(path: Path, error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"{path}, line {mark.line + 1}" if mark else str(path)
    return f"{where} is not YAML: {' '.join(str(problem or error).split())[:200]}."


def _bound(path: Path, tree: Tree) -> None:
    """Raise an error if aliases make the tree too large."""
    count, todo = 0, [(tree, 0)]
    while todo:
        found, depth = todo.pop()
        count += 1
        if count > MOST or depth > DEEPEST:
            raise TableError(
                f"{path} holds more than {MOST:,} values, or is nested over {DEEPEST} levels deep."
            )
        inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        todo += [(one, depth + 1) for one in inner]


def _step(node: yaml.Node, rest: str) -> tuple[int, yaml.Node, str] | None:
    """One key or index further along a place: its line, what is there, and the rest of the place."""
    if isinstance(node, yaml.SequenceNode) and (found := re.match(r"\[(\d{1,9})\]", rest)):
        index = int(found[1])
        if index < len(node.value):
            inner = node.value[index]
            return inner.start_mark.line + 1, inner, rest[found.end() :].removeprefix(".")
    if isinstance(node, yaml.MappingNode):
        names = [(key.value, key, inner) for key, inner in node.value if isinstance(key, yaml.ScalarNode)]
        for name, key, inner in sorted(names, key=lambda one: -len(one[0])):
            if rest == name or rest.startswith((f"{name}.", f"{name}[")):
                return key.start_mark.line + 1, inner, rest[len(name) :].removeprefix(".")
    return None
