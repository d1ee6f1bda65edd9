"""Known energies: samples, marginals and best answers against counting; how near a learnt energy comes."""

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.errors import DataMismatch
from datamodules.generated import KnownChains, KnownData, KnownLabelSets
from energies.base import Energy
from energies.chain import ChainEnergy
from energies.pretrained import PretrainedEnergy
from energies.spaces import LabelSets
from experiments.run.cli import TrainCLI
from inference.exact import lowest
from inference.known import KnownChain, KnownEnergy, KnownSets
from lightning_modules.metrics.known import AgainstTruth
from scheme_runs import configs

DRAWS = 20_000
SIGMAS = 5.0  # of a share's standard error: one of 20 entries is farther off with a chance below 2e-5

TRUTHS: dict[str, KnownEnergy] = {
    "chain": KnownChain(3, 3, 4, pairwise=1.5, seed=1),
    "sets": KnownSets(4, 5, num_patterns=3, joint=2.0, seed=1),
}
DATA: dict[str, type[KnownData]] = {"chain": KnownChains, "sets": KnownLabelSets}


def all_answers(kind: str) -> Tensor:
    """Every answer to one example."""
    if kind == "sets":
        return torch.tensor(list(product((0.0, 1.0), repeat=5)))
    return F.one_hot(torch.tensor(list(product(range(3), repeat=4))), 3).float()


def chances(kind: str, x: Tensor) -> Tensor:
    """P(y | x) of every answer to one example, by counting."""
    answers = all_answers(kind)
    repeated = x.expand(len(answers), *x.shape[1:])
    return (-TRUTHS[kind].energy(repeated, answers)).softmax(0)


@pytest.mark.parametrize("kind", TRUTHS)
def test_samples_have_the_exact_marginals(kind: str) -> None:
    truth, draw = TRUTHS[kind], torch.Generator().manual_seed(0)
    x = truth.inputs(1, draw)
    weights = chances(kind, x)
    exact = torch.tensordot(weights, all_answers(kind), 1)
    torch.testing.assert_close(truth.marginals(x)[0], exact, rtol=1e-4, atol=1e-5)
    drawn = truth.sample(x.expand(DRAWS, *x.shape[1:]), draw).float()
    error = (exact * (1 - exact) / DRAWS).sqrt()
    assert ((drawn.mean(0) - exact).abs() < SIGMAS * error + 1e-6).all()
    pairs = torch.einsum("ni,nj->ij", drawn.flatten(1), drawn.flatten(1)) / DRAWS
    flat = all_answers(kind).flatten(1)
    right = torch.einsum("n,ni,nj->ij", weights, flat, flat)
    assert ((pairs - right).abs() < SIGMAS * (right * (1 - right) / DRAWS).sqrt() + 1e-6).all()


@pytest.mark.parametrize("kind", TRUTHS)
def test_regret_and_gap_are_those_of_counting(kind: str) -> None:
    truth = TRUTHS[kind]
    x = truth.inputs(1, torch.Generator().manual_seed(2))
    answers, weights = all_answers(kind), chances(kind, x)
    entries = 4 if kind == "chain" else 5
    apart = (answers.unsqueeze(1) - answers.unsqueeze(0)).abs().flatten(2).sum(-1)
    costs = apart @ weights / (2 * entries if kind == "chain" else entries)
    repeated = x.expand(len(answers), *x.shape[1:])
    torch.testing.assert_close(truth.regret(repeated, answers), costs - costs.min(), rtol=1e-4, atol=1e-5)
    energies = truth.energy(repeated, answers)
    torch.testing.assert_close(truth.gap(repeated, answers), energies - energies.min(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", TRUTHS)
def test_the_truth_recovers_itself_at_any_scale(kind: str) -> None:
    truth = TRUTHS[kind]
    x = truth.inputs(7, torch.Generator().manual_seed(3))
    same, none = truth.recovery(truth.energy, x)
    assert same == pytest.approx(1, abs=1e-5) and none == 0


def test_a_chain_is_compared_without_constants_of_rows_and_columns() -> None:
    truth = KnownChain(3, 3, 4, seed=1)
    x = truth.inputs(2, torch.Generator().manual_seed(3))
    moved = ChainEnergy(nn.Linear(9, 3), 3)
    moved.pairwise.data = truth.energy.pairwise + torch.randn(3, 1) + torch.randn(3)
    found, apart = truth.recovery(moved, x)
    assert found == pytest.approx(1, abs=1e-5) and apart < 1e-5
    moved.pairwise.data = 3 * truth.energy.pairwise
    found, apart = truth.recovery(moved, x)
    assert found == pytest.approx(1, abs=1e-5) and apart == pytest.approx(2, abs=1e-4)


def test_sets_are_compared_without_a_constant_of_each_input() -> None:
    truth = TRUTHS["sets"]
    x = truth.inputs(6, torch.Generator().manual_seed(3))

    class Moved(Energy):
        """The truth plus a number of each input."""

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return truth.energy(x, y) + x.sum(-1)

    found, apart = truth.recovery(Moved(), x)
    assert found == pytest.approx(1, abs=1e-5) and apart < 1e-5


@pytest.mark.parametrize("kind", DATA)
def test_the_same_seed_draws_the_same_data(kind: str) -> None:
    one, again, other = (DATA[kind](data_seed=seed) for seed in (3, 3, 4))
    for data in (one, again, other):
        data.setup()
    for part, size in one.sizes.items():
        assert len(one.splits[part].y) == size
        assert torch.equal(one.splits[part].inputs, again.splits[part].inputs)
        assert torch.equal(one.splits[part].y, again.splits[part].y)
    assert not torch.equal(one.splits["train"].inputs, other.splits["train"].inputs)
    assert one.truth.recovery(other.truth.energy, one.splits["test"].inputs)[0] < 0.9
    assert not torch.equal(one.splits["train"].y[:50], one.splits["validation"].y[:50])


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataMismatch, match=r"--data.num_inputs"):
        KnownChains(num_inputs=14)
    with pytest.raises(ValueError, match="take 12 or fewer"):
        KnownLabelSets(num_labels=13)


@pytest.mark.parametrize(
    ("column", "layers"),
    [
        ("known_chain", ["conf/scheme/crf_joint.yaml", "conf/objective/likelihood.yaml"]),
        ("known_sets", ["conf/scheme/implicit.yaml", "conf/objective/cd_straight.yaml"]),
    ],
)
def test_a_run_is_compared_with_the_truth(column: str, layers: list[str], tmp_path: Path) -> None:
    options = ["--trainer.max_epochs=30", "--model.energy_optimizer.init_args.lr=0.1"]
    cli = TrainCLI([*configs(f"conf/data/{column}.yaml", *layers), *options], run_dir=str(tmp_path))
    cli.trainer.fit(cli.model, cli.datamodule)
    (scores,) = cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    assert 0 <= scores["test/regret"] < 0.5 and scores["test/energy_gap"] >= 0
    assert 0 <= scores["test/energy_regret"] < 0.5 and -1 <= scores["test/recovery"] <= 1
    if column == "known_chain":
        assert scores["test/recovery"] > 0.8


@pytest.mark.parametrize("scaling", ["FixedAlpha", "Offline", "Temperature", "HardTemperature"])
def test_the_energy_of_a_scaled_chain_is_that_of_its_answers(scaling: str, tmp_path: Path) -> None:
    """Its answers are the lowest of their energy: by the callbacks, and after it is loaded."""
    layers = ("scheme/crf_scaled", "objective/likelihood", "trainer/energy_scores")
    files = configs("conf/data/known_chain.yaml", *(f"conf/{layer}.yaml" for layer in layers))
    options = [f"--model.scaling=energies.scaling.{scaling}", "--model.scaling.init_args.alpha=8"]
    cli = TrainCLI([*files, *options, "--trainer.max_epochs=3"], run_dir=str(tmp_path))
    cli.trainer.fit(cli.model, cli.datamodule)
    (scores,) = cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    assert scores["test/energy_word_accuracy"] == scores["test/word_accuracy"]
    assert scores["test/energy_regret"] == scores["test/regret"]
    again = PretrainedEnergy(f"{tmp_path}/checkpoints/last.ckpt")
    for batch in cli.datamodule.test_dataloader():
        torch.testing.assert_close(lowest(again.given(batch.inputs, batch.mask)), cli.model.predict(batch))


def test_the_truth_is_asked_where_the_data_are() -> None:
    """A run on a GPU: the data are there, and no module holds the known energy."""
    asked: list[torch.device] = []
    energy = SimpleNamespace(to=asked.append)
    truth = SimpleNamespace(energy=energy, regret=lambda x, y: y.sum(-1), gap=lambda x, y: y.sum(-1))
    there = torch.zeros(2, 3, device="meta")
    split = SimpleNamespace(inputs=there, y=there, mask=None)
    trainer: Any = SimpleNamespace(datamodule=SimpleNamespace(truth=truth, splits={"test": split}))
    scheme = SimpleNamespace(space=LabelSets(3), predict=lambda batch: batch.y, model_energy=lambda: None)
    found = AgainstTruth().compare(trainer, scheme, "test")
    assert asked == [torch.device("meta")] and set(found) == {"regret", "energy_gap"}
