"""What the config parser says, cut down to the line that helps, with near matches."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import yaml

from experiments.errors import near

EXAMPLES = {"model": "conf/scheme/cross_entropy_mlc.yaml", "data": "conf/data/yeast.yaml"}

Parser = Any  # jsonargparse's, which this file does not import


def advise(parser: Parser, message: str, files: list[str]) -> str:
    """One message: what is wrong, where, what was probably meant."""
    if found := re.search(r"[Uu]nrecognized arguments: *(\S+)", message):
        return f"Unknown option {found[1]}. {near(found[1].split('=')[0], _options(parser))}"
    if found := re.search(r"class_path '([\w.]+)':\s+Option '(\w+)' is not accepted", message):
        meant = near(found[2], _arguments(found[1]))
        return f"{found[1]} has no argument {found[2]!r}{_place(message)}. {meant}"
    if found := re.search(r"[Kk]ey '?\"?([\w.]+)'?\"? is not (?:expected|accepted)", message):
        return f"Unknown key {found[1]}. {near(found[1], _keys(parser))}"
    if found := re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", message):
        return f"Unknown key {found[1]}.{found[2]}. {near(f'{found[1]}.{found[2]}', _keys(parser))}"
    if found := re.search(r"Option '([\w.]+)' is not accepted", message):
        return f"Unknown key {found[1]}{_place(message)}. {near(found[1], _keys(parser))}"
    if found := re.search(r"class_path '([\w.]+)':\s+(.*(?:No module|no attribute|not find).*)", message):
        return f"There is no class {found[1]}: {found[2].strip()}. {_near_class(found[1])}"
    if found := re.search(r"Expected an? (.*?)\. Got value: (.*)", message):
        return f"Wrong value {found[2].strip()!r}{_place(message)}: expected {found[1]}."
    if found := re.search(r"(?:resolving interpolation|Interpolation key).*\n\s*full_key: ([\w.]+)", message):
        cause = message.splitlines()[0].partition(": ")[2] or message.splitlines()[0]
        return f"{found[1]} refers to a key that no file sets: {cause}. Is a --config missing, or misspelt?"
    if "Problems parsing config" in message:
        return _not_yaml(files) or f"A config file is not YAML: {message}"
    if found := re.search(r"arguments are required: (\w+)", message):
        return f"No {found[1]} is given. Add a --config, such as {EXAMPLES.get(found[1], 'a file of conf')}."
    if found := re.search(r"File does not exist: '([^']+)'", message):
        return _no_file(found[1])
    lines = [line.strip(" -") for line in message.splitlines() if line.strip(" -")]
    return "Config: " + "\n  ".join(lines[:6])


def _not_yaml(files: list[str]) -> str:
    for name in files:
        try:
            yaml.safe_load(Path(name).read_text())
        except yaml.YAMLError as error:
            return f"{name} is not YAML: {' '.join(str(error).split())}"
        except OSError:
            continue
    return ""


def _no_file(name: str) -> str:
    path = Path(name)
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    siblings = [str(p) for p in sorted(path.parent.glob(f"*{path.suffix}"))]
    return f"There is no file {path}. {near(str(path), siblings)}"


def _place(message: str) -> str:
    keys = [k for k in re.findall(r"Parser key \"([\w.]+)\"", message) if k]
    return f" (at {'.'.join(keys)})" if keys else ""


def _keys(parser: Parser) -> list[str]:
    return [a.dest for a in parser._actions if a.dest not in ("help", "print_config")]


def _options(parser: Parser) -> list[str]:
    return [o for a in parser._actions for o in a.option_strings]


def _arguments(class_path: str) -> list[str]:
    try:
        module, _, name = class_path.rpartition(".")
        classes = getattr(importlib.import_module(module), name).__mro__
    except (ImportError, AttributeError, ValueError):
        return []
    names = [p for c in classes if "__init__" in vars(c) for p in inspect.signature(c.__init__).parameters]
    return [n for n in dict.fromkeys(names) if n not in ("self", "args", "kwargs")]


def _near_class(class_path: str) -> str:
    module, _, name = class_path.rpartition(".")
    try:
        names = [n for n, v in vars(importlib.import_module(module)).items() if inspect.isclass(v)]
    except (ImportError, ValueError):
        return "Check the module's name."
    return near(name, names)
