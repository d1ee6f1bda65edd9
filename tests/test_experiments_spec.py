"""Table files: what is read from them, and what is said of a bad one."""

from pathlib import Path
from typing import Any

import pytest

import toy_world
from committed import committed
from experiments.errors import TableError
from experiments.spec import read_table, select
from experiments.summary import summarise
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


def test_a_tuned_file_is_the_last_layer_and_may_be_borrowed(world: World) -> None:
    tuned = Path("conf/tuned/toy/easy/plain.yaml")
    tuned.parent.mkdir(parents=True)
    tuned.write_text("trainer: {max_epochs: 3}")
    change(world, "rows.taught.tuned", "plain")
    table = read_table("toy")
    assert table.layers("plain", "easy")[-1] == table.layers("taught", "easy")[-1] == str(tuned)
    assert table.layers("plain", "lost")[-1] == "conf/scheme/toy.yaml"


def test_a_row_or_column_that_is_a_word_is_that_of_the_table_so_called(world: World) -> None:
    lender = read_table("toy")
    Path("conf/tables/toy.yaml").rename("conf/tables/lender.yaml")
    Path("conf/tables/toy.yaml").write_text(Path("conf/tables/lender.yaml").read_text())
    change(world, "rows.plain", "lender")
    change(world, "columns.easy", "lender")
    table = read_table("toy")
    assert table.rows == lender.rows and table.columns == lender.columns
    assert list(table.rows) == list(lender.rows) and list(table.columns) == list(lender.columns)


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
        ("seeds", "0", ["different whole numbers"]),
        ("reported.plane", {}, ["no row 'plane'"]),
        ("reported.plain.easy", "60 +- 1", ["[mean, std]"]),
        ("claims.0.holds", "taught beats plain", ["cannot be read"]),
        ("claims.0.holds", "taught + 1", ["compares nothing"]),
        ("claims.0.holds", "tought > plain", ["'tought'", "Did you mean taught"]),
        ("claims.0.holds", "taught > plain.__class__", ["not allowed"]),
        ("claims.0.on", ["eesy"], ["claims[0].on", "Did you mean easy"]),
        ("rows", [], ["`name: value` pairs"]),
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
    assert message.startswith("conf/tables/toy.yaml: ")
    for word in words:
        assert word in message


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
    with pytest.raises(TableError, match=r"no row 'dinamic'.*Did you mean dynamic"):
        select("row", "dinamic", ["static", "dynamic"])


def test_every_table_of_the_repository_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    for path in committed("conf/tables/*.yaml"):
        table = read_table(path.stem)
        found = [v for view in (table, *table.measures) for v in summarise(view).verdicts]
        assert not [v.claim.holds for v in found if v.paper is False]  # what a paper concludes, it has shown


def test_a_grid_gives_a_row_for_each_point_named_and_labelled_by_it(world: World) -> None:
    def searched(tree: dict[str, Any]) -> None:
        tree["rows"]["plain"] |= {
            "label": "P",
            "set": {"model.fixed": 3},
            "grid": {"model.lr": [0.1, 0.2], "model.steps": [1, 5]},
        }
        tree["rows"] = {"plain": tree["rows"]["plain"]}
        for key in ("claims", "reported"):
            tree.pop(key, None)

    world.change("tables/toy.yaml", searched)
    rows = read_table("toy").rows
    assert [*rows] == ["plain_0", "plain_1", "plain_2", "plain_3"]
    assert rows["plain_1"].label == "P: lr 0.1, steps 5"
    assert rows["plain_2"].set == {"model.fixed": 3, "model.lr": 0.2, "model.steps": 1}


@pytest.mark.parametrize("values", [[], 3])
def test_a_grid_without_a_list_of_values_is_refused(world: World, values: object) -> None:
    world.change("tables/toy.yaml", lambda t: t["rows"]["plain"].update(grid={"model.lr": values}))
    with pytest.raises(TableError, match=r"rows\.plain\.grid\.model\.lr is .*write a list"):
        read_table("toy")
