"""Test examples that training has too: found, scored apart, and said on pages."""

import json
from pathlib import Path

import pytest
import torch

import scripts.train
import toy_world
from committed import ROOT
from datamodules.base import Split
from datamodules.batches import Batch
from experiments import store
from experiments.page import page, repeats
from experiments.page.summary import summarise
from experiments.plan.spec import read_table
from lightning_modules.engine.unseen import fingerprints, unseen
from lightning_modules.metrics.multilabel import MultiLabelScores
from networks.inputs import Sequences, SparseRows
from scripts.count_repeats import DATA, SENTENCES, counted
from toy_world import World

world = toy_world.world  # the fixture


def test_a_sentence_is_the_same_in_any_padding_and_a_sparse_row_at_any_place() -> None:
    ids = torch.tensor([[[2], [3], [0]], [[2], [3], [4]]])
    long = fingerprints(Sequences(ids, ids[..., 0] > 0))
    (short,) = fingerprints(Sequences(ids[:1, :2], ids[:1, :2, 0] > 0))
    assert long[0] == short != long[1]
    offsets = torch.tensor([0, 1, 2, 3])
    rows = fingerprints(SparseRows(torch.tensor([1.0, 2.0, 1.0]), torch.tensor([4, 4, 4]), offsets, 5))
    assert rows[0] == rows[2] != rows[1]


def test_only_examples_whose_inputs_training_lacks_are_judged() -> None:
    train = Split(torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.zeros(2, 2))
    x, y = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    apart = unseen(MultiLabelScores(2), {"train": train, "test": Split(x, y)})
    assert apart is not None
    apart.judge(Batch(x, y), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert float(apart.metric.compute()["example_f1"]) == pytest.approx(2 / 3)  # of the second alone
    assert unseen(MultiLabelScores(2), {"train": train, "test": Split(x[1:], y[1:])}) is None
    assert (
        unseen(MultiLabelScores(2), {"train": train, "test": Split(x[:1], y[:1])}) is None
    )  # nothing is left


def test_a_run_records_its_scores_without_them(tmp_path: Path) -> None:
    rows = ["1,0,1", "0,1,0", "1,1,1", "0,0,1", "1,0,0", "0,1,1", "1,1,0", "0,0,1"]
    for part, lines in (("train", rows), ("test", ["1,0,1", "0.5,0.5,0"])):
        names = ("a numeric", "b numeric", "l {0,1}", "m {0,1}")
        head = "@relation r\n" + "".join(f"@attribute {name}\n" for name in names)
        (tmp_path / f"{part}.arff").write_text(head + "@data\n" + "".join(f"{line},1\n" for line in lines))
    scripts.train.main(
        [
            *("--config", "conf/data/arff.yaml", "--config", "conf/scheme/floor.yaml"),
            *("--data.train", str(tmp_path / "train.arff"), "--data.test", str(tmp_path / "test.arff")),
            *("--data.num_features", "2", "--data.num_labels", "2", "--run_dir", str(tmp_path / "run")),
        ]
    )
    metrics = json.loads((tmp_path / "run/record.json").read_text())["metrics"]
    assert {name for name in metrics if name.startswith("test_unseen/")} >= {"test_unseen/example_f1"}
    assert metrics["test_unseen/example_f1"] != metrics["test/example_f1"]


def test_a_page_says_how_many_there_are_and_shows_the_scores_without_them(world: World) -> None:
    store.write(repeats.path(), json.dumps({"toy": {"test": 1200, "inputs": 1001, "inputs_and_answers": 2}}))
    for seed, score in enumerate((0.25, 0.75)):
        metrics = {"test/example_f1": 0.9, "test_unseen/example_f1": score}
        known = {"id": f"a{seed}", "row": "plain", "column": "easy", "seed": seed, "metrics": metrics}
        store.keep("toy", [known | {"seconds": 1, "device": "cpu", "cpu": "a core"}])
    text = page.markdown(summarise(read_table("toy")))
    assert "1,001 of 1,200 test examples have the inputs of a training example, 2 its answer too." in text
    without = text.split("## The same without test examples whose inputs are training inputs")[1]
    assert "| plain | 50.00 ± 35.36 (2/2) |" in without.split("## Claims")[0] and "Lost" not in without[:100]


def test_runs_that_did_not_score_without_them_are_shown_as_not_measured(world: World) -> None:
    store.write(repeats.path(), json.dumps({"toy": {"test": 1200, "inputs": 126, "inputs_and_answers": 2}}))
    known = {"id": "a", "row": "plain", "column": "easy", "seed": 0, "metrics": {"test/example_f1": 0.9}}
    here = {"seconds": 1, "device": "cpu", "cpu": "a core"}
    store.keep("toy", [known | here])
    head = "## The same without test examples whose inputs are training inputs"
    assert head not in page.markdown(summarise(read_table("toy")))  # a table of nothing
    scored = {"id": "b", "row": "wild", "metrics": {"test/example_f1": 0.9, "test_unseen/example_f1": 0.8}}
    store.keep("toy", [known | scored | here])
    without = page.markdown(summarise(read_table("toy"))).split(head)[1]
    assert "| plain | not measured |" in without.split("## Claims")[0] and "Lost" not in without[:100]


def test_a_table_of_validation_scores_has_none_without_them(world: World) -> None:
    world.change("tables/toy.yaml", lambda t: t["metric"].update(name="val/example_f1"))
    known = {"id": "a", "row": "plain", "column": "easy", "seed": 0, "metrics": {"val/example_f1": 0.9}}
    store.keep("toy", [known | {"seconds": 1, "device": "cpu", "cpu": "a core"}])
    assert "without test examples" not in page.markdown(summarise(read_table("toy")))


@pytest.mark.parametrize("name", [*DATA, *SENTENCES])
def test_the_committed_counts_are_those_of_the_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = counted(name)
    if found is None:
        pytest.skip(f"the data of {name} are not here")
    assert json.loads((ROOT / "results/repeats.json").read_text())[name] == found
