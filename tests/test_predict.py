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

import text_parts
from citation_data import vectors
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from datamodules.splits import by_files
from lightning_modules.metrics.roles import RoleScores
from make_mlc import dense_arff
from scripts import predict, train
from scripts.finished_run import built

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


def file_of_test(name: str) -> bytes:
    """The test part of a set of the registry."""
    data = data_set(name)
    return Sources().read(data, data.files["test"])


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
    assert "Horses32 reads no file of new examples" in " ".join(capsys.readouterr().err.split())
    assert predict.main([str(folder)]) == 0
    with np.load(folder / "test.npz", allow_pickle=False) as arrays:
        answer, truth = arrays["answer"] > 0, arrays["truth"] > 0
    union = (answer | truth).sum((1, 2))
    iou = ((answer & truth).sum((1, 2)) / union.clip(1)).mean()
    assert iou == pytest.approx(scores(folder)["test/iou"], abs=1e-6)


@pytest.mark.parametrize(
    ("scale", "encoding"),
    [("train", "clean"), ("all", "clean"), ("standard_all", "one_hot"), ("none", "clean")],
)
def test_new_rows_are_read_as_those_of_the_run(
    scale: str, encoding: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 3))
    y = np.eye(3, dtype=int)[x.argmax(1)]
    train, new = tmp_path / "train.arff", tmp_path / "new.arff"
    text = dense_arff(x, y)
    head, rows = text[: text.index("@data") + 6], text[text.index("@data") + 6 :].splitlines()
    rows[5] = ",".join(["?", *rows[5].split(",")[1:]])  # filled with a mean
    train.write_text(head + "\n".join(rows))
    sizes = {"data.num_features": 3, "data.num_labels": 3, "data.scale": scale, "data.encoding": encoding}
    folder = run("data/arff", "scheme/cross_entropy", **sizes, **{"data.train": train})
    assert predict.main([str(folder)]) == 0
    _, data = built(folder)
    data.setup()
    own = [row for row in rows if row.strip()]
    chosen = np.flatnonzero([*(share_of(len(own), data.split_seed, data.share))])
    far = ",".join(["90.0", "-70.0", "?", "0", "0", "0"])  # would change a mean and a range
    new.write_text(head + "\n".join([*(own[row] for row in chosen), far]))
    assert predict.main([str(folder), f"--new={new}"]) == 0
    lines, test = lines_of(folder / "new.jsonl"), lines_of(folder / "test.jsonl")
    assert lines[:-1] == test and lines[-1]["truth"] == []
    arrays = [tmp_path / f"{part}.npz" for part in ("test", "new")]
    assert predict.main([str(folder), f"--out={arrays[0]}"]) == 0
    assert predict.main([str(folder), f"--out={arrays[1]}", f"--new={new}"]) == 0
    first, second = (np.load(file)["relaxed"] for file in arrays)
    np.testing.assert_array_equal(first, second[:-1])


def share_of(count: int, seed: int, share: float) -> np.ndarray:
    """Which rows of one file are the test part."""
    return np.isin(np.arange(count), by_files({"train": count}, share=share, seed=seed)["test"])


@pytest.mark.skipif(bool(text_parts.missing()), reason=text_parts.missing())
def test_new_texts_are_read_as_those_of_the_run(run: Run, tmp_path: Path) -> None:
    header, *rows = text_parts.rows_of("train", 60)
    train, test = (
        text_parts.write_csv(tmp_path / f"{part}.csv", [header, *own])
        for part, own in (("train", rows[:45]), ("test", rows[45:]))
    )
    settings = {"data.num_labels": 90, "data.max_pieces": 32, "data.folder": tmp_path, "data.pooling": "null"}
    settings |= {"trained": "top_layers", "data.kept_layers": 4, "data.train": train, "data.test": test}
    folder = run("data/own_text", "scheme/cross_entropy", **settings)
    assert predict.main([str(folder)]) == 0
    bare = text_parts.write_csv(
        tmp_path / "bare.csv", [header, *([text, *"0" * 90] for text, *_ in rows[45:])]
    )
    for file in (test, bare):
        assert predict.main([str(folder), f"--new={file}"]) == 0
        new, own = lines_of(folder / "new.jsonl"), lines_of(folder / "test.jsonl")
        assert [line["answer"] for line in new] == [line["answer"] for line in own]
        assert (new == own) == (file == test)
        assert not any(line["truth"] for line in new) == (file == bare)


def test_a_set_of_the_registry_reads_a_file_too(run: Run, tmp_path: Path) -> None:
    folder = run("data/emotions", "scheme/cross_entropy")
    assert predict.main([str(folder)]) == 0
    (tmp_path / "mine.arff").write_bytes(file_of_test("emotions"))
    assert predict.main([str(folder), f"--new={tmp_path}/mine.arff"]) == 0
    assert lines_of(folder / "new.jsonl") == lines_of(folder / "test.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out=answers.csv"], "answers.csv is neither .jsonl nor .npz."),
        (["--trainer.max_epochs=3"], "unrecognized arguments: --trainer.max_epochs=3"),
        (["--data.test=a.arff"], "--data.test=a.arff"),
        (["--part=train"], "--part train: take test or validation."),
        (["--new=missing.arff"], "There is no file missing.arff. Correct --new."),
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
        assert predict.main([str(tagger), f"--new={file}", f"--out={out}"]) == 0
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
    assert predict.main([str(tagger), f"--new={words['new']}"]) == 2
    assert "train.tsv has changed since this run was trained." in capsys.readouterr().err


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
