"""Messages of the config parser and of the objects it builds, shortened, with suggestions."""

import importlib
import inspect
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.errors import suggest
from experiments.plan.identity import Tree

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {"model": "conf/scheme/cross_entropy.yaml", "data": "conf/data/yeast.yaml"}
EXTRAS = {
    "wandb": "wandb",
    "tensorboard": "tensorboard",
    "transformers": "hf",
    "datasets": "hf",
    "peft": "hf",
}  # by package
OTHERWISE = {  # what users of Lightning's command line try
    "--ckpt_path": "a run resumes where it stopped, by --run_dir RUN_DIR.",
    **dict.fromkeys(("fit", "test", "validate"), "there are no subcommands; a run trains, then tests."),
    "predict": "there are no subcommands; answers of a finished run: python -m scripts.predict RUN_DIR.",
}
FITTING = {
    "StructuredEnergy": " A CRF needs exact inference: for this scheme take data with tags, or "
    "conf/data/weizmann_horses.yaml or conf/data/folder.yaml."
}
NOISE = ("Does not validate", "Subtypes:", "Errors:", "Given value", "Expected a <class 'NoneType'>")

NO_KEYS = ("help", "config", "print_config", "print_shtab")  # options that no file sets

Parser = Any  # jsonargparse's, which this file does not import


def advise(parser: Parser, message: str, files: list[str], parts: Iterable[str] = ()) -> str:
    """One message: what is wrong, where, what was probably meant; `parts` are those that files refer to."""
    if found := re.search(r"Option '([\w.]+)' is not accepted|unrecognized arguments: *--([\w.]+)", message):
        if classes := _classes(message, found):
            return _no_argument(classes[-1], (found[1] or found[2]).split(".")[0], message, files)
        if found[1]:
            return _unknown(parser, found[1], parts)
    if found := re.search(r"[Uu]nrecognized arguments: *(\S+)", message):
        option = found[1].split("=")[0]
        if option in OTHERWISE:
            return f"Unknown option {option}: {OTHERWISE[option]}"
        return f"Unknown option {found[1]}. {suggest(option, _options(parser))}"
    if found := re.search(r"[Kk]ey '?\"?([\w.]+)'?\"? is not (?:expected|accepted)", message):
        return _unknown(parser, found[1], parts)
    if found := re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", message):
        return _unknown(parser, f"{found[1]}.{found[2]}", parts)
    if found := re.search(r"a callable class: module '([\w.]+)' has no attribute '(\w+)'", message):
        near = suggest(found[2], _functions(found[1]))
        return f"There is no function {found[1]}.{found[2]}{_place(message)}. {near}"
    if found := re.search(r"class_path '([\w.]+)':\s+(.*(?:No module|no attribute|not find).*)", message):
        return f"There is no class {found[1]}: {found[2].strip()}. {_near_class(found[1])}"
    if found := re.search(r"key \"seed(?:_everything)?\":[^\"]*?(?:Given|Got) value: (.*)", message):
        return f"--seed_everything {found[1]}: take a whole number."
    if found := re.search(r"Expected an? (.*?)\. Got value: (.*)", message):
        kind = re.sub(r"<class '([\w.]+)'>|typing\.", r"\1", found[1])
        return f"Wrong value {found[2].strip()!r}{_place(message)}: expected {kind}."
    if found := re.search(r"Import path ([\w.]+) does not correspond to a subclass of (\w+)", message):
        return f"Wrong class {found[1]}{_place(message)}: it is no {found[2]}.{FITTING.get(found[2], '')}"
    if found := re.search(r"Expected an instantiatable class, but ([\w.]+) is abstract", message):
        return f"{found[1]}{_place(message)} is not complete: write its {_abstract(found[1])}."
    if wrong := _wrong_value(message):
        return wrong
    if found := re.search(r"(?:resolving interpolation|Interpolation key).*\n\s*full_key: ([\w.]+)", message):
        cause = message.splitlines()[0].partition(": ")[2] or message.splitlines()[0]
        missing = re.search(r"Interpolation key '((?:model|data)\.[\w.]+)\.\w+'", cause)
        other = f", or is --{missing[1].replace('.init_args', '')} of another class" if missing else ""
        says = f"{found[1]} refers to a key that no file sets: {cause}."
        return f"{says} Is a --config missing, or misspelt{other}?"
    if found := re.search(r"arguments are required: (\w+)", message):
        return _not_given(found[1], message, files)
    lines = [line.strip(" -") for line in message.splitlines() if line.strip(" -")]
    return "Config: " + " ".join([line for line in lines if not line.startswith(NOISE)][-6:])


def _wrong_value(message: str) -> str:
    """A sentence on a value that has none of several types; the innermost one is told."""
    given = re.search(
        r"Given value: (?:NestedArg\(key=.*?, val=(.*)\)$|(.*?)(?:\. Got value: .*)?$)", message, re.M
    )
    before = message[: given.start()] if given else ""
    kinds = re.findall(r"Expected a <class '(?:\w+\.)*(\w+)'>", before)
    if given is None or "Problem with given class_path" in message[given.end() :]:
        return ""
    literals = re.findall(r"Expected a typing.Literal\[(.*?)\]", before)
    kinds = ["one of " + ", ".join(literals).replace("'", "")] if literals else kinds
    kinds = [kind for kind in dict.fromkeys(kinds) if kind != "NoneType"]
    if not kinds and "Expected a dot import path" in message:
        kinds = ["class_path with its init_args"]
    value = given[2] if given[1] is None else given[1].strip("'")
    return f"Wrong value {value!r}{_place(message)}: expected {' or '.join(kinds)}." if kinds else ""


def not_installed(message: str) -> str:
    """What to install, if the message is about a missing package of one of the extras."""
    absent = next((package for package in EXTRAS if re.search(rf"\b{package}\b", message)), None)
    if absent is None:
        return message
    extra = EXTRAS[absent]
    return (
        f"{absent} is not installed. Run:  make setup EXTRAS=dev,{extra}  (without make: "
        f'pip install -c constraints.txt -e ".[{extra}]").'
    )


def refused(error: BaseException, config: Tree) -> str:
    """The error of an object that refuses an argument; the message begins with the option or key.

    An error that no user's value explains has its type, and the last place of the project that it came from.
    """
    message, nodes = str(error), [*objects_in(config)]
    if not isinstance(error, ValueError):
        lines = [f"{frame.filename}:{frame.lineno}" for frame in _frames(error) if ours(frame.filename)]
        message = f"{type(error).__name__}: {message}{f' (in {lines[-1]})' if lines else ''}"
    found = re.match(r"(\w+)(?:\.init_args\S*)? (?:is|has) ", message)
    name = found[1] if found else ""
    for part, variables in _parts(error):
        kind = f"{type(part).__module__}.{type(part).__qualname__}"
        places = {place: arguments for place, of, arguments in nodes if of == kind}
        value = str(variables.get(name, getattr(part, name, None) if name else None))
        named = [place for place, arguments in places.items() if name in arguments]
        for place in sorted(named, key=lambda place: str(places[place][name]) != value):
            return f"--{place}.init_args.{message}"
        for place in places:
            return f"{place}: {message}" if "." in place else message
    return message


def of_the_project(error: BaseException) -> BaseException:
    """Of an error and those behind it, the first that code of the project raised, or else the innermost."""
    chain = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    raised = [e for e in chain if (frames := _frames(e)) and ours(frames[-1].filename)]
    return (raised or chain[-1:])[0]


def _frames(error: BaseException) -> traceback.StackSummary:
    return traceback.extract_tb(error.__traceback__)


def ours(file: str) -> bool:
    """Whether a source file is of the project, not of a library."""
    return Path(file).is_relative_to(ROOT) and "site-packages" not in Path(file).parts


def _parts(error: BaseException) -> Iterator[tuple[object, dict[str, Any]]]:
    """The objects in an error's traceback, the innermost first, with their local variables."""
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    return ((frame["self"], frame) for frame in reversed(frames) if "self" in frame)


def objects_in(tree: Tree, place: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Key, class and arguments of every object that a config describes, the outer ones first."""
    if isinstance(tree, list):
        tree = {str(index): value for index, value in enumerate(tree)}
    if not isinstance(tree, dict):
        return
    if "class_path" in tree:
        yield place, tree["class_path"], tree.get("init_args") or {}
    for key, value in tree.items():
        yield from objects_in(value, f"{place}.{key}" if place else key)


def _classes(message: str, found: re.Match[str]) -> list[str]:
    """The classes that a message names before its match, the innermost last."""
    line = message[found.end() :].partition("\n")[0]
    return re.findall(r"class_path '([\w.]+)'", message[: found.start()]) + re.findall(
        r"class_path='([\w.]+)'", line
    )


def _no_argument(owner: str, name: str, message: str, files: list[str]) -> str:
    places = [f for f in files if mentions(f, rf"\b{name}\s*:")]
    where = f"{_place(message)}{f', in {places[-1]}' if places else ''}"
    if name in arguments_of(owner):  # of a base class, which it does not reach
        return (
            f"{owner} does not take {name!r}{where}: its __init__ sets it, or does not hand its keyword "
            "arguments on, as super().__init__(**scheme) does."
        )
    return f"{owner} has no argument {name!r}{where}. {suggest(name, arguments_of(owner))}"


def _not_given(name: str, message: str, files: list[str]) -> str:
    """A required argument is missing: which file of conf/ sets it."""
    if name in EXAMPLES:
        return f"No {name} is given. Add a --config, such as {EXAMPLES[name]}."
    place = _place(message)
    if inner := re.match(r" \(at ((?:model|data)\.[\w.]+)\)", place):
        return f"No {name} is given{place}. Add --{inner[1]}.{name} VALUE."
    beside = dict.fromkeys(layer for f in files for layer in sorted(Path(f).parent.glob("*.yaml")))
    layers = [layer for layer in beside if mentions(str(layer), rf"^\s+{name}:")]
    such = f", such as {' or '.join(str(layer) for layer in layers[:4])}" if layers else ""
    return f"No {name} is given{place}. Add a --config that sets it{such}."


def mentions(name: str, pattern: str) -> bool:
    """Whether a file can be read and matches the pattern."""
    try:
        return re.search(pattern, Path(name).read_text(), re.MULTILINE) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _place(message: str) -> str:
    keys = [k for k in re.findall(r"Parser key \"([\w.]+)\"", message) if k]
    return f" (at {'.'.join(keys)})" if keys else ""


def _unknown(parser: Parser, key: str, parts: Iterable[str]) -> str:
    """A sentence on a key: what it resembles as a whole, or else in its first part."""
    keys = [a.dest for a in parser._actions if a.dest not in NO_KEYS and not a.dest.endswith(".help")]
    tops = {dest.partition(".")[0] for dest in keys} | {*parts}
    top = key.partition(".")[0]
    whole = suggest(key, keys)
    known = top in tops or ("." in key and whole.startswith("Did"))
    return f"Unknown key {key}. {whole if known else suggest(top, sorted(tops))}"


def _options(parser: Parser) -> list[str]:
    return [o for a in parser._actions for o in a.option_strings]


def _abstract(class_path: str) -> str:
    module, _, name = class_path.rpartition(".")
    methods = sorted(getattr(importlib.import_module(module), name).__abstractmethods__)
    return f"{'method' if len(methods) == 1 else 'methods'} {', '.join(methods)}"


def arguments_of(class_path: str) -> list[str]:
    """The names of the arguments of a class, and of those it passes to its parents; none without a class."""
    try:
        module, _, name = class_path.rpartition(".")
        classes = getattr(importlib.import_module(module), name).__mro__
    except (ImportError, AttributeError, ValueError):
        return []
    names: list[str] = []
    for owner in (c for c in classes if "__init__" in vars(c)):
        taken = inspect.signature(owner.__init__).parameters.values()
        names += [p.name for p in taken if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if all(p.kind is not p.VAR_KEYWORD for p in taken):
            break
    return [name for name in dict.fromkeys(names) if name != "self"]


def _functions(module: str) -> list[str]:
    return [
        n for n, v in vars(importlib.import_module(module)).items() if inspect.isfunction(v) and n[0] != "_"
    ]


def _near_class(class_path: str) -> str:
    module, _, name = class_path.rpartition(".")
    try:
        names = [n for n, v in vars(importlib.import_module(module)).items() if inspect.isclass(v)]
    except (ImportError, ValueError):
        return "Check the module's name."
    return suggest(name, names)
