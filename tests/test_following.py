"""A task-net that learns from a frozen chain: the free energy, and how far it follows."""

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.batches import Batch
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from energies.chain import ChainEnergy
from energies.spaces import TagSequences
from experiments.plan.spec import read_table
from inference.exact import lowest
from lightning_modules.metrics.following import Following
from losses.task import EnergyAndSupervision, FreeEnergyAndSupervision
from scheme_runs import configs
from scripts import train

T, S = 4, 3
MASK = torch.tensor([[True, True, True, True], [True, True, False, False], [True, False, False, False]])
SPACE = TagSequences(S, MASK, "sum")


def every_answer() -> Tensor:
    tags = torch.tensor([*product(range(S), repeat=T)])
    return F.one_hot(tags, S).double().unsqueeze(1).expand(-1, len(MASK), -1, -1) * MASK.unsqueeze(-1)


@pytest.fixture
def energy() -> ChainEnergy:
    return ChainEnergy(nn.Identity(), S, ends=True).double()


def test_the_free_energy_is_a_divergence_less_log_z(energy: ChainEnergy) -> None:
    """E(q) - H(q) = KL(q || p) - log Z, by all answers."""
    x, logits = torch.randn(2, 3, T, S, dtype=torch.double)
    y = SPACE.decode(torch.randn(3, T, S, dtype=torch.double))
    answers = every_answer()
    copies = S ** (T - MASK.sum(1))  # answers that differ at masked positions only
    log_q = SPACE.log_prob(logits, answers)
    log_p = (-energy(x, answers, MASK)).log_softmax(0) + copies.log()
    log_z = (-energy(x, answers, MASK)).logsumexp(0) - copies.log()
    divergence = (log_q.exp() * (log_q - log_p)).sum(0) / copies
    found = FreeEnergyAndSupervision(1.0, 0.0)(energy.over(MASK), SPACE, x, y, logits)
    torch.testing.assert_close(found, (divergence - log_z).mean(), rtol=0, atol=1e-12)


def test_its_gradient_is_that_of_the_entropy_too(energy: ChainEnergy) -> None:
    x, logits = torch.randn(2, 3, T, S, dtype=torch.double)
    y = SPACE.decode(torch.randn(3, T, S, dtype=torch.double))
    loss = FreeEnergyAndSupervision(0.5, 2.0, temperature=3.0)

    def value(logits: Tensor) -> Tensor:
        return loss(energy.over(MASK), SPACE, x, y, logits)

    (gradient,) = torch.autograd.grad(value(logits.requires_grad_()), logits)
    logits, step = logits.detach(), 1e-6
    for place in product(range(3), range(T), range(S)):
        moved = torch.zeros_like(logits).index_put(
            [torch.tensor([i]) for i in place], torch.tensor(step).double()
        )
        slope = (value(logits + moved) - value(logits - moved)) / (2 * step)
        assert gradient[place] == pytest.approx(float(slope.detach()), abs=1e-7)


def test_at_temperature_0_it_is_energy_and_supervision(energy: ChainEnergy) -> None:
    x, logits = torch.randn(2, 3, T, S, dtype=torch.double)
    y = SPACE.decode(logits)
    plain, free = EnergyAndSupervision(0.5, 2.0), FreeEnergyAndSupervision(0.5, 2.0, temperature=0.0)
    assert plain(energy.over(MASK), SPACE, x, y, logits) == free(energy.over(MASK), SPACE, x, y, logits)


def test_no_relaxed_answer_of_a_chain_is_below_the_lowest_one(energy: ChainEnergy) -> None:
    x = torch.randn(3, T, S, dtype=torch.double)
    least = energy(x, lowest(energy.over(MASK).given(x)), MASK)
    relaxed = SPACE.relax(5 * torch.randn(500, 3, T, S, dtype=torch.double))
    assert (energy(x, relaxed, MASK) >= least - 1e-12).all()


def test_a_run_tells_how_far_a_follows_the_energy(tmp_path: Path) -> None:
    for name in ("twitter_pos", "glove_twitter_25d", "glove_6b"):
        if reason := Sources().missing(data_set(name)):
            pytest.skip(reason)
    data = ["--config=conf/data/twitter_pos.yaml"]
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=40"]
    crf = [*data, "--config=conf/scheme/crf_joint.yaml", "--config=conf/objective/likelihood.yaml", *short]
    assert train.main([*crf, f"--run_dir={tmp_path}/crf"]) == 0
    static = [*data, "--config=conf/scheme/seal_static.yaml", "--config=conf/objective/margin.yaml", *short]
    static += [f"--model.energy.checkpoint={tmp_path}/crf/checkpoints/best.ckpt"]
    follow = '--trainer.callbacks+=[{"class_path": "lightning_modules.metrics.following.Following"}]'
    assert train.main([*static, follow, f"--run_dir={tmp_path}/told"]) == 0
    assert train.main([*static, f"--run_dir={tmp_path}/plain"]) == 0

    told, plain = (json.loads((tmp_path / run / "record.json").read_text()) for run in ("told", "plain"))
    assert told["id"] == plain["id"] and told["metrics"]["test/accuracy"] == plain["metrics"]["test/accuracy"]
    for part in ("val/follow", "test/follow", "test/follow_train"):
        found = {
            name: told["metrics"][f"{part}_{name}"] for name in ("agreement", "excess", "relaxed_excess")
        }
        assert 0.3 < found["agreement"] < 1 and found["relaxed_excess"] > 0 < found["excess"]
        assert -1 <= told["metrics"][f"{part}_alignment"] <= 1
        assert 1 / 25 < told["metrics"][f"{part}_confidence"] <= 1


def test_a_network_beside_the_frozen_energy_of_a_known_chain_is_compared_with_the_truth(
    tmp_path: Path,
) -> None:
    table = read_table("infnet_follow")
    crf, beside = (configs(*table.layers(row, "known_chain")) for row in ("crf", "energy_ce"))
    short = ["--trainer.max_epochs=3", "--model.init_args.space.init_args.reduction=sum"]
    assert train.main([*crf, *short, f"--run_dir={tmp_path}/crf"]) == 0
    loaded = f"--model.energy.checkpoint={tmp_path}/crf/checkpoints/best.ckpt"
    assert train.main([*beside, *short, loaded, f"--run_dir={tmp_path}/a"]) == 0
    own, of_a = (json.loads((tmp_path / run / "record.json").read_text()) for run in ("crf", "a"))
    best = own["curves"]["recovery"][own["best_epoch"]]
    assert of_a["curves"]["recovery"] == pytest.approx(
        [best] * 3
    )  # frozen, with the weights of its best epoch
    assert 0 <= of_a["metrics"]["test/energy_regret"] < of_a["metrics"]["test/regret"] + 0.05


def test_what_is_measured_of_following_is_a_mean_over_examples_or_positions(energy: ChainEnergy) -> None:
    x, logits = torch.randn(2, 3, T, S, dtype=torch.double)
    y = SPACE.decode(torch.randn(3, T, S, dtype=torch.double))
    space = TagSequences(S, reduction="sum")
    scheme = SimpleNamespace(
        model_energy=lambda: energy, space=space, device="cpu", predict=lambda _: SPACE.relax(logits)
    )
    following = Following()
    following.begin(scheme)
    following.add(scheme, Batch(x, y, MASK))
    found = {name.removeprefix("val/follow_"): value for name, value in following.found("val").items()}
    q = SPACE.relax(logits)
    z = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy(x, SPACE.relax(z), MASK).sum(), z)
    cosine = torch.cosine_similarity(slope.flatten(1), (q - y).flatten(1)).mean()
    answers = every_answer()
    energies = energy(x, answers, MASK)
    best = answers[energies.argmin(0), range(len(MASK))]
    decoded, words = SPACE.decode(q), MASK.sum()
    excess = (energy(x, decoded, MASK) - energies.amin(0)).sum() / words
    relaxed = (energy(x, q, MASK) - energies.amin(0)).sum() / words
    agreement, confidence = (decoded * best).sum() / words, q.amax(-1).sum() / words
    want = {"agreement": agreement, "excess": excess, "relaxed_excess": relaxed, "alignment": cosine}
    assert found == pytest.approx(
        {name: float(v.detach()) for name, v in (want | {"confidence": confidence}).items()}
    )
