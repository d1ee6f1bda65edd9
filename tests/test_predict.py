"""Answers of finished runs in a file: they have the scores of the record, names, and rows of unseen files."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from citation_data import vectors
from lightning_modules.metrics.roles import RoleScores
from make_mlc import dense_arff
from scripts import predict, train

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[..., Path]
LETTERS = """
features:
  init_args:
    features:
      init_args:
        tuned: true
        letters:
          class_path: networks.char_cnn.CharCNN
          init_args: {num_characters: "${data.init_args.num_characters}"}
        longest_word: ${data.init_args.longest_word}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Train shortly by config files of conf; the folder of the run."""
    monkeypatch.chdir(ROOT)

    def run(*layers: str, **options: object) -> Path:
        given = {"trainer.max_epochs": 1, "trainer.limit_train_batches": 3} | options
        files = [f"--config=conf/{layer}.yaml" for layer in layers]
        assert (
            train.main([*files, f"--run_dir={tmp_path}/run", *(f"--{k}={v}" for k, v in given.items())]) == 0
        )
        return tmp_path / "run"

    return run


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def scores(run: Path) -> dict[str, float]:
    return json.loads((run / "record.json").read_text())["metrics"]


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
    assert predict.main([str(folder)]) == 2
    assert "Masks have no names. Take a .npz file:  --out answers.npz" in capsys.readouterr().err
    file = tmp_path / "masks.npz"
    assert predict.main([str(folder), f"--out={file}"]) == 0
    with np.load(file, allow_pickle=False) as arrays:
        answer, truth = arrays["answer"] > 0, arrays["truth"] > 0
    union = (answer | truth).sum((1, 2))
    iou = ((answer & truth).sum((1, 2)) / union.clip(1)).mean()
    assert iou == pytest.approx(scores(folder)["test/iou"], abs=1e-6)


def test_a_file_that_training_never_saw_is_read_row_by_row(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 3))
    y = np.eye(3, dtype=int)[x.argmax(1)]
    files = {name: tmp_path / f"{name}.arff" for name in ("train", "new")}
    files["train"].write_text(dense_arff(x, y))
    other = 3 * draw.normal(size=(20, 3))
    files["new"].write_text(dense_arff(other, np.zeros((20, 3), int)))
    settings = {"trainer.max_epochs": 30, "data.scale": "train"} | {
        "data.num_features": 3,
        "data.num_labels": 3,
    }
    folder = run(
        "data/arff",
        "scheme/cross_entropy",
        **settings,
        **{"data.train": files["train"], "trainer.limit_train_batches": 1.0},
    )
    assert predict.main([str(folder), f"--data.test={files['new']}"]) == 0
    lines = lines_of(folder / "test.jsonl")
    assert [line["truth"] for line in lines] == [[]] * 20
    right = [line["answer"] == [f"tag{best}"] for line, best in zip(lines, other.argmax(1), strict=True)]
    assert np.mean(right) > 0.6
    capsys.readouterr()
    assert predict.main([str(folder), "--data.test=missing.arff"]) == 2
    assert "There is no file missing.arff" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out=answers.csv"], "answers.csv is neither .jsonl nor .npz."),
        (["--trainer.max_epochs=3"], "--trainer.max_epochs=3 is no option here."),
        (["--data.tset=a.arff"], "tset"),
        (["--data.scale=all", "--data.test=a.arff"], "scaled by those of all parts"),
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


def test_a_tagger_has_the_scores_of_the_record(run: Run) -> None:
    folder = run("data/cora_citations_5", "scheme/cross_entropy", **{"data.vectors": vectors()})
    assert predict.main([str(folder)]) == 0
    lines = lines_of(folder / "test.jsonl")
    right = [np.mean([a == b for a, b in zip(line["answer"], line["truth"], strict=True)]) for line in lines]
    assert np.mean(right) == pytest.approx(scores(folder)["test/word_accuracy"], abs=1e-6)


TAGS = "NV"


@pytest.fixture
def words(tmp_path: Path) -> dict[str, Path]:
    """Files of sentences whose tags are the sign of a word's vector, and the vectors, of more words."""
    draw = np.random.default_rng(0)
    table = draw.normal(scale=0.3, size=(90, 4))
    table[:, 0] += draw.choice([-1, 1], 90)
    names = [f"w{chr(97 + i // 9)}{chr(97 + i % 9)}" for i in range(len(table))]
    tag = {name: TAGS[int(row[0] > 0)] for name, row in zip(names, table, strict=True)}
    files = {name: tmp_path / f"{name}.tsv" for name in ("train", "test", "new", "bare", "vectors")}
    vector_lines = [" ".join([n, *map(str, row.round(4))]) for n, row in zip(names, table, strict=True)]
    files["vectors"].write_text("\n".join(vector_lines))
    for part, of, count in (("train", names[:60], 300), ("test", names[5:65], 10), ("new", names[50:], 10)):
        sentences = [draw.choice(of, draw.integers(2, 7)) for _ in range(count)]
        told = ["".join(f"{word} {tag[word]}\n" for word in sentence) for sentence in sentences]
        files[part].write_text("\n".join(told))
    files["bare"].write_text(files["new"].read_text().replace(" N", "").replace(" V", ""))
    return files


@pytest.fixture
def tagger(run: Run, words: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A tagger of these sentences that reads letters and tunes its vectors."""
    layer = tmp_path / "letters.yaml"
    layer.write_text(LETTERS)
    given = [f"--data.{part}={words[part]}" for part in ("train", "test", "vectors")]
    configs = [
        f"--config={c}" for c in ("conf/data/own_tagged.yaml", layer, "conf/scheme/cross_entropy.yaml")
    ]
    options = [
        *configs,
        *given,
        "--data.num_dims=4",
        "--trainer.max_epochs=8",
        f"--run_dir={tmp_path}/tagger",
    ]
    assert train.main(options) == 2
    advice = re.findall(r"--data\.(?:tags '.*?'|num_\w+ \d+|longest_word \d+)", capsys.readouterr().err)
    assert train.main([*options, *shlex.split(" ".join(advice))]) == 0
    return tmp_path / "tagger"


def test_a_tagger_reads_sentences_that_training_never_saw(
    tagger: Path, words: dict[str, Path], tmp_path: Path
) -> None:
    def predicted(file: Path) -> list[dict[str, Any]]:
        out = tmp_path / "out.jsonl"
        assert predict.main([str(tagger), f"--data.test={file}", f"--out={out}"]) == 0
        return lines_of(out)

    def right(line: dict[str, Any]) -> float:
        return float(np.mean([a == b for a, b in zip(line["answer"], line["truth"], strict=True)]))

    assert predict.main([str(tagger)]) == 0
    own, new = lines_of(tagger / "test.jsonl"), predicted(words["new"])
    assert scores(tagger)["test/accuracy"] > 0.9
    assert np.mean([*map(right, new)]) > 0.8
    assert [line | {"truth": []} for line in new] == predicted(words["bare"])
    both = tmp_path / "both.tsv"
    both.write_text(words["new"].read_text() + "\n" + words["test"].read_text())
    assert [line["answer"] for line in predicted(both)] == [line["answer"] for line in new + own]


def test_a_tagger_whose_sentences_have_changed_predicts_nothing(
    tagger: Path, words: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words["train"].write_text(words["train"].read_text() + "\nwab N\n")
    assert predict.main([str(tagger), f"--data.test={words['new']}"]) == 2
    assert "train.tsv has changed since this run was trained." in capsys.readouterr().err
    assert predict.main([str(tagger), f"--data.train={words['new']}"]) == 2
    assert "but for --data.train" in " ".join(capsys.readouterr().err.split())


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
