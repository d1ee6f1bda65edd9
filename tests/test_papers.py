"""docs/papers.md leads from the papers to the code: every name is there, no equation is left out."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from committed import ROOT
from scripts.check_size import SCIENCE

PAGE = (ROOT / "docs" / "papers.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
HAS = {  # equations, algorithms, tables
    "SEAL": (10, 1, 4),
    "Scaling": (21, 1, 4),
    "InfNet+": (9, 0, 4),
    "Implicit": (13, 1, 10),
}
MOST = {  # files that a reader opens
    "SEAL-dynamic with NCE": 6,
    "A scaled CRF": 6,
    "InfNet, stacked": 7,
    "Implicit, contrastive": 7,
}
PATHS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", SECTIONS["Four paths"], re.DOTALL | re.MULTILINE))
NAME = r"`([\w/]+\.py)::([\w.]+)`"


def names(path: Path) -> set[str]:
    """Functions, classes and what these have: `f`, `C`, `C.method`, `C.attribute`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (n for n in node.body if isinstance(n, ast.FunctionDef))
            found |= {f"{node.name}.{n.name}" for n in inner}
    return found


def test_every_name_on_the_page_is_in_its_file() -> None:
    found = re.findall(NAME, PAGE)
    assert len(found) > 100
    missing = [f"{path}::{name}" for path, name in found if name not in names(ROOT / path)]
    assert not missing
    assert all((ROOT / path).exists() for path in re.findall(r"`(conf/[\w/.]+)`", PAGE))


@pytest.mark.parametrize("paper", HAS)
def test_every_equation_algorithm_and_table_of_a_paper_has_a_row(paper: str) -> None:
    rows = {line.split("|")[1].strip() for line in SECTIONS[paper].splitlines() if line.startswith("|")}
    for kind, count in zip(("eq.", "algorithm", "table"), HAS[paper], strict=True):
        assert {f"{kind} {n}" for n in range(1, count + 1)} <= rows


def cited(text: str) -> set[tuple[str, int]]:
    """The equations that brackets in a text cite: [SEAL eqs. 6-9], [Scaling eq. 1; InfNet+ eq. 7]."""
    found = set()
    for part in (p for inner in re.findall(r"\[([^\]]*)\]", text) for p in inner.split(";")):
        paper = re.match(r"\s*(SEAL|Scaling|InfNet\+|Implicit)(?!\w)", part)
        for numbers in re.findall(r"\beqs?\. ([\d, -]*\d)", part) if paper else ():
            ranges = [[int(n) for n in some.split("-")] for some in re.split(r",\s*", numbers)]
            found |= {(paper[1], n) for some in ranges for n in range(some[0], some[-1] + 1)}
    return found


def test_every_equation_that_a_docstring_cites_is_on_the_page() -> None:
    assert cited("[SEAL eqs. 6-9] [Scaling eq. 1, §4; InfNet+ eqs. 4, 6; l_0]") == {
        *(("SEAL", n) for n in (6, 7, 8, 9)),
        ("Scaling", 1),
        ("InfNet+", 4),
        ("InfNet+", 6),
    }
    every = {c for room in SCIENCE for path in (ROOT / room).rglob("*.py") for c in cited(path.read_text())}
    assert len(every) > 20
    rows = {paper: set(re.findall(r"^\| eq\. (\d+) ", SECTIONS[paper], re.MULTILINE)) for paper in HAS}
    assert not {(paper, n) for paper, n in every if str(n) not in rows[paper]}


def source(path: str, name: str) -> str:
    """The text of a class, a method or a function."""
    text = (ROOT / path).read_text()
    body = ast.parse(text).body
    for part in name.split("."):
        node = next(n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part)
        body = node.body
    return ast.get_source_segment(text, node) or ""


@pytest.mark.parametrize("path", MOST)
def test_a_reader_opens_few_files_from_the_training_step_to_the_last_formula(path: str) -> None:
    steps = re.findall(NAME, PATHS[path])
    assert steps[0][1].endswith(".training_step")
    files = {file for file, _ in steps}
    assert 3 <= len(files) <= MOST[path]


@pytest.mark.parametrize("path", MOST)
def test_each_step_of_a_path_is_named_by_one_before_it_or_by_a_config(path: str) -> None:
    steps = re.findall(NAME, PATHS[path])
    scheme = steps[0][1].split(".")[0]
    configs = re.findall(r"`(conf/[\w/.]+)`", PATHS[path])
    chosen = "".join((ROOT / name).read_text() for name in configs)
    read = (ROOT / steps[0][0]).read_text()
    for before, (_, name) in pairwise(steps):
        read += source(*before)
        owner, _, last = name.rpartition(".")
        assert owner == scheme or re.search(rf"\b{last}\b", read) or f".{name.split('.')[0]}" in chosen, name


SECTIONS_OF = {  # as numbered in the papers; the text of Implicit at hand has no numbers below its sections
    "SEAL": ["2.1", "2.2", "2.3", "4.1", "4.2", "4.3", "4.4", *"1234567"],
    "Scaling": ["4.1", "4.2", "5.1", "5.2", "6.1", "6.2", *"1234567"],
    "InfNet+": ["3.1", "4.1", "4.2", "4.3", *"123456789"],
    "Implicit": [*"12345"],
}


def test_a_cited_section_is_one_of_its_paper() -> None:
    files = [path for room in SCIENCE for path in (ROOT / room).rglob("*.py")]
    strange = []
    for path in [*files, *(ROOT / "conf").rglob("*.yaml"), ROOT / "docs" / "papers.md"]:
        for inner in re.findall(r"\[([^\]]*)\]", path.read_text()):
            for part in inner.split(";"):
                if paper := re.match(r"\s*(SEAL|Scaling|InfNet\+|Implicit)(?!\w)", part):
                    found = re.findall(r"§ ?(\d(?:\.\d)?)", part)
                    strange += [(path.name, part) for n in found if n not in SECTIONS_OF[paper[1]]]
    assert not strange
