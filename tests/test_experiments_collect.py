"""A table is drawn when something changed, with what other tables ran, and names pages it made stale."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import toy_world
from experiments import store
from experiments.errors import UserError
from experiments.page import findings, page, render
from experiments.page.state import state_file
from experiments.plan.spec import read_table
from toy_world import World, fill

world = toy_world.world  # the fixture


def test_the_terminal_shows_the_same_numbers_in_any_width(world: World) -> None:
    fill()
    for width in (40, 80, 200):
        console = Console(file=io.StringIO(), width=width)
        render.render(read_table("toy"), console)
        said = console.file.getvalue()  # type: ignore[attr-defined]
        assert "52.00 ± 2.00 (3/2)" in said and "55.40" in said and "Lost" in said


def test_a_page_is_written_only_when_it_changes(world: World) -> None:
    fill()
    console = Console(file=io.StringIO())
    render.collect("toy", console)
    before = page.page_file("toy").stat().st_mtime_ns
    render.collect("toy", console)
    assert page.page_file("toy").stat().st_mtime_ns == before


def test_a_table_without_a_finished_run_has_no_page(world: World) -> None:
    with pytest.raises(UserError, match=r"toy has no finished run.*make reproduce TABLE=toy"):
        render.collect("toy", Console(file=io.StringIO()))
    assert not page.page_file("toy").exists()


def test_runs_that_another_table_made_since_are_drawn_too(world: World) -> None:
    theirs = {"id": "abc", "table": "other", "row": "its", "column": "own", "seed": 1}
    facts = {"metrics": {"test/example_f1": 0.5}, "seconds": 1, "device": "cpu", "cpu": "a core"}
    store.keep("other", [theirs | facts])
    store.write(state_file("toy"), json.dumps({"ids": {"plain/easy/1": "abc", "plain/easy/0": "def"}}))
    render.collect("toy", Console(file=io.StringIO()))
    (found,) = store.read_results("toy").records
    place = {"table": "toy", "row": "plain", "column": "easy", "seed": 1}
    assert found == theirs | place | facts
    text = page.page_file("toy").read_text()
    assert "50.00 (1/2)" in text


def drawn(table: str) -> str:
    console = Console(file=io.StringIO(), width=200)
    render.collect(table, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_page_that_changes_names_those_that_share_its_runs_or_quote_them(world: World) -> None:
    run = {"id": "abc", "table": "toy", "row": "plain", "column": "easy", "seed": 0}
    facts = {"metrics": {"test/example_f1": 0.5}, "seconds": 1, "device": "cpu", "cpu": "a core"}
    table = Path("conf/tables/toy.yaml").read_text()
    for name, quoted in (("shares", "nothing"), ("quotes", "{toy/easy/plain}"), ("neither", "nothing")):
        Path(f"conf/tables/{name}.yaml").write_text(table.replace("[Nothing here is real.]", f"['{quoted}']"))
        store.keep(name, [run | facts | {"id": name, "table": name, "seed": 1}])
        assert "To draw them again" not in drawn(name)
    store.write(state_file("shares"), json.dumps({"ids": {"plain/easy/0": "abc"}}))
    store.keep("toy", [run | facts])
    assert drawn("toy").endswith("again:\n  make table TABLE=quotes\n  make table TABLE=shares\n")
    assert "make table" not in drawn("toy")  # the page is as before
    for name in ("quotes", "shares"):
        drawn(name)
    store.keep("toy", [run | facts | {"metrics": {"test/example_f1": 0.6}}])
    assert drawn("toy").endswith("again:\n  make table TABLE=quotes\n")  # a copy keeps its old scores


def test_the_page_of_findings_is_named_where_it_would_be_drawn_differently(world: World) -> None:
    run = {"id": "abc", "table": "toy", "row": "plain", "column": "easy", "seed": 0}
    facts = {"seconds": 1, "device": "cpu", "cpu": "a core"}

    def with_score(score: float) -> str:
        store.keep("toy", [run | facts | {"metrics": {"test/example_f1": score}}])
        return drawn("toy")

    assert "findings" not in with_score(0.5)  # there are none
    Path("docs").mkdir()
    findings.SOURCE.write_text("{title: a, says: '{toy/easy/plain}', papers: [], sections: []}")
    findings.PAGE.write_text(findings.drawn())
    assert "60.00" not in findings.PAGE.read_text()
    assert with_score(0.6).endswith("again:\n  python -m scripts.figures.findings\n")
    findings.PAGE.write_text(findings.drawn())
    findings.SOURCE.write_text(findings.SOURCE.read_text().replace("{toy/easy/plain}", "nothing of it"))
    findings.PAGE.write_text(findings.drawn())
    assert "findings" not in with_score(0.7)
    for broken in ("{title: a", "title: a", "\xff"):
        findings.SOURCE.write_bytes(broken.encode("latin1"))
        assert "findings" not in with_score(0.1 * len(broken))
