"""The energy's part of a task-net's gradient: by hand, and on real runs."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from datamodules.base import DeviceData
from datamodules.batches import Batch
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from energies.spaces import AnswerSpace, LabelSets, TagSequences
from lightning_modules.base import Scheme
from lightning_modules.seal_dynamic import SealDynamic
from lightning_modules.seal_static import SealStatic
from losses.objectives import NCERanking, Objective, Regression
from losses.task import EnergyAndSupervision, FreeEnergyAndSupervision
from scheme_runs import QUICK, configs
from scripts import energy_share, train

ZERO = torch.zeros(3, 2)
X, Y = torch.tensor([[4.0, 0.0], [0.0, -8.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])


def measured(
    terms: EnergyAndSupervision,
    logits: Tensor = ZERO,
    cls: type[SealStatic | SealDynamic] = SealStatic,
    objective: Objective | None = None,
) -> dict[str, float]:
    """MEASURES with E(x, y) = x . y, on a batch of two examples and one of one."""
    scheme = scheme_of(terms, LabelSets(2), lambda x: logits[: len(x)], cls, objective)
    data = SimpleNamespace(
        train_dataloader=list, val_dataloader=lambda: [Batch(X[:2], Y[:2]), Batch(X[2:], Y[2:])]
    )
    return energy_share.share(scheme, cast(DeviceData, data))["val"]


def scheme_of(
    terms: EnergyAndSupervision,
    space: AnswerSpace,
    task_net: Any,  # noqa: ANN401
    cls: type[SealStatic | SealDynamic] = SealStatic,
    objective: Objective | None = None,
) -> Scheme:
    scheme = cls.__new__(cls)
    torch.nn.Module.__init__(scheme)
    energy = SimpleNamespace(over=lambda mask: lambda x, y: (x * y).flatten(1).sum(-1))
    own: dict[str, Any] = {"energy": energy, "task_net": task_net, "space": space, "task_terms": terms}
    scheme.__dict__.update(own | {"objective": objective or NCERanking()})
    return scheme


@pytest.mark.parametrize("cls", [SealStatic, SealDynamic])
def test_the_share_by_hand(cls: type[SealStatic | SealDynamic]) -> None:
    """With logits 0, dE/dz is x / 4 and d(supervision)/dz is 1/2 - y.

    With weights 0.5 and 2: a is (1/2, 0), (0, -1), (0, 0), and b is (1, 1), (-1, -1), (1, 1).
    """
    found = measured(EnergyAndSupervision(0.5, 2.0), cls=cls)
    a, b, both = math.sqrt(1.25), math.sqrt(6), 1.5
    assert found == {"share": pytest.approx(a / (a + b)), "cosine": pytest.approx(both / (a * b))}


def test_the_energy_is_the_one_that_its_objective_reads_and_its_entropy_is_a_part_of_it() -> None:
    plain = measured(EnergyAndSupervision(0.5, 2.0))
    assert measured(EnergyAndSupervision(0.5, 2.0), objective=Regression())["share"] != plain["share"]
    logits = torch.tensor([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]])
    free = FreeEnergyAndSupervision(0.5, 2.0, temperature=3.0)
    q = logits[:2].sigmoid()
    first = 0.5 * q * (1 - q) * (X[:2] + 3.0 * logits[:2])  # dH/dz is -z q (1 - q)
    q = logits[:1].sigmoid()
    last = 0.5 * q * (1 - q) * (X[2:] + 3.0 * logits[:1])
    a = torch.cat([first, last])
    b = 2 * torch.cat([logits[:2].sigmoid() - Y[:2], q - Y[2:]])
    assert measured(free, logits)["share"] == pytest.approx(float(a.norm() / (a.norm() + b.norm())))


def test_examples_without_an_answer_and_padding_count_for_supervision_in_nothing() -> None:
    terms = EnergyAndSupervision(1.0)
    x, y = torch.rand(2, 3, 2), torch.zeros(2, 3, 2)
    y[..., 0] = 1
    mask, observed = torch.tensor([[True, True, False]] * 2), torch.tensor([True, False])
    batches = [Batch(x, y * mask.unsqueeze(-1), mask, observed=observed)]
    scheme = scheme_of(terms, TagSequences(2), lambda x: torch.zeros(2, 3, 2))
    found = energy_share.compared(cast(SealStatic, scheme), terms, batches)
    a = (x - x.mean(-1, keepdim=True)) * mask.unsqueeze(-1) / 2  # q (x - q . x) at q = 1/2
    b = torch.tensor([-0.5, 0.5]).expand(2, 2)  # a mean over two positions, of one example for both
    assert found["share"] == pytest.approx(float(a.norm() / (a.norm() + 2 * b.norm() / 2)))


def test_real_runs_are_measured_cell_by_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if reason := Sources().missing(data_set("genbase")):
        pytest.skip(reason)
    odds: list[float] = []
    for weight in (1.0, 10.0):
        options = configs(
            "conf/data/genbase.yaml", "conf/scheme/seal_dynamic.yaml", "conf/objective/nce.yaml"
        )
        folder = tmp_path / str(weight)
        options += [f"--model.task_loss.energy_weight={weight}", "--model.task_optimizer.lr=1e-9"]
        options += ["--model.energy_optimizer.lr=1e-9", f"--run_dir={folder}"]
        assert train.main([*options, *QUICK]) == 0
        capsys.readouterr()
        assert energy_share.main([str(folder)]) == 0
        found = json.loads((folder / "energy_share.json").read_text())
        assert f"file: {folder}/energy_share.json" in capsys.readouterr().out
        (run,) = found["runs"]
        for part in ("train", "val"):
            assert 0 < run[part]["share"] < 1 and -1 <= run[part]["cosine"] <= 1
        odds.append(run["val"]["share"] / (1 - run["val"]["share"]))
    assert odds[1] == pytest.approx(10 * odds[0], rel=1e-3)
    folders = [str(tmp_path / "1.0"), str(tmp_path / "10.0")]
    assert energy_share.main([*folders, f"--out={tmp_path}/both"]) == 0
    assert list(json.loads((tmp_path / "both.json").read_text())["mean"]) == folders
    assert energy_share.main([*folders, folders[0]]) == 2 and "twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "objective", "needed"),
    [
        ("weizmann_horses_32", "regression", ["weizmann_horses"]),
        ("twitter_pos", "nce", ["twitter_pos", "glove_twitter_25d"]),
    ],
)
def test_pictures_and_sentences_are_measured_too(
    data: str, objective: str, needed: list[str], tmp_path: Path
) -> None:
    """An energy of masks reads 24 x 24 pixels, and pictures of validation have 32 x 32."""
    for name in needed:
        if reason := Sources().missing(data_set(name)):
            pytest.skip(reason)
    files = (f"data/{data}", "scheme/seal_dynamic", f"objective/{objective}")
    options = configs(*(f"conf/{file}.yaml" for file in files))
    assert train.main([*options, *QUICK, f"--run_dir={tmp_path}/run"]) == 0
    assert energy_share.main([str(tmp_path / "run")]) == 0
    (run,) = json.loads((tmp_path / "run/energy_share.json").read_text())["runs"]
    assert 0 < run["train"]["share"] < 1 and 0 < run["val"]["share"] < 1


def test_seeds_of_a_cell_are_averaged() -> None:
    runs = [
        {part: {"share": s, "cosine": -s} for part in energy_share.PARTS} for s in (0.00012345, 0.00022345)
    ]
    assert energy_share.mean(runs)["train"] == {"share": 0.0001735, "cosine": -0.0001735}
    place = {"table": "t", "row": "r", "column": "c"}
    assert (
        energy_share.cell_of(place, Path("a")) == "t / c / r" and energy_share.cell_of({}, Path("a")) == "a"
    )


@pytest.mark.parametrize("weights", [(0.0, 1.0), (1.0, 0.0)])
def test_a_task_net_that_learns_from_one_of_the_two_is_refused(weights: tuple[float, float]) -> None:
    with pytest.raises(energy_share.UserError, match=r"SealStatic run does not learn.*both weights above 0"):
        measured(EnergyAndSupervision(*weights))


def test_a_run_without_an_energy_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = configs("conf/data/known_chain.yaml", "conf/scheme/cross_entropy.yaml")
    assert train.main([*options, *QUICK, f"--run_dir={tmp_path}/run"]) == 0
    assert energy_share.main([str(tmp_path / "run")]) == 2
    assert "CrossEntropy run does not learn from an energy and from supervision" in " ".join(
        capsys.readouterr().err.split()
    )
    assert energy_share.main([str(tmp_path / "none")]) == 2
