"""Table files: what is read from them, and what is said of a bad one."""

import importlib
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import toy_world
from committed import committed
from experiments.errors import SweepError, TableError
from experiments.page.summary import summarise
from experiments.plan import yaml_file
from experiments.plan.spec import read_table, select
from experiments.sweep.file import read_sweep
from sweep_files import COMMAND, sweep_file
from toy_world import World

world = toy_world.world  # the fixture


def change(world: World, place: str, value: object) -> None:
    """Set one key of the toy table, given as rows.plain.label."""

    def at(tree: dict[str, Any]) -> None:
        *path, last = place.split(".")
        for key in path:
            tree = tree[int(key)] if isinstance(tree, list) else tree[key]
        tree[last] = value

    world.change("tables/toy.yaml", at)


def test_a_table_file_gives_rows_columns_and_numbers(world: World) -> None:
    table = read_table("toy")
    assert list(table.rows) == ["plain", "taught", "wild", "after", "cited"]
    assert table.reported["plain"]["easy"] == (60.0, 1.5)
    assert table.reported["cited"]["easy"] == (55.4, None)
    assert table.rows["cited"].cited and not table.has("cited", "easy")
    assert table.has("wild", "easy") and not table.has("wild", "lost")
    assert table.claims[0].on == ("easy", "lost") and table.claims[0].rows == ("taught", "plain")


def test_a_row_of_settings_is_the_last_layer_and_may_be_borrowed(world: World) -> None:
    tuned = Path("conf/tuned/toy/easy.yaml")
    tuned.parent.mkdir(parents=True)
    tuned.write_text("plain: {trainer: {max_epochs: 3}}")
    change(world, "rows.taught.tuned", "plain")
    table = read_table("toy")
    assert table.layers("plain", "easy")[-1] == table.layers("taught", "easy")[-1] == f"{tuned}:plain"
    assert table.layers("plain", "lost")[-1] == table.layers("wild", "easy")[-1] == "conf/scheme/toy.yaml"
    change(world, "rows.taught.tuned", "plan")
    with pytest.raises(TableError, match=r"no row in the files of conf/tuned/toy 'plan'. Did you mean plain"):
        read_table("toy")
    change(world, "rows.taught.tuned", "plain")
    change(world, "columns.lost.tuned", "eas")
    with pytest.raises(TableError, match=r"there is no file in conf/tuned/toy 'eas'. Did you mean easy"):
        read_table("toy")


def test_a_row_or_column_that_is_a_word_is_that_of_the_table_so_called(world: World) -> None:
    lender = read_table("toy")
    Path("conf/tables/toy.yaml").rename("conf/tables/lender.yaml")
    Path("conf/tables/toy.yaml").write_text(Path("conf/tables/lender.yaml").read_text())
    change(world, "rows.plain", "lender")
    change(world, "columns.easy", "lender")
    table = read_table("toy")
    assert table.rows == lender.rows and table.columns == lender.columns
    assert list(table.rows) == list(lender.rows) and list(table.columns) == list(lender.columns)


def test_a_borrowed_row_keeps_those_of_its_columns_that_the_table_has(world: World) -> None:
    lender = Path("conf/tables/lender.yaml")
    lender.write_text(
        "rows: {wild: {label: wild, config: [conf/scheme/toy.yaml], columns: [easy, elsewhere]}}\n"
    )
    change(world, "rows.wild", "lender")
    assert read_table("toy").rows["wild"].columns == ("easy",)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("rows.plain", "toi", ["no table 'toi'", "Did you mean toy"]),
        ("rows.plain", "toy", ["rows.plain is said to be that of toy", "writes out none"]),
        ("columns.hard", "toy", ["columns.hard is said to be that of toy", "writes out none"]),
        ("clams", [], ["clams is not a key of a table", "claims"]),
        ("metric.scal", 100, ["metric.scal", "Did you mean scale"]),
        ("metric.better", "up", ["higher or lower"]),
        ("rows.plain.confg", [], ["rows.plain.confg", "Did you mean config"]),
        (
            "rows.plain.config",
            ["conf/scheme/toi.yaml"],
            ["no file conf/scheme/toi.yaml", "conf/scheme/toy.yaml"],
        ),
        ("rows.plain.columns", ["eesy"], ["no column 'eesy'", "Did you mean easy"]),
        ("rows.taught.needs", {"model.x": "plane"}, ["no row 'plane'", "Did you mean plain"]),
        ("rows.taught.needs", {"model.x": "cited"}, ["cited", "no run to take from"]),
        ("rows.plain.needs", {"model.x": "taught"}, ["leads back to itself"]),
        ("rows.plain.cited", True, ["either `config` or `cited: true`"]),
        ("rows.a-b", {"cited": True}, ["letters, digits"]),
        ("columns.easy.not", "x", ["columns.easy.not", "Did you mean note"]),
        ("seeds", [0, 0], ["different whole numbers"]),
        ("seeds", "0", ["seeds is '0'; it has to be a list"]),
        ("reported.plane", {}, ["no row 'plane'"]),
        ("reported.plain.easy", "60 +- 1", ["[mean, std]"]),
        ("claims.0.holds", "taught beats plain", ["cannot be read"]),
        ("claims.0.holds", "taught + 1", ["compares nothing"]),
        ("claims.0.holds", "tought > plain", ["'tought'", "Did you mean taught"]),
        ("claims.0.holds", "taught > plain.__class__", ["not allowed"]),
        ("claims.0.on", ["eesy"], ["claims[0].on", "Did you mean easy"]),
        ("rows", [], ["`name: value` pairs"]),
        ("rows", {}, ["rows is {}", "one at least"]),
        ("seeds", [], ["seeds is []", "not empty"]),
        ("seeds", [-1], ["seeds[0] is -1", "a whole number from 0 to 4294967295"]),
        ("seeds", [2**40], ["seeds[0] is 1099511627776"]),
        ("seeds", [True], ["seeds[0] is True"]),
        ("metric.scale", "x", ["metric.scale is 'x'", "a number above 0"]),
        ("metric.scale", float("nan"), ["metric.scale is nan"]),
        ("metric.scale", -100, ["metric.scale is -100"]),
        ("metric.digits", -1, ["metric.digits is -1", "from 0 to 12"]),
        ("metric.digits", 10**9, ["metric.digits is 1000000000"]),
        ("metric.name", ["a"], ["metric.name is ['a']"]),
        ("metric", {"scale": 100}, ["metric.name is missing"]),
        ("title", None, ["title is None", "text"]),
        ("title", "a\x1b[2Jb", ["title is", "ordinary characters"]),
        ("notes", ["x" * 20_000], ["notes[0] is 'xxx", "at most 10,000"]),
        ("notes", "one", ["notes is 'one'", "a list"]),
        ("source", {"paper": ["a"]}, ["source.paper is ['a']"]),
        ("columns.a/b", {}, ["columns.a/b is 'a/b'", "without comma and slash"]),
        ("columns.easy", 5, ["columns.easy is 5", "`name: value` pairs"]),
        ("columns.easy.config", [7], ["columns.easy.config[0] is 7"]),
        ("rows.plain.config", ["conf/scheme"], ["no file conf/scheme"]),
        ("rows.plain.config", ["x" * 5000], ["there is no file xxx"]),
        ("rows.plain.needs", ["taught"], ["rows.plain.needs is ['taught']"]),
        (
            "rows.plain.set",
            {"run_dir": "x"},
            ["rows.plain.set.run_dir is each run's own, a row cannot set it."],
        ),
        ("rows.plain.set", {"model.x": date(2026, 1, 1)}, ["rows.plain.set.model.x is datetime.date"]),
        ("rows.plain.grid", {"a": [1, 2]}, ["rows.plain.grid is not a key of a row"]),
        ("rows.plain.tuned", "../../etc", ["rows.plain.tuned is '../../etc'"]),
        ("reported.plain.easy", [60, -1], ["reported.plain.easy is [60, -1]"]),
        ("reported.plain.easy", True, ["[mean, std]"]),
        ("reported.plain.easy", float("inf"), ["[mean, std]"]),
        ("reported_runs", 0, ["reported_runs is 0"]),
        ("claims", ["taught > plain"], ["claims[0] is 'taught > plain'"]),
        ("claims.0.holds", None, ["claims[0].holds is None"]),
        ("claims.0.holds", "taught > " + "-" * 500 + "1", ["claims[0].holds is", "at most 400"]),
        ("claims.0.holds", "taught > True", ["`True` is not allowed"]),
        ("claims.0.holds", "taught > 1e999", ["is not allowed"]),
        ("claims.0.holds", "(taught > # `x`\n plain)", ["claims[0].holds is", "one line"]),
        ("claims.0.on", "easy", ["claims[0].on is 'easy'", "a list"]),
        ("claims.0.across", "median", ["claims[0].across is 'median'; it has to be mean"]),
        ("measures", [{"title": "T"}], ["measures[0].metric is missing"]),
        ("figures", [{"name": "../f"}], ["figures[0].name is '../f'"]),
        ("figures", [{"smooth": 0}], ["figures[0].smooth is 0"]),
        ("figures", [{"values": {"plain": 0}}], ["figures[0].values.plain is 0"]),
    ],
)
def test_a_mistake_in_a_table_is_named_with_its_place(
    world: World,
    place: str,
    value: object,
    words: list[str],
) -> None:
    change(world, place, value)
    with pytest.raises(TableError) as caught:
        read_table("toy")
    message = str(caught.value)
    assert re.match(r"conf/tables/toy\.yaml, line \d+: ", message)
    for word in words:
        assert word in message


def test_a_fault_is_told_with_the_line_of_its_key(world: World) -> None:
    path = Path("conf/tables/toy.yaml")
    text = path.read_text()
    for old, new, place in (
        ("seeds: [0, 1]", "seeds: [0, -1]", "seeds[1]"),
        ("label: Easy", "label: 2026-01-01", "columns.easy.label"),
        ("holds: ", "holds: nobody > ", "claims[0].holds"),
    ):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        line = text[: text.index(old)].count("\n") + 1
        with pytest.raises(TableError, match=rf"toy\.yaml, line {line}: {re.escape(place)}"):
            read_table("toy")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"title: \xff\n", "line 1 is not UTF-8"),
        (b"\n\ntitle: caf\xe9\n", "line 3 is not UTF-8"),
        (b"title: a\n\ntitle: b\n", "line 3 is not YAML: the key title comes twice"),
        (b"title: a\x00b\n", "is not YAML"),
        (b"[" * 5000, "nested over 30 levels"),
        (b"a: " + b"[" * 40 + b"]" * 40, "nested over 30 levels"),
        (b"a: &a [*a]", "nested over 30 levels"),
        (
            b"a0: &a0 [1]\n"
            + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b"*a%d," % (i - 1) * 9) for i in range(1, 9)),
            "more than 100,000",
        ),
        (b"title: " + b"x" * 100_000, "has 100,007 bytes"),
        (b"title: !!int x\n", "is not YAML"),
        (b"seeds: [2026-13-45]\n", "is not YAML"),
        (b'title: "\\U00110000"\n', "is not YAML"),
        (b"", "line 1: the file is None"),
        (b"- 1\n", "line 1: the file is [1]"),
        (b"title: " + b"9" * 5000, "is not YAML"),
        (b"title: 0x" + b"9" * 9000, "title is a"),
        (b"rows: {true: {}}", "title is missing"),
    ],
)
def test_a_file_that_is_no_table_is_refused(world: World, content: bytes, says: str) -> None:
    Path("conf/tables/toy.yaml").write_bytes(content)
    with pytest.raises(TableError, match=r"^conf/tables/toy\.yaml") as error:
        read_table("toy")
    assert says in str(error.value) and len(str(error.value)) < 1000


def test_names_are_text_as_they_are_written(world: World) -> None:
    path = Path("conf/tables/toy.yaml")
    path.write_text(path.read_text().replace("easy:", "2020:").replace("easy", "'2020'"))
    assert "2020" in read_table("toy").columns


def test_an_unknown_table_is_answered_with_near_ones(world: World) -> None:
    with pytest.raises(TableError, match=r"no table 'toi'.*Did you mean toy"):
        read_table("toi")


def test_a_table_that_is_not_yaml_says_so(world: World) -> None:
    Path("conf/tables/toy.yaml").write_text("title: [")
    with pytest.raises(TableError, match="not YAML"):
        read_table("toy")


def test_a_choice_keeps_the_order_of_the_table_and_refuses_strangers() -> None:
    assert select("row", "b, a", ["a", "b", "c"]) == ["a", "b"]
    assert select("row", None, ["a", "b"]) == ["a", "b"]
    points = ["ce", "ce_10", "cd_0", "cd_1"]
    sweeps = {"cd": ("cd_0", "cd_1")}
    assert select("row", "cd", points, sweeps) == ["cd_0", "cd_1"]
    assert select("row", "cd_1,ce", points, sweeps) == ["ce", "cd_1"]
    assert read_table("where_structure_search").sweeps["spen"] == ("spen_0", "spen_1", "spen_2", "spen_3")
    with pytest.raises(TableError, match=r"There is no column 'horses'.* Did you mean horses_32"):
        select("column", "horses", ["horses_32"])
    with pytest.raises(TableError, match=r"no row 'dinamic'.*Did you mean dynamic"):
        select("row", "dinamic", ["static", "dynamic"])


def test_every_table_of_the_repository_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    for path in committed("conf/tables/*.yaml"):
        table = read_table(path.stem)
        found = [v for view in (table, *table.measures) for v in summarise(view).verdicts]
        assert not [v.claim.holds for v in found if v.paper is False]  # what a paper concludes, it has shown


def test_a_cell_of_another_table_keeps_its_settings_or_is_refused(world: World) -> None:
    tuned = world.folder / "conf/tuned/toy"
    tuned.mkdir(parents=True)
    (tuned / "easy.yaml").write_text("taught: {noise: 0.1}\n")
    tree = yaml.safe_load((world.folder / "conf/tables/toy.yaml").read_text())
    tree = {key: tree[key] for key in ("title", "metric", "seeds")} | {
        "rows": {"plain": "toy", "taught": "toy"}
    }
    tables = {
        "same": {"tuned": "toy", "columns": {"easy": "toy"}},
        "own": {"columns": {"mine": {"label": "mine", "config": ["conf/data/toy.yaml"]}}},
        "lost": {"columns": {"easy": "toy"}},
    }
    for name, more in tables.items():
        (world.folder / f"conf/tables/{name}.yaml").write_text(yaml.safe_dump(tree | more))
    assert read_table("same").layers("taught", "easy") == read_table("toy").layers("taught", "easy")
    assert read_table("same").layers("taught", "easy")[-1] == "conf/tuned/toy/easy.yaml:taught"
    assert read_table("own").layers("taught", "mine")[-1] == "conf/scheme/toy.yaml"
    says = r"line \d+: rows\.taught and columns\.easy are those of toy, .*Add:  tuned: toy"
    with pytest.raises(TableError, match=says):
        read_table("lost")
    world.change("tables/toy.yaml", lambda t: t["rows"]["taught"].update(tuned=["easy"]))
    with pytest.raises(TableError, match=r"rows\.taught\.tuned"):
        read_table("lost")


SWEEP = """
method: grid
metric: {name: val/example_f1, goal: maximize}
parameters:
  model.init_args.optimizer.init_args.lr: {values: [0.1, 0.2]}
  data.init_args.batch_size: {values: [8, 16]}
command: [python, -m, scripts.train, --config=conf/data/toy.yaml, --config=conf/scheme/toy.yaml,
  --model.init_args.noise=0.2, "${args}"]
"""


def test_rows_of_a_sweep_have_its_files_options_and_points_in_the_order_of_its_file(world: World) -> None:
    (world.folder / "conf/sweeps").mkdir()
    (world.folder / "conf/sweeps/lr.yaml").write_text(SWEEP)
    world.table(plain={"sweep": "lr", "label": "P"})
    world.change("tables/toy.yaml", lambda t: t["rows"]["plain"].pop("config"))
    world.change("tables/toy.yaml", lambda t: t["metric"].update(name="val/example_f1"))
    table = read_table("toy")
    assert [*table.rows] == ["plain_0", "plain_1", "plain_2", "plain_3"]
    assert table.rows["plain_1"].label == "P: lr 0.1, batch_size 16"
    rate, size = "model.init_args.optimizer.init_args.lr", "data.init_args.batch_size"
    assert table.rows["plain_2"].set == {"model.init_args.noise": "0.2", rate: 0.2, size: 8}
    assert table.layers("plain_2", "easy") == ("conf/data/toy.yaml", "conf/scheme/toy.yaml")


@pytest.mark.parametrize(
    ("row", "sweep", "says"),
    [
        ({"sweep": "rl"}, SWEEP, r"rows\.plain\.sweep: There is no sweep 'rl'.*Did you mean lr"),
        ({"sweep": "lr", "set": {"a": 1}}, SWEEP, r"rows\.plain\.set comes from the sweep, write it there"),
        ({"sweep": "lr"}, SWEEP.replace("method: grid", "method: random"), "random, a row takes a grid"),
        ({"sweep": "lr"}, SWEEP.replace("--config=conf/data/toy.yaml, ", ""), "no column has that config"),
        ({"sweep": "lr"}, SWEEP.replace("[8, 16]", str([*range(600)])), "more than 1,000 points"),
        ({"sweep": "lr"}, SWEEP, r"metric.name is test/example_f1; .* chooses by val/example_f1"),
    ],
)
def test_a_row_of_a_sweep_that_does_not_fit_is_refused(
    world: World, row: dict[str, Any], sweep: str, says: str
) -> None:
    (world.folder / "conf/sweeps").mkdir()
    (world.folder / "conf/sweeps/lr.yaml").write_text(sweep)
    world.table(plain=row)
    world.change("tables/toy.yaml", lambda t: t["rows"]["plain"].pop("config"))
    with pytest.raises(TableError, match=says):
        read_table("toy")


def test_tables_are_read_without_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = sorted(Path("conf/tables").glob("*.yaml"))[:3]
    fast = [yaml_file.read_yaml(path).tree for path in tables]
    monkeypatch.setattr("yaml.__with_libyaml__", False)
    try:
        slow = importlib.reload(yaml_file)
        assert slow.Events.__name__ == "_PythonEvents"
        assert [slow.read_yaml(path).tree for path in tables] == fast
    finally:
        monkeypatch.undo()
        importlib.reload(yaml_file)


def test_a_table_has_a_page_of_its_own(world: World) -> None:
    table = (world.folder / "conf/tables/toy.yaml").read_text()
    places = {"conf/sweeps/tried.yaml": "method: grid", "results/searched.trials.json": "{}"}
    for place, text in places.items():
        (world.folder / place).parent.mkdir(exist_ok=True, parents=True)
        (world.folder / place).write_text(text)
    others = {"README": "results/README.md is the index", "toy": "conf/tables/toy.yaml has this name"}
    others |= {name: f"{name} is a sweep's name" for name in ("tried", "searched")}
    for name, says in others.items():
        path = world.folder / f"{name}.yaml"
        path.write_text(table)
        with pytest.raises(TableError, match=f"{path}: {says}.*; save the file under another"):
            read_table(str(path))
    sweep = sweep_file(world.folder, {"command": [*COMMAND[:-2], "--config=conf/data/toy.yaml", "${args}"]})
    readme = sweep.rename(world.folder / "readme.yaml")
    with pytest.raises(SweepError, match=f"{readme}: results/README.md is the index of all pages; save the"):
        read_sweep(readme)
