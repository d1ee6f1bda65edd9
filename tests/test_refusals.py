"""A value that makes no sense is refused in a sentence: which option it is, what it has, what to take."""

import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from datamodules.errors import DataMismatch
from datamodules.text.labelled import MultiLabelTexts
from energies.base import Energy
from energies.chain import ChainEnergy
from energies.gaussian import RaiseRidge
from energies.mlc import LabelMixEnergy
from energies.scaling import FixedAlpha, HardTemperature, Offline, Regularised, Temperature
from energies.spaces import AnswerSpace, LabelSets, TagSequences
from energies.tag_lm import TagLMEnergy
from inference.chain.mean_field import MeanField
from inference.gradient import GradientInference, LogitInference, Uniform
from inference.guesses import Concrete, Perturbed
from lightning_modules.metrics.changes import TagChanges
from lightning_modules.metrics.multilabel import MultiLabelScores
from lightning_modules.metrics.spans import SpanScores
from losses.joint import Compound
from losses.released import ReleasedMargin
from losses.task import EnergyAndSupervision, FreeEnergyAndSupervision
from make_mlc import dense_arff
from scripts.train import main

GENERATED = "conf/data/generated.yaml"
CE = [GENERATED, "conf/scheme/cross_entropy.yaml"]
NCE = [GENERATED, "conf/scheme/seal_dynamic.yaml", "conf/objective/nce.yaml"]
CRF = ["conf/data/ocr.yaml", "conf/scheme/crf_stage.yaml", "conf/objective/marginal_ce.yaml"]
INFNET = ["conf/data/twitter_pos.yaml", "conf/scheme/infnet.yaml", "conf/objective/joint_stacked.yaml"]
STATIC = [GENERATED, "conf/scheme/seal_static.yaml", "conf/objective/nce.yaml"]
NOISE = [GENERATED, "conf/scheme/energy_net.yaml", "conf/objective/nce.yaml"]

MODEL = "--model.init_args."
NET = f"{MODEL}task_net.init_args."
ONE = "take 1 or more."
NONE_MONITORS = "which validation does not log. There are: val/example_f1, val/micro_f1, "

# files, the option at fault, its value, and what is said of it; {} is the value
BUILT = [
    (CE, f"{NET}width", "0", f"is {{}}: {ONE}"),
    (NCE, f"{MODEL}energy.init_args.local.init_args.net.init_args.width", "0", f"is {{}}: {ONE}"),
    (CE, f"{NET}num_layers", "0", f"is {{}}: {ONE}"),
    (CE, f"{NET}num_layers", "-1", f"is {{}}: {ONE}"),
    (CE, "--data.init_args.num_features", "0", f"is {{}}: {ONE}"),
    (CE, "--data.init_args.num_labels", "0", f"is {{}}: {ONE}"),
    (CE, "--data.init_args.batch_size", "0", f"is {{}}: {ONE}"),
    (CE, f"{MODEL}task_steps", "0", f"is {{}}: {ONE}"),
    (NCE, f"{MODEL}outer_steps", "0", f"is {{}}: {ONE}"),
    (NCE, f"{MODEL}guess.init_args.num_samples", "0", f"is {{}}: {ONE}"),
    (NCE, f"{MODEL}guess.init_args.num_samples", "-1", f"is {{}}: {ONE}"),
    (NCE, f"{MODEL}energy.init_args.joint.init_args.num_patterns", "0", f"is {{}}: {ONE}"),
    (INFNET, f"{MODEL}networks.init_args.test.init_args.features.init_args.width", "0", f"is {{}}: {ONE}"),
    (CE, f"{MODEL}metric.init_args.thresholds", "[0.5, 1.5]", "is {}: give one or more numbers from 0 to 1."),
    (CE, f"{MODEL}metric.init_args.thresholds", "[]", "is {}: give one or more numbers from 0 to 1."),
    (CRF, f"{MODEL}phases", "[]", "is {}: name one or more, each once."),
    (CRF, f"{MODEL}phases", "['joint', 'joint']", "is {}: name one or more, each once."),
    (INFNET, f"{MODEL}phases", "[]", "is {}: name one or more, each once."),
    (STATIC, f"{MODEL}energy.init_args.checkpoint", "", "is not given, and the part 'energy' comes from it"),
    (
        NOISE,
        f"{MODEL}guesser.init_args.checkpoint",
        "",
        "is not given, and the part 'task_net' comes from it",
    ),
    (STATIC, f"{MODEL}energy.init_args.checkpoint", "no.ckpt", "is {}, which does not exist: train"),
]
AGAINST_DATA = [
    (CE, f"{MODEL}space.init_args.num_labels", "7", "is {}, and answers in the data have 14: set it to 14."),
    (CE, f"{MODEL}space.init_args.num_labels", "1", "is {}, and answers in the data have 14: set it to 14."),
    (CE, f"{MODEL}metric.init_args.num_labels", "7", "is {}, and answers in the data have 14: set it to 14."),
    (CE, f"{MODEL}lr_schedule.init_args.monitor", "val/f3", f"is '{{}}', {NONE_MONITORS}"),
]


def said(capsys: pytest.CaptureFixture[str], files: list[str], *options: str) -> list[str]:
    """What the command prints when it refuses, line by line."""
    given = [word for file in files for word in ("--config", file)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*zero-element.*")
        assert main([*given, *options]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and not captured.out
    return captured.err.strip().splitlines()


@pytest.mark.parametrize(("files", "option", "value", "words"), BUILT)
def test_a_value_that_builds_nothing_is_refused_by_its_option(
    files: list[str],
    option: str,
    value: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (line,) = said(capsys, files, f"{option}={value}", f"--run_dir={tmp_path / 'run'}")
    assert line.startswith(f"{option} {words.format(value)}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("files", "option", "value", "words"), AGAINST_DATA)
def test_a_value_that_the_data_contradict_is_refused_by_its_option(
    files: list[str],
    option: str,
    value: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    quick = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", f"--run_dir={tmp_path / 'run'}"]
    line, traceback = said(capsys, files, f"{option}={value}", *quick)
    assert line.startswith(f"{option} {words.format(value)}")
    assert traceback == f"(traceback: {tmp_path / 'run/error.txt'})"


def test_a_callback_that_waits_for_what_nobody_logs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stop.yaml").write_text(
        "trainer: {callbacks+: [{class_path: pytorch_lightning.callbacks.EarlyStopping, "
        "init_args: {monitor: val/word_accuracy, mode: max}}]}"
    )
    quick = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", f"--run_dir={tmp_path / 'run'}"]
    line, _ = said(capsys, [*CE, str(tmp_path / "stop.yaml")], *quick)
    assert line.startswith("trainer.callbacks: EarlyStopping monitors val/word_accuracy, which validation")


def test_sizes_of_own_data_that_are_left_out_are_told_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.arff"
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(30, 5, generator=draw).numpy(), torch.ones(30, 3).numpy()
    file.write_text(dense_arff(x, y))
    files, run = ["conf/data/arff.yaml", CE[1]], f"--run_dir={tmp_path / 'run'}"
    (line,) = said(capsys, files, f"--data.train={file}", "--data.num_labels=3", run)
    assert line.startswith(f"{file} has 8 attributes, of which 3 are labels (--data.num_labels); the others ")
    assert line.endswith(
        "Set --data.num_features 5; if some of these are labels, correct --data.num_labels first."
    )


def test_the_command_itself_refuses_with_one_line_and_code_2(root: Path, tmp_path: Path) -> None:
    files = [word for file in CE for word in ("--config", file)]
    options = [f"{NET}width=0", f"--run_dir={tmp_path}"]
    command = [sys.executable, "-m", "scripts.train", *files, *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == f"{NET}width is 0: {ONE}\n"


TAGS = ["O", "B-NP", "I-NP"]


@pytest.mark.parametrize(
    ("part", "right", "wrong", "words"),
    [
        (LabelSets(3), (9, 3), (9, 4), "num_labels is 3, .* have 4"),
        (TagSequences(3), (9, 5, 3), (9, 5, 4), "num_tags is 3, .* have 4"),
        (MultiLabelScores(3), (9, 3), (9, 4), "num_labels is 3, .* have 4"),
        (SpanScores(TAGS), (9, 5, 3), (9, 5, 4), "tags has 3 names, .* have 4 tags"),
        (TagChanges(TAGS), (9, 5, 3), (9, 5, 2), "tags has 3 names, .* have 2 tags"),
        (ChainEnergy(nn.Identity(), 3), (9, 5, 3), (9, 5, 4), "num_tags is 3, .* have 4"),
        (LabelMixEnergy(3, 2), (9, 3), (9, 4), "num_labels is 3, .* have 4"),
        (TagLMEnergy(3, width=2), (9, 5, 3), (9, 5, 4), "num_tags is 3, .* have 4"),
    ],
)
def test_what_takes_answers_refuses_those_of_another_size(
    part: AnswerSpace | Energy, right: tuple[int, ...], wrong: tuple[int, ...], words: str
) -> None:
    part.check_answers(torch.zeros(right))
    with pytest.raises(ValueError, match=words):
        part.check_answers(torch.zeros(wrong))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Uniform(num_starts=0),
        lambda: GradientInference(Uniform(), steps=0),
        lambda: LogitInference(steps=0),
        lambda: LogitInference(num_starts=0),
        lambda: TagLMEnergy(3, width=0),
        lambda: ChainEnergy(nn.Identity(), 0),
    ],
)
def test_a_search_or_an_energy_of_no_size_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"^\w+ is 0: take 1 or more\.$"):
        build()


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (EnergyAndSupervision, "energy_weight"),
        (partial(EnergyAndSupervision, energy_weight=1.0), "supervision_weight"),
        (partial(FreeEnergyAndSupervision, energy_weight=1.0), "temperature"),
        (ReleasedMargin, "perceptron_weight"),
        (Compound, "perceptron_weight"),
        (Perturbed, "std"),
        (Concrete, "temperature"),
        (partial(GradientInference, Uniform()), "step_size"),
        (LogitInference, "step_size"),
        (LogitInference, "momentum"),
        (LogitInference, "spread"),
        (FixedAlpha, "alpha"),
        (Offline, "alpha"),
        (Temperature, "alpha"),
        (HardTemperature, "alpha"),
        (partial(Regularised, weight=1.0), "alpha"),
        (partial(Regularised, 1.0), "weight"),
        (partial(TagLMEnergy, 3), "weight"),
        (partial(ChainEnergy, nn.Identity(), 3), "pairwise_std"),
        (partial(ChainEnergy, nn.Identity(), 3), "pairwise_range"),
        (MeanField, "tolerance"),
        (RaiseRidge, "margin"),
    ],
)
def test_a_weight_a_rate_or_a_temperature_that_is_none_is_refused(
    build: Callable[..., object], name: str, value: float
) -> None:
    with pytest.raises(ValueError, match=f"^{name} is {value}: take a "):
        build(**{name: value})


@pytest.mark.parametrize(
    ("build", "name"), [(Concrete, "temperature"), (LogitInference, "step_size"), (Offline, "alpha")]
)
def test_0_is_refused_where_it_divides_or_moves_nothing(build: Callable[..., object], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is 0\.0: take a finite number above 0"):
        build(**{name: 0.0})


class Untyped(nn.Linear):
    def __init__(self, depth) -> None:  # noqa: ANN001  # a user's
        super().__init__(14, 14)


def test_an_argument_without_a_type_that_is_not_given_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = said(capsys, CE, f"--model.task_net={__name__}.Untyped", f"--run_dir={tmp_path / 'run'}")
    assert line == "No depth is given (at model.task_net). Add --model.task_net.depth VALUE."


def test_a_label_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text,labels\n" + "a dog,red;blue\n" * 9)
    with pytest.raises(DataMismatch, match=r"--data\.labels lists 'red' twice\. List each once\."):
        MultiLabelTexts(
            4, encoder="none", train=str(tmp_path / "texts.csv"), labels=["red", "green", "blue", "red"]
        )
