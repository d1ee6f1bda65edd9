"""Measures of a table: its cells through another number, and none of what the runs do not have."""

from typing import Any

import pytest
import yaml

import toy_world
from experiments import store
from experiments.errors import TableError
from experiments.page import page
from experiments.page.intervals import Sample
from experiments.page.summary import Summary, summarise
from experiments.plan.spec import read_table
from toy_world import World, fill

world = toy_world.world  # the fixture


def summary() -> Summary:
    return summarise(read_table("toy"))


def test_a_measure_is_the_same_table_through_another_number_with_the_papers_beside_it(world: World) -> None:
    measure = {
        "title": "Hours",
        "metric": {"name": "seconds", "scale": 1 / 3600, "digits": 1, "better": "lower"},
        "reported": {"plain": {"easy": 3}},
        "claims": [{"says": "teaching takes as long", "holds": "taught <= plain"}],
    }
    world.change("tables/toy.yaml", lambda t: t.update(measures=[measure]))
    fill()
    (hours,) = summary().measures
    assert hours.cells["plain", "easy"].ours == Sample(1.0, 0.0, 3)
    assert [v.state for v in hours.verdicts if v.column == "easy"] == ["level"]  # an hour each
    text = page.markdown(summary())
    assert "- teaching takes as long (`taught <= plain`): 1 level" in text
    assert "## Hours" in text and "1.0 ± 0.0 (3/2) [-2.0]" in text.split("## Hours")[1]


def test_a_measure_may_be_of_some_rows_alone(world: World) -> None:
    measure: dict[str, Any] = {"metric": {"name": "seconds"}, "rows": ["plain"]}
    world.change("tables/toy.yaml", lambda t: t.update(measures=[measure]))
    fill()
    (seconds,) = summary().measures
    assert [*seconds.table.rows] == ["plain"] and {row for row, _ in seconds.cells} == {"plain"}
    measure["rows"] = ["plian"]
    world.change("tables/toy.yaml", lambda t: t.update(measures=[measure]))
    with pytest.raises(TableError, match=r"measures\[0\].rows.*plian.*Did you mean plain"):
        summary()


def test_a_column_of_a_measure_may_have_a_metric_of_its_own(world: World) -> None:
    measure: dict[str, Any] = {"metric": {"name": "test/accuracy"}, "columns": {"easy": "test/example_f1"}}
    world.change("tables/toy.yaml", lambda t: t.update(measures=[measure]))
    fill()
    assert summary().measures[0].cells["plain", "easy"].ours == Sample(
        pytest.approx(0.52), pytest.approx(0.02), 3
    )
    measure["columns"] = {"eazy": "test/f1"}
    world.change("tables/toy.yaml", lambda t: t.update(measures=[measure]))
    with pytest.raises(TableError, match=r"measures\[0\].columns.*eazy.*Did you mean easy"):
        summary()


def test_a_measure_leaves_out_what_finished_runs_do_not_have_and_says_so_in_the_rest(world: World) -> None:
    def declare(tree: dict[str, Any]) -> None:
        tree["columns"]["other"] = tree["columns"]["easy"] | {"label": "Other"}
        tree["rows"]["alone"] = tree["rows"]["plain"] | {"label": "alone", "columns": ["other"]}
        tree["measures"] = [{"title": "Extra", "metric": {"name": "test/extra"}}]

    world.change("tables/toy.yaml", declare)
    for row in ("plain", "taught"):
        for column in ("easy", "other"):
            extra = {"test/extra": 0.5} if (row, column) == ("plain", "easy") else {}
            record = {"id": row + column, "row": row, "column": column, "seed": 0}
            store.keep("toy", [record | {"metrics": {"test/example_f1": 0.6} | extra}])
    found = page.markdown(summary()).split("## Extra")[1].split("## ")[0]
    assert "| method | Easy <sup>(1)</sup> | Lost |" in found  # no run of the other column has it
    assert "| plain | **0.50" in found or "| plain | 0.50" in found
    assert "| taught | not measured | - (0/2) |" in found
    assert "| alone |" not in found and "| alone | " in page.markdown(summary()).split("## Extra")[0]


def test_a_callback_that_takes_a_measure_is_of_its_rows_in_every_table_that_shows_them(world: World) -> None:
    taken = {"metric": {"name": "test/extra"}, "rows": ["plain"], "by": "toy.Extra"}
    world.change("tables/toy.yaml", lambda t: t.update(measures=[taken, taken | {"title": "again"}]))
    lent = {"plain": "toy", "taught": "toy"}
    (world.folder / "conf/tables/other.yaml").write_text(
        yaml.safe_dump(
            {"title": "o", "metric": {"name": "m"}, "seeds": [0], "columns": {"easy": "toy"}, "rows": lent}
        )
    )
    extra = {"class_path": "toy.Extra"}
    for table in ("toy", "other"):
        rows = read_table(table).rows
        assert rows["plain"].set == {"trainer.callbacks+": [extra]}
        assert "trainer.callbacks+" not in rows["taught"].set
    world.change("tables/toy.yaml", lambda t: t.update(measures=[{k: taken[k] for k in ("metric", "by")}]))
    with pytest.raises(TableError, match=r"measures\[0\].*rows"):
        read_table("toy")


def test_a_row_keeps_its_own_callbacks_beside_that_of_a_measure(world: World) -> None:
    own = {"class_path": "toy.Own"}
    taken = {"metric": {"name": "test/extra"}, "rows": ["plain"], "by": "toy.Extra"}

    def declare(tree: dict[str, Any]) -> None:
        tree["measures"] = [taken]
        tree["rows"]["plain"]["set"] = {"trainer.callbacks+": [own]}

    world.change("tables/toy.yaml", declare)
    assert read_table("toy").rows["plain"].set == {"trainer.callbacks+": [own, {"class_path": "toy.Extra"}]}
    world.change("tables/toy.yaml", lambda t: t["rows"]["plain"].update(set="wrong"))
    with pytest.raises(TableError, match=r"rows\.plain\.set"):
        read_table("toy")
