"""Label sets as CSV: against the same rows as ARFF, line by line where wrong, and as a run's own data."""

from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules.errors import ArffError, DataMismatch
from datamodules.mlc import MultiLabelData
from datamodules.readers.arff import read_arff, read_csv
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from scripts import train
from test_predict_new import lines_of

ROOT = Path(__file__).resolve().parent.parent
GOOD = """\ufeffchild's age,"length,, cm",2019,sad\r\n1.5,,0,1\r\n\r\n"-2e1","",1,0\r\n"""


def test_the_last_columns_are_labels_and_empty_cells_are_missing() -> None:
    table = read_csv(GOOD.encode(), where="own.csv", num_labels=2)
    assert [feature.name for feature in table.features] == ["child's age", "length,, cm"]
    assert table.labels == ("2019", "sad")
    np.testing.assert_array_equal(table.x, np.array([[1.5, np.nan], [-20, np.nan]], np.float32))
    np.testing.assert_array_equal(table.y, [[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("text", "num_labels", "message"),
    [
        (
            "1.5,2,0,1\n1,2,1,0\n",
            2,
            r"own\.csv, line 1: '1\.5' is no name: the first line has to name the columns",
        ),
        (
            ",a,l\n0,2,0\n",
            1,
            r"own\.csv, line 1: column 1 has no name: name it, or write the file without it",
        ),
        ('a,b,l\n"1,5",2,0\n', 1, r"own\.csv, line 2: '1,5' is no number; decimals take a point"),
        ("a,b,l\n%1,2,0\n", 1, r"own\.csv, line 2: '%1' is no number"),
        ("a,b,l\n{0 1,2 1}\n", 1, r"own\.csv, line 2: '\{0 1' is no number"),
        ('a,b,l\n"1,2,0\n', 1, r"own\.csv, line 2: unexpected end of data"),
        ("a,b,a\n1,2,0\n", 1, r"own\.csv, line 1: the name 'a' comes twice"),
        ("a;b;l\n1;2;0\n", 1, r"own\.csv, line 1: there is one column: separate names and values by commas"),
        ("a,b,l\n1,2,0\n1,2\n", 1, r"own\.csv, line 3: 2 values, but the header declares 3 attributes"),
        ("a,b,l\n1,red,0\n", 1, r"own\.csv, line 2: b is 'red', which is no number"),
        ("a,b,l\n1,2,2\n", 1, r"own\.csv, line 2: the label l is 2; a label is 0 or 1"),
        ("a,b,l\n1,2,\n", 1, r"own\.csv, line 2: the label l is missing; a label is 0 or 1"),
        ("a,b,l\n", 1, r"own\.csv, line 1: there are no rows after it\. Is the file truncated"),
        ("", 1, r"own\.csv, line 1: there is one column"),
        ("a,b,l\n1,2,0\n", 0, r"own\.csv does not say how many of its 3 columns are labels, the last ones"),
        ("a,b,l\n1,2,0\n", 3, r"own\.csv: 3 labels leave no features"),
    ],
)
def test_a_bad_line_is_named(text: str, num_labels: int, message: str) -> None:
    with pytest.raises(ArffError, match=message):
        read_csv(text.encode(), where="own.csv", num_labels=num_labels)


def emotions() -> tuple[str, np.ndarray]:
    """The test part of Emotions as CSV, and all its numbers."""
    data, sources = data_set("emotions"), Sources()
    if reason := sources.missing(data):
        pytest.skip(reason)
    table = read_arff(sources.read(data, data.files["test"]), where="emotions", num_labels=6)
    assert isinstance(table.x, np.ndarray)
    names = [feature.name for feature in table.features] + list(table.labels)
    cells = np.concatenate([table.x, table.y], axis=1)
    return "\n".join([",".join(names), *(",".join(map(repr, row)) for row in cells.tolist())]), cells


def test_real_rows_read_as_those_of_an_arff_file() -> None:
    text, cells = emotions()
    table = read_csv(text.encode(), where="emotions.csv", num_labels=6)
    assert isinstance(table.x, np.ndarray)
    np.testing.assert_array_equal(np.concatenate([table.x, table.y], axis=1), cells)


def test_a_run_trains_on_csv_and_answers_new_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from scripts import predict

    monkeypatch.chdir(ROOT)
    file, new = tmp_path / "mine.csv", tmp_path / "new.csv"
    text, cells = emotions()
    file.write_text(text)
    new.write_text("\n".join(text.splitlines()[:5]))
    layers = ["--config=conf/data/arff.yaml", "--config=conf/scheme/cross_entropy.yaml"]
    given = [*layers, f"--data.train={file}", "--data.num_labels=6", f"--run_dir={tmp_path}/run"]
    assert train.main(given) == 2
    assert "Set --data.num_features 72" in " ".join(capsys.readouterr().err.split())
    assert train.main([*given, "--data.num_features=72", "--trainer.max_epochs=1"]) == 0
    assert predict.main([f"{tmp_path}/run", f"--new={new}"]) == 0
    assert len(lines_of(tmp_path / "run" / "new.jsonl")) == 4
    data = MultiLabelData(72, 6, train=str(file))
    data.setup()
    y = torch.cat([split.y for split in data.splits.values()]).float()
    assert y.sum(0).tolist() == cells[:, 72:].sum(0).tolist()
    with pytest.raises(DataMismatch, match=r"Set --data\.num_features 72"):
        MultiLabelData(71, 6, train=str(file)).setup()
