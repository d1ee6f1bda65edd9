"""The exact cost-augmented answer in F's place, and the energy's own answer as a score of a run."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.base import Split, drawn_rows
from datamodules.errors import DataMismatch
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from energies.base import SumEnergy
from energies.chain import ChainEnergy
from energies.mlc import LocalEnergy
from energies.spaces import LabelSets, TagSequences
from energies.tag_lm import TagLMEnergy
from experiments.plan.spec import read_table
from inference.exact import lowest
from inference.networks import ExactAugmented, SampledAugmented
from losses.joint import Compound, MarginRescaled, RoleEnergies
from networks.inputs import Sequences
from scripts import train

T, S = 4, 3
MASK = torch.tensor([[True, True, True, True], [True, True, False, False], [True, False, False, False]])
FILES = ("conf/data/twitter_pos.yaml", "conf/scheme/infnet.yaml", "conf/objective/joint_exact.yaml")
RUN = [word for file in FILES for word in ("--config", file)]
SCORES = ["--config", "conf/trainer/energy_scores.yaml"]


def every_answer() -> Tensor:
    """All S^T answers to each of three sentences, (Y, B, T, S); tags at masked positions do not count."""
    tags = torch.tensor([*product(range(S), repeat=T)])
    return F.one_hot(tags, S).double().unsqueeze(1).expand(-1, len(MASK), -1, -1)


@pytest.mark.parametrize("reduction", ["sum", None])
@pytest.mark.parametrize("seed", range(5))
def test_no_answer_violates_the_margin_more(seed: int, reduction: str | None) -> None:
    torch.manual_seed(seed)
    energy = ChainEnergy(nn.Identity(), S, ends=True, pairwise_std=2.0).double()
    space = TagSequences(S, MASK, reduction)  # type: ignore[arg-type]
    x, y = torch.randn(3, T, S, dtype=torch.double), space.decode(torch.randn(3, T, S, dtype=torch.double))

    found = ExactAugmented(nn.Identity()).searched(energy.over(MASK).given(x), space, y, {})["augmented"]

    answers = every_answer() * MASK.unsqueeze(-1)
    violation = space.cost(answers, y) - energy(x, answers, MASK)
    own = space.cost(found, y) - energy(x, found, MASK)
    torch.testing.assert_close(own, violation.max(0).values, rtol=0, atol=1e-12)
    assert torch.equal(found, answers[violation.argmax(0), torch.arange(3)])
    assert not found.requires_grad

    true = energy(x, y, MASK)
    hinges = [
        MarginRescaled().hinge("augmented", RoleEnergies({"augmented": e}, {"augmented": c}, true))
        for e, c in ((energy(x, a, MASK), space.cost(a, y)) for a in (found, *answers))
    ]
    assert hinges[0] >= max(hinges) - 1e-12


def test_a_sampled_answer_is_the_best_of_its_samples() -> None:
    energy, space = ChainEnergy(nn.Identity(), S, pairwise_std=2.0).double(), TagSequences(S, MASK, "sum")
    x, logits = torch.randn(2, 3, T, S, dtype=torch.double)
    y = space.decode(torch.randn(3, T, S, dtype=torch.double))
    given = energy.over(MASK).given(x)

    def violation(answers: Tensor) -> Tensor:
        return space.cost(answers, y) - energy(x, answers, MASK)

    networks = SampledAugmented(nn.Identity(), num_samples=5)
    torch.manual_seed(1)
    found = networks.searched(given, space, y, {"test": logits})["augmented"]
    torch.manual_seed(1)
    drawn = space.sample(logits, 5)
    assert torch.equal(violation(found), violation(drawn).max(0).values)
    assert all(any(torch.equal(f, d) for d in drawn[:, row]) for row, f in enumerate(found))

    many = SampledAugmented(nn.Identity(), num_samples=20_000)
    found = many.searched(given, space, y, {"test": logits.clamp(-1, 1)})["augmented"]
    exact = ExactAugmented(nn.Identity()).searched(given, space, y, {})["augmented"]
    assert torch.equal(found, exact)


def test_a_sampled_set_is_an_answer_like_the_truth() -> None:
    energy = LocalEnergy(nn.Identity())
    y, x = torch.eye(4), torch.randn(4, 4)
    found = SampledAugmented(nn.Identity()).searched(energy.given(x), LabelSets(4), y, {"test": x})
    assert found["augmented"].dtype == y.dtype and set(found["augmented"].flatten().tolist()) <= {0.0, 1.0}


def test_without_costs_it_is_the_lowest_answer() -> None:
    torch.manual_seed(0)
    energy, x = ChainEnergy(nn.Identity(), S).double(), torch.randn(3, T, S, dtype=torch.double)
    answers = every_answer() * MASK.unsqueeze(-1)
    least = energy(x, answers, MASK).min(0).values
    found = lowest(energy.over(MASK).given(x))
    torch.testing.assert_close(energy(x, found, MASK), least, rtol=0, atol=1e-12)


def test_the_cost_of_an_answer_is_the_sum_of_its_tags() -> None:
    y, guess = torch.randn(2, 3, T, S, dtype=torch.double)
    for reduction in ("sum", None):
        space = TagSequences(S, MASK, reduction)  # type: ignore[arg-type]
        truth, answer = space.decode(y), space.relax(guess)
        summed = (space.tag_costs(truth) * answer).sum((-2, -1))
        torch.testing.assert_close(summed, space.cost(answer, truth))


def test_an_energy_that_is_no_chain_is_refused_in_a_sentence() -> None:
    energy = SumEnergy(ChainEnergy(nn.Identity(), S), TagLMEnergy(S))
    with pytest.raises(ValueError, match=r"cannot be found exactly: take energies\.chain\.ChainEnergy alone"):
        lowest(energy.over(MASK).given(torch.randn(3, T, S)))


def test_the_networks_minimise_the_term_of_a_alone() -> None:
    energies = RoleEnergies({"test": torch.tensor([2.0, 4.0])}, {}, None)
    assert Compound(3.0).network_loss(energies) == 3.0 * 3.0


def needs_tweets() -> None:
    for name in ("twitter_pos", "glove_twitter_25d", "glove_6b"):
        if reason := Sources().missing(data_set(name)):
            pytest.skip(reason)


def test_it_learns_tweets_and_the_energy_has_a_score_of_its_own(tmp_path: Path) -> None:
    needs_tweets()
    short = ["--trainer.max_epochs=2", "--trainer.limit_train_batches=25"]
    assert train.main([*RUN, *SCORES, *short, f"--run_dir={tmp_path}/run"]) == 0
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record["curves"]["hinge"][-1] < record["curves"]["hinge"][0]
    assert record["metrics"]["test/energy_accuracy"] > 0.5
    assert record["metrics"]["test/accuracy"] > 0.5

    assert train.main([*RUN, *short, f"--run_dir={tmp_path}/plain"]) == 0
    plain = json.loads((tmp_path / "plain/record.json").read_text())
    assert plain["metrics"]["test/accuracy"] == record["metrics"]["test/accuracy"]
    of_energy = record["curves"].pop("energy_accuracy")
    assert len(of_energy) == 2 and of_energy[record["best_epoch"]] == record["metrics"]["val/energy_accuracy"]
    assert plain["curves"] == record["curves"] and plain["id"] == record["id"]


def test_an_energy_that_has_no_exact_answer_is_refused_before_training_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_tweets()
    chain = ("conf/data/twitter_pos.yaml", "conf/scheme/cross_entropy.yaml")
    options = [word for file in chain for word in ("--config", file)]
    assert train.main([*options, *SCORES, "--trainer.max_epochs=1", f"--run_dir={tmp_path}/run"]) != 0
    said = capsys.readouterr().err
    assert "CrossEntropy has no energy whose answer could be scored" in said and "Traceback" not in said


def test_fewer_training_examples_are_a_part_of_more() -> None:
    mask = torch.arange(T) < torch.arange(20).unsqueeze(1) % 2 + 2  # lengths 2 and 3
    x, y = torch.arange(20 * T).view(20, T, 1), torch.arange(20).view(20, 1, 1).expand(20, T, 1)
    few, more = (drawn_rows(Split(Sequences(x, mask), y, mask), n, seed=3) for n in (5, 9))
    assert len(few.y) == 5 and len(more.y) == 9
    assert set(few.y.flatten().tolist()) < set(more.y.flatten().tolist())
    assert torch.equal(few.inputs.values[:, 0, 0], few.y[:, 0, 0] * T)
    assert few.mask is not None and torch.equal(few.mask, few.inputs.mask)
    assert few.y.shape[:2] == few.mask.shape == (5, 3)
    with pytest.raises(DataMismatch, match="num_train is 21: take 1 to 20"):
        drawn_rows(Split(Sequences(x, mask), y, mask), 21, seed=0)


@pytest.mark.parametrize("row", ["floor", "spen", "exact"])
def test_rows_of_the_table_train_on_a_known_chain(row: str, tmp_path: Path) -> None:
    layers = read_table("conf/tables/where_structure_helps.yaml").layers(row, "known_chain")
    options = [word for file in layers for word in ("--config", str(file))]
    assert train.main([*options, "--trainer.max_epochs=2", f"--run_dir={tmp_path}/run"]) == 0
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record["metrics"]["test/regret"] > 0


def test_the_floor_counts_a_part_of_the_sentences(tmp_path: Path) -> None:
    for name in ("conll2003_en", "glove_6b"):
        if reason := Sources().missing(data_set(name)):
            pytest.skip(reason)
    files = ("conf/data/conll2003_250.yaml", "conf/scheme/floor.yaml")
    options = [word for file in files for word in ("--config", file)]
    assert train.main([*options, f"--run_dir={tmp_path}/run"]) == 0
    assert json.loads((tmp_path / "run/record.json").read_text())["metrics"]["test/f1"] > 0
