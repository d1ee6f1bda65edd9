"""Checks on the tree of a YAML file; a fault is one sentence with file, line and key."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from experiments import fields
from experiments.errors import TableError, UserError, short, suggest
from experiments.fields import Check, shown
from experiments.plan.yaml_file import Tree, YamlFile

Keys = Mapping[str, Mapping[str, Check]]  # what each key may hold, by the kind of object


class Reader:
    """Checks the objects of one file."""

    keys: Keys
    error: type[UserError] = TableError

    def __init__(self, file: YamlFile) -> None:
        self.file, self.path = file, file.path

    def keyed(self, kind: str, place: str, tree: Tree, *, needed: tuple[str, ...] = ()) -> dict[str, Any]:
        """A copy of the tree, once all its keys and values are checked."""
        for key in tree if isinstance(tree, dict) else ():
            if key not in self.keys[kind]:
                where = f"{place}.{key}" if place else key
                self.fail(where, f" is not a key of a {kind}. {suggest(key, self.keys[kind])}")
        self.check(fields.keyed(self.keys[kind], needed=needed), place, tree)
        return dict(tree)

    def check(self, check: Check, place: str, found: Tree) -> None:
        """Refuse a value."""
        if fault := check(place, found):
            self.fail(fault.place, f" {fault.says}.")

    def known(self, place: str, kind: str, name: str, options: Iterable[str]) -> None:
        """Refuse a name that is not among the options."""
        if name not in options:
            self.fail(place, f": there is no {kind} {shown(name)}. {suggest(str(name), options)}")

    def is_file(self, place: str, name: str) -> None:
        """Refuse the name of a file that is not there."""
        if not is_file(Path(name)):
            siblings = [str(p) for p in Path(name).parent.glob("*.yaml")]
            advice = suggest(name, siblings)
            if ".yaml:" in name:
                advice = "A row of a file of settings is named with `tuned`: see docs/adding.md."
            self.fail(place, f": there is no file {short(name)}. {advice}")

    def fail(self, place: str, says: str) -> NoReturn:
        """Raise the error of a place."""
        raise self.error(f"{self.path}, line {self.file.line(place)}: {short(place) or 'the file'}{says}")


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that is too long has none."""
    try:
        return path.is_file()
    except OSError:
        return False
