"""The ARFF reader against files written here, against another reader, and against broken files."""

import gzip
import string
import time
from collections.abc import Callable

import arff as liac
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from datamodules.errors import ArffError
from datamodules.readers.arff import ArffTable, read_arff
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from make_mlc import clus_arff, dense_arff, sparse_arff

NAN = float("nan")
HEADER = (
    "@relation x\n@attribute a numeric\n@attribute b {u,v}\n@attribute l {0,1}\n@attribute m {0,1}\n@data\n"
)


def read(text: str, num_labels: int = 0) -> ArffTable:
    return read_arff(text.encode(), where="x.arff", num_labels=num_labels)


def array(x: np.ndarray | csr_array) -> np.ndarray:
    return x.toarray() if isinstance(x, csr_array) else x


def test_features_come_before_labels_unless_the_relation_says_otherwise() -> None:
    table = read(HEADER + "1.5,v,0,1\n-2,u,1,1\n", num_labels=2)
    assert [feature.name for feature in table.features] == ["a", "b"]
    assert table.labels == ("l", "m")
    np.testing.assert_array_equal(table.x, [[1.5, 1], [-2, 0]])
    np.testing.assert_array_equal(table.y, [[0, 1], [1, 1]])
    assert (table.x.dtype, table.y.dtype) == (np.float32, np.uint8)


@pytest.mark.parametrize(("told", "first"), [("-C 2", True), ("-C -2", False)])
def test_meka_tells_in_the_relation_where_the_labels_are(told: str, first: bool) -> None:
    x, y = np.array([[0.5, 2.0], [1.0, NAN]]), np.array([[0, 1], [1, 0]])
    table = read(dense_arff(x, y, relation=f"Set: {told} -split-number 1", labels_first=first))
    np.testing.assert_array_equal(table.x, x.astype(np.float32))
    np.testing.assert_array_equal(table.y, y)
    assert table.labels == ("tag0", "tag1")


def test_a_sparse_row_leaves_out_zeros_and_first_values() -> None:
    table = read(HEADER + "{0 1.5, 3 1}\n{ 1 v ,2 1}\n{}\n", num_labels=2)
    assert isinstance(table.x, csr_array)
    np.testing.assert_array_equal(array(table.x), [[1.5, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(table.y, [[0, 1], [1, 0], [0, 0]])


@pytest.mark.parametrize("rows", ["1,0\n0,1\n", "{0 1, 1 0}\n{0 0, 1 1}\n"])
def test_a_label_declared_one_zero_keeps_its_meaning(rows: str) -> None:
    table = read(f"@relation x\n@attribute a numeric\n@attribute l {{1,0}}\n@data\n{rows}", num_labels=1)
    assert table.y.ravel().tolist() == [0, 1]
    left_out = read("@relation x\n@attribute a numeric\n@attribute l {1,0}\n@data\n{0 1}\n", num_labels=1)
    assert left_out.y.ravel().tolist() == [1]


def test_quotes_escapes_comments_case_and_line_ends_are_read_as_weka_writes_them() -> None:
    text = (
        "% a comment\r\n@RELATION 'a b'\r\n\r\n@Attribute 'odd, name' REAL % said here\r\n"
        "@attribute TAG_m\\'usica {0,1}\r\n"
        "@attribute \"it's\"{ 'a, b' , \"c'd\", plain }\r\n@ATTRIBUTE l integer\r\n"
        "@DATA\r\n% rows\r\n1e-3, 0 ,'a, b',1\r\n\r\n?,1,\"c'd\",0\r\n 2 ,?, plain ,1"
    )
    table = read("\ufeff" + text, num_labels=1)
    assert [feature.name for feature in table.features] == ["odd, name", "TAG_m'usica", "it's"]
    assert table.features[2].values == ("a, b", "c'd", "plain")
    np.testing.assert_allclose(table.x, [[1e-3, 0, 0], [NAN, 1, 1], [2, NAN, 2]], rtol=1e-6)
    assert table.y.ravel().tolist() == [1, 0, 1]


def test_a_quoted_value_in_a_sparse_row_may_hold_a_comma() -> None:
    header = "@relation x\n@attribute a {p,'q, r'}\n@attribute l {0,1}\n@data\n"
    table = read(header + "{0 'q, r', 1 1}\n{1 1}\n", num_labels=1)
    np.testing.assert_array_equal(array(table.x), [[1], [0]])


def test_names_in_an_old_encoding_are_read() -> None:
    text = "@relation x\n@attribute é numeric\n@attribute l {0,1}\n@data\n1,0\n"
    assert read_arff(text.encode("latin-1"), where="x", num_labels=1).features[0].name == "é"


def test_a_hierarchy_brings_ancestors_and_the_root() -> None:
    text = clus_arff(np.array([[1.0], [2.0]]), ["01/02@03", "01"], "01,01/02,01/02/07,03")
    table = read(text)
    assert table.labels == ("root", "01", "01/02", "01/02/07", "03")
    np.testing.assert_array_equal(table.y, [[1, 1, 1, 0, 1], [1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(table.x, [[1], [2]])


BROKEN = [
    ("1,u,0\n", 7, "3 values, but the header declares 4"),
    ("1,u,0,1\n1,u,0,1,1\n", 8, "5 values, but the header declares 4"),
    ("1,w,0,1\n", 7, "b is 'w', which is not among its values {u, v}"),
    ("1,u,0,2\n", 7, "m is '2', which is not among its values {0, 1}"),
    ("1,u,?,1\n", 7, "the label l is missing"),
    ("nan,u,0,1\n", 7, "a is 'nan', which is no number"),
    ("inf,u,0,1\n", 7, "a is 'inf', which is no number"),
    ("1e39,u,0,1\n", 7, "a is '1e39', whose square overflows float32"),
    ("1,u,0,1\n-1e30,u,0,1\n", 8, "a is '-1e30', whose square overflows float32: numbers go up to 1.8e+19"),
    ("1_0,u,0,1\n", 7, "a is '1_0', which is no number"),
    (",u,0,1\n", 7, "a is '', which is no number"),
    ("% only\n\n", 6, "no rows"),
    ("1,u,0,1\n{0 1}\n", 8, "a sparse row among dense ones"),
    ("1,'u,0,1\n", 7, "a quote is not closed"),
    ("{0 1, 2 1\n", 7, "cut off"),
    ("{0 1}\n1,u,0,1\n", 8, "a sparse row is written"),
    ("{0 1}\n{0 1, 9 1}\n", 8, "there is no attribute 9: the header declares 0 to 3"),
    ("{-1 1}\n", 7, "there is no attribute -1"),
    ("{0 1, 0 2}\n", 7, "twice"),
    ("{0}\n", 7, "pairs of an attribute's index and its value"),
    ("{0 1 2, 2}\n", 7, "pairs of an attribute's index and its value"),
    ("{x 1}\n", 7, "index is not a whole number"),
    ("{1_0 1}\n", 7, "index is not a whole number"),
    ("{0 nan}\n", 7, "a is 'nan'"),
    ("{1 w}\n", 7, "b is 'w'"),
    ("{2 5}\n", 7, "l is '5'"),
]


@pytest.mark.parametrize(("rows", "line", "says"), BROKEN)
def test_a_broken_row_is_named_with_its_line(rows: str, line: int, says: str) -> None:
    with pytest.raises(ArffError, match=rf"^x\.arff, line {line}: ") as error:
        read(HEADER + rows, num_labels=2)
    assert says in str(error.value)


BROKEN_HEADERS = [
    ("@attribute a string\n@data\n1\n", "line 1: the attribute a has the type 'string'"),
    ("@attribute a\n@data\n1\n", "line 1: the attribute a has the type missing"),
    ("@attribute 'a numeric\n@data\n1\n", "line 1: an attribute is declared as"),
    ("@attribute a {u,u}\n@data\nu\n", "line 1: the values of a have to be different"),
    ("@attribute a {u,v\n@data\nu\n", "line 1: the attribute a has the type '{u,v'"),
    ("@data\n1\n", "line 1: no attribute is declared"),
    ("@attribute a numeric\n1,2\n", "line 2: '1,2' is neither"),
    ("@attribute a numeric\n", "no @data line"),
    ("", "no @data line"),
    ("@attribute a numeric\n@attribute l {0,1}\n@data\n1,0\n", "how many of the 2 attributes are labels"),
    ("@relation 'x: -C 3'\n@attribute a numeric\n@data\n1\n", "3 labels leave no features"),
    (
        "@attribute a numeric\n@attribute 'a' {0,1}\n@data\n1\n",
        "line 2: the attribute 'a' is declared in line 1",
    ),
    (
        "@attribute a hierarchical " + "1/" * 60 + "1\n@data\n1\n",
        "line 1: a class of a has more than 50 levels",
    ),
]


@pytest.mark.parametrize(("text", "says"), BROKEN_HEADERS)
def test_a_broken_header_is_named_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ArffError) as error:
        read(text)
    assert says in str(error.value)


def test_published_attributes_may_share_a_name() -> None:
    text = "@attribute a numeric\n@attribute a numeric\n@attribute l {0,1}\n@data\n1,2,0\n"
    table = read_arff(text.encode(), where="x.arff", num_labels=1, repeats=True)
    assert [feature.name for feature in table.features] == ["a", "a"]


LONG = [
    (f"@relation {':' * 1_000_000}\n@attribute a\n", "line 2"),
    (f"@relation :{'-C ' * 300_000}\n@attribute a\n", "line 2"),
    ("@attribute a {u,'v'" + " " * 200_000 + "w}\n@data\n", "a quote is not closed, or not set around"),
    ("@attribute a {u," + "v " * 100_000 + "'}\n@data\n", "the attribute a has the type"),
    ("@attribute a {" + " " * 200_000 + "'u}\n@data\n", "the attribute a has the type"),
    ("@attribute a numeric [" + "] " * 100_000 + "x\n@data\n", "the attribute a has the type"),
    (f"@attribute {'a' * 500_000} string\n@data\n", f"the attribute {'a' * 40}... has the type 'string'"),
    (f"@attribute a {{u, {'v' * 500_000}}}\n@data\n{'w' * 500_000}\n", "is 'www"),
    ("@attribute a {u}\n@attribute b {u}\n@data\n" + "u," * 200_000 + "\n", "200001 values"),
    ("@attribute a {u}\n@data\n" + " " * 200_000 + "u" + " " * 200_000 + "'\n", "a quote is not closed"),
    ("@attribute a {u, v}\n@data\n" + "u\n" * 50_000 + "w\n", "line 50003: a is 'w'"),
]


@pytest.mark.parametrize(("text", "says"), LONG, ids=range(len(LONG)))
def test_long_lines_take_no_long_time_and_are_not_said_whole(text: str, says: str) -> None:
    began = time.process_time()
    with pytest.raises(ArffError) as error:
        read(text, num_labels=1)
    assert says in str(error.value) and len(str(error.value)) < 500
    assert time.process_time() - began < 10


def test_a_value_with_many_blanks_in_it_is_read() -> None:
    value = "u" + " " * 200_000 + "v"
    text = f"@attribute a {{{value}, w}}\n@attribute l {{0,1}}\n@data\n{value},1\n w ,0\n'w' ,0\n"
    assert read(text, num_labels=1).x.ravel().tolist() == [0, 1, 1]


def test_a_label_that_is_declared_as_something_else_is_refused() -> None:
    text = "@relation x\n@attribute a numeric\n@attribute l {no,yes}\n@data\n1,no\n"
    with pytest.raises(ArffError, match=r"line 3: the label l is declared \{no, yes\}; a label is \{0,1\}"):
        read(text, num_labels=1)


@pytest.mark.parametrize("row", ["1,2", "{1 2}"])
def test_a_numeric_label_beside_0_and_1_is_named_with_its_line(row: str) -> None:
    text = "@relation x\n@attribute a numeric\n@attribute l numeric\n@data\n"
    good = "{0 1, 1 1}" if row[0] == "{" else "3,1"
    with pytest.raises(ArffError, match=r"line 6: the label l is 2; a label is 0 or 1"):
        read(f"{text}{good}\n{row}\n", num_labels=1)


def test_a_number_of_labels_against_the_relation_is_refused() -> None:
    text = "@relation 'x: -C 1'\n@attribute l {0,1}\n@attribute a numeric\n@data\n0,1\n"
    with pytest.raises(ArffError, match="Set num_labels to 1"):
        read(text, num_labels=2)


def test_an_undeclared_class_is_named_with_its_line() -> None:
    with pytest.raises(ArffError, match=r"line 6: the class '02' is not among the 1"):
        read(clus_arff(np.array([[1.0], [2.0]]), ["01", "02"], "01"))


NAMES = st.text(string.ascii_letters + string.digits + " ,'\"{}%_-é\\", min_size=1, max_size=6)
NAMES = NAMES.filter(lambda name: name.strip() == name)


def quoted(name: str) -> str:
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


@st.composite
def tables(draw: Callable) -> tuple[list, list, list[list], int]:
    """Names, domains (None: numeric), rows of cells (None: missing), number of labels."""
    num_features, num_labels, num_rows = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 5)),
    )
    width = num_features + num_labels
    names = draw(st.lists(NAMES, min_size=width, max_size=width, unique=True))
    domain = st.none() | st.lists(NAMES, min_size=1, max_size=4, unique=True)
    domains = [draw(domain) for _ in range(num_features)] + [["0", "1"]] * num_labels
    number = st.floats(-1e6, 1e6, width=32)
    rows = [
        [
            draw(st.none() | (st.sampled_from(values) if values else number))
            for values in domains[:num_features]
        ]
        + [draw(st.sampled_from("01")) for _ in range(num_labels)]
        for _ in range(num_rows)
    ]
    return names, domains, rows, num_labels


def header_of(names: list, domains: list) -> str:
    kinds = ["numeric" if values is None else "{" + ",".join(map(quoted, values)) + "}" for values in domains]
    lines = [f"@attribute {quoted(name)} {kind}" for name, kind in zip(names, kinds, strict=True)]
    return "\n".join(["@relation drawn", *lines, "@data"]) + "\n"


def cell_of(cell: str | float | None) -> str:
    return "?" if cell is None else quoted(cell) if isinstance(cell, str) else repr(cell)


def expected(domains: list, rows: list[list]) -> np.ndarray:
    codes = [
        [
            NAN if cell is None else values.index(cell) if values else cell
            for cell, values in zip(row, domains, strict=True)
        ]
        for row in rows
    ]
    return np.array(codes, np.float32)


@given(tables(), st.booleans())
def test_what_is_written_is_what_is_read(table: tuple, sparse: bool) -> None:
    names, domains, rows, num_labels = table
    if sparse:
        texts = ["{" + ", ".join(f"{i} {cell_of(cell)}" for i, cell in enumerate(row)) + "}" for row in rows]
    else:
        texts = [" , ".join(map(cell_of, row)) for row in rows]
    found = read(header_of(names, domains) + "\n".join(texts) + "\n", num_labels=num_labels)
    wanted = expected(domains, rows)
    np.testing.assert_array_equal(array(found.x), wanted[:, :-num_labels])
    np.testing.assert_array_equal(found.y, wanted[:, -num_labels:])
    assert [feature.name for feature in found.features] + list(found.labels) == names


VALID = [
    HEADER + "1.5,v,0,1\n?,u,1,1\n",
    HEADER + "{0 1.5, 3 1}\n{1 v}\n",
    clus_arff(np.array([[1.0], [2.0]]), ["01/02@03", "01"], "01,01/02,03"),
    sparse_arff(3, 5, 2, words=3),
    dense_arff(np.eye(2), np.eye(2), relation="x: -C 2", labels_first=True),
]
JUNK = st.text("@%{}'\",\\?-. \n\t01aé_/e" + chr(0), max_size=3)


@settings(max_examples=300)
@given(st.sampled_from(VALID), st.data())
def test_a_damaged_file_is_read_or_refused_with_an_arff_error(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 8)) | st.just(len(text)))
        text = text[:start] + data.draw(JUNK) + text[end:]
    try:
        table = read(text, num_labels=2)
    except ArffError as error:
        assert str(error).startswith("x.arff") and len(str(error)) < 400
    else:
        assert set(np.unique(table.y)) <= {0, 1}
        assert len(array(table.x)) == len(table.y) > 0
        assert not np.isinf(array(table.x)).any()


@given(st.binary(max_size=60))
def test_bytes_that_are_no_arff_file_are_refused(content: bytes) -> None:
    with pytest.raises(ArffError):
        read_arff(content, where="x.arff", num_labels=1)


@pytest.mark.parametrize("name", ["emotions", "enron", "genbase"])
def test_real_files_read_as_by_another_reader(name: str) -> None:
    data, sources = data_set(name), Sources()
    if reason := sources.missing(data):
        pytest.skip(reason)
    content = sources.read(data, data.files.get("test", data.files["train"]))
    lines = content.decode().splitlines()
    first = next(i for i, line in enumerate(lines) if line.lower().startswith("@data"))
    content = "\n".join(lines[: first + 101])  # the other reader is slow
    theirs = liac.loads(
        content, encode_nominal=True, return_type=liac.LOD if "{" in lines[first + 1] else liac.DENSE
    )
    ours = read(content, num_labels={"emotions": 6, "enron": 53, "genbase": 27}[name])
    mine = np.concatenate([array(ours.x), ours.y], axis=1)
    wanted = np.zeros_like(mine)
    for row, cells in zip(wanted, theirs["data"], strict=True):
        for column, value in cells.items() if isinstance(cells, dict) else enumerate(cells):
            row[column] = value
    np.testing.assert_array_equal(mine, wanted)


def test_packed_content_is_no_arff_file() -> None:
    with pytest.raises(ArffError, match=r"x\.arff"):
        read_arff(gzip.compress(HEADER.encode()), where="x.arff", num_labels=2)
