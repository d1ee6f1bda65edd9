"""The lowest energy of a chain beside a run's answers: against all answers there are, and on real tweets."""

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from datamodules.batches import Batch
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from energies.chain import ChainEnergy
from energies.spaces import TagSequences
from experiments.errors import UserError
from lightning_modules.metrics.sequence import SequenceScores
from scripts import exact_minimum, train

T, S = 3, 3


def test_no_answer_has_less_energy_than_the_lowest() -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    space = TagSequences(S, mask)
    x = torch.randn(2, T, S)
    truth, own = (space.decode(torch.randn(2, T, S)) for _ in range(2))
    chain = ChainEnergy(nn.Identity(), S, ends=True).requires_grad_(False)
    scheme: Any = SimpleNamespace(
        model_energy=lambda: chain, space=space, metric=SequenceScores(), predict=lambda _: own
    )
    data: Any = SimpleNamespace(val_dataloader=lambda: [Batch(x, truth, mask)])

    rows, below = exact_minimum.compare(scheme, data)

    every = F.one_hot(torch.tensor([*product(range(S), repeat=T)]), S).float()
    energies = chain(x, every.unsqueeze(1).expand(-1, 2, -1, -1), mask)
    assert rows["the lowest"]["energy"] == pytest.approx(float(energies.min(0).values.mean()))
    best = space.decode(every[energies.argmin(0)])
    right = ((best == truth).all(-1) & mask).sum() / mask.sum()
    assert rows["the lowest"]["accuracy"] == pytest.approx(float(right))
    true, given = chain(x, truth, mask), chain(x, own, mask)
    assert [rows[name]["energy"] for name in ("the truth", "the run's")] == pytest.approx(
        [float(true.mean()), float(given.mean())]
    )
    assert below == float((true < given).double().mean())


def test_an_energy_that_is_no_chain_is_named() -> None:
    for energy, words in (
        (nn.Identity(), "the energy of this run is a Identity"),
        (None, "this run has no energy"),
    ):
        with pytest.raises(UserError, match=f"{words}; its minimum cannot be found exactly. .*infnet.yaml"):
            exact_minimum.compare(
                SimpleNamespace(model_energy=lambda energy=energy: energy), SimpleNamespace()
            )


def test_a_run_on_tweets_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("twitter_pos", "glove_twitter_25d", "glove_6b"):
        if reason := Sources().missing(data_set(name)):
            pytest.skip(reason)
    files = ("conf/data/twitter_pos.yaml", "conf/scheme/infnet.yaml", "conf/objective/joint_perceptron.yaml")
    options = [word for file in files for word in ("--config", file)]
    options += ["--trainer.max_epochs=1", "--trainer.limit_train_batches=20", f"--run_dir={tmp_path}/run"]
    assert train.main(options) == 0
    capsys.readouterr()
    assert exact_minimum.main([str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    energies = [float(line.split("│")[2]) for line in said.splitlines() if line.startswith("│ the ")]
    assert energies[2] == min(energies) and "InfNet on TwitterPOS, validation" in said
    assert exact_minimum.main([str(tmp_path)]) == 2
    assert "is no finished run" in capsys.readouterr().err
    kept = tmp_path / "run/checkpoints/best.ckpt"
    whole = kept.read_bytes()
    other = torch.load(kept, weights_only=True)
    other["state_dict"].popitem()
    for damage in ("garbage", "half", "other weights"):
        kept.write_bytes(b"garbage" if damage == "garbage" else whole[: len(whole) // 2])
        if damage == "other weights":
            torch.save(other, kept)
        assert exact_minimum.main([str(tmp_path / "run")]) == 2
        assert f"{kept} is damaged" in capsys.readouterr().err
