"""What a scheme is built of: parts that move alone, and no reaching into the base."""

import ast
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from committed import ROOT, committed
from datamodules.batches import Batch
from lightning_modules.base import Part, Scheme
from test_schemes import SPACES, Data, Net, Quality, adam, fit

FOLDER = "lightning_modules"
BASES = {
    "base",
    "bookkeeping",
    "phases",
}  # of schemes; what they keep for themselves begins with an underscore
MAY_ASK_FOR_TYPES = {
    ("best.py", "forget_best"),  # Lightning's callbacks, of two kinds
    ("base.py", "__init__"),  # of a part: parameters as torch takes them, once
    ("base.py", "new_parts"),  # of a scheme of a user's own, to say what is no part
    ("base.py", "differentiate"),  # the same of its loss
    ("base.py", "_advance"),  # torch's schedules share no base, and one of them takes a score
    ("bookkeeping.py", "_plain"),  # what a file holds: dicts, lists, numbers
    ("encoder_copy.py", "encoders"),  # a part may have encoders anywhere within
    ("unseen.py", "fingerprints"),  # inputs are one tensor, or named ones
    ("unseen.py", "_content"),  # named inputs hold tensors and sizes
}


def parse(files: list[Path]) -> dict[str, ast.Module]:
    return {str(file): ast.parse((ROOT / file).read_text()) for file in files}


SCHEMES = parse(committed(f"{FOLDER}/**/*.py"))
READERS = parse(committed("tests/*.py") + committed("scripts/benchmark*.py"))


def hidden(tree: ast.AST) -> set[str]:
    """Names with an underscore that the classes of a file define or set on themselves."""
    defined = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    used = (node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {name for name in chain(defined, used) if name.startswith("_") and not name.startswith("__")}


def test_no_scheme_reads_or_overrides_what_its_base_keeps_for_itself() -> None:
    of_base = {name: hidden(tree) for name, tree in SCHEMES.items() if Path(name).stem in BASES}
    assert len(of_base) == len(BASES) and "_losses" in set().union(*of_base.values())
    for name, tree in SCHEMES.items():
        others = set().union(*(names for base, names in of_base.items() if base != name))
        assert not hidden(tree) & others, f"{name} reaches into its base"


def test_no_test_or_benchmark_reads_what_a_scheme_keeps_for_itself() -> None:
    kept = set().union(*map(hidden, SCHEMES.values()))
    users = [name for name in READERS if FOLDER in (ROOT / name).read_text()]
    assert len(users) > 10
    for name in users:
        read = {node.attr for node in ast.walk(READERS[name]) if isinstance(node, ast.Attribute)}
        assert not read & kept, name


def test_no_type_decides_what_a_scheme_does() -> None:
    asked = {
        (Path(name).name, function.name)
        for name, tree in SCHEMES.items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id in ("isinstance", "issubclass")
    }
    assert asked == MAY_ASK_FOR_TYPES


class Overlapping(Scheme):
    """Three parts on one graph: two nets, and one that owns both; the last has its gradient made by hand."""

    def __init__(self, **options: object) -> None:
        kind, shape = SPACES["sets"]
        super().__init__(space=kind, metric=Quality(kind), **options)  # type: ignore[arg-type]
        self.first, self.second = Net(shape), Net(shape)
        self.seen: dict[str, dict[str, set[str]]] = {}

    def training_step(self, batch: Batch, index: int) -> None:
        for name in self.part:
            self.zero_grad()
            before = {key: value.clone() for key, value in self.state_dict().items()}
            self.move(name, batch)
            changed = {key for key, value in self.state_dict().items() if not torch.equal(value, before[key])}
            graded = {key for key, p in self.named_parameters() if p.grad is not None}
            self.seen[name] = {"changed": changed, "graded": graded}
            assert all(p.requires_grad for p in self.parameters())

    def both_loss(self, batch: Batch) -> Tensor:
        logits = self.first(batch.inputs) + self.second(batch.inputs)
        return self.space.supervise(logits, batch.y).mean()

    def by_hand(self, batch: Batch) -> Tensor:
        """A gradient through the other net, as a hypergradient has it."""
        loss = self.both_loss(batch)
        through = torch.autograd.grad(loss, [*self.first.parameters()], create_graph=True)
        size = sum(gradient.square().sum() for gradient in through)
        learned = self.part["by_hand"].learned
        for p, gradient in zip(learned, torch.autograd.grad(size, learned), strict=True):
            p.grad = gradient
        return loss

    def parts(self) -> dict[str, Part]:
        first, second = self.first.parameters(), self.second.parameters()
        return {
            "first": Part(first, adam, self.both_loss),
            "second": Part(second, adam, self.both_loss),
            "all": Part(self.parameters(), adam, self.both_loss),
            "by_hand": Part(self.second.parameters(), adam, gradient=self.by_hand),
        }

    def predict(self, batch: Batch) -> Tensor:
        return self.space.relax(self.first(batch.inputs))

    def predictors(self) -> list[nn.Module]:
        return [self.first]


def test_a_part_moves_its_own_parameters_and_no_other_receives_a_gradient(tmp_path: Path) -> None:
    module = Overlapping()
    fit(module, Data("sets"), 1, tmp_path)
    keys = {key for key, _ in module.named_parameters()}
    of_first = {key for key in keys if key.startswith("first")}
    expected = {"first": of_first, "second": keys - of_first, "all": keys, "by_hand": keys - of_first}
    moved = {key for key in keys if key.endswith("weight")}  # a gradient's size need not depend on a bias
    for name, seen in module.seen.items():
        assert seen["graded"] == expected[name], name
        assert seen["changed"] <= expected[name] and seen["changed"] >= expected[name] & moved, name


def test_a_part_draws_by_its_place_and_step_alone(tmp_path: Path) -> None:
    draws: dict[str, list[float]] = {}

    class Drawing(Overlapping):
        def training_step(self, batch: Batch, index: int) -> None:
            for name in self.order:
                self.move(name, batch)

        def noted(self, name: str, batch: Batch) -> Tensor:
            draws.setdefault(name, []).append(float(torch.rand(())))
            return self.both_loss(batch)

        def parts(self) -> dict[str, Part]:
            nets = {"first": self.first, "second": self.second}
            return {
                name: Part(net.parameters(), adam, partial(self.noted, name)) for name, net in nets.items()
            }

    for order in (["first", "second"], ["second", "second", "first"]):
        module = Drawing(seed=4)
        module.order = order
        fit(module, Data("sets"), 1, tmp_path / "-".join(order))
    assert draws["first"][:2] == draws["first"][2:4]
    assert draws["second"][:2] == draws["second"][2:4]
    assert len({*draws["first"], *draws["second"]}) == 2 + 4


def test_a_part_has_a_loss_or_a_gradient_made_by_hand() -> None:
    with pytest.raises(AssertionError, match="a loss or a gradient made by hand"):
        Part(Net((2,)).parameters(), adam)
