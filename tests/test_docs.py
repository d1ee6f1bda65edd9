"""README and docs/ hold what they say: links, commands, snippets, words, and the numbers of the picture."""

import json
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

import scripts.train
from committed import ROOT
from experiments.cluster.agree import agreed
from experiments.cluster.by_hand import take_options
from experiments.cluster.file import read_cluster
from experiments.plan.compose import Layers, compose
from experiments.plan.spec import read_table
from make_mlc import sparse_arff
from scripts.figures import dials as draw_dials

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str = "") -> list[str]:
    """The fenced blocks of a page in a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for kind, block in found if kind == language]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of the pages, by page, its words."""
    for page in PAGES:
        text = page.read_text()
        lines = "".join(blocks(text)).replace("\\\n", " ").splitlines()
        for line in lines + re.findall(r"`((?:make|python) [^`]+)`", text):
            yield page.name, shlex.split(line)


def test_the_readme_has_at_most_1200_words() -> None:
    assert len(README.split()) <= 1200


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / "results").glob("*.md")], ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    text = re.sub(r"`[^`]*`", "", page.read_text())
    found = re.findall(r"\]\((?!https?://)([^)#]+)\)", text)
    assert all((page.parent / link).exists() for link in found), found


def test_every_table_row_and_column_of_a_make_command_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    makefile, seen = (ROOT / "Makefile").read_text(), 0
    for page, (program, *words) in commands():
        if program != "make" or not words:
            continue
        assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), (page, words)
        given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        if "TABLE" in given and "<" not in given["TABLE"]:
            table = read_table(given["TABLE"])
            assert set(filter(None, given.get("ROWS", "").split(","))) <= table.rows.keys()
            assert set(filter(None, given.get("COLUMNS", "").split(","))) <= table.columns.keys()
            seen += 1
    assert seen > 4


def test_every_script_of_a_command_is_there() -> None:
    scripts_named = [words[2] for _, words in commands() if words[:2] == ["python", "-m"]]
    assert len(scripts_named) > 8
    for name in scripts_named:
        assert (ROOT / f"{name.replace('.', '/')}.py").exists(), name


TRAINING = [  # tests/test_adding.py trains those of adding.md
    (page, words[3:]) for page, words in commands() if words[2:3] == ["scripts.train"] and page != "adding.md"
]


@pytest.mark.parametrize(
    ("page", "words"), TRAINING, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_that_trains_is_understood(
    page: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    cluster, _, words = take_options(words)
    if cluster is not None:
        agreed(words, read_cluster(cluster))
    pairs = list(zip(words[::2], words[1::2], strict=True))
    files = tuple(value for key, value in pairs if key == "--config")
    settings = tuple((key.removeprefix("--"), value) for key, value in pairs if key != "--config")
    resolved = compose(Layers(files, settings))
    assert isinstance(resolved, dict), resolved


def test_the_readme_trains_on_arff_files_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (words,) = (words for page, words in TRAINING if page == "README.md" and "--data.train" in words)
    features, labels = (int(words[words.index(f"--data.num_{key}") + 1]) for key in ("features", "labels"))
    for part in ("train", "test"):
        file = words[words.index(f"--data.{part}") + 1]
        (tmp_path / file).write_text(sparse_arff(20, features, labels))
        words = [str(tmp_path / file) if word == file else word for word in words]
    short = ["--trainer.max_epochs", "1", "--run_dir", str(tmp_path / "run")]
    assert scripts.train.main([*words, *short]) == 0
    assert json.loads((tmp_path / "run" / "record.json").read_text())["epochs"] == 1


def test_the_python_of_the_readme_runs() -> None:
    (code,) = blocks(README, "python")
    exec(compile(code, "README.md", "exec"), {})


def test_the_first_table_of_the_readme_has_the_rows_and_columns_of_the_quickstart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    table = read_table("quickstart")
    lines = re.search(r"^\| method .*?(?=\n\n)", README, re.DOTALL | re.MULTILINE)
    assert lines
    cells = [line.strip("| ").split(" | ") for line in lines[0].splitlines()]
    assert cells[0] == ["method", table.columns["yeast"].label]
    assert [line[0] for line in cells[2:]] == [row.label for row in table.rows.values()]
    assert all(f"({len(table.seeds)}/{len(table.seeds)})" in line[1] for line in cells[2:])


def test_the_picture_of_the_readme_has_the_numbers_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tree = ET.parse(ROOT / "docs" / "dials.svg")
    (told,) = (node.text for node in tree.iter() if node.tag.endswith("}description"))
    drawn = json.loads(json.dumps(draw_dials.numbers()))
    assert json.loads(told or "") == drawn, "python -m scripts.figures.dials draws another picture"
