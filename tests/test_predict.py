"""Answers of finished runs in a file: they have the scores of the record, and names."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from citation_data import vectors
from finished_runs import ROOT, Run, file_of_test, lines_of, runner, scores
from lightning_modules.metrics.roles import RoleScores
from scripts import predict
from toy_world import hear_ctrl_c, until


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(ROOT)
    return runner(tmp_path)


def f1(line: dict[str, Any]) -> float:
    answer, truth = ({*line[name]} for name in ("answer", "truth"))
    return 2 * len(answer & truth) / (len(answer) + len(truth))


@pytest.mark.parametrize("scheme", [("cross_entropy",), ("energy_net", "dvn")])
def test_label_sets_have_names_and_the_scores_of_the_record(scheme: tuple[str, ...], run: Run) -> None:
    kinds = [f"{kind}/{name}" for kind, name in zip(("scheme", "objective"), scheme, strict=False)]
    folder = run("data/genbase", *kinds, **{"trainer.max_epochs": 3, "trainer.limit_train_batches": 1.0})
    assert predict.main([str(folder)]) == 0
    lines = lines_of(folder / "test.jsonl")
    assert [line["row"] for line in lines] == [*range(132)]
    assert all(name.startswith("PDOC") for line in lines for name in line["truth"])
    assert np.mean([*map(f1, lines)]) == pytest.approx(scores(folder)["test/example_f1"], abs=1e-6)
    assert predict.main([str(folder), "--part=validation"]) == 0
    found = np.mean([*map(f1, lines_of(folder / "validation.jsonl"))])
    assert found == pytest.approx(scores(folder)["val/example_f1"], abs=1e-6)


@pytest.mark.parametrize("scheme", ["crf_joint", "crf_stage"])
def test_tags_have_names_and_the_scores_of_the_record(scheme: str, run: Run, tmp_path: Path) -> None:
    phases = {
        "stop.patience": 1,
        "stop.min_delta": 1.0,
        "trainer.max_epochs": 6,
        "trainer.limit_train_batches": 20,
    }
    folder = run(
        "data/ocr", f"scheme/{scheme}", "objective/likelihood", **(phases if scheme == "crf_stage" else {})
    )
    assert predict.main([str(folder)]) == 0
    pairs = [
        pair
        for line in lines_of(folder / "test.jsonl")
        for pair in zip(line["answer"], line["truth"], strict=True)
    ]
    assert {letter for pair in pairs for letter in pair} <= {*"abcdefghijklmnopqrstuvwxyz"}
    assert np.mean([a == b for a, b in pairs]) == pytest.approx(scores(folder)["test/accuracy"], abs=1e-6)
    arrays = tmp_path / "deep" / "answers.npz"
    assert predict.main([str(folder), f"--out={arrays}"]) == 0
    with np.load(arrays, allow_pickle=False) as file:
        found = {name: file[name] for name in file}
    real = found["mask"].sum()
    assert found["relaxed"].shape == found["answer"].shape == found["truth"].shape
    assert found["answer"].sum() == found["truth"].sum() == real == len(pairs)
    assert (found["answer"] * found["truth"]).sum() / real == pytest.approx(
        scores(folder)["test/accuracy"], abs=1e-6
    )


def test_masks_are_arrays(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run("data/weizmann_horses_32_whole", "scheme/cross_entropy")
    assert predict.main([str(folder), f"--out={tmp_path}/masks.jsonl"]) == 2
    assert "Masks have no names. Take a .npz file:  --out answers.npz" in capsys.readouterr().err
    assert predict.main([str(folder), f"--new={folder}/record.json"]) == 2
    assert "record.json is a file. Name the folder of its pictures." in " ".join(
        capsys.readouterr().err.split()
    )
    whole = (folder / "record.json").read_text()
    (folder / "record.json").write_text(whole[:99])
    assert predict.main([str(folder)]) == 2
    assert f"{folder / 'record.json'} is damaged: it is no JSON object." in capsys.readouterr().err
    (folder / "record.json").write_text(whole)
    assert predict.main([str(folder)]) == 0
    with np.load(folder / "test.npz", allow_pickle=False) as arrays:
        answer, truth = arrays["answer"] > 0, arrays["truth"] > 0
    union = (answer | truth).sum((1, 2))
    iou = ((answer & truth).sum((1, 2)) / union.clip(1)).mean()
    assert iou == pytest.approx(scores(folder)["test/iou"], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out=answers.csv"], "answers.csv is neither .jsonl, .npz nor a folder."),
        (["--out=answers"], "answers is no file; a folder is for masks of new pictures."),
        (["--trainer.max_epochs=3"], "unrecognized arguments: --trainer.max_epochs=3"),
        (["--data.test=a.arff"], "--data.test=a.arff"),
        (["--part=train"], "--part train: take test or validation."),
        (["--new=missing.arff"], "There is no file missing.arff. Correct --new."),
        (["--new=a.arff", "--part=validation"], "--part and --new do not go together. Leave out one"),
    ],
)
def test_a_wrong_option_is_refused(
    options: list[str], message: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run("data/genbase", "scheme/cross_entropy")
    capsys.readouterr()
    assert predict.main([str(folder), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (folder / "test.jsonl").exists()


def stopped(process: subprocess.Popen[str], sign: int) -> tuple[str, str]:
    """What a process says that a signal ends; it is sent again, as one just before a read wakes nothing."""
    for _ in range(4):
        process.send_signal(sign)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=45)
    process.kill()
    return process.communicate()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_stopped_says_so(sign: int, run: Run, tmp_path: Path) -> None:
    folder, new = run("data/genbase", "scheme/cross_entropy"), tmp_path / "new.arff"
    os.mkfifo(new)  # which is read until it is closed
    ends: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):
            ends.append(os.open(new, os.O_WRONLY | os.O_NONBLOCK))
        return bool(ends)

    command = [sys.executable, "-m", "scripts.predict", str(folder), f"--new={new}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c
    ) as process:
        until(lambda: is_read() or process.poll() is not None)
        said = stopped(process, sign)
        assert process.returncode == 130
    assert said == ("", "Stopped before all answers were written. Run the same command again.\n")
    assert not (folder / "new.jsonl").exists()
    os.close(*ends)


def test_citations_have_the_scores_of_the_record_and_are_read_from_a_file(run: Run, tmp_path: Path) -> None:
    folder = run("data/cora_citations_5", "scheme/cross_entropy", **{"data.vectors": vectors()})
    assert predict.main([str(folder)]) == 0
    lines = lines_of(folder / "test.jsonl")
    right = [np.mean([a == b for a, b in zip(line["answer"], line["truth"], strict=True)]) for line in lines]
    assert np.mean(right) == pytest.approx(scores(folder)["test/word_accuracy"], abs=1e-6)
    (tmp_path / "mine.tsv").write_bytes(file_of_test("cora_citations"))
    assert predict.main([str(folder), f"--new={tmp_path}/mine.tsv"]) == 0
    assert lines_of(folder / "new.jsonl") == lines


TAGS = "NV"


def test_the_answer_of_roles_is_the_decoders() -> None:
    torch.manual_seed(0)
    metrics = RoleScores(["ARG0", "ARG1"]), RoleScores(["ARG0", "ARG1"])
    answer, y = torch.rand(50, 7, 5).softmax(-1), F.one_hot(torch.randint(0, 5, (50, 7)), 5).float()
    mask = torch.arange(7) < torch.randint(1, 8, (50, 1))
    decided = metrics[0].decide(answer, mask)
    assert torch.equal(decided.sum(-1) == 1, mask)
    assert not torch.equal(decided.argmax(-1)[mask], answer.argmax(-1)[mask])
    for metric, given in zip(metrics, (answer, decided), strict=True):
        metric.update(given, y, mask)
    first, second = (metric.compute() for metric in metrics)
    assert first["f1"] == second["f1"] > 0
    assert second["bio"] == 0 < first["bio"]
