"""The floor: answers that are counted, against counts by hand; and a run of it."""

import json
from pathlib import Path

import pytest
import torch

import scripts.train
from committed import committed
from datamodules.batches import Batch
from datamodules.mlc import MultiLabelData
from energies.spaces import LabelSets, PixelMasks, TagSequences
from experiments.plan.spec import read_table
from lightning_modules.floor import FrequentTag, FrequentTagOfWord, MeanAnswer
from networks.inputs import Sequences

NO_FLOOR = {  # tables without such a row, and why
    "implicit_time": "speeds: what an answer costs says nothing of how right it is",
    "seal_mlc_speed": "speeds, as implicit_time",
}


def sets_of(rows: list[list[int]], observed: list[bool] | None = None) -> Batch:
    y = torch.tensor(rows)
    return Batch(torch.zeros(len(y), 1), y, None, None if observed is None else torch.tensor(observed))


def sentence(words: list[list[int]], tags: list[list[int]], observed: list[bool] | None = None) -> Batch:
    """Words of which 0 is padding."""
    ids = torch.tensor(words).unsqueeze(-1)
    mask = ids[..., 0] > 0
    y = torch.nn.functional.one_hot(torch.tensor(tags), 3) * mask.unsqueeze(-1)
    return Batch(Sequences(ids, mask), y, mask, None if observed is None else torch.tensor(observed))


def test_the_most_frequent_labels_are_answered_as_many_as_validation_likes() -> None:
    train = sets_of(
        [[1, 1, 0, 0], [1, 1, 0, 1], [1, 0, 0, 0], [1, 0, 1, 1]]
    )  # 1, 1/2, 1/4, 1/2: ties go in together
    answer = MeanAnswer()
    answer.count(train, sets_of([[1, 1, 0, 1]]), LabelSets(4))
    assert (answer(sets_of([[0, 0, 0, 0]])) >= 0.5).tolist() == [[True, True, False, True]]
    answer.count(train, sets_of([[1, 0, 0, 0], [1, 0, 1, 0]]), LabelSets(4))
    torch.testing.assert_close(answer(sets_of([[0] * 4] * 2)), torch.tensor([[1, 0.25, 0.125, 0.25]] * 2))


def test_answers_that_are_not_observed_are_not_counted() -> None:
    answer = MeanAnswer()
    answer.count(sets_of([[1, 0], [0, 1]], [True, False]), sets_of([[1, 1]]), LabelSets(2))
    assert answer.mean.tolist() == [1, 0]
    tag = FrequentTagOfWord(num_words=4, num_tags=3)
    tag.count(
        sentence([[2], [2], [2]], [[1], [0], [0]], [True, False, False]),
        sentence([[2]], [[0]]),
        TagSequences(3),
    )
    assert tag(sentence([[2, 3]], [[0, 0]])).argmax(-1).tolist() == [[1, 1]]


def test_a_word_keeps_its_tag_in_another_vocabulary() -> None:
    tag = FrequentTagOfWord(num_words=4, num_tags=3)
    tag.count(sentence([[2, 3, 3]], [[1, 2, 2]]), sentence([[2]], [[0]]), TagSequences(3))
    tag.renumber({}, torch.tensor([0, 1, 0, 3, 2]))  # 2 is new, 3 was 3, 4 was 2
    assert tag(sentence([[2, 3, 4]], [[0, 0, 0]])).argmax(-1).tolist() == [[2, 2, 1]]


def test_the_mean_mask_is_cut_where_the_overlap_on_validation_is_largest() -> None:
    train = torch.tensor([[[1, 1], [0, 0]], [[1, 0], [0, 0]], [[1, 1], [1, 0]]])  # mean 1, 2/3, 1/3, 0
    whole = [Batch(torch.zeros(len(y), 3, 2, 2), y) for y in (train, torch.tensor([[[1, 1], [1, 0]]]))]
    answer = MeanAnswer()
    answer.count(*whole, PixelMasks())
    assert (answer(whole[1]) >= 0.5).tolist() == [[[True, True], [True, False]]]


def test_a_word_has_its_most_frequent_tag_and_an_unknown_one_that_of_all_positions() -> None:
    train = sentence(
        [[2, 3, 3], [3, 2, 0], [4, 2, 0]], [[0, 1, 1], [2, 0, 0], [2, 2, 0]]
    )  # padding is no tag 0
    word, every = FrequentTagOfWord(num_words=6, num_tags=3), FrequentTag(num_tags=3)
    for answer in (word, every):
        answer.count(train, train, TagSequences(3))
    asked = sentence([[2, 3, 4, 5]], [[0, 0, 0, 0]])
    assert word(asked).argmax(-1).tolist() == [[0, 1, 2, 2]]  # tags 0, 1, 2 occur 2, 2, 3 times
    assert every(asked).argmax(-1).tolist() == [[2, 2, 2, 2]]


def test_a_floor_is_a_run_like_any_other_and_starts_again_from_its_folder(tmp_path: Path) -> None:
    options = ["--config", "conf/data/generated.yaml", "--config", "conf/scheme/floor.yaml"]
    command = [*options, "--run_dir", str(tmp_path / "run")]
    scripts.train.main(command)
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record["epochs"] == 1 and record["metrics"]["test/example_f1"] > 0.2
    (tmp_path / "run/record.json").unlink()
    scripts.train.main(command)
    assert (
        json.loads((tmp_path / "run/record.json").read_text())["metrics"].items()
        >= {name: value for name, value in record["metrics"].items() if "second" not in name}.items()
    )


SPO_FUN = MultiLabelData(1, 1, name="spo_fun", scale="standard_all")


@pytest.mark.skipif(SPO_FUN.missing() is not None, reason=str(SPO_FUN.missing()))
def test_eight_labels_for_all_rows_reach_30_on_spo_fun(tmp_path: Path) -> None:
    options = ["--config", "conf/data/spo_fun.yaml", "--config", "conf/scheme/floor.yaml"]
    scripts.train.main([*options, "--run_dir", str(tmp_path)])
    record = json.loads((tmp_path / "record.json").read_text())
    assert 100 * record["metrics"]["test/example_f1"] == pytest.approx(30.6, abs=0.05)
    weights = torch.load(tmp_path / "checkpoints/best.ckpt", weights_only=True)["state_dict"]
    assert int((weights["answer.mean"] >= weights["answer.cut"]).sum()) == 8


def test_every_table_of_scores_has_a_floor() -> None:
    tables = {file.stem: read_table(file.stem) for file in committed("conf/tables/*.yaml")}
    without = {n for n, table in tables.items() if "floor" not in table.rows or not table.rows["floor"].floor}
    assert without == NO_FLOOR.keys()
    assert all(tables[name].metric.name.endswith("per_second") for name in NO_FLOOR)


def test_words_elsewhere_are_counted_where_the_floor_is() -> None:
    """On a GPU the data are there before the model is."""
    train = sentence([[0, 1]], [[0, 1]])
    floor = FrequentTagOfWord(3, 2).to("meta")
    floor.count(train, train, TagSequences(2))
    assert floor.counts.device.type == "meta"
