"""Answers to what training never saw: rows, texts, sentences, roles, pictures."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import role_parts
import text_parts
from datamodules.errors import DataNotFound, FormatError
from datamodules.readers.texts import LabelledTexts, read_csv, read_json_lines
from datamodules.splits import by_files, by_names
from datamodules.text.labelled import MultiLabelTexts
from experiments.errors import UserError
from finished_runs import ROOT, Run, file_of_test, lines_of, runner, scores
from make_mlc import dense_arff
from scripts import predict, train
from scripts.finished.answers import spare_inputs
from scripts.finished.run import built

TAGS = "NV"
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
    monkeypatch.chdir(ROOT)
    return runner(tmp_path)


def test_new_pictures_get_masks_of_their_names_and_sizes(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: tmp_path / name for name in ("pictures", "masks", "new")}
    sizes = draw_shapes(paths["pictures"], paths["masks"], count=20)
    unseen = draw_shapes(paths["new"], tmp_path / "unread", count=3, seed=1)
    own = {f"data.{name}": paths[name] for name in ("pictures", "masks")}
    folder = run(
        "data/folder",
        "scheme/cross_entropy",
        **{
            "data.size": 32,
            "net.init_args.widths": [4, 8],
            "optimizer.init_args.lr": 0.02,
            "trainer.max_epochs": 20,
        },
        **own,
    )
    assert scores(folder)["test/iou"] > 0.8
    assert predict.main([str(folder), f"--new={paths['new']}"]) == 0
    found = {path.stem: Image.open(path) for path in (folder / "new").iterdir()}
    assert {name: mask.size for name, mask in found.items()} == unseen
    for name, mask in found.items():
        answer, truth = (np.asarray(m) > 0 for m in (mask, Image.open(tmp_path / "unread" / f"{name}.png")))
        assert (answer & truth).sum() / (answer | truth).sum() > 0.7
    # those of the run give the answers that the run gave them, wherever they lie
    assert predict.main([str(folder)]) == 0
    assert predict.main([str(folder), f"--new={paths['pictures']}", f"--out={tmp_path}/all.npz"]) == 0
    with np.load(folder / "test.npz") as test, np.load(tmp_path / "all.npz") as every:
        rows = by_names([*sizes], {}, share=0.2, seed=0)["test"]
        np.testing.assert_allclose(test["relaxed"], every["relaxed"][rows], atol=1e-5)
    before = {path: path.read_bytes() for place in paths.values() for path in place.iterdir()}
    for name, holds in (("new", "the pictures themselves"), ("masks", "data of the run")):
        assert predict.main([str(folder), f"--new={paths['new']}", f"--out={paths[name]}"]) == 2
        assert f"{paths[name]} has {holds}. Give the masks another" in " ".join(
            capsys.readouterr().err.split()
        )
    assert before == {path: path.read_bytes() for place in paths.values() for path in place.iterdir()}


def draw_shapes(pictures: Path, masks: Path, *, count: int, seed: int = 0) -> dict[str, tuple[int, int]]:
    """PNGs of a bright box on dark ground, and its mask, in sizes of their own; the sizes by name."""
    draw, sizes = np.random.default_rng(seed), {}
    for folder in (pictures, masks):
        folder.mkdir()
    for number in range(count):
        width, height = draw.integers(40, 90, 2)
        left, top = draw.integers(4, 12, 2)
        mask = np.zeros((height, width), np.uint8)
        mask[top : top + height // 2, left : left + width // 2] = 255
        noisy = np.clip(mask[..., None] * 0.7 + draw.integers(0, 60, (height, width, 3)), 0, 255)
        Image.fromarray(noisy.astype(np.uint8)).save(pictures / f"shape {number:02}.png")
        Image.fromarray(mask).save(masks / f"shape {number:02}.png")
        sizes[f"shape {number:02}"] = (int(width), int(height))
    return sizes


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


def test_no_file_that_is_read_is_written_over(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    rows = dense_arff(x, np.eye(3, dtype=int)[x.argmax(1)])
    files = {part: tmp_path / f"{part}.jsonl" for part in ("train", "new")}  # ARFF, whatever they are named
    for file in files.values():
        file.write_text(rows)
    sizes = {"data.num_features": 3, "data.num_labels": 3, "data.train": files["train"]}
    folder = run("data/arff", "scheme/cross_entropy", **sizes)
    (tmp_path / "link").symlink_to(tmp_path)
    capsys.readouterr()
    for out in (files["train"], files["new"], tmp_path / "link/new.jsonl"):
        assert predict.main([str(folder), f"--new={files['new']}", f"--out={out}"]) == 2
        assert f"{out} is a file that is read here. Give the answers another" in capsys.readouterr().err
    assert predict.main([str(folder), f"--out={files['train']}"]) == 2
    (folder / "new.jsonl").write_text(rows)  # where answers go if --out is left out
    assert predict.main([str(folder), f"--new={folder}/new.jsonl"]) == 2
    assert {file.read_text() for file in (*files.values(), folder / "new.jsonl")} == {rows}
    with pytest.raises(UserError, match="has data of the run"):
        spare_inputs(tmp_path, folder, None)


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
    alone = text_parts.write_csv(tmp_path / "alone.csv", [["text"], *([text] for text, *_ in rows[45:])])
    objects = tmp_path / "alone.jsonl"
    objects.write_text("".join(json.dumps({"text": text}) + "\n" for text, *_ in rows[45:]))
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    for file in (test, bare, alone, objects):
        assert predict.main([str(folder), f"--new={file}"]) == 0
        new, own = lines_of(folder / "new.jsonl"), lines_of(folder / "test.jsonl")
        assert [line["answer"] for line in new] == [line["answer"] for line in own]
        assert (new == own) == (file == test)
        assert any(line["truth"] for line in new) == (file == test)
    # the states of the run's own texts are not computed again
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}.items()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("new.txt", r"new.txt \(--new\) is neither .csv nor .jsonl. Convert it, or correct --new."),
        ("folder", r"folder \(--new\) is a folder. Give the file in it."),
    ],
)
def test_what_is_said_of_new_texts_has_the_option_of_the_command(
    name: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "train.csv").write_text("text,labels\n" + "a dog,red\na cat,blue\n" * 9)
    (tmp_path / "new.txt").write_text("a dog\n")
    (tmp_path / "folder").mkdir()
    data = MultiLabelTexts(2, encoder="none", train=str(tmp_path / "train.csv"))
    data.new = tmp_path / name
    with pytest.raises(DataNotFound, match=says):
        data.read()


@pytest.mark.parametrize(
    ("header", "rows", "labels"),
    [
        ("text, labels", "a dog, red; blue\na cat,\n", (("red", "blue"), ())),
        (" text , red,blue ", "a dog, 1,1\na cat, 0, 0\n", (("red", "blue"), ())),
    ],
)
def test_blanks_after_the_commas_of_a_csv_file_do_not_count(
    header: str, rows: str, labels: tuple[tuple[str, ...], ...]
) -> None:
    found = read_csv(f"{header}\n{rows}".encode(), where="mine")
    assert found.labels == labels and found.declared in (None, ("red", "blue"))
    with pytest.raises(FormatError, match="each once"):
        read_csv(b"text, red,red\na dog,1,0\n", where="mine")


@pytest.mark.parametrize(
    ("read", "right", "wrong", "says"),
    [
        (read_csv, b"text\n a dog\n", b"text\na dog,a\n", "line 2: 2 columns, the header has 1"),
        (read_csv, b"text,labels\na dog,\n", b"title\na dog\n", "line 1: the header has to be"),
        (read_json_lines, b'{"text": "a dog"}', b'{"title": "a dog"}', "without the key 'text'"),
        (read_json_lines, b'{"text": "a dog", "labels": []}', b"[1]", "is not"),
    ],
)
def test_new_texts_need_no_labels_and_those_for_training_do(
    read: Callable[..., LabelledTexts], right: bytes, wrong: bytes, says: str
) -> None:
    found = read(right, where="new", unlabelled=True)
    assert [text.strip() for text in found.texts] == ["a dog"] and found.labels == ((),)
    with pytest.raises(FormatError, match=says):
        read(wrong, where="new", unlabelled=True)
    if b"labels" not in right:
        with pytest.raises(FormatError):
            read(right, where="train")


def test_a_set_of_the_registry_reads_a_file_too(run: Run, tmp_path: Path) -> None:
    folder = run("data/emotions", "scheme/cross_entropy")
    assert predict.main([str(folder)]) == 0
    (tmp_path / "mine.arff").write_bytes(file_of_test("emotions"))
    assert predict.main([str(folder), f"--new={tmp_path}/mine.arff"]) == 0
    assert lines_of(folder / "new.jsonl") == lines_of(folder / "test.jsonl")


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
    before = words["train"].read_text()
    for line in ("wab N", "w! N"):  # the second has a letter too many for the sizes of the run
        words["train"].write_text(f"{before}\n{line}\n")
        assert predict.main([str(tagger), f"--new={words['new']}"]) == 2
        said = capsys.readouterr().err
        assert "train.tsv has changed since this run was trained." in said and "--data" not in said


@pytest.mark.skipif(bool(role_parts.missing()), reason=role_parts.missing())
def test_roles_of_sentences_that_training_never_saw(run: Run, tmp_path: Path) -> None:
    given = dict(option.removeprefix("--").split("=", 1) for option in role_parts.options())
    given |= {"data.kept_layers": 1, "data.folder": tmp_path, "data.eval_batch_size": 16}
    folder = run("data/srl", "scheme/cross_entropy", **given)
    assert predict.main([str(folder)]) == 0
    own = lines_of(folder / "test.jsonl")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    bare = tmp_path / "bare.tsv"
    tagged = Path(given["data.test"])
    rows = tagged.read_text().split("\n")
    bare.write_text("\n".join(row if row[:1] == "#" else "\t".join(row.split("\t")[:5]) for row in rows))
    for file in (tagged, bare):
        assert predict.main([str(folder), f"--new={file}"]) == 0
        new = lines_of(folder / "new.jsonl")
        assert [line["answer"] for line in new] == [line["answer"] for line in own]
        assert (new == own) is (file == tagged)
    assert not any(line["truth"] for line in new)
    # the states of the run's own texts are not computed again
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}.items()
