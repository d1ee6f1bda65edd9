"""Restarts on words of the OCR data: where a phase begins, what resumes; W with a rate of its own."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from torch import Tensor

from datamodules.ocr import OCRLetters
from experiments.run.cli import TrainCLI
from lightning_modules.crf_joint import CRFJoint
from lightning_modules.crf_stage import CRFStage
from lightning_modules.engine.phases import PhaseStopping
from scheme_runs import configs

FILES = ["conf/data/ocr.yaml", "conf/scheme/{}.yaml", "conf/objective/marginal_ce.yaml"]
RESTART = "conf/tuned/scaling/ocr.yaml:restart_slow"
SHORT = ["--trainer.limit_train_batches=3", "--trainer.limit_val_batches=1", "--data.batch_size=8"]
SHORT += ["--stop.patience=1", "--stop.min_delta=1.0"]  # two epochs a phase: nothing rises by 1


@pytest.fixture(autouse=True)
def the_words_are_here(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    if missing := OCRLetters().missing():
        pytest.skip(missing)


class Course(pl.callbacks.Checkpoint):
    """The score and the weights that each epoch ends with, and those that each phase begins with."""

    def __init__(self) -> None:
        self.begins: list[dict[str, Tensor]] = []
        self.ends: list[dict[str, Tensor]] = []
        self.scores: list[float] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, scheme: pl.LightningModule, batch: object, index: int
    ) -> None:
        if index == 0:
            self.begins.append(weights(scheme))

    def on_train_epoch_end(self, trainer: pl.Trainer, scheme: pl.LightningModule) -> None:
        self.ends.append(weights(scheme))
        self.scores.append(float(trainer.callback_metrics["val/word_accuracy"]))


def weights(scheme: pl.LightningModule) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in scheme.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def train(
    scheme: str, folder: Path, *options: str, epochs: int = 20, resume: bool = False
) -> tuple[Any, Course]:
    files = [file.format(scheme) for file in FILES] + ([RESTART] if scheme == "crf_stage" else [])
    cli = TrainCLI(
        [*configs(*files), *SHORT, f"--trainer.max_epochs={epochs}", *options], run_dir=str(folder)
    )
    cli.trainer.callbacks.append(course := Course())
    last = str(folder / "checkpoints/last.ckpt") if resume else None
    cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=last, weights_only=True)
    return cli.model, course


def test_a_restart_begins_with_the_best_epoch_and_a_new_optimizer(tmp_path: Path) -> None:
    scheme, course = train("crf_stage", tmp_path / "restarts")
    assert isinstance(scheme, CRFStage)
    assert scheme.curves["phase"] == [0, 0, 1, 1, 2, 2]
    assert scheme.steps == {"joint": 6, "restart": 6, "second_restart": 6}
    for phase in (1, 2):
        scores = course.scores[: 2 * phase]
        assert same(course.begins[2 * phase], course.ends[scores.index(max(scores))])
    groups = [part.optimizer.param_groups[0] for part in scheme.part.values()]
    assert [group["lr"] for group in groups] == [3e-3, 1e-3, 1e-3]
    assert all(len(part.parameters) == len([*scheme.energy.parameters()]) for part in scheme.part.values())

    joint = train("crf_joint", tmp_path / "joint", epochs=2)[1]
    assert all(map(same, joint.ends, course.ends))  # until then it is joint training


def test_a_run_with_restarts_resumes_in_any_phase_bit_by_bit(tmp_path: Path) -> None:
    whole, course = train("crf_stage", tmp_path / "whole")
    for epochs in (1, 2, 3, 4):
        folder = tmp_path / str(epochs)
        train("crf_stage", folder, epochs=epochs)
        resumed, rest = train("crf_stage", folder, resume=True)
        assert rest.scores == course.scores[epochs:] and resumed.curves == whole.curves
        assert same(weights(resumed), weights(whole))


def test_the_pairwise_scores_may_have_a_rate_of_their_own(tmp_path: Path) -> None:
    still, course = train("crf_joint", tmp_path / "a", "--model.pairwise_settings={lr: 0.0}", epochs=1)
    assert isinstance(still, CRFJoint)
    moved = {name for name, p in course.begins[0].items() if not torch.equal(p, course.ends[0][name])}
    assert moved == course.begins[0].keys() - {"energy.pairwise"}
    alike = train("crf_joint", tmp_path / "b", "--model.pairwise_settings={lr: 3.0e-3}", epochs=1)[1]
    assert same(alike.ends[0], train("crf_joint", tmp_path / "c", epochs=1)[1].ends[0])
    with pytest.raises(
        ValueError, match=r"pairwise_settings has rate, which Adam does not have\. There are: lr"
    ):
        train("crf_joint", tmp_path / "d", "--model.pairwise_settings={rate: 1.0}")


@pytest.mark.parametrize(("threshold", "epochs"), [(None, 12), (0.0, 6)])
def test_each_phase_ends_by_the_rule_whatever_it_is(
    threshold: float | None, epochs: int, tmp_path: Path
) -> None:
    """Every second epoch is judged: a phase ends with the second that is, or the first above a threshold."""
    files = ["conf/data/known_chain.yaml", "conf/scheme/crf_stage.yaml", "conf/objective/likelihood.yaml"]
    options = [*SHORT[3:], "--trainer.check_val_every_n_epoch=2", "--trainer.max_epochs=20"]
    cli = TrainCLI([*configs(*files), *options], run_dir=str(tmp_path))
    cli.trainer.early_stopping_callback.stopping_threshold = threshold
    cli.trainer.fit(cli.model, cli.datamodule)
    assert cli.trainer.current_epoch == epochs
    assert cli.model.curves["phase"] == [float(phase) for phase in range(3) for _ in range(epochs // 3)]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_rule_of_a_phase_is_the_trainers(mode: str) -> None:
    rule = EarlyStopping("val/x", 0.1, 3, mode=mode)
    phase = PhaseStopping(rule, None)  # type: ignore[arg-type]  # the scheme is asked at a phase's end
    assert (phase.min_delta, phase.patience, phase.mode) == (rule.min_delta, 3, mode)
