"""A W&B sweep file, read and checked: every mistake raises an error here, before anything runs."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments import fields as f
from experiments import store
from experiments.errors import SweepError, TableError, short, suggest
from experiments.plan.keys import RUNS_OWN
from experiments.plan.layers import file_and_row, rows_of
from experiments.plan.reader import Reader, is_file
from experiments.plan.table import TABLES
from experiments.plan.yaml_file import Tree, read_yaml
from experiments.sweep.parameters import LARGEST_EXPONENT, SHAPES, Choice, Parameter, build, shape

SWEEPS = Path("conf/sweeps")
INDEX = "readme"  # results/README.md, on some disks in any case
NUMBER = f.value(
    "a number (YAML reads 1e-3 as text: write 1.0e-3)",
    lambda v: isinstance(v, int | float) and f.is_number(v),
)
WHOLE = f.value("a whole number", lambda v: type(v) is int and f.is_number(v))
KEYS: dict[str, dict[str, f.Check]] = {
    "sweep": {
        "program": f.word,
        "command": f.listed(f.text, least=1),
        "method": f.one_of("grid", "random", "bayes"),
        "metric": f.pairs,
        "parameters": f.named(f.pairs, least=1),
        "early_terminate": f.pairs,
        "run_cap": f.positive,
        "name": f.word,
        "description": f.text,
        "project": f.word,
        "entity": f.word,
    },
    "metric": {
        "name": f.word,
        "goal": f.one_of("maximize", "minimize"),
        "target": NUMBER,
        "impute": f.one_of("worst", "best", "latest"),
    },
    "early_terminate": {
        "type": f.one_of("hyperband"),
        "min_iter": f.positive,
        "max_iter": f.positive,
        "s": f.positive,
        "eta": f.value("a whole number, 2 or more", lambda v: f.is_count(v) and v >= 2),
        "strict": f.truth,
    },
    "parameter": {
        "distribution": f.word,
        "value": f.plain,
        "values": f.listed(f.plain, least=1),
        "probabilities": f.listed(f.not_negative, least=1),
        "min": NUMBER,
        "max": NUMBER,
        "mu": NUMBER,
        "sigma": f.above_zero,
        "q": f.above_zero,
    },
}
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
TEST = re.compile(r"test(?![a-z])")
UNSAFE = re.compile(r"\bNone\b|\\\\|\"")  # in the text of a list or dict
COMMAND = "[${env}, python, -m, scripts.train, --config=conf/data/bibtex.yaml, ${args}]"


Goal = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Early:
    """W&B's hyperband: a run is compared with the others when it reaches a band, counted in reports.

    The bands are min_iter * eta^k for k = 0, 1, ..., or max_iter / eta^k for k = s, ..., 1.
    """

    min_iter: int | None = None
    max_iter: int | None = None
    s: int = 0
    eta: int = 3
    strict: bool = False

    def bands(self, reports: int) -> list[int]:
        """The bands below a number of reports."""
        if self.max_iter is not None:
            bands = [int(self.max_iter / self.eta**k) for k in range(self.s, 0, -1)]
            return [band for band in dict.fromkeys(bands) if 1 <= band < reports]
        bands = [self.min_iter or 1]
        while bands[-1] < reports:
            bands.append(bands[-1] * self.eta)
        return bands[:-1]


@dataclass(frozen=True)
class Sweep:
    """A sweep: how points are chosen, by which metric they are compared, and what is trained."""

    name: str  # the file's stem; names the study's folder and the records
    path: Path
    title: str
    method: str  # grid, random, bayes
    metric: str
    goal: Goal
    parameters: dict[str, Parameter]  # by dotted name, in W&B's order
    layers: tuple[str, ...]  # config files, the lowest first; loggers are left out
    options: dict[str, Any]  # fixed `--key=value` of the command, as text
    raw: dict[str, Any]  # for wandb.sweep
    lines: dict[str, int]  # of the file, by parameter; of metric.name, parameters and command too
    early: Early | None = None
    run_cap: int | None = None
    target: float | None = None  # a score that ends the sweep

    def at(self, place: str) -> str:
        """How a message names a parameter, or another place in the file."""
        return f"{self.path}, line {self.lines[place]}: {place}"

    def better(self, one: float, other: float) -> bool:
        """Whether a score is better than another."""
        return one > other if self.goal == "maximize" else one < other


def read_sweep(name: str | Path) -> Sweep:
    """Read conf/sweeps/<name>.yaml, or the file of that path.

    Raises:
        SweepError: no such file, or a mistake in it; the message names line and key.
    """
    name = str(name)
    path = Path(name) if name.endswith((".yaml", ".yml")) else SWEEPS / f"{name}.yaml"
    if not is_file(path):
        unknown = f"There is no sweep {f.shown(name)} (looked for {short(str(path))})."
        if is_file(TABLES / path.name):
            raise SweepError(f"{unknown} There is a table of this name:  make reproduce TABLE={path.stem}")
        names = sorted(p.stem for p in SWEEPS.glob("*.yaml"))
        raise SweepError(f"{unknown} {suggest(path.stem, names)}")
    try:
        file = read_yaml(path)
    except TableError as error:
        raise SweepError(str(error)) from None
    if kind_of(file.tree) == "table":
        raise SweepError(f"{path} is a table, not a sweep:  make reproduce TABLE={name}")
    if path.stem.lower() == INDEX:
        raise SweepError(of_index(path))
    return _Reader(file).sweep(file.tree)


def refuse_name(path: Path) -> None:
    """Refuse a table's file whose page is that of another file.

    Raises:
        TableError: it is named as the index of all pages, a committed table, or a sweep that has trials or is
            committed.
    """
    if path.stem.lower() == INDEX:
        raise TableError(of_index(path))
    own = TABLES / path.name
    if is_file(own) and own.resolve() != path.resolve():
        raise TableError(f"{path}: {own} has this name, and its results; save the file under another.")
    if is_file(SWEEPS / path.name) or is_file(store.trials_file(path.stem)):
        raise TableError(f"{path}: {path.stem} is a sweep's name; save the file under another name.")


def of_index(path: Path) -> str:
    """What to do about a file whose page would be the index."""
    return f"{path}: {store.RESULTS}/README.md is the index of all pages; save the file under another name."


def is_sweep(name: str) -> bool:
    """Whether a name or a path is that of a sweep, and not of a table."""
    if not name.endswith((".yaml", ".yml")):
        return is_file(SWEEPS / f"{name}.yaml") and not is_file(TABLES / f"{name}.yaml")
    try:
        return is_file(Path(name)) and kind_of(read_yaml(Path(name)).tree) == "sweep"
    except TableError:
        return False


def kind_of(tree: Tree) -> str:
    """What a file is by its keys: a sweep, a table, or neither."""
    keys = tree.keys() if isinstance(tree, dict) else set()
    signs = {"sweep": {"method", "parameters", "command"}, "table": {"rows", "columns"}}
    found = [kind for kind, words in signs.items() if words & keys]
    return found[0] if len(found) == 1 else ""


class _Reader(Reader):
    """Turns the tree of one file into a Sweep."""

    keys = KEYS
    error = SweepError

    def sweep(self, tree: Tree) -> Sweep:
        tree = self.keyed("sweep", "", tree, needed=("method", "metric", "parameters", "command"))
        self.check(f.file_name, "the file's name", self.path.stem)
        metric = self._metric(tree["metric"])
        trees = dict(self._flat("parameters", "", tree["parameters"]))
        parameters = {name: self._parameter(*trees[name]) for name in sorted(trees)}
        if tree["method"] == "grid":
            self._grid({name: trees[name][0] for name in trees}, parameters)
        layers, options = self._command(tree)
        for name, (place, _) in trees.items():
            if name in options:
                self.fail(place, ": the command sets it too. Keep one.")
        early = tree.get("early_terminate")
        flat = {name: found for name, (_, found) in trees.items()}
        places = {name: name for name in ("metric.name", "parameters", "command")}
        places |= {name: place for name, (place, _) in trees.items()}
        return Sweep(
            name=self.path.stem,
            path=self.path,
            title=str(tree.get("name", tree.get("description", self.path.stem))),
            method=tree["method"],
            metric=metric["name"],
            goal=metric.get("goal", "minimize"),
            parameters=parameters,
            layers=layers,
            options=options,
            raw=tree | {"parameters": {name: _for_agent(found) for name, found in flat.items()}},
            lines={name: self.file.line(place) for name, place in places.items()},
            early=None if early is None else self._early(early),
            run_cap=tree.get("run_cap"),
            target=metric.get("target"),
        )

    def _metric(self, tree: Tree) -> dict[str, Any]:
        metric = self.keyed("metric", "metric", tree, needed=("name",))
        if TEST.match(metric["name"]):
            self.fail("metric.name", f" is {metric['name']}; a sweep judges by validation, such as val/loss.")
        return metric

    def _flat(self, place: str, above: str, tree: Tree) -> Iterator[tuple[str, tuple[str, Tree]]]:
        """The parameters by dotted name, each with its place; those of nested `parameters` too."""
        for key, found in tree.items():
            here, name = f"{place}.{key}", f"{above}{key}"
            if not DOTTED.fullmatch(key):
                self.fail(here, " is not a dotted name, such as model.init_args.inner_steps.")
            if name.split(".")[0] in RUNS_OWN:
                self.fail(here, " is each run's own, a sweep cannot set it.")
            if "parameters" not in found:
                yield name, (here, found)
                continue
            for other in found.keys() - {"parameters"}:
                self.fail(f"{here}.{other}", " stands beside nested `parameters`. Keep one.")
            self.check(f.named(f.pairs, least=1), f"{here}.parameters", found["parameters"])
            yield from self._flat(f"{here}.parameters", f"{name}.", found["parameters"])

    def _parameter(self, place: str, tree: Tree) -> Parameter:
        tree = self.keyed("parameter", place, tree)
        distribution = shape(tree)
        if not distribution:
            self.fail(place, " has neither value, values, min and max, nor a distribution.")
        self.known(f"{place}.distribution", "distribution", distribution, SHAPES)
        keys = SHAPES[distribution]
        for key in tree.keys() - {"distribution"}:
            if key not in keys:
                self.fail(f"{place}.{key}", f" is not a key of {distribution}. {suggest(key, keys)}")
        for key in ("value", "values", "min", "max"):
            if key in keys and key not in tree:
                self.fail(place, f" is {distribution} and needs {key}.")
        self._values(place, distribution, tree)
        return build(distribution, tree)

    def _values(self, place: str, distribution: str, tree: Tree) -> None:
        """What the keys of one parameter may be together."""
        if distribution == "int_uniform":
            for key in ("min", "max"):
                self.check(WHOLE, f"{place}.{key}", tree[key])
        if "min" in tree and tree["min"] >= tree["max"]:
            self.fail(f"{place}.min", f" is {tree['min']}, and max is {tree['max']}; min has to be smaller.")
        if distribution.endswith("_values"):
            self.check(f.above_zero, f"{place}.min", tree["min"])
        elif "log" in distribution:
            for key in ("min", "max", "mu"):
                if abs(tree.get(key, 0)) > LARGEST_EXPONENT:
                    self.fail(f"{place}.{key}", f" is {tree[key]}, too large an exponent of e.")
        if (shares := tree.get("probabilities")) is not None:
            if len(shares) != len(tree["values"]):
                self.fail(f"{place}.probabilities", f" has {len(shares)}, and values {len(tree['values'])}.")
            if not math.isclose(sum(shares), 1, rel_tol=1e-5):
                self.fail(f"{place}.probabilities", f" sum to {sum(shares):g}; they have to sum to 1.")

    def _grid(self, places: dict[str, str], parameters: dict[str, Parameter]) -> None:
        for name, parameter in parameters.items():
            if parameter.grid() is None:
                why = "has probabilities" if isinstance(parameter, Choice) else "is continuous"
                rest = "give its `values`, int_uniform or q_uniform, or take the method random or bayes."
                self.fail(places[name], f" {why}, of which there is no grid: {rest}")

    def _early(self, tree: Tree) -> Early:
        place = "early_terminate"
        tree = self.keyed(place, place, tree, needed=("type",))
        if "min_iter" in tree and "max_iter" in tree:
            self.fail(f"{place}.max_iter", ": hyperband takes min_iter, or max_iter with s. Keep one.")
        if "min_iter" not in tree and not {"max_iter", "s"} <= tree.keys():
            self.fail(place, ": hyperband needs min_iter, or max_iter and s.")
        early = Early(**{key: value for key, value in tree.items() if key != "type"})
        if early.max_iter is not None and not early.bands(early.max_iter + 1):
            self.fail(f"{place}.max_iter", f" is {early.max_iter}, less than eta: no run could stop.")
        return early

    def _command(self, tree: Tree) -> tuple[tuple[str, ...], dict[str, str]]:
        """The config files and the fixed options of the command."""
        words, layers, options = [str(word) for word in tree["command"]], list[str](), dict[str, str]()
        index = self._program(words, tree.get("program", ""))
        given = False
        while (index := index + 1) < len(words):
            word, place = words[index], f"command[{index}]"
            if word == "${args}":
                given = True
                continue
            if not word.startswith("-"):
                self.fail(place, f" is {f.shown(word)}; after scripts.train come --key=value and ${{args}}.")
            key, equals, value = word.lstrip("-").partition("=")
            if not equals:
                index += 1
                if index == len(words) or words[index].startswith(("--", "${")):
                    self.fail(place, f": {word} has no value.")
                value = words[index]
            if key in ("config", "c"):
                self._layer(place, value)
                layers.append(value)
            elif not word.startswith("--") or not DOTTED.fullmatch(key.removesuffix("+")) or key in RUNS_OWN:
                self.fail(place, f": a sweep cannot set {short(word)}.")
            else:
                options[key] = value
        if not given:
            self.fail("command", " has no ${args}, by which the parameters reach a run. Put it last.")
        kept = tuple(name for name in layers if Path(name).parent.name != "logger")
        if not kept:
            self.fail("command", f" names no --config of data and scheme: write {COMMAND}.")
        return kept, options

    def _program(self, words: list[str], program: str) -> int:
        """Where the command names scripts.train."""
        for index, word in enumerate(words):
            named = program if word == "${program}" else word
            if named in ("scripts/train.py", "./scripts/train.py"):
                return index
            if named == "scripts.train" and words[index - 1] == "-m":
                return index
        self.fail("command", f" does not run scripts.train: write {COMMAND}.")

    def _layer(self, place: str, name: str) -> None:
        file, row = file_and_row(name)
        self.is_file(place, file)
        if row:
            self.known(place, f"row of {file}", row, rows_of(Path(file)))


def _for_agent(tree: Tree) -> Tree:
    """A parameter whose values survive W&B's agent, which writes them on a command line as Python does.

    Where YAML would read that otherwise, as None, the value becomes JSON text.
    """
    return tree | {
        key: [_text(one) for one in found] if key == "values" else _text(found)
        for key, found in tree.items()
        if key in ("value", "values")
    }


def _text(found: Tree) -> Tree:
    if found is None or (isinstance(found, list | dict) and UNSAFE.search(repr(found))):
        return json.dumps(found)
    return found
