"""Where an energy ranks the truth: by hand, with an energy that knows it, and on real runs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.batches import Batch
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from energies.base import Energy
from energies.spaces import LabelSets
from experiments.errors import UserError
from lightning_modules.metrics.multilabel import MultiLabelScores
from losses.objectives import NCERanking
from networks.inputs import Inputs
from scheme_runs import QUICK, configs
from scripts import rank_truth, train


def test_ranks_by_hand() -> None:
    order = torch.tensor([[2.0, 1.0], [1.0, 1.0], [2.0, 0.0], [3.0, 5.0], [1.0, 0.5]])  # the truth first
    same = torch.tensor([[False, True], [False, False], [False, False], [True, False]])
    # the first example: 1 is before 2, 2 ties, 3 is after, the last equals the truth
    # the second: the first equals the truth, 0 and 0.5 are before 1, 5 is after
    assert rank_truth.rank_of_first(order, same).tolist() == [2.5, 3.0]


def test_ordered_pairs_by_hand() -> None:
    quality = torch.tensor([[0.9], [0.5], [0.5], [0.1]])
    order = torch.tensor([[1.0], [2.0], [3.0], [2.0]])
    # of five pairs of unequal quality one ties: the second and the last; the third is after the last
    assert rank_truth.ordered_pairs(order, quality).tolist() == [3.5, 5.0]


class Known(Energy):
    """The distance to answers that the input names."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = sign

    def forward(self, x: Inputs, y: Tensor) -> Tensor:
        assert isinstance(x, Tensor)
        return self.sign * (y.to(x.dtype) - x).abs().sum(-1)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_energy_that_knows_the_truth_ranks_it_first_and_chooses_the_best(sign: float) -> None:
    truth = (torch.rand(8, 6) < 0.5).float()
    space = LabelSets(6)
    scheme: Any = SimpleNamespace(
        energy=Known(sign),
        objective=NCERanking(),
        task_net=torch.zeros_like,
        space=space,
        metric=MultiLabelScores(6),
        predict=lambda batch: torch.full_like(batch.y, 0.4),
    )
    data: Any = SimpleNamespace(val_dataloader=lambda: [Batch(truth, truth)])
    rankings, answers = rank_truth.compare(scheme, data, 50, scheme)
    if sign > 0:
        assert rankings["energy"]["rank"] == rankings["energy"]["first"] == 1
        lowest, best = (answers[name] for name in ("sample of lowest energy", "best sample"))
        assert lowest["example_f1"] == pytest.approx(best["example_f1"], abs=0.1)
        assert rankings["energy"]["ordered pairs"] > 0.9
    else:
        assert rankings["energy"]["rank"] > 45 and rankings["energy"]["ordered pairs"] < 0.1
    # all sets have the same probability, so all others tie with the truth
    assert rankings["probability"]["ordered pairs"] == 0.5
    assert 20 < rankings["probability"]["rank"] <= 26
    assert answers["the run's"]["example_f1"] == 0


def test_what_cannot_be_ranked_is_refused() -> None:
    for scheme, words in (
        (SimpleNamespace(task_net=F.relu), "this SimpleNamespace run has no energy.*seal_dynamic.yaml"),
        (SimpleNamespace(energy=Known(1), objective=NCERanking()), "no network to draw answers from"),
        (SimpleNamespace(energy=nn.Identity(), objective=NCERanking()), "has no energy"),
    ):
        with pytest.raises(UserError, match=words):
            rank_truth.compare(scheme, SimpleNamespace(), 10, scheme)  # type: ignore[arg-type]


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
        assert 1 <= ranking["rank"] <= 8 and 0 <= ranking["ordered pairs"] <= 1
    score = next(iter(found["mean"]["answers"]["the run's"]))
    assert found["mean"]["answers"]["best sample"][score] >= found["mean"]["answers"]["a sample"][score]
    own = found["mean"]
    of_itself = [str(tmp_path / "run"), "--samples", "7", "--energy", str(tmp_path / "run")]
    assert rank_truth.main(of_itself) == 0
    again = json.loads((tmp_path / "run/rank_truth.json").read_text())
    assert again["mean"] == own and again["runs"][0]["energy"] == again["runs"][0]["row"]
    capsys.readouterr()
    assert rank_truth.main([*of_itself, str(tmp_path / "run")]) == 2
    assert "1 runs and 2 of --energy" in capsys.readouterr().err
    assert rank_truth.main([str(tmp_path)]) == 2
    assert "is no finished run" in capsys.readouterr().err


def test_an_energy_of_other_sizes_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"conf/{file}.yaml" for file in ("data/generated", "scheme/seal_dynamic", "objective/nce")]
    for labels in (4, 5):
        sizes = ["--data.num_rows=60", f"--data.num_labels={labels}"]
        run = [*configs(*files), *QUICK, *sizes, f"--run_dir={tmp_path}/{labels}"]
        assert train.main(run) == 0
    capsys.readouterr()
    one, other = (str(tmp_path / labels) for labels in ("4", "5"))
    assert rank_truth.main([one, "--energy", other, "--samples", "1"]) == 2
    said = capsys.readouterr().err
    assert f"the energy of {other} cannot read the answers of {one}" in said
    assert rank_truth.main([one, "--samples", "1"]) == 0
    found = json.loads((tmp_path / "4/rank_truth.json").read_text())
    assert found["mean"]["rankings"]["energy"]["ordered pairs"] == 0.5  # one sample makes no pair
