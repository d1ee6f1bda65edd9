"""Labelled texts: the real sets against their published counts, every format and error, real runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from committed import ROOT, data_of
from datamodules.errors import DataMismatch, DataNotFound, FormatError
from datamodules.readers.hub import HubTexts
from datamodules.readers.texts import read_csv, read_json_lines, read_line_pairs, read_names
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from datamodules.text.labelled import MultiLabelTexts
from networks.mlp import EncodedLabels, LabelMLP
from text_parts import ENCODER, missing, options, rows_of, write_csv

CONF = ROOT / "conf" / "data"
REUTERS = {"train": (5827, 89, 1.235), "validation": (1943, 73, 1.230), "test": (3019, 90, 1.240)}
encoder_is_here = pytest.mark.skipif(bool(missing()), reason=missing())


def configured(name: str, **changes: object) -> MultiLabelTexts:
    return MultiLabelTexts(**(data_of(CONF / f"{name}.yaml")["init_args"] | {"seed": 0} | changes))


def own(**arguments: object) -> MultiLabelTexts:
    return MultiLabelTexts(**({"num_labels": 2, "encoder": ENCODER} | arguments))


def test_reuters_has_its_published_counts() -> None:
    data = configured("reuters")
    if reason := data.missing():
        pytest.skip(reason)
    texts, y, rows = data.read()
    for part, (count, occurring, cardinality) in REUTERS.items():
        here = y[rows[part]]
        assert here.shape == (count, 90) and int(here.any(0).sum()) == occurring
        assert here.sum(1).mean() == pytest.approx(cardinality, abs=5e-4) and here.any(1).all()
    assert all(texts) and y.shape[0] == len(texts) == 10_789
    # "earn" and "acq" are the two largest topics of the test stories, with 1,087 and 719 in ModApte
    header = rows_of("test", 0)[0][1:]
    sizes = dict(zip(header, y[rows["test"]].sum(0).tolist(), strict=True))
    assert (sizes["earn"], sizes["acq"]) == (1087, 719)


def test_aapd_has_its_published_counts_where_the_texts_for_training_are_stood_in_for(tmp_path: Path) -> None:
    """The 1,000 abstracts for validation are given as a user's own for training."""
    data, sources = data_set("aapd"), Sources()
    if reason := sources.missing(data):
        pytest.skip(reason)
    given = {}
    for part, option in (("validation", "train"), ("validation_labels", "train_labels")):
        given[option] = str(tmp_path / data.files[part].name)
        Path(given[option]).write_bytes(sources.read(data, data.files[part]))
    module = configured("aapd", **given)
    assert module.missing() is None and module.source_files() is None
    texts, y, rows = module.read()
    assert [len(rows[part]) for part in ("train", "validation", "test")] == [1000] * 3 and len(texts) == 3000
    assert y[rows["validation"]].sum(1).mean() == pytest.approx(2.400)
    assert y[rows["test"]].sum(1).mean() == pytest.approx(2.421)
    assert y[rows["test"]].any(0).all() and np.array_equal(y[rows["train"]], y[rows["validation"]])


def test_data_that_is_not_here_is_told_in_a_sentence() -> None:
    aapd = configured("aapd").missing() or ""
    assert "There is no file data/aapd/text_train (--data.train)" in aapd and "lancopku" not in aapd
    assert "53,840 abstracts for training are not here: give SGM's files as --data.train FILE" in aapd
    rcv1 = configured("rcv1_text")
    assert len(set(rcv1.labels or [])) == rcv1.num_labels == 103
    assert "There is no file data/rcv1_text/text_train (--data.train)" in str(rcv1.missing())
    empty = configured("reuters", folder="nowhere", mirror="")
    for part in ("reuters21578 is not in nowhere", "train.csv, dev.csv, test.csv", "ModApte"):
        assert part in str(empty.missing())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, r"No texts are given\. Add --data\.train FILE"),
        ({"train": "nowhere.csv"}, r"There is no file nowhere\.csv \(--data\.train\)"),
        ({"train": "{}.csv", "test": "nowhere.csv"}, r"\(--data\.test\)"),
        ({"train": "{}.csv", "train_labels": "nowhere"}, r"\(--data\.train_labels\)"),
        ({"train": "{}.txt"}, r"neither \.csv nor \.jsonl.* --data\.train_labels FILE"),
        ({"test_labels": "x"}, r"--data\.test_labels needs the texts too: --data\.test FILE"),
        ({"name": "reuters"}, "There is no data set 'reuters'. Did you mean reuters21578"),
        ({"train": "{}.csv", "num_labels": 0}, r"2 labels, .* says 0: .* --data\.num_labels 2; .*semicolons"),
        ({"train": "{}.csv", "num_labels": 3}, r"2 labels, .* says 3: '.*', '.*'\. .*num_labels 2"),
        ({"train": "{}.none.csv", "num_labels": 3}, r"none\.csv: no text has a label\. Is it the"),
        ({"train": "{}.csv", "labels": ["b", "c"]}, r"a\.csv, line 2: the label 'a' is none of the 2: b, c"),
    ],
)  # fmt: skip
def test_wrong_options_are_told_in_a_sentence(arguments: dict[str, str], says: str, tmp_path: Path) -> None:
    for name, second in (("a.csv", "a;b"), ("a.txt", "a;b"), ("a.none.csv", "")):
        (tmp_path / name).write_text(f"text,labels\none,{second[:1]}\ntwo,{second}\n")
    given = {
        key: value.replace("{}", str(tmp_path / "a")) if isinstance(value, str) else value
        for key, value in arguments.items()
    }
    with pytest.raises((DataNotFound, DataMismatch, FormatError), match=says):
        own(**given).read()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "line 1: the header has to be text,labels or text and a name for each label"),
        (b"title,labels\nx,a\n", "line 1: the header has to be"),
        (b"text,a,a\nx,0,1\n", "line 1: the header has to be .* each once"),
        (b"text,labels\n", "the file has no text. Is it truncated"),
        (b"text,labels\none,a\n  ,a\n", "line 3: the text is empty"),
        (b"text,labels\none,a\ntwo\n", "line 3: 1 columns, the header has 2"),
        (b'text,a,b\n"one\ntwo",1,0\nthree,1\n', "line 4: 2 columns, the header has 3"),
        (b"text,a,b\none,1,yes\n", "line 2: 'yes' in the column b has to be 0 or 1"),
        (b"text,labels\none,a\nZ\xfcrich,a\n", "line 3: this is not UTF-8"),
        (b'text,labels\none,a\n"two,a\n', "line 3: the row that begins here is no CSV"),
    ],
)  # fmt: skip
def test_a_bad_csv_file_is_told_with_its_line(content: bytes, says: str) -> None:
    with pytest.raises(FormatError, match=says) as error:
        read_csv(content, where="a.csv")
    assert str(error.value).startswith("a.csv") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "is not"),
        (b"[1]", "is not"),
        (b'{"text": "x", "label": ["a"]}', "without the key 'labels' .it has 'text', 'label'. is not"),
        (b'{"text": "x", "labels": "a"}', "an object whose labels is '\"a\"' is not"),
        (b'{"text": 3, "labels": ["a"]}', "an object whose text is '3' is not"),
        (b'{"text": "", "labels": ["a"]}', "the text is empty"),
        (b'{"text": "\xff", "labels": ["a"]}', "this is not UTF-8. .* convert the file, as by iconv"),
        (b"[" * 100_000, "is not"),
        (b'{"text": "cut \\ud83d", "labels": ["a"]}', "is not"),
        (b'{"text": "x", "labels": ["a", " "]}', "is not"),
        (b'{"text": "x", "labels": ["a"], "labels": ["b"]}', "is not"),
    ],
)
def test_a_bad_line_of_json_is_told(line: bytes, says: str) -> None:
    good = b'{"text": "one", "labels": ["a"]}\n'
    with pytest.raises(FormatError, match=rf"^a\.jsonl, line 3: .*{says}"):
        read_json_lines(good + b"\n" + line, where="a.jsonl")


def test_texts_beside_their_labels_are_checked() -> None:
    where = ("texts", "labels")
    read = read_line_pairs(b"one\r\ntwo", b"a b\n\n", where=where)
    assert read.texts == ("one", "two") and read.labels == (("a", "b"), ())
    with pytest.raises(FormatError, match="texts has 2 lines and labels has 1"):
        read_line_pairs(b"one\ntwo\n", b"a\n", where=where)
    with pytest.raises(FormatError, match="texts, line 2: the text is empty"):
        read_line_pairs(b"one\n\n", b"a\nb\n", where=where)
    with pytest.raises(FormatError, match="labels, line 2: the label 'c' is none of the 2: a, b"):
        read_line_pairs(b"one\ntwo\n", b"a\nc\n", where=where).indicators(("a", "b"))
    assert read_names(b"a\nb", where="names") == ("a", "b")
    for content in (b"a\na\n", b"a\n\nb\n"):
        with pytest.raises(
            FormatError, match=r"names, line 2: '.?' has to be the name of a label, each once"
        ):
            read_names(content, where="names")


def test_all_formats_of_one_part_of_reuters_read_alike(tmp_path: Path) -> None:
    header, *rows = rows_of("train", 60)
    names = [[name for name, cell in zip(header[1:], row[1:], strict=True) if cell == "1"] for row in rows]
    texts = [" ".join(row[0].split()) for row in rows]
    columns = read_csv(write_csv(tmp_path / "a.csv", [header, *rows]).read_bytes(), where="a.csv")
    listed = [["text", "labels"], *([text, ";".join(some)] for text, some in zip(texts, names, strict=True))]
    column = read_csv(write_csv(tmp_path / "b.csv", listed).read_bytes(), where="b.csv")
    lines = "".join(json.dumps({"text": t, "labels": n}) + "\n" for t, n in zip(texts, names, strict=True))
    objects = read_json_lines(b"\xef\xbb\xbf" + lines.encode(), where="a.jsonl")
    pairs = read_line_pairs(
        "\n".join(texts).encode(), "\n".join(map(" ".join, names)).encode(), where=("texts", "labels")
    )
    assert columns.declared == tuple(header[1:]) and column.declared is None
    for read in (column, objects, pairs):
        np.testing.assert_array_equal(read.indicators(header[1:]), columns.indicators(header[1:]))
        assert read.texts == tuple(texts)


def test_a_data_set_of_the_hub_library_reads_as_its_files_do(tmp_path: Path) -> None:
    """Saved with numbers that it names, with names, and as a folder of JSON lines: the same label sets."""
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    rows = [{"sentence": f"text {n}", "topics": [n % 3, 2][: 1 + (n % 3 < 2)]} for n in range(12)]
    names = ("x", "y", "z")
    kind = datasets.Features(
        sentence=datasets.Value("string"), topics=datasets.Sequence(datasets.ClassLabel(names=list(names)))
    )
    parts = {"train": rows[:8], "validation": rows[8:10], "test": rows[10:]}
    numbered = datasets.DatasetDict(
        {k: datasets.Dataset.from_list(v, features=kind) for k, v in parts.items()}
    )
    numbered.save_to_disk(tmp_path / "numbered")
    (tmp_path / "named").mkdir()
    for part, these in parts.items():
        lines = [json.dumps(row | {"topics": [names[n] for n in row["topics"]]}) for row in these]
        (tmp_path / "named" / f"{part}.jsonl").write_text("\n".join(lines))
    read = [
        own(hub=HubTexts(str(tmp_path / folder), text="sentence", labels="topics"), num_labels=3).read()
        for folder in ("numbered", "named")
    ]
    for texts, y, rows_of_part in read:
        assert texts == [row["sentence"] for row in rows]
        assert [sorted(np.flatnonzero(one)) for one in y] == [sorted({*row["topics"]}) for row in rows]
        assert [len(index) for index in rows_of_part.values()] == [8, 2, 2]


def test_a_folder_of_csv_files_reads_through_the_hub_library_as_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra hf is not installed")
    lines = [f"text {n},{('art;None', 'None', 'sport; art')[n % 3]}" for n in range(12)]
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "train.csv").write_text("\n".join(["text,labels", *lines]))
    given = {"hub": HubTexts(str(tmp_path / "csv"))}, {"train": str(tmp_path / "csv" / "train.csv")}
    (texts, y, _), (same, other, _) = (own(**options, num_labels=3).read() for options in given)
    assert texts == same and (y == other).all() and y.sum() == 20


@pytest.mark.parametrize(
    ("row", "options", "says"),
    [
        ({"text": "a", "labels": ["x"]}, {"text": "title"}, "has no column title, but text, labels"),
        ({"text": "a", "labels": [3]}, {}, r"column labels holds .*int64.*\. It has to hold names of labels"),
        ({"text": " ", "labels": ["x"]}, {}, "row 1: the text is empty"),
        ({"text": ["a"], "labels": ["x"]}, {}, "column text holds .*, and has to hold texts"),
        ({"text": "a", "labels": ["x"]}, {"name": "reuters21578"}, "give one of them"),
        ([{"text": "a", "labels": ["x"]}], {}, "no texts for training. Add --data.train FILE"),
        (None, {}, r"is not read, neither as a folder nor from the hub .*Correct --data.hub.name"),
    ],
)  # fmt: skip
def test_a_bad_data_set_of_the_hub_is_told_in_a_sentence(
    row: dict[str, object] | list[dict[str, object]] | None,
    options: dict[str, str],
    says: str,
    tmp_path: Path,
) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    if isinstance(row, list):
        datasets.DatasetDict(test=datasets.Dataset.from_list(row)).save_to_disk(tmp_path / "set")
    elif row:
        datasets.Dataset.from_list([row]).save_to_disk(tmp_path / "set")
    hub = HubTexts(str(tmp_path / "set"), text=options.get("text", "text"))
    with pytest.raises((DataNotFound, DataMismatch, FormatError), match=says):
        own(hub=hub, name=options.get("name", "own")).read()


def test_rows_of_the_hub_without_a_label_are_dropped_and_a_file_takes_the_place_of_a_part(
    tmp_path: Path,
) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    kind = datasets.Features(
        text=datasets.Value("large_string"), labels=datasets.ClassLabel(names=["x", "y"])
    )
    train = [{"text": "a", "labels": 1}, {"text": "b", "labels": -1}, {"text": "c", "labels": None}]
    parts = {"train": train, "dev": [{"text": "d", "labels": 0}], "test": [{"text": "", "labels": None}]}
    sets = {part: datasets.Dataset.from_list(rows, features=kind) for part, rows in parts.items()}
    datasets.DatasetDict(sets).save_to_disk(tmp_path / "set")
    (tmp_path / "test.csv").write_text("text,x,y\ne,1,1\n")
    data = own(hub=HubTexts(str(tmp_path / "set")), test=str(tmp_path / "test.csv"))
    texts, y, _ = data.read()
    assert texts == ["a", "b", "c", "d", "e"]
    assert y.tolist() == [[0, 1], [0, 0], [0, 0], [1, 0], [1, 1]]
    assert len(data.checksums) == 3 and not any(name.endswith("set/test") for name in data.checksums)


def test_headers_that_differ_are_refused(tmp_path: Path) -> None:
    train = write_csv(tmp_path / "a.csv", [["text", "a", "b"], ["one", "1", "0"]])
    test = write_csv(tmp_path / "b.csv", [["text", "b", "a"], ["one", "1", "0"]])
    with pytest.raises(DataMismatch, match=r"a\.csv and .*b\.csv have different columns of labels"):
        own(train=str(train), test=str(test)).read()


@encoder_is_here
def test_texts_without_a_label_are_dropped_and_shares_are_drawn(tmp_path: Path) -> None:
    rows = [
        ["text", "labels"],
        *([f"text number {k}", "a;b" if k % 2 else "b"] for k in range(20)),
        ["none", ""],
    ]
    data = own(train=str(write_csv(tmp_path / "a.csv", rows)), folder=str(tmp_path))
    data.setup()
    sizes = [len(data.splits[part].y) for part in ("train", "validation", "test")]
    assert sum(sizes) == 20 and len(data.checksums) == 1
    batch = next(iter(data.train_dataloader()))
    assert batch.y.dtype == torch.float32 and batch.y[:, 1].all() and batch.mask is None


@encoder_is_here
def test_a_part_without_a_labelled_text_is_told(tmp_path: Path) -> None:
    rows = [["text", "labels"], *([f"text number {k}", "a;b"] for k in range(20))]
    train = write_csv(tmp_path / "a.csv", rows)
    test = write_csv(tmp_path / "b.csv", [["text", "labels"], ["one", ""], ["two", ""]])
    with pytest.raises(DataMismatch, match="No text with a label is left for test"):
        own(train=str(train), test=str(test), folder=str(tmp_path), kept_layers=0).setup()


@encoder_is_here
def test_an_encoder_that_is_not_there_is_told_in_a_sentence(tmp_path: Path) -> None:
    done = train(tmp_path, "cross_entropy", f"--data.encoder={tmp_path / 'nowhere'}")
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "nowhere" in done.stderr and "--data.encoder FOLDER" in done.stderr


def test_encoded_labels_are_a_label_network_behind_features() -> None:
    torch.manual_seed(0)
    plain = LabelMLP(7, 3, num_layers=2, width=5, dropout=0.5).eval()
    torch.manual_seed(0)
    encoded = EncodedLabels(Same(7), 3, widths=[5, 5], dropout=0.5).eval()
    x = torch.randn(4, 7)
    assert torch.equal(encoded(x), plain(x))
    assert EncodedLabels(Same(7), 3, widths=[]).labels.in_features == 7
    with pytest.raises(ValueError, match=r"widths\.1"):
        EncodedLabels(Same(7), 3, widths=[5, 0])


class Same(torch.nn.Identity):
    """Features that are the input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


def train(folder: Path, *files: str, row: str = "") -> subprocess.CompletedProcess[str]:
    """One epoch on 100 stories by scripts.train; `files` are a scheme, an objective, and options."""
    dials = [file for file in files if not file.startswith("--")]
    configs = [f"conf/{kind}/{name}.yaml" for kind, name in zip(("scheme", "objective"), dials, strict=False)]
    configs = ["conf/data/own_text.yaml", *configs, *([row] if row else [])]
    words = [word for file in configs for word in ("--config", file)]
    extra = [file for file in files if file.startswith("--")]
    return subprocess.run(
        [sys.executable, "-m", "scripts.train", *words, *options(), "--trainer.max_epochs=1", *extra,
         f"--run_dir={folder / 'run'}"],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


@encoder_is_here
def test_a_data_set_of_the_hub_trains_by_hand(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    header, *rows = rows_of("train", 60)
    stories = [
        {"body": text, "topics": list(np.flatnonzero([cell == "1" for cell in cells]))}
        for text, *cells in rows
    ]
    kind = datasets.Features(
        body=datasets.Value("string"), topics=datasets.Sequence(datasets.ClassLabel(names=header[1:]))
    )
    datasets.Dataset.from_list(stories, features=kind).save_to_disk(tmp_path / "set")
    words = [
        "--config=conf/data/own_text.yaml",
        "--config=conf/scheme/cross_entropy.yaml",
        "--trainer.max_epochs=1",
    ]
    words += [f"--data.hub.name={tmp_path / 'set'}", "--data.hub.text=body", "--data.hub.labels=topics"]
    words += [
        "--data.num_labels=90",
        "--data.max_pieces=32",
        f"--data.folder={tmp_path}",
        f"--run_dir={tmp_path / 'run'}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.train", *words],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["updates"]["task"] > 0 and "test/map" in record["metrics"]


@encoder_is_here
@pytest.mark.parametrize(
    "files",
    [
        ("seal_dynamic", "nce", "--model.outer_steps=1"),
        ("implicit", "cd", "--model.warm_up=0", "--model.inner_steps=1"),
        ("cross_entropy", "--trained=top_layers", "--data.kept_layers=4", "--data.pooling=null"),
    ],
    ids=lambda files: files[0],
)
def test_a_users_own_texts_train_by_hand(files: tuple[str, ...], tmp_path: Path) -> None:
    done = train(tmp_path, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["epochs"] == 1
    scores = record["metrics"]
    assert {"test/example_f1", "test/micro_f1", "test/macro_f1", "test/map"} <= scores.keys()
    found = record["findings"]
    assert all(
        len(found[f"{stage}/{kind}f1_by_threshold"]) == 23
        for stage in ("val", "test")
        for kind in ("", "micro_", "macro_")
    )
    assert scores["test/micro_f1"] == pytest.approx(found["test/micro_f1_by_threshold"][13])
