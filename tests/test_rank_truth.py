"""Where an energy ranks the truth: by hand, with an energy that knows it, and on real runs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric

from datamodules.batches import Batch
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from energies.base import ConditionedEnergy, MaskedEnergy
from energies.masks import MaskEnergy
from energies.spaces import AnswerSpace, LabelSets, TagSequences
from experiments.errors import UserError
from experiments.store import Record
from lightning_modules.base import Scheme
from lightning_modules.metrics.multilabel import MultiLabelScores
from lightning_modules.metrics.sequence import SequenceScores
from networks.inputs import Inputs
from scheme_runs import QUICK, configs
from scripts import rank_truth, train


def test_ranks_by_hand() -> None:
    order = torch.tensor([[2.0, 1.0], [1.0, 1.0], [2.0, 0.0], [3.0, 5.0], [1.0, 0.5]])  # the truth first
    same = torch.tensor([[False, True], [False, False], [False, False], [True, False]])
    # the first example: 1 is before 2, 2 ties, 3 is after, the last equals the truth
    # the second: the first equals the truth, 0 and 0.5 are before 1, 5 is after
    assert rank_truth.rank_of_first(order, same).tolist() == [2.5, 3.0]


class Distance(MaskedEnergy):
    """The number of wrong entries, for an input that is the truth; without a mask it cannot be read."""

    def given(self, x: Inputs, mask: Tensor | None = None) -> ConditionedEnergy:
        assert isinstance(x, Tensor) and mask is not None
        return ConditionedEnergy(lambda y: (y - x).abs().sum((-2, -1)))


def scheme(space: AnswerSpace, metric: Metric, logits: Tensor) -> Scheme:
    """A scheme whose network has the same logits for every example."""
    own = {"task_net": lambda x: logits.expand_as(x), "predict": lambda batch: torch.zeros_like(batch.y)}
    return cast(Scheme, SimpleNamespace(space=space, metric=metric, **own))


def test_the_choices_of_energy_and_probability_are_told_apart() -> None:
    """The truth is the first label alone; to the network both labels are likely, so 11 is most probable."""
    truth = torch.tensor([[1.0, 0.0]])
    energy = SimpleNamespace(over=lambda _: lambda x, y: (y.to(x.dtype) - x).abs().sum(-1))
    likely = scheme(LabelSets(2), MultiLabelScores(2), torch.tensor([2.0, 2.0]))
    data: Any = SimpleNamespace(val_dataloader=lambda: [Batch(truth, truth)])
    rankings, answers = rank_truth.compare(likely, data, 200, energy)  # type: ignore[arg-type]
    f1 = {name: found["example_f1"] for name, found in answers.items()}
    assert f1["the run's"] == 0
    assert f1["most probable sample"] == pytest.approx(2 / 3)
    assert f1["sample of lowest energy"] == f1["best sample"] == 1
    assert rankings["energy"] == {"rank": 1, "reciprocal rank": 1}
    both = torch.tensor(2.0).sigmoid() ** 2  # samples of 11 stand before the truth, and half of those of 01
    expected = 1 + 200 * (both + torch.tensor(2.0).sigmoid() * torch.tensor(-2.0).sigmoid() / 2)
    assert rankings["probability"]["rank"] == pytest.approx(float(expected), rel=0.1)


def test_padding_is_hidden_from_the_energy_and_no_part_of_an_answer() -> None:
    mask = torch.tensor([[True, True, False]])
    truth = F.one_hot(torch.tensor([[0, 1, 0]]), 2).float() * mask.unsqueeze(-1)
    flat = scheme(TagSequences(2), SequenceScores(), torch.zeros(3, 2))
    data: Any = SimpleNamespace(val_dataloader=lambda: [Batch(truth, truth, mask)])
    rankings, answers = rank_truth.compare(flat, data, 40, Distance())
    assert rankings["energy"]["rank"] == 1
    assert answers["sample of lowest energy"] == answers["best sample"] == {"accuracy": 1, "word_accuracy": 1}
    # a quarter of the samples is the truth and does not count; the others tie with it
    assert rankings["probability"]["rank"] == pytest.approx(16, abs=4)


def test_numbers_are_means_over_runs() -> None:
    runs = [
        {"energy": {"rank": 1.0, "reciprocal rank": 1.0}},
        {"energy": {"rank": 4.0, "reciprocal rank": 0.25}},
    ]
    assert rank_truth.mean(runs) == {"energy": {"rank": 2.5, "reciprocal rank": 0.625}}


def record(name: str, seed: int, row: str = "ce", **settings: Any) -> dict[str, Any]:
    """What decides whether two runs belong together."""
    config = {"model": {"class_path": row}, "data": {"class_path": "d", "init_args": settings}}
    return {"id": name, "table": "t", "row": row, "column": "c", "seed": seed, "config": config}


@pytest.mark.parametrize(
    ("runs", "energies", "words"),
    [
        ([record("a", 0), record("b", 1, "crf")], None, "run b is of another cell than a"),
        ([record("a", 0), record("a", 0)], None, "A run is given twice"),
        ([record("a", 0)], [record("e", 0), record("f", 1)], "1 runs and 2 of --energy"),
        (
            [record("a", 0)],
            [record("e", 1)],
            r"of run e is not of the data of a \(seed: 0 -> 1\): give a run",
        ),
        ([record("a", 0, n=5)], [record("e", 0, n=6)], r"\(init_args.n: 5 -> 6\)"),
        (
            [record("a", 0), record("b", 1)],
            [record("e", 0), record("f", 1, "crf")],
            "run f is of another cell than e",
        ),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(
    runs: list[Record], energies: list[Record] | None, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        rank_truth.check(runs, energies or runs)


def test_batches_may_have_another_size() -> None:
    rank_truth.check([record("a", 0, batch_size=5)], [record("e", 0, "crf", batch_size=6)])


def test_what_cannot_be_ranked_is_refused() -> None:
    for energy, words in (
        (None, "this SimpleNamespace run has no energy.*seal_dynamic.yaml"),
        (nn.Identity(), "has no energy"),
        (MaskEnergy.__new__(MaskEnergy), "mask_quality"),
    ):
        with pytest.raises(UserError, match=words):
            rank_truth.energy_of(SimpleNamespace(model_energy=lambda energy=energy: energy))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no network to draw answers from"):
        rank_truth.network_of(SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (["genbase"], ["data/genbase", "scheme/seal_dynamic", "objective/nce"]),
        (
            ["twitter_pos", "glove_twitter_25d"],
            ["data/twitter_pos", "scheme/infnet", "objective/joint_stacked"],
        ),
    ],
)
def test_real_runs_are_ranked(
    names: list[str], files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        if reason := Sources().missing(data_set(name)):
            pytest.skip(reason)
    options = [word for file in files for word in ("--config", f"conf/{file}.yaml")]
    options += ["--trainer.max_epochs=1", "--trainer.limit_train_batches=5", f"--run_dir={tmp_path}/run"]
    assert train.main(options) == 0
    capsys.readouterr()
    assert rank_truth.main([str(tmp_path / "run"), "--samples", "7"]) == 0
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "run/rank_truth.json").read_text())
    assert found["samples"] == 7 and len(found["runs"]) == 1 and "7 samples, mean of 1" in said
    for ranking in found["mean"]["rankings"].values():
        assert 1 <= ranking["rank"] <= 8
    score = next(iter(found["mean"]["answers"]["the run's"]))
    assert found["mean"]["answers"]["best sample"][score] >= found["mean"]["answers"]["a sample"][score]


def test_the_energy_of_a_crf_ranks_the_samples_of_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(name: str, *options: str) -> str:
        files = [f"conf/{file}.yaml" for file in ("data/known_chain", *options)]
        assert train.main([*configs(*files), *QUICK, f"--run_dir={tmp_path}/{name}"]) == 0
        return str(tmp_path / name)

    net = trained("net", "scheme/cross_entropy")
    crf = trained("crf", "scheme/crf_joint", "objective/likelihood")
    stage = trained("stage", "scheme/crf_stage", "objective/likelihood")
    capsys.readouterr()
    place = tmp_path / "not there" / "by_crf_0.1"
    assert rank_truth.main([net, "--energy", crf, "--samples", "5", "--out", str(place)]) == 0
    (run,) = json.loads(Path(f"{place}.json").read_text())["runs"]
    assert run["energy"]["id"] == json.loads(Path(crf, "record.json").read_text())["id"] != run["id"]
    for energy, words in ((net, "has no energy"), (stage, "CRFStage run learns"), ("x", "no finished run")):
        capsys.readouterr()
        assert rank_truth.main([net, "--energy", energy]) == 2
        assert words in capsys.readouterr().err
