"""A table's page is Markdown that says what it shows, whatever the texts in it; its state file is checked."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

import toy_world
from experiments import store
from experiments.errors import StoreError
from experiments.page import page, render
from experiments.page.state import read_state, state_file
from experiments.plan.spec import read_table
from scripts import reproduce
from toy_world import World

world = toy_world.world  # the fixture


def links(text: str) -> list[str]:
    """Where the links and images of a page lead, as a Markdown parser sees them."""
    parser = MarkdownIt("commonmark").enable("table")
    parser.validateLink = lambda address: True  # type: ignore[method-assign]  # it would drop javascript:
    inner = (token for block in parser.parse(text) for token in block.children or ())
    return [str(t.attrs["href" if t.type == "link_open" else "src"]) for t in inner if t.type in LINKS]


LINKS = ("link_open", "image")
ATTACKS = [
    "[a](javascript:alert(1))",
    "[a](data:text/html,x)",
    "[a [b](javascript:x)](x.md)",
    "[a](x (y) z)",
    "[a](<javascript:x>)",
    "[a\\\\](javascript:x)",
    "![a](https://example.org/a.png)",
    "[a]: javascript:x",
    "[a][b] [b]: javascript:x",
    "<javascript:x>",
    "[/b] [red]",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_text_of_a_table_or_a_record_makes_a_link_of_its_own(world: World, attack: str) -> None:
    def written(tree: dict[str, Any]) -> None:
        tree["title"] = tree["claims"][0]["says"] = attack
        tree["notes"] = [attack, f"see [the search](search.md) and [there](https://example.org/a) {attack}"]
        tree["rows"]["plain"]["label"] = tree["columns"]["easy"]["label"] = attack
        tree["columns"]["easy"]["note"] = attack
        tree["figures"] = [{"name": "f", "title": attack, "kind": "curves", "column": "easy"}]
        tree["figures"][0] |= {"rows": ["plain"], "curve": "val/m"}

    world.change("tables/toy.yaml", written)
    run = {"id": "a", "row": "plain", "column": "easy", "seed": 0, "metrics": {"test/example_f1": 0.5}}
    store.keep("toy", [run | {"device": "cpu", "cpu": attack, "curves": {"val/m": [1.0, 2.0]}}])
    store.write_json(store.run_dir("w0") / "progress.json", {"state": "failed", "reason": attack})
    store.write_json(state_file("toy"), {"ids": {"wild/easy/0": "w0"}})
    render.render(read_table("toy"), Console(file=io.StringIO(), width=200))
    text = page.page_file("toy").read_text()
    ours = {"search.md", "https://example.org/a", "toy_f.png"}
    mine = (
        {"https://example.org/a.png"} if attack.startswith("!") else {"x.md"} if "x.md" in attack else set()
    )
    assert ours <= set(links(text)) <= ours | mine
    assert text.count("![") - text.count("\\![") == 1  # the figure


@given(st.text("[]()!\\`<>:a.&|# \n", max_size=30) | st.text(max_size=30))
def test_no_text_makes_a_link_but_to_a_plain_address(text: str) -> None:
    for found in links(page.plain(f"[x{text}") + "\n\n- " + page.plain(text) + " [a]"):
        assert re.fullmatch(r"(https?://)?[\w./#%-]+", found)
    assert not links(f"[{page.label(text)}")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"ids": ["a"]}', r"ids is \['a'\]"),
        (b'{"ids": {"plain/easy": "a"}}', "ids.plain/easy is 'plain/easy'; it has to be row/column/seed"),
        (b'{"ids": {"plain/easy/x": "a"}}', "it has to be row/column/seed"),
        (b'{"ids": {"plain/easy/0": "../../etc"}}', r"ids.plain/easy/0 is '\.\./\.\./etc'"),
        (b'{"missing": {"easy": 7}}', "missing.easy is 7"),
        (b'{"missing": {"' + b"x" * 100_000 + b'": 7}}', r"missing.x+\.\.\. is 'xxx"),
        (b"[]", "it is cut off, or no JSON"),
        (b'{"ids', "it is cut off, or no JSON"),
        (b"\xff", "it is cut off, or no JSON"),
        (b"[" * 100_000, "it is cut off, or no JSON"),
    ],
)
def test_a_damaged_state_file_is_refused_by_its_name_and_key(world: World, content: bytes, says: str) -> None:
    path = state_file("toy")
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"^results/toy\.cells\.json: .*{says}.*delete it") as error:
        read_state("toy")
    assert len(str(error.value)) < 1000
    code, said = world.reproduce("--collect")
    assert code == 2 and "results/toy.cells.json" in said


def test_a_page_that_is_no_text_is_drawn_anew(world: World) -> None:
    page.page_file("toy").parent.mkdir()
    page.page_file("toy").write_bytes(b"\xff")
    assert world.reproduce("--collect")[0] == 0
    assert page.page_file("toy").read_text().startswith("# A toy table")


def test_a_wrong_reference_in_a_note_is_told_before_anything_is_trained(world: World) -> None:
    world.table(plain={"note": "the mean is {easy/plian}"})
    code, said = world.reproduce()
    assert code == 2 and "conf/tables/toy.yaml:" in said and "no row 'plian'. Did you mean plain" in said
    assert not world.records()


def test_a_table_elsewhere_names_its_own_file_and_command(world: World) -> None:
    world.table(plain={"note": "the mean is {easy/plain}"})
    Path("mine").mkdir()
    file = Path("conf/tables/toy.yaml").rename("mine/own.yaml")
    said = io.StringIO()
    assert reproduce.main([str(file)], Console(file=said, width=200)) == 0, said.getvalue()
    assert "Made by `make reproduce TABLE=mine/own.yaml`." in Path("results/own.md").read_text()
    file.write_text(file.read_text().replace("{easy/plain}", "{eesy/plain}"))
    assert reproduce.main([str(file), "--collect"], Console(file=said, width=200)) == 2
    assert re.search(
        r"^mine/own\.yaml:\d+: the reference \{eesy/plain\}: no column 'eesy'", said.getvalue(), re.M
    )


def test_a_metric_that_no_finished_run_has_is_told(world: World) -> None:
    world.table(plain={})
    assert world.reproduce()[0] == 0
    world.change("tables/toy.yaml", lambda t: t["metric"].update(name="test/exmaple_f1"))
    code, said = world.reproduce("--collect")
    assert (
        code == 0 and "conf/tables/toy.yaml: no finished run has the metric test/exmaple_f1. Did you" in said
    )


def test_a_curve_that_no_finished_run_has_is_told(world: World) -> None:
    world.table(plain={})
    figure = {"name": "f", "title": "", "kind": "curves", "column": "easy", "rows": ["plain"]}
    world.change("tables/toy.yaml", lambda t: t.update(figures=[figure | {"curve": "val/exmaple_f1"}]))
    code, said = world.reproduce()
    assert code == 0 and "no finished run of its rows has the curve val/exmaple_f1. They have val/" in said
