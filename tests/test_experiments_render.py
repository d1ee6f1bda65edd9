"""Summary, claims and pages: right numbers, honest gaps, and no torch."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import toy_world
from committed import committed
from experiments import store
from experiments.errors import TableError
from experiments.page import index, page
from experiments.page.intervals import Sample
from experiments.page.references import References
from experiments.page.state import state_file
from experiments.page.summary import Summary, number, summarise
from experiments.plan.claims import ClaimError, holds, read_claim
from experiments.plan.spec import read_table
from experiments.sweep.file import read_sweep
from experiments.sweep.page import collect as collect_sweep
from toy_world import HERE, World, fill

world = toy_world.world  # the fixture


def test_seconds_an_epoch_are_those_of_one_update_a_batch() -> None:
    run = {"metrics": {}, "seconds": 60.0, "epochs": 4}
    assert (
        number(run, "seconds_per_epoch")
        == number(run | {"updates": {"task": 100}}, "seconds_per_epoch")
        == 15
    )
    both = run | {"updates": {"task": 100, "energy": 50}}  # the energy rests in the first two epochs
    assert number(both, "seconds_per_epoch") == 10
    assert number(run | {"epochs": 0}, "seconds_per_epoch") is None


def test_a_training_curve_is_its_mean_or_what_follows_the_chosen_epoch() -> None:
    curves = {"energy": [1.0, 5.0, 3.0, 3.0], "ratio": [1.0] * 32, "hinge": [1.0], "nan": [0.0] * 3 + [None]}
    run = {"metrics": {}, "epochs": 4, "best_epoch": 1, "curves": curves}
    assert (number(run, "curves.energy"), number(run, "after.energy")) == (3.0, -2.0)
    assert number(run, "curves.other") is None
    for name in ("other", "ratio", "hinge", "nan"):  # none, several an epoch, of one phase, no number
        assert number(run, f"after.{name}") is None


def summary(**state: Any) -> Summary:
    return summarise(read_table("toy"), state)


def test_a_cell_holds_mean_sample_deviation_counts_and_the_difference_to_the_paper(world: World) -> None:
    fill()
    cell = summary().cells["plain", "easy"]
    assert cell.ours == Sample(pytest.approx(52.0), pytest.approx(2.0), 3)
    assert cell.difference == pytest.approx(-8.0)
    # the paper's side counts as ten runs; its 1.5 is their deviation, or the error of their mean
    assert cell.chances() == pytest.approx((0.0103, 0.0023), abs=1e-4) and cell.stars == "**"
    text = page.markdown(summary())
    assert "52.00 ± 2.00 (3/2) [-8.00\\*\\*]<br>" in text and "60.00 ± 1.50" in text
    assert "**62.00 ± 1.73 (3/2)**" in text  # our best is bold


def test_a_column_without_a_config_shows_the_papers_numbers_and_judges_no_claim(world: World) -> None:
    def declare(tree: dict[str, Any]) -> None:
        tree["columns"]["later"] = {"label": "Later", "unavailable": "not yet here"}
        tree["reported"]["taught"] = {"later": [70.0, 1.0]}
        tree["reported"]["plain"]["later"] = [60.0, 1.0]
        tree["claims"] = [{"says": "teaching helps", "holds": "taught > plain", "on": ["later"]}]

    world.change("tables/toy.yaml", declare)
    found = summary()
    assert not read_table("toy").has("plain", "later")
    assert [v.state for v in found.verdicts] == ["not yet"]
    text = page.markdown(found)
    assert "70.00 ± 1.00" in text and "not yet here" in text


def test_a_ratio_of_rows_is_a_mean_over_columns_beside_the_papers(world: World) -> None:
    ratio = {"says": "gain", "of": "taught", "to": "plain", "reported": 3.5}
    world.change("tables/toy.yaml", lambda t: t.update(ratios=[ratio]))
    assert "gain" not in page.markdown(summary())
    fill()
    ours = f"gain: {62 / 52:.2f} (taught / plain, mean over 1 column; the paper"
    assert f"{ours} over all of its columns: 3.50)" in page.markdown(summary())
    world.change("tables/toy.yaml", lambda t: t["reported"].update(taught={"easy": 66.0, "lost": 90.0}))
    assert f"{ours}: 1.10 over the same; the paper over all of its columns: 3.50)" in page.markdown(summary())
    world.change("tables/toy.yaml", lambda t: t.update(ratios=[ratio | {"to": "plane"}]))
    with pytest.raises(TableError, match="no row 'plane'"):
        read_table("toy")


def test_a_column_may_have_a_metric_of_its_own(world: World) -> None:
    world.change("tables/toy.yaml", lambda t: t["columns"]["easy"].update(metric="test/f1"))
    fill()
    assert summary().cells["plain", "easy"].ours is None
    store.keep("toy", [{"id": "z", "row": "plain", "column": "easy", "seed": 9, "metrics": {"test/f1": 0.3}}])
    assert summary().cells["plain", "easy"].ours == Sample(pytest.approx(30.0), None, 1)
    assert "metric `test/f1`, `test/example_f1` x 100" in page.markdown(summary())


def test_one_run_has_no_deviation_and_no_test(world: World) -> None:
    fill({"plain": [0.5]})
    cell = summary().cells["plain", "easy"]
    assert cell.ours == Sample(50.0, None, 1) and cell.chances() == (None, None)
    assert "50.00 (1/2) [-10.00]" in page.markdown(summary())


def test_a_cell_without_runs_is_drawn_empty_never_as_zero(world: World) -> None:
    text = page.markdown(summary(missing={"lost": "nowhere.arff is not there"}))
    assert "| plain | - (0/2)<br>" in text and "0.00" not in text.replace("60.00", "").replace("30.00", "")
    assert "missing<br>" in text and "Missing: nowhere.arff is not there" in text


def test_the_page_escapes_what_could_be_html_and_greys_what_is_cited(world: World) -> None:
    world.change("tables/toy.yaml", lambda t: t["rows"]["plain"].update(label="a|b <script>"))
    text = page.markdown(summary())
    assert "<script>" not in text and "<b>" not in text
    assert "a\\|b &lt;script&gt;" in text and "generated &lt;b&gt;data&lt;/b&gt;" in text
    assert '<i style="color:gray">Somebody 2009</i> | <i style="color:gray">55.40</i>' in text


def test_failed_runs_notes_and_effort_stand_on_the_page(world: World) -> None:
    fill(commit="0123456789abcdef", dirty=True, versions={"torch": "2.13.0"})
    store.write_json(store.run_dir("w0") / "progress.json", {"state": "failed", "reason": "it is <NaN>"})
    text = page.markdown(summary(ids={"wild/easy/0": "w0"}))
    assert "wild / easy / 0: it is &lt;NaN&gt;" in text and "Nothing here is real." in text
    assert "6 runs, 6.0 hours of training on a core; torch 2.13.0; commits 012345678+" in text


def test_a_record_of_an_earlier_config_is_marked(world: World) -> None:
    fill({"plain": [0.5, 0.5]})
    cell = summary(ids={"plain/easy/0": "plain0", "plain/easy/1": "another"}).cells["plain", "easy"]
    assert cell.stale == 1 and "(2/2)†" in page.markdown(summary(ids={"plain/easy/1": "another"}))


def test_a_reference_knows_a_record_of_an_earlier_config(world: World) -> None:
    fill({"plain": [0.5]})
    for run, stale in (("plain0", 0), ("another", 1)):
        store.write_json(state_file("toy"), {"ids": {"plain/easy/0": run}})
        assert References().of("toy").cells["plain", "easy"].stale == stale


def test_claims_hold_fail_or_wait_with_their_intervals(world: World) -> None:
    fill()
    states = {(v.claim.says, v.column): v for v in summary().verdicts}
    assert states["teaching helps", "easy"].state == "holds"
    assert states["teaching helps", "lost"].state == "not yet"
    assert states["by a lot", "easy"].state == "fails"
    text = page.markdown(summary())
    # seed by seed 11, 9 and 10 more: t = 10 / (1 / sqrt(3)), two degrees of freedom; 4.303 / sqrt(3) = 2.48
    said = "taught 62.00, plain 52.00; taught - plain +10.00 [+7.52, +12.48], 3 pairs, p = "
    assert f"Easy: holds ({said}0.0033; 1 seed beyond the plan, undecided without them)" in text
    assert f"Easy: fails ({said}5.2e-05; 1 seed beyond the plan)" in text
    assert "not yet: Lost (no taught or plain)" in text
    assert "Among the 2 differences with an interval the false-discovery rate is kept at 5 %" in text


def test_rows_with_other_seeds_are_compared_on_those_that_all_have(world: World) -> None:
    fill()
    before = next(v for v in summary().verdicts if v.column == "easy")
    assert before.seeds is None
    metrics = {"test/example_f1": 0.99}
    store.keep("toy", [{"id": "more", "row": "plain", "column": "easy", "seed": 7, "metrics": metrics}])
    after = next(v for v in summary().verdicts if v.column == "easy")
    assert (after.numbers, after.p, after.state) == (before.numbers, before.p, before.state)
    said = "p = 0.0033; 1 seed beyond the plan, undecided without them; of the seeds that all have: 0, 1, 2)"
    assert said in page.markdown(summary())


def test_one_seed_never_decides(world: World) -> None:
    fill({"plain": [0.1], "taught": [0.9]})
    verdict = next(v for v in summary().verdicts if v.column == "easy")
    assert (verdict.state, verdict.p, verdict.needed) == ("undecided", None, None)
    assert "Easy: undecided, one seed (taught 90.00, plain 10.00)" in page.markdown(summary())


def test_counts_of_parameters_need_no_seeds(world: World) -> None:
    counts = {"metric": {"name": "trained_parameters"}, "claims": [{"holds": "taught > plain"}]}
    world.change("tables/toy.yaml", lambda t: t.update(measures=[counts]))
    for row, count in (("plain", 10), ("taught", 11)):
        known = {"id": row, "row": row, "column": "easy", "seed": 0, "metrics": {"test/example_f1": 0.5}}
        store.keep(
            "toy", [known | {"trained_parameters": count, "seconds": 1, "device": "cpu", "cpu": "a core"}]
        )
    assert summary().measures[0].verdicts[0].state == "holds"


def test_cells_below_the_floor_are_marked(world: World) -> None:
    world.change("tables/toy.yaml", lambda t: t["rows"]["plain"].update(label="floor: plain"))
    fill({"plain": [0.5, 0.5], "taught": [0.4, 0.5], "wild": [0.6, 0.6]})
    text = page.markdown(summary())
    assert "45.00 ± 7.07 (2/2)§" in text and text.count("§") == 2  # the mark, and what it means
    assert "§: below the floor of its column" in text
    fill({"plain": [0.6, 0.6], "taught": [0.7, 0.7], "wild": [0.7, 0.7]})
    assert summary().cells["cited", "easy"].below  # 55.4, from a paper


def test_a_claim_about_means_over_columns_waits_for_all_of_them(world: World) -> None:
    world.change(
        "tables/toy.yaml", lambda t: t["claims"].append({"holds": "taught > plain", "across": "mean"})
    )
    fill()
    assert summary().verdicts[-1].state == "not yet"
    for row, value in (("plain", 0.1), ("taught", 0.3)):
        metrics = {"test/example_f1": value}
        record = {"id": f"{row}l", "row": row, "column": "lost", "seed": 0, "metrics": metrics}
        store.keep("toy", [record])
    verdict = summary().verdicts[-1]
    assert (verdict.state, verdict.numbers) == ("undecided", {"taught": 45.5, "plain": 30.0})
    assert verdict.seeds == (0,)  # the one that all cells have


def test_a_claim_may_speak_of_a_cited_row(world: World) -> None:
    claim = {"holds": "plain < cited", "on": ["easy"]}
    world.change("tables/toy.yaml", lambda t: t["claims"].append(claim))
    fill()
    assert summary().verdicts[-1].numbers == {"plain": pytest.approx(52.0), "cited": 55.4}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > b", True),
        ("a >= b + 2", False),
        ("b < a < 5", True),
        ("max(a, b) == 3", None),
        ("min(a, b) * 2 > -1", True),
        ("a - b > 0.5", True),
    ],
)
def test_a_claim_is_arithmetic_on_rows(text: str, expected: bool | None) -> None:
    if expected is None:
        with pytest.raises(ClaimError):
            read_claim({"holds": text}, ["a", "b"], ["c"])
    else:
        assert holds(read_claim({"holds": text}, ["a", "b"], ["c"]), {"a": 3.0, "b": 2.0}) is expected


@pytest.mark.parametrize(
    "text", ["__import__('os')", "a > open('x')", "a.real > b", "[a] > b", "a > b if a else b"]
)
def test_a_claim_is_nothing_but_arithmetic(text: str) -> None:
    with pytest.raises(ClaimError):
        read_claim({"holds": text}, ["a", "b"], ["c"])


@pytest.fixture
def clone(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository as a clean clone has it, without folders of runs and results of a user's own."""
    monkeypatch.chdir(root)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no", "conf", "results"],
        capture_output=True,
        text=True,
        check=False,
    )
    if changed.returncode or changed.stdout:
        pytest.skip("conf/ or results/ has changes that are not committed, or there is no git to tell")
    (tmp_path / "results").mkdir()
    for path in committed("results/*"):
        shutil.copy(path, tmp_path / path)
    monkeypatch.setattr(store, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(store, "RUNS", tmp_path / "runs")


@pytest.mark.usefixtures("clone")
def test_committed_figures_are_of_the_runs_as_recorded() -> None:
    figures, known = sorted(store.RESULTS.glob("interactions_*.json")), store.finished()
    for path in figures:
        told = json.loads(path.read_text())
        assert told["finished"] == known[told["run"]]["finished"], (
            f"{path} is of another training: draw it again"
        )
    assert len(figures) == 3


@pytest.mark.usefixtures("clone")
def test_a_run_has_the_same_scores_in_every_table() -> None:
    scores: dict[str, list[dict[str, float]]] = {}
    for table in store.tables():
        for record in store.read_results(table).records:
            of_answers = {k: v for k, v in record["metrics"].items() if not k.endswith("per_second")}
            scores.setdefault(record["id"], []).append(of_answers)
    assert not [run for run, found in scores.items() if any(other != found[0] for other in found)]


@pytest.mark.usefixtures("clone")
def test_committed_pages_are_what_the_committed_records_draw() -> None:
    sweeps = store.RESULTS.glob("*.trials.json")
    swept = [store.RESULTS / f"{path.name.partition('.')[0]}.md" for path in sweeps]
    pages = sorted(path for path in store.RESULTS.glob("*.md") if path not in (index.path(), *swept))
    known, lines = store.finished().keys(), {}
    for name in (path.stem for path in pages):
        table, state = read_table(name), store.read_json(state_file(name))
        assert state, f"{state_file(name)} is not committed"
        own = {f"{r['row']}/{r['column']}/{r['seed']}": r["id"] for r in store.read_results(name).records}
        shared = {
            place for place, run_id in state["ids"].items() if run_id in known and own.get(place) != run_id
        }
        assert not shared, f"make table TABLE={name} brings in {', '.join(sorted(shared))}"
        summary = summarise(table, state)
        lines[name] = index.line(summary, table.title)
        drawn = page.markdown(summary)
        assert drawn == page.page_file(name).read_text(), f"make table TABLE={name} draws another page"
    names = [file.stem for file in committed("conf/tables/*.yaml")]
    later = [name for name in index.unstarted() if name in names]
    assert index.drawn(lines, later) == index.path().read_text(), "make table of any table draws another list"
    assert len(pages) > 20 and "(results/README.md)" in Path("README.md").read_text()


@pytest.mark.usefixtures("clone")
def test_committed_pages_of_sweeps_are_what_the_committed_trials_draw() -> None:
    files = sorted(store.RESULTS.glob("*.trials.json"))
    for name in (path.name.partition(".")[0] for path in files):
        path = store.RESULTS / f"{name}.md"
        text, sweep = path.read_text(), read_sweep(name)
        collect_sweep(sweep, Console(file=io.StringIO()))
        assert path.read_text() == text, f"make table TABLE={name} draws another page"
    assert len(files) >= 2


def test_a_table_is_drawn_without_torch(world: World) -> None:
    fill()
    code = (
        "import sys; from scripts.reproduce import main; code = main(['toy', '--collect']); "
        "bad = {'torch', 'pytorch_lightning', 'torchmetrics', 'jsonargparse'} & set(sys.modules); "
        "sys.exit(f'imported {bad}' if bad else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(HERE.parent), "PATH": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "52.00 ± 2.00 (3/2)" in done.stdout and Path("results/toy.md").exists()


def test_an_unknown_table_is_one_message_and_exit_code_two(world: World) -> None:
    code, said = world.reproduce("--collect")
    assert code == 2 and "toy has no finished run" in said
    world.folder.joinpath("conf/tables/toy.yaml").unlink()
    code, said = world.reproduce("--collect")
    assert code == 2 and "There is no table 'toy'" in said
