"""Cells are parsed once: what is kept is what a plain parser gives, until what it is made from changes."""

import copy
import inspect
import json
import operator
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytorch_lightning as pl
import yaml
from pytorch_lightning.cli import LightningArgumentParser

import toy_world
from committed import ROOT
from experiments.errors import ConfigError
from experiments.plan.compose import Layers, fill, mark, needed, remember, remembered
from experiments.plan.parser import ParseOnly
from experiments.plan.runs import compose, layers_of
from experiments.plan.spec import read_table
from toy_world import World

world = toy_world.world  # the fixture

TOY = ("conf/data/toy.yaml", "conf/scheme/toy.yaml")
CELLS = [
    ("seal_mlc", "dynamic_nce", "bibtex"),
    ("seal_mlc", "dynamic_nce", "cal500"),
    ("seal_mlc", "static_nce", "cal500"),
    ("scaling_main", "ce_joint", "chunking"),
]


@pytest.fixture(autouse=True)
def today() -> Iterator[None]:
    """What the process knows of the code is looked up anew."""
    yield
    compose._code.cache_clear()
    compose._installed.cache_clear()


def test_what_cells_share_is_parsed_once_and_comes_out_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    sharing, plain = ParseOnly(), ParseOnly(LightningArgumentParser)
    for table, row, column in CELLS:
        arguments = layers_of(read_table(table), row, column).arguments()
        expected = json.dumps(plain.resolve([*arguments]))
        assert [json.dumps(sharing.resolve([*arguments])) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize("name", ["limit_train_batches", "overfit_batches"])
def test_one_batch_is_not_all_whichever_package_was_imported_first(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python may give an Optional type the order of an equal one that another package made before."""
    monkeypatch.chdir(root)
    annotations = inspect.unwrap(pl.Trainer.__init__).__annotations__
    float_first = sorted(typing.get_args(annotations[name]), key=lambda of: of is not float)
    monkeypatch.setitem(annotations, name, operator.getitem(typing.Union, tuple(float_first)))
    arguments = layers_of(read_table("seal_mlc"), "floor", "bibtex").arguments()
    for given, kept in ("1", 1), ("1.0", 1.0):
        trainer = ParseOnly().resolve([*arguments, f"--trainer.{name}={given}"])["trainer"]
        assert repr(trainer[name]) == repr(kept)


def test_an_option_that_is_gone_is_left_out_of_the_config_of_an_older_run_if_it_was_none(
    tmp_path: Path,
) -> None:
    layers = ["conf/data/bibtex.yaml", "conf/scheme/cross_entropy.yaml"]
    given = [word for file in layers for word in ("--config", file)]
    parser, run = ParseOnly(), tmp_path / "config.yaml"
    now = parser.resolve(given)
    for value in (None, 0.5):
        old = copy.deepcopy(now)
        old["data"]["init_args"]["observed_share"] = value
        run.write_text(yaml.safe_dump(old))
        if value is None:
            assert parser.resolve(["--config", str(run)]) == now
        else:
            with pytest.raises(ConfigError, match="has no argument 'observed_share'"):
                parser.resolve(["--config", str(run)])


def test_a_mistake_is_told_each_time(world: World) -> None:
    parser = ParseOnly()
    arguments = Layers(TOY).arguments()
    parser.resolve([*arguments])
    for _ in range(2):
        with pytest.raises(ConfigError, match="Wrong value 'abc'"):
            parser.resolve([*arguments, "--model.init_args.noise=abc"])


def test_a_kept_config_comes_back_until_something_it_is_made_from_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(world.folder))
    Path("mine.py").write_text("from mine_base import Base\n")
    Path("mine_base.py").write_text("class Base:\n    pass\n")
    Path("part.yaml").write_text("class_path: mine.Net\n")
    Path("conf/scheme/mine.yaml").write_text("over: below.yaml\nmodel: {init_args: {net: part.yaml}}\n")
    Path("conf/scheme/below.yaml").write_text("model: {}\n")
    Path("rows.yaml").write_text("one: {data: {}}\n")
    (installed := world.folder / "site-packages").mkdir()
    monkeypatch.syspath_prepend(str(installed))
    layers = Layers((*TOY, "conf/scheme/mine.yaml", "rows.yaml:one"), (("model.init_args.noise", "0.2"),))
    config = {"model": {"lr": 0.1}}
    for change in (
        lambda: None,
        lambda: world.change("data/toy.yaml", lambda tree: tree.update(extra=1)),
        lambda: Path("conf/trainer/default.yaml").write_text("trainer: {max_epochs: 7}"),
        lambda: Path("part.yaml").write_text("class_path: mine.Other\n"),
        lambda: Path("conf/scheme/below.yaml").write_text("model: {init_args: {}}\n"),
        lambda: Path("rows.yaml").write_text("one: {data: {init_args: {}}}\n"),
        lambda: Path("mine_base.py").write_text("class Base:\n    width = 3\n"),
        lambda: (installed / "torch-99.dist-info").mkdir(),
    ):
        change()
        compose._code.cache_clear()
        assert remembered(layers, mark(layers)) is None
        remember(layers, mark(layers), config)
        assert remembered(layers, mark(layers)) == config
    assert remembered(Layers(layers.files), mark(layers)) is None
    assert len(list(compose.CACHE.iterdir())) == 1  # what has changed is replaced


@pytest.mark.parametrize("damage", ["cut", "flipped", "binary", "empty", "folder"])
def test_a_damaged_note_is_no_note_and_is_made_anew(world: World, damage: str) -> None:
    layers, config = Layers(TOY), {"model": {"lr": 0.125}}
    remember(layers, mark(layers), config)
    (note,) = compose.CACHE.iterdir()
    whole = note.read_bytes()
    content = {"cut": whole[:-2], "flipped": whole.replace(b"0.125", b"0.135"), "binary": b"\xff\n\xfe\n{}"}
    if damage == "folder":
        note.unlink()
        note.mkdir()
    else:
        note.write_bytes(content.get(damage, b""))
    assert remembered(layers, mark(layers)) is None
    remember(layers, mark(layers), config)  # which never fails
    assert remembered(layers, mark(layers)) == (None if damage == "folder" else config)


def test_what_is_read_from_the_environment_is_not_kept(world: World) -> None:
    Path("conf/scheme/mine.yaml").write_text("model: {init_args: {noise: '${oc.env:NOISE}'}}\n")
    layers = Layers((*TOY, "conf/scheme/mine.yaml"))
    remember(layers, mark(layers), {"model": {}})
    assert remembered(layers, mark(layers)) is None


def test_a_table_that_was_parsed_is_planned_without_torch(world: World) -> None:
    code = (
        "import sys; from scripts.reproduce import main; code = main(['small', '--dry-run']); "
        "from multiprocessing.forkserver import _forkserver as server; "
        "sys.exit(code or ('torch' in sys.modules) + 2 * bool(server._forkserver_pid))"
    )
    (world.folder / "conf/data/kinds").mkdir()
    for path in ("data/yeast", "data/generated", "data/kinds/label_sets", "scheme/cross_entropy"):
        (world.folder / f"conf/{path}.yaml").write_text((ROOT / f"conf/{path}.yaml").read_text())
    (world.folder / "conf/tables/small.yaml").write_text(
        "title: Small\nmetric: {name: test/example_f1, scale: 100, digits: 2, better: higher}\nseeds: [0]\n"
        "columns: {generated: {config: conf/data/generated.yaml}, yeast: {config: conf/data/yeast.yaml}}\n"
        "rows: {ce: {config: conf/scheme/cross_entropy.yaml}}\n"
    )
    said = []
    for started in (2, 0):
        env = {"PYTHONPATH": str(ROOT), "PATH": "", "COLUMNS": "200", "DATA_MIRROR": "", "DATA_DIR": "empty"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert done.returncode == started, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1] and "make data DATASET=yeast" in said[0] and "1 planned, 1 missing" in said[0]


def test_the_name_of_a_needed_row_may_begin_with_that_of_another() -> None:
    places = {needed("ce"): "runs/a/best.ckpt", needed("ce_3"): "runs/b/best.ckpt"}
    tree = {"net": needed("ce"), "energy": [needed("ce_3"), f"from {needed('ce_3')}"]}
    assert fill(tree, places) == {
        "net": "runs/a/best.ckpt",
        "energy": ["runs/b/best.ckpt", "from runs/b/best.ckpt"],
    }
