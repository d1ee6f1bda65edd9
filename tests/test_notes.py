"""Notes of tables: their references to records, and that every number in them has something behind it."""

import json
import re
import statistics
from pathlib import Path

import pytest
import yaml
from scipy import stats

from committed import committed
from experiments.errors import TableError
from experiments.page import findings, words
from experiments.page.index import PAPERS
from experiments.page.page import page_file
from experiments.page.references import ABSENT, References
from experiments.page.verdicts import ROOM
from experiments.plan.table import TABLES
from note_numbers import QUOTED, has, numbers, quotations, tables, texts, unsupported

RESULTS = Path("results/seal_mlc.jsonl")
FILLED = References()  # keeps what it has read of the committed records


@pytest.fixture(autouse=True)
def at_the_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables, records and pages as they are committed."""
    monkeypatch.chdir(root)


def values(row: str, metric: str = "test/example_f1") -> dict[int, float]:
    """Read from the file itself: a row's scores on Bibtex, by seed."""
    records = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    own = [r for r in records if (r["row"], r["column"]) == (row, "bibtex")]
    return {r["seed"]: 100 * r["metrics"][metric] for r in own}


def test_references_are_what_the_records_say() -> None:
    nce, ce = values("dynamic_nce"), values("ce")
    gaps = [nce[seed] - ce[seed] for seed in nce.keys() & ce.keys()]
    half = stats.t.ppf(0.975, len(gaps) - 1) * statistics.stdev(gaps) / len(gaps) ** 0.5
    mean = statistics.fmean(gaps)
    expected = {
        "dynamic_nce": f"{statistics.fmean(nce.values()):.2f}",
        "dynamic_nce - ce": f"{mean:.2f}",
        "dynamic_nce - ce : +.1f": f"{mean:+.1f}",
        "interval(dynamic_nce - ce)": f"[{mean - half:+.2f}, {mean + half:+.2f}]",
        "low(dynamic_nce - ce)": f"{mean - half:.2f}",
        "high(dynamic_nce - ce)": f"{mean + half:.2f}",
        "std(ce)": f"{statistics.stdev(ce.values()):.2f}",
        "least(ce)": f"{min(ce.values()):.2f}",
        "most(ce)": f"{max(ce.values()):.2f}",
        "count(ce)": str(len(ce)),
        "ce[1]": f"{ce[1]:.2f}",
        "ce @ val": f"{statistics.fmean(values('ce', 'val/example_f1').values()):.2f}",
        "ce @ test/map": f"{statistics.fmean(values('ce', 'test/map').values()):.2f}",
        "paper(dynamic_nce - ce)": "2.36",
        "paper(ce) - ce": f"{42.40 - statistics.fmean(ce.values()):.2f}",
    }
    assert {what: FILLED.fill(f"{{seal_mlc/bibtex/{what}}}") for what in expected} == expected


@pytest.mark.parametrize(
    "place", ["seal_mlc/bibtex/{}(dynamic_nce - ce)", "scaling_main/chunking/{}(ce_joint - unary)"]
)
def test_an_interval_of_two_seeds_says_so(place: str) -> None:
    table, column, what = place.format("").split("/")
    lines = map(json.loads, Path(f"results/{table}.jsonl").read_text().splitlines())
    seeds: dict[str, set[int]] = {}
    for record in lines:
        if record["column"] == column:
            seeds.setdefault(record["row"], set()).add(record["seed"])
    shared = set.intersection(*(seeds[row] for row in what.strip("()").split(" - ")))
    said = FILLED.fill(f"{{{place.format('interval')}}}")
    assert said.endswith(" (two seeds)") == (len(shared) == 2)


def test_what_rounds_to_zero_has_no_minus() -> None:
    table = next(t for t in tables() if t.name == "seal_mlc")
    assert [words.number(table, v, sign=True) for v in (-1e-7, 0, -0.01)] == ["+0.00", "+0.00", "-0.01"]
    assert words.number(table, -1e-7) == "0.00"


def test_a_verdict_in_prose_is_the_verdict_of_the_page() -> None:
    page = Path("results/seal_mlc.md").read_text()
    told = FILLED.fill("{seal_mlc/cal500/verdict(dynamic_nce > ce)}")
    verdicts = FILLED.of("seal_mlc").verdicts
    means = {v.claim.holds: v.state for v in verdicts if v.column == ""}
    others = [v for v in verdicts if v.column and v.state != means.get(v.claim.holds, v.state)]
    assert others  # the mean over columns is another claim
    for v in others:
        assert FILLED.fill(f"{{seal_mlc/{v.column}/verdict({v.claim.holds})}}") == v.state
    after = page.partition("(`dynamic_nce > ce`)")[2]
    assert f"CAL500: {told}" in after.partition("\n- ")[0]


def test_a_cell_without_runs_is_said_to_have_none() -> None:
    assert FILLED.fill("{seal_mlc/eurlexev/ce}") == ABSENT


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("seal_mlc/bibtex/dynamic_nec", "no row 'dynamic_nec'. Did you mean dynamic_nce"),
        ("seal_mlc/bibtx/ce", "no column 'bibtx'. Did you mean bibtex"),
        ("seal_mlc/bibtex/ce : 2d", "the format '2d'"),
        ("seal_mlc/bibtex/ce -", "cannot be read"),
        ("seal_mlc/bibtex/mean(ce)", "is none of"),
        ("seal_mlc/bibtex/verdict(ce > ce_5)", "no claim `ce > ce_5`"),
        (
            "seal_mlc/bibtex/ce @ test/exmaple_f1",
            "no run has the metric 'test/exmaple_f1'. Did you mean test/ex",
        ),
        ("bibtex/ce", "it names no table"),
        ("ce", "a place is column/row"),
    ],
)
def test_a_wrong_reference_is_named_with_its_file_and_line(reference: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "text.yaml"
    file.write_text(f"first\nsecond {{{reference}}}\n")
    with pytest.raises(TableError) as raised:
        FILLED.fill(file.read_text(), file)
    assert f"{file}:2: the reference {{{reference}}}: " in str(raised.value) and why in str(raised.value)


def test_every_number_in_a_note_has_something_behind_it() -> None:
    found = [fault for table in tables() for fault in unsupported(table)]
    assert not found, "write a reference such as {column/row} in place of each:\n" + "\n".join(found)


def test_no_note_refers_to_runs_that_are_not_there() -> None:
    for table in tables():
        page = Path(f"results/{table.name}.md")
        assert not page.exists() or ABSENT not in page.read_text(), f"{page} quotes a missing run"


def test_the_exceptions_have_files_and_are_in_use() -> None:
    files = set(committed("**"))
    written = {t.name: {n for _, text in texts(t) for n in numbers(text)} for t in tables()}
    for entry in quotations():
        file = Path(entry["file"])
        assert file in files, f"{QUOTED}: git has no {file}"
        for number in entry["numbers"]:
            assert has(file, number, entry.get("at")), f"{QUOTED}: {file} has no {number}"
            unused = [name for name in entry["tables"] if number not in written[name]]
            assert len(unused) < len(entry["tables"]), f"{QUOTED}: no note has {number} any more"


def test_numbers_are_found_in_prose_and_names_are_not() -> None:
    text = "F1 is 42.5 against -3 %, {a/b} and `7` of Table 9 (2018), seed 0, 2,417 rows, 1e-3 [x](y_1.md)."
    assert numbers(text) == ["42.5", "-3 %", "2,417", "1e-3"]


def test_the_page_of_findings_is_what_the_records_say() -> None:
    drawn = findings.drawn()
    assert ABSENT not in drawn
    assert drawn == findings.PAGE.read_text(), "python -m scripts.figures.findings draws another page"


def test_findings_count_the_claims_of_every_page_that_has_some() -> None:
    lines = re.findall(r"^\| \[(\w+)\]\(\S+\) \|((?: \d* \|){5})$", findings.PAGE.read_text(), re.M)
    counted = {name: sum(map(int, re.findall(r"\d+", cells))) for name, cells in lines}
    for name in (path.stem for path in TABLES.glob("*.yaml") if page_file(path.stem).exists()):
        page = FILLED.of(name)
        verdicts = [v for view in (page, *page.measures) for v in view.verdicts if not v.claim.ours]
        paper = page.table.source.get("paper") in PAPERS
        assert counted.get(name, 0) == (len(verdicts) if paper else 0), name


def test_the_prose_of_findings_has_no_number_of_its_own_but_the_rule_of_verdicts() -> None:
    tree = yaml.safe_load(findings.SOURCE.read_text())
    said = [tree["says"], *(part["says"] for part in (*tree["papers"], *tree["sections"]))]
    assert {n for text in said for n in numbers(text)} <= {"95 %", "5 %", f"{ROOM:g}"}


def test_each_verdict_of_findings_is_that_of_its_page() -> None:
    word = {found: state for states in (findings.FOUND, findings.OURS) for state, found in states.items()}
    lines = [line.split(" | ") for line in findings.PAGE.read_text().splitlines()]
    rows = [line for line in lines if len(line) > 3 and line[0].removeprefix("| ") in word]
    ours = {(t.name, c.holds) for t in tables() for c in t.claims if c.ours}
    for found, claim, cells, *_ in rows:
        label, _, rest = cells.removeprefix("[").partition("](../results/")
        own = (rest.partition(".md")[0], claim.strip("`")) in ours
        assert not own or found not in ("| reproduced", "| refuted")
        page = Path("results", rest.partition(")")[0]).read_text()
        blocks = [part.partition("\n- ")[0] for part in page.split(f"({claim}): ")[1:]]
        line = f"  - {label}: {word[found.removeprefix('| ')]}"
        assert any(line in block for block in blocks), (claim, cells)
    assert len(rows) > 80
