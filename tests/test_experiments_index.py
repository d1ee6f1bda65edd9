"""The list of all pages and what a table counts: hours left, runs beyond the plan, the best rows."""

import io
import shutil

import pytest
from rich.console import Console

import toy_world
from experiments import store
from experiments.page import index, page, render
from experiments.page.summary import summarise
from experiments.plan.spec import read_table
from toy_world import World, fill

world = toy_world.world  # the fixture


def test_the_list_says_how_long_the_missing_runs_take_one_core(world: World) -> None:
    fill({"plain": [0.50], "taught": [0.61, 0.61]})
    lost = {"id": "l", "row": "plain", "column": "lost", "seed": 0, "metrics": {}, "seconds": 7200}
    store.keep("toy", [lost | {"device": "cpu"}])
    on_gpu = {"id": "g", "row": "wild", "column": "easy", "seed": 0, "metrics": {}, "seconds": 60}
    store.keep("toy", [on_gpu | {"device": "NVIDIA H200"}])
    # plain: 1 hour of easy, 2 of lost; two of taught on lost, one run of wild, two of after
    assert index.hours_left(summarise(read_table("toy"))) == "3.0 + 5 not known"
    fill({"plain": [0.50, 0.52], "wild": [0.1, 0.1], "after": [0.1, 0.1]})
    assert index.hours_left(summarise(read_table("toy"))) == "2.0 + 2 not known"
    world.change("tables/toy.yaml", lambda tree: tree["columns"]["lost"].update(unavailable="not public"))
    assert index.hours_left(summarise(read_table("toy"))) == ""
    world.change("tables/toy.yaml", lambda tree: tree["columns"]["lost"].pop("unavailable"))
    (short,) = [r for r in store.read_results("toy").records if r["column"] == "lost"]
    store.keep("toy", [short | {"seconds": 9}])
    assert index.hours_left(summarise(read_table("toy"))) == "< 0.1 + 2 not known"
    world.table(plain={}, taught={})  # easy alone, and all of it is there
    assert index.hours_left(summarise(read_table("toy"))) == ""


def test_runs_beyond_the_plan_are_told_as_such(world: World) -> None:
    fill({"plain": [0.50, 0.52, 0.54, 0.52], "taught": [0.61]})
    summary = summarise(read_table("toy"))  # it plans two seeds
    assert "52.00 ± 1.63 (4/2)" in page.markdown(summary)
    assert "| 3/12 + 2 |" in index.line(summary, "toy")


@pytest.mark.parametrize(
    ("plain", "taught", "best"),
    [
        ([0.70, 0.10, 0.10], [0.61, 0.61, 0.64], ["taught"]),
        ([0.70, 0.60, 0.10], [0.61, 0.61], ["plain"]),  # by two seeds, though its mean is 0.47
        ([0.70], [0.61], ["plain"]),
        ([0.70, 0.10, 0.10], [0.61], []),  # one seed in common decides nothing
        ([0.70, 0.70], [0.70001, 0.70], ["plain", "taught"]),  # both print 70.00
    ],
)
def test_the_best_are_those_of_the_seeds_that_all_rows_have(
    world: World, plain: list[float], taught: list[float], best: list[str]
) -> None:
    fill({"plain": plain, "taught": taught})
    assert summarise(read_table("toy")).best("easy") == best


def test_the_list_names_tables_that_are_only_planned(world: World) -> None:
    table = world.folder / "conf/tables/toy.yaml"
    for name in ("seal_here", "seal_later", "first_look"):
        shutil.copy(table, table.with_stem(name))
    world.change("tables/seal_here.yaml", lambda tree: tree["source"].update(paper="seal"))
    store.keep("seal_here", [{"id": "a", "row": "plain", "column": "easy", "seed": 0, "metrics": {}}])
    render.render(read_table("seal_here"), Console(file=io.StringIO()))
    text = index.path().read_text()
    assert "Planned, not begun: [seal_later](../conf/tables/seal_later.yaml)." in text
    assert "first_look" not in text
