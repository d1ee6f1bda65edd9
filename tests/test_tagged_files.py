"""Sentences from a user's own files: the real citations read as such, sizes that are told, mistakes."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from citation_data import all_labelled, from_glove, vectors
from datamodules.errors import DataMismatch, DataNotFound, FormatError
from datamodules.tagged_files import TaggedFiles
from scripts import predict, train

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("train", "validation", "test")
SIZES = ("num_tags", "num_words", "num_vectors", "num_characters", "longest_word")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The tagged citations, a file for each part."""
    data = from_glove()
    paths = {part: tmp_path / f"{part}.tsv" for part in PARTS}
    for part, path in paths.items():
        path.write_bytes(data.sources.read(data.text, data.text.files[part]))
    return {part: str(path) for part, path in paths.items()}


def told(error: str) -> list[str]:
    """The options that a message asks for."""
    return [word for word in shlex.split(error.partition("otherwise set ")[2].rstrip(". \n"))]


def test_one_error_tells_all_that_a_run_needs(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    command = ["--config=conf/data/own_tagged.yaml", "--config=conf/scheme/crf_joint.yaml"]
    command += ["--config=conf/objective/likelihood.yaml", f"--data.vectors={vectors()}"]
    command += [*(f"--data.{part}={path}" for part, path in files.items()), f"--run_dir={tmp_path}/run"]
    assert train.main(command) == 2
    error = " ".join(capsys.readouterr().err.split())
    options = told(re.sub(r" \(traceback.*", "", error))
    assert options[0] == "--data.tags" and len(options) == 12
    assert train.main([*command, *options, "--trainer.max_epochs=8"]) == 0
    assert predict.main([f"{tmp_path}/run"]) == 0
    first = (tmp_path / "run" / "test.jsonl").read_text().splitlines()[0]
    assert '"answer": ["author"' in first and '"truth": ["author"' in first


def test_the_citations_are_read_as_their_own_class_reads_them(files: dict[str, str]) -> None:
    with pytest.raises(DataMismatch) as error:
        TaggedFiles(**files, vectors=vectors())
    words = told(str(error.value))
    sizes = {
        key.removeprefix("--data."): int(value) for key, value in zip(words[2::2], words[3::2], strict=True)
    }
    tags = re.findall(r'"(\w+)"', str(error.value))
    data = TaggedFiles(**files, vectors=vectors(), tags=tags, **({"longest_word": 30} | sizes))
    data.setup()
    other = all_labelled()
    assert tags == other.names == data.names
    for part in ("validation", "test"):
        mine, its = data.splits[part], other.splits[part]
        assert mine.mask is not None and its.mask is not None
        assert torch.equal(mine.y, its.y[:, : mine.y.shape[1]])
        assert torch.equal(mine.mask, its.mask[:, : mine.mask.shape[1]])
    assert {len(split.y) for split in data.splits.values()} == {300, 100}


def test_parts_without_a_file_are_shares_and_other_columns_are_not_read(tmp_path: Path) -> None:
    two, four = tmp_path / "two.txt", tmp_path / "four.txt"
    sentences = [[("Ann", "N"), ("sees", "V"), (f"w{i}", "N")] for i in range(20)]
    two.write_text("\n".join("".join(f"{w} {t}\n" for w, t in s) for s in sentences))
    four.write_text("\n".join("".join(f"{w}\tx\ty\t{t}\n" for w, t in s) for s in sentences))
    file = tmp_path / "v.txt"
    file.write_text("ann 1 0\nsees 0 1\n")
    common = {"vectors": str(file), "num_dims": 2, "tags": ["N", "V"], "num_tags": 2, "num_words": 24}
    common |= {"num_vectors": 24, "num_characters": 17, "longest_word": 4}
    found = [TaggedFiles(train=str(two), **common), TaggedFiles(train=str(four), num_columns=4, **common)]
    for data in found:
        data.setup()
        assert {part: len(split.y) for part, split in data.splits.items()} == {
            "train": 12, "validation": 4, "test": 4,
        }  # fmt: skip
        assert data.splits["test"].y[0].int().argmax(-1).tolist() == [0, 1, 0]
    one, other = (data.splits["train"].inputs.values for data in found)
    assert torch.equal(one, other)
    new = tmp_path / "new.txt"
    new.write_text("Ann\nsees\tx\n\nw0\tx\ty\n")
    read = found[1].read_new(new)
    assert read.columns == (("Ann", "sees", "w0"), ("", "", "")) and read.lengths.tolist() == [2, 1]


def test_tags_that_are_left_out_are_told_though_all_sizes_are_given(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    sentences, words = tmp_path / "a" / "data.txt", tmp_path / "b" / "data.txt"  # of one name
    sentences.write_text("".join(f"Ann N\nsees V\nw{i} N\n\n" for i in range(20)))
    words.write_text("ann 1 0\nsees 0 1\n")
    sizes = {"num_dims": 2, "num_tags": 2, "num_words": 24, "num_vectors": 24}
    sizes |= {"num_characters": 17, "longest_word": 4}
    with pytest.raises(DataMismatch, match=r"the tags are not given.* --data.tags '\[\"N\", \"V\"\]'"):
        TaggedFiles(train=str(sentences), vectors=str(words), **sizes)  # type: ignore[arg-type]
    data = TaggedFiles(train=str(sentences), vectors=str(words), tags=["N", "V"], **sizes)  # type: ignore[arg-type]
    data.load()
    assert len(data.checksums) == 2


@pytest.mark.parametrize(("tag", "warned"), [("V", True), ("I-V", False)])
def test_tags_that_are_no_spans_are_told_at_once(tag: str, warned: bool, tmp_path: Path) -> None:
    sentences, words = tmp_path / "data.txt", tmp_path / "vectors.txt"
    sentences.write_text(f"Ann O\nsees {tag}\n\n" * 20)
    words.write_text("ann 1 0\nsees 0 1\n")
    with pytest.raises(DataMismatch) as error:
        TaggedFiles(train=str(sentences), vectors=str(words), num_dims=2)
    says = f"Tags such as '{tag}' are no spans, as B-NP is: conf/data/own_spans.yaml does not take them. "
    assert (says in str(error.value)) is warned and warned is ("own_spans" in str(error.value))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, DataNotFound, r"No sentences are given. Add --data.train FILE"),
        ({"train": "no.txt"}, DataNotFound, r"no.txt"),
        ({"train": "bad.txt"}, FormatError, r"bad.txt, line 2: 1 columns, a token has 2"),
        ({"train": "good.txt", "num_columns": 1}, DataMismatch, r"num_columns is 1: a token has 2 or more"),
        (
            {"train": "good.txt", "tags": ["N", "V", "N"]},
            DataMismatch,
            r"tags lists 'N' twice. List each once",
        ),
        ({"train": "good.txt", "num_dims": 50}, DataMismatch, r"100 dimensions, not 50"),
        (
            {"train": "good.txt", "tags": ["V"]},
            FormatError,
            r"good.txt, line 1: the tag 'N' is none of the 1",
        ),
    ],
)
def test_a_mistake_is_named(
    options: dict[str, object],
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.txt").write_text("a N\nb\n")
    Path("good.txt").write_text("a N\nb V\n")
    with pytest.raises(error, match=message):
        TaggedFiles(**options)  # type: ignore[arg-type]
