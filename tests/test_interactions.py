"""What an energy has learned of pairs: closed forms against autograd, counts by hand, a run drawn whole."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from energies.chain import ChainEnergy
from energies.mlc import LabelMixEnergy
from experiments.errors import UserError
from experiments.run.cli import TrainCLI
from inference import interactions
from make_mlc import clus_arff
from scheme_runs import configs
from scripts import train
from scripts.figures import interactions as draw_interactions
from scripts.finished.run import finished

B, L, G = 5, 4, 6
NAN = float("nan")
CLASSES = ("01/01", "01/02", "02", "02/01/01", "03")  # with those above them and the root, eight labels


@pytest.fixture
def energy() -> LabelMixEnergy:
    torch.manual_seed(0)
    mix = LabelMixEnergy(L, G).double()
    nn.init.normal_(mix.bias)
    return mix


@pytest.fixture
def y() -> Tensor:
    torch.manual_seed(1)
    return torch.rand(B, L, dtype=torch.float64)


def test_interactions_are_minus_the_mean_hessian_without_its_diagonal(
    energy: LabelMixEnergy, y: Tensor
) -> None:
    x = torch.zeros(1, 1, dtype=torch.float64)
    rows = [
        torch.autograd.functional.hessian(lambda one: energy(x, one.unsqueeze(0)).sum(), row) for row in y
    ]
    expected = -torch.stack(rows).mean(0)
    assert expected.diagonal().abs().min() > 0
    torch.testing.assert_close(interactions.label_interactions(energy, y), expected.fill_diagonal_(0))


def test_labels_that_lower_the_energy_together_interact_positively() -> None:
    mix = LabelMixEnergy(2, 1).double()
    with torch.no_grad():
        mix.patterns.copy_(torch.tensor([[1.0], [2.0]]))
        mix.weights.fill_(3)
    found = interactions.label_interactions(mix, torch.zeros(1, 2, dtype=torch.float64))
    torch.testing.assert_close(
        found, torch.tensor([[0, 1.5], [1.5, 0]], dtype=torch.float64)
    )  # 1 * 2 * 3 / 4


def test_gradients_of_a_pair_are_those_of_autograd(energy: LabelMixEnergy, y: Tensor) -> None:
    grid, pairs = torch.tensor([0, 0.3, 1], dtype=torch.float64), torch.tensor([[0, 2], [3, 1]])
    found = interactions.pair_gradients(energy, y, pairs, grid)
    for surface, (i, k) in zip(found, pairs.tolist(), strict=True):
        for a, of_i in enumerate(grid):
            for b, of_k in enumerate(grid):
                moved = y.clone()
                moved[:, i], moved[:, k] = of_i, of_k
                moved.requires_grad_()
                energy(torch.zeros(B, 1).double(), moved).mean().backward()
                assert moved.grad is not None
                torch.testing.assert_close(surface[a, b], moved.grad[:, k].sum())


def test_the_gradient_of_a_pair_changes_as_its_interaction_says(energy: LabelMixEnergy) -> None:
    y, step = torch.full((1, L), 0.4, dtype=torch.float64), 1e-5
    grid = torch.tensor([0.4 - step, 0.4, 0.4 + step], dtype=torch.float64)
    surface = interactions.pair_gradients(energy, y, torch.tensor([[2, 0]]), grid)[0]
    slope = (surface[2, 1] - surface[0, 1]) / (2 * step)
    torch.testing.assert_close(-slope, interactions.label_interactions(energy, y)[2, 0])


def test_the_gradient_of_cross_entropy_knows_one_label_only() -> None:
    grid = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    F.binary_cross_entropy(grid, torch.ones_like(grid), reduction="sum").backward()
    found = interactions.cross_entropy_gradient(grid.detach())
    assert grid.grad is not None
    torch.testing.assert_close(found, grid.grad.expand(3, -1))


def test_correlation_is_pearsons_and_unknown_for_labels_that_never_vary() -> None:
    torch.manual_seed(2)
    y = (torch.rand(40, 3) < 0.4).to(torch.uint8)
    found = interactions.correlation(torch.cat([y, torch.ones(40, 1, dtype=torch.uint8)], 1))
    torch.testing.assert_close(found[:3, :3], torch.corrcoef(y.double().T))
    assert found[3].isnan().all() and found[:, 3].isnan().all()


def test_pairs_of_tags_are_counted_in_order_and_padding_is_not() -> None:
    tags = F.one_hot(torch.tensor([[0, 1, 1], [2, 0, 0]]), 3)
    tags[1, 2] = 0
    counts = interactions.tag_pairs(tags)
    assert counts.tolist() == [[0, 1, 0], [0, 1, 0], [1, 0, 0]]


def test_lift_is_1_for_what_meets_by_chance_and_unknown_for_what_never_meets() -> None:
    counts = torch.tensor([[8.0, 2], [2, 0]], dtype=torch.float64)
    lift = interactions.log_lift(counts, counts.sum(1), counts.sum(0), 12)
    expected = torch.tensor([[96 / 100, 24 / 20], [24 / 20, NAN]], dtype=torch.float64).log()
    torch.testing.assert_close(lift, expected, equal_nan=True)
    chance = torch.tensor([2.0, 3]).outer(torch.tensor([1.0, 4]))
    torch.testing.assert_close(
        interactions.log_lift(chance, chance.sum(1), chance.sum(0), 25), torch.zeros(2, 2)
    )


def test_what_unary_scores_can_say_is_taken_out_of_a_table() -> None:
    torch.manual_seed(3)
    table, rows, columns = torch.randn(4, 4), torch.randn(4, 1), torch.randn(1, 4)
    found = interactions.doubly_centred(table)
    torch.testing.assert_close(interactions.doubly_centred(table + rows + columns), found)
    torch.testing.assert_close(found.sum(0), torch.zeros(4))


def test_rank_correlation_asks_for_order_alone_over_what_is_known() -> None:
    a = torch.tensor([1.0, 2, 3, 4, 5])
    everywhere = torch.ones(5, dtype=torch.bool)
    assert interactions.rank_correlation(a, a.exp(), everywhere) == pytest.approx(1)
    assert interactions.rank_correlation(a, torch.tensor([9.0, 8, 7, NAN, 6]), everywhere) == pytest.approx(
        -1
    )
    assert interactions.rank_correlation(a, torch.tensor([1.0, 3, 2, 5, 4]), everywhere) == pytest.approx(0.8)
    assert interactions.rank_correlation(a, torch.tensor([1.0, 2, 0, 9, 0]), a < 4) == pytest.approx(-0.5)
    assert np.isnan(interactions.rank_correlation(a, a, a < 3))


def test_labels_of_one_cluster_stand_next_to_each_other() -> None:
    cluster = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    likeness = (cluster.unsqueeze(0) == cluster.unsqueeze(1)).double() * 0.8
    ordered = cluster[interactions.cluster_order(likeness.fill_diagonal_(1))]
    assert sorted(cluster.tolist()) != cluster.tolist()
    assert int((ordered[1:] != ordered[:-1]).sum()) == 2


def test_a_pair_is_compared_with_one_of_a_label_as_frequent_and_independent() -> None:
    k = torch.arange(64) % 2
    free, rarer = torch.arange(64) // 2 % 2, (torch.arange(64) // 2 % 4 == 0).long()
    y = torch.stack([k, k * free, free, rarer, k], 1)
    related = torch.eye(5, dtype=torch.bool)
    pairs = torch.tensor([[1, 0]])  # label 1 implies label 0, and is as frequent as label 3
    assert y.sum(0).tolist() == [32, 16, 32, 16, 32]
    assert interactions.unassociated_like(pairs, y, related, least=1).tolist() == [[3, 0]]
    assert interactions.unassociated_like(pairs, y, related, least=20).tolist() == [[2, 0]]
    related[2:, 0] = True
    assert interactions.unassociated_like(pairs, y, related, least=20).tolist() == []


def test_the_names_of_published_classes_are_read_as_training_reads_them(tmp_path: Path) -> None:
    if reason := Sources().missing(data_set("expr_fun")):
        pytest.skip(reason)
    files = configs("conf/data/expr_fun.yaml", "conf/scheme/floor.yaml")
    data = TrainCLI(files, run_dir=str(tmp_path)).datamodule  # its file declares attributes twice
    names = draw_interactions.label_names(data)
    assert len(names) == 500 and draw_interactions.taxonomy(names).any()


def test_a_taxonomy_is_read_off_the_names() -> None:
    above = draw_interactions.taxonomy(["root", "01", "01/02", "01/02/03", "011"])
    assert above.nonzero().tolist() == [[2, 1], [3, 1], [3, 2]]
    with pytest.raises(UserError, match="taxonomy"):
        draw_interactions.taxonomy(["a", "b"])


def test_a_chain_whose_table_is_the_lift_agrees_with_it(tmp_path: Path) -> None:
    torch.manual_seed(4)
    y = F.one_hot(torch.randint(3, (50, 8)), 3)
    counts = interactions.tag_pairs(y)
    chain = ChainEnergy(nn.Identity(), 3)
    with torch.no_grad():
        chain.pairwise.copy_(interactions.log_lift(counts, counts.sum(1), counts.sum(0), int(counts.sum())))
    data: Any = SimpleNamespace(splits={"train": SimpleNamespace(y=y)}, names=["N", "$", "^"])
    scheme: Any = nn.Sequential(chain)
    numbers, files = draw_interactions.draw_tags(scheme, data, 5, tmp_path / "tags")
    assert [value for _, value in numbers[:2]] == [9, pytest.approx(1)]
    assert [path.name for path in files] == ["tags.png", "tags.svg"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one epoch on made-up classes of a taxonomy."""
    folder, draw = tmp_path_factory.mktemp("interactions"), np.random.default_rng(0)
    file = folder / "made-up.arff"
    classes = ["@".join(draw.choice(CLASSES, 2, replace=False)) for _ in range(300)]
    file.write_text(clus_arff(draw.random((300, 3)).round(3), classes, ",".join(CLASSES)))
    options = {"data.train": file, "data.num_features": 3, "data.num_labels": 8, "trainer.max_epochs": 1}
    given = configs("conf/data/arff.yaml", "conf/scheme/energy_net.yaml", "conf/objective/dvn.yaml")
    given += [word for key, value in options.items() for word in (f"--{key}", str(value))]
    assert train.main([*given, "--run_dir", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize("kind", ["labels", "gradient"])
def test_a_finished_run_is_drawn_always_the_same_and_left_as_it_was(
    kind: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: os.stat(path).st_mtime_ns for path in [run, *run.rglob("*")]}
    files = [tmp_path / f"interactions_{kind}.{ending}" for ending in ("png", "svg")]
    drawn = []
    for _ in range(2):
        assert draw_interactions.main([kind, str(run), "--out", str(tmp_path)]) == 0
        drawn.append([path.read_bytes() for path in files])
    assert drawn[0] == drawn[1]
    assert {path: os.stat(path).st_mtime_ns for path in [run, *run.rglob("*")]} == before
    assert "pairs" in capsys.readouterr().out
    told = json.loads((tmp_path / f"interactions_{kind}.json").read_text())
    record = json.loads((run / "record.json").read_text())
    assert (told["run"], told["finished"]) == (record["id"], record["finished"])
    assert dict(told["numbers"]) and told["least"] == draw_interactions.LEAST[kind]
    if kind == "labels":
        y = finished(run)[1].splits["train"].y.double()
        counts, phi = (y.T @ y).triu(1), interactions.correlation(y)
        for least in (told["least"], int(counts[phi.isfinite()].max())):
            given = [kind, str(run), "--out", str(tmp_path), "--least", str(least)]
            assert draw_interactions.main(given) == 0
            numbers = json.loads((tmp_path / "interactions_labels.json").read_text())["numbers"]
            assert numbers[0][1] == int(((counts >= least) & phi.isfinite()).sum()) > 0


def test_a_wrong_folder_is_told_what_to_give_instead(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, folder, words in (
        (
            "tags",
            run,
            "has no ChainEnergy in it; one is needed. Give the folder of a run with a linear chain",
        ),
        ("labels", tmp_path, "is no finished run: it has no config.yaml and no record.json"),
    ):
        assert draw_interactions.main([kind, str(folder)]) == 2
        assert words in capsys.readouterr().err
    assert draw_interactions.main(["labels", str(run), "--out", str(run / "record.json")]) == 2
    assert "could not be written" in capsys.readouterr().err
