"""svmlight files, against scikit-learn and line by line; and the subsets of RCV1."""

from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_svmlight_file

from committed import ROOT, data_of
from datamodules.errors import DataMismatch, DataNotFound, FormatError
from datamodules.mlc import MultiLabelData
from datamodules.readers.svmlight import read_svmlight
from datamodules.sources.registry import data_sets

GOOD = b"0,3 1:0.5 4:2\n1 2:-1e-3 5:7\n 3:1\n2\n"
BAD = {
    "no pair": (b"1 2:1\n0 3\n", "line 2"),
    "no number": (b"1 2:one\n", "line 1"),
    "a label too many": (b"4 2:1\n", "label"),
    "a column too many": (b"1 6:1\n", "column 6"),
    "a column of 0": (b"1 0:1\n", "column 0"),
    "columns that fall": (b"1 3:1 2:1\n", "column 2"),
    "no finite number": (b"1 3:nan\n", "no number up to"),
    "a number too large": (b"1 3:-1e30\n", "up to 1.8e"),
    "no text": (b"\xff\xfe\n", "line 1"),
}


def test_a_file_reads_as_in_another_library() -> None:
    table = read_svmlight(GOOD, where="own.svm", num_features=5, num_labels=4)
    x, sets = load_svmlight_file(BytesIO(GOOD), multilabel=True, n_features=5)
    np.testing.assert_array_equal(table.x.toarray(), x.toarray().astype(np.float32))
    assert [tuple(np.flatnonzero(row)) for row in table.y] == [tuple(map(int, labels)) for labels in sets]


def test_comments_and_a_byte_order_mark_are_no_data() -> None:
    content = (
        b"\xef\xbb\xbf# made by hand\n0,3 1:0.5 4:2 # the \x0cfirst\n\t # between\r\n1 2:-1e-3 5:7\n\n# end\n"
    )
    table = read_svmlight(content, where="own.svm", num_features=5, num_labels=4)
    x, sets = load_svmlight_file(BytesIO(content[3:]), multilabel=True, n_features=5)
    np.testing.assert_array_equal(table.x.toarray(), x.toarray().astype(np.float32))
    assert [tuple(np.flatnonzero(row)) for row in table.y] == [tuple(map(int, labels)) for labels in sets]
    with pytest.raises(FormatError, match=r"own\.svm, line 7"):
        read_svmlight(content + b"9 1:1\n", where="own.svm", num_features=5, num_labels=4)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named(name: str) -> None:
    content, said = BAD[name]
    with pytest.raises(FormatError, match=said) as error:
        read_svmlight(content, where="own.svm", num_features=5, num_labels=4)
    assert "own.svm, line" in str(error.value) and "1 to 5" in str(error.value)


def own(folder: Path, **options: object) -> MultiLabelData:
    lines = [f"{row % 3} {row % 5 + 1}:{row / 10}" for row in range(40)]
    (folder / "own.svm").write_text("\n".join(lines) + "\n")
    data = MultiLabelData(5, 3, train=str(folder / "own.svm"), **options)
    data.setup()
    return data


def test_a_users_own_file_is_sparse_or_dense(tmp_path: Path) -> None:
    few, full = own(tmp_path, sparse=True), own(tmp_path)
    for part, split in few.splits.items():
        eye = torch.eye(5)
        assert torch.equal(split.inputs.times(eye), full.splits[part].inputs)
        assert torch.equal(split.y, full.splits[part].y)


def test_what_has_to_be_scaled_cannot_stay_sparse(tmp_path: Path) -> None:
    with pytest.raises(DataMismatch, match=r"own\.svm cannot stay sparse: that takes .* scale: none"):
        own(tmp_path, sparse=True, scale="all")


def test_empty_lines_at_the_end_are_no_rows_and_a_file_of_them_is_refused() -> None:
    read = partial(read_svmlight, where="own.svm", num_features=5, num_labels=4)
    assert len(read(GOOD).y) == len(read(GOOD + b"\n\n").y)
    with pytest.raises(FormatError, match=r"own\.svm has no row"):
        read(b"\n \n")


@pytest.mark.parametrize(
    ("subset", "num_values", "cardinality"),
    [(1, 77.2, 2.880), (2, 77.1, 2.634), (3, 77.9, 2.614), (4, 77.5, 2.484), (5, 77.0, 2.642)],
)
def test_a_subset_of_rcv1_has_its_published_counts(
    subset: int, num_values: float, cardinality: float
) -> None:
    described = data_of(ROOT / "conf" / "data" / "rcv1.yaml")
    data = MultiLabelData(**(described["init_args"] | {"seed": 0, "subset": subset}))
    if reason := data.missing():
        pytest.skip(reason)
    data.setup()
    parts = data.splits.values()
    assert [len(split.inputs) for split in parts] == [3600, 1200, 1200]
    assert all(split.inputs.num_columns == 47_236 and split.y.shape[1] == 101 for split in parts)
    assert sum(len(split.inputs.values) for split in parts) / 6000 == pytest.approx(num_values, abs=0.051)
    assert sum(int(split.y.sum()) for split in parts) / 6000 == pytest.approx(cardinality, abs=6e-4)
    batch = next(iter(data.train_dataloader()))
    assert len(batch.inputs) == 32 and batch.inputs.values.dtype == torch.float32
    assert [*data.checksums.values()] == [data_sets()["rcv1"].files[data._subset()].sha256]


def test_a_subset_that_is_not_there_is_refused() -> None:
    with pytest.raises(DataNotFound, match="rcv1 has no subset 6"):
        MultiLabelData(47_236, 101, name="rcv1", subset=6).prepare_data()
