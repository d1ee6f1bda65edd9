"""Word ids, and files of word vectors: read whole or refused with their line."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.errors import DataNotFound, FormatError
from datamodules.readers.vocabulary import (
    Vectors,
    normalised,
    numbered,
    read_senna,
    read_vectors,
    senna_file,
    word_tables,
)
from datamodules.sources.files import Sources, unpack
from datamodules.sources.registry import data_set
from datamodules.sources.stand_ins import gap_filled, side_by_side
from datamodules.twitter_pos import by_shape

GLOVE = b"the 1 2 3\n, .5 -1e-2 0\na\xc3\xa9 7 8 9\n"


def as_lists(vectors: Vectors) -> dict[str, list[float]]:
    return {word: vector.tolist() for word, vector in vectors.items()}


def test_ids_begin_at_two_in_alphabetical_order() -> None:
    assert numbered(["b", "a", "b"]) == {"a": 2, "b": 3}


def test_words_are_normalised_as_in_senna() -> None:
    assert [normalised(word) for word in ("The", "1,204.5", "B-52s")] == ["the", "0,000.0", "b-00s"]


def test_spellings_share_a_vector_and_keep_their_letters() -> None:
    words = numbered(["The", "the", "x1", "x2", "Zu"])
    characters = numbered("Thex12Z")
    vectors = {"the": np.array([1, 2], np.float32), "x0": np.array([3, 4], np.float32)}
    tables = {name: table.tolist() for name, table in word_tables(words, characters, vectors, 2).items()}
    rows, table = tables["rows"], tables["vectors"]
    of = {word: table[rows[number]] for word, number in words.items()}
    assert of == {"The": [1, 2], "the": [1, 2], "x1": [3, 4], "x2": [3, 4], "Zu": [0, 0]}
    assert rows[:2] == [0, 1] and rows[words["Zu"]] == 1 and rows[words["x1"]] == rows[words["x2"]]
    assert len(table) == 2 + len({"the", "x0", "zu"})  # also those without a vector: the size is of the words
    spelled = tables["characters"]
    assert spelled[:2] == [[0, 0, 0], [1, 0, 0]]
    assert spelled[words["The"]] == [characters[c] for c in "The"]
    assert spelled[words["Zu"]] == [characters["Z"], 1, 0]  # u is not known


def test_what_a_word_is_looked_up_as_is_the_choice_of_the_set() -> None:
    words = numbered(["Ab1", "ab1", "long", "LONG"])
    vectors = {"ab1": np.array([1], np.float32), "long": np.array([2], np.float32)}
    unknown = np.array([5], np.float32)
    lower = word_tables(words, numbered("ab"), vectors, 1, form=str.lower, unknown=unknown, longest=2)
    rows = lower["rows"].tolist()
    assert rows[words["Ab1"]] == rows[words["ab1"]] != rows[words["long"]] == rows[words["LONG"]]
    assert lower["vectors"].tolist() == [[0], [5], [1], [2]]
    assert lower["characters"][words["ab1"]].tolist() == [2, 3] and lower["characters"].shape == (6, 2)
    exact = word_tables(words, numbered("ab"), vectors, 1, form=str)
    assert exact["vectors"].shape == (6, 1)
    assert exact["rows"][[words["Ab1"], words["LONG"]]].tolist() == [1, 1]
    assert exact["vectors"][exact["rows"][words["long"]]].tolist() == [2]


def test_a_linear_map_fills_the_gap_and_nothing_else() -> None:
    image = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 1.0]])
    pairs = {"a": [1, 0], "b": [0, 1], "c": [1, 1], "d": [2, 3]}
    short = {word: np.array(pair, np.float32) for word, pair in pairs.items()}
    long = {word: (short[word] @ image).astype(np.float32) for word in "abc"} | {"z": np.ones(3, np.float32)}
    filled = gap_filled(long, short)
    assert filled.keys() == set("abcdz") and filled["z"] is long["z"] and filled["a"] is long["a"]
    assert filled["d"].dtype == np.float32 and filled["d"].tolist() == pytest.approx([2, -3, 7])
    assert gap_filled(long, {word: short[word] for word in "ab"}) == long


def test_where_no_map_is_exact_the_gap_has_the_one_of_least_squares() -> None:
    long = {"a": np.array([1], np.float32), "b": np.array([3], np.float32)}
    short = {word: np.array([1], np.float32) for word in "abc"}
    assert gap_filled(long, short)["c"].tolist() == pytest.approx([2])  # the mean of 1 and 3


def test_vectors_stand_side_by_side_with_zeros_for_what_is_lacking() -> None:
    left, right = {word: np.ones(1, np.float32) for word in "ab"}, {"b": np.full(2, 3, np.float32)}
    assert as_lists(side_by_side(left, right, (1, 2))) == {"a": [1, 0, 0], "b": [1, 3, 3]}


def test_all_words_of_a_file_are_read_when_none_are_named() -> None:
    assert set(read_vectors(GLOVE, None, 3, where="a")) == {"the", ",", "aé"}
    with pytest.raises(FormatError, match=r"^a, line 4: 2 numbers after the word and a blank, expected 3"):
        read_vectors(GLOVE + b"b 1 2\n", None, 3, where="a")


def test_wanted_words_are_read_and_others_are_not() -> None:
    assert as_lists(read_vectors(GLOVE, {"the", "aé", "no"}, 3, where="a")) == {
        "the": [1, 2, 3],
        "aé": [7, 8, 9],
    }
    for content in (b"2 3\n" + GLOVE, GLOVE.replace(b"\n", b" \r\n"), GLOVE[:-1]):
        assert as_lists(read_vectors(content, {","}, 3, where="a")) == {",": [0.5, pytest.approx(-0.01), 0]}
    assert as_lists(read_vectors(b"a 1\nb 2\na 3", {"a"}, 1, where="a")) == {"a": [1]}  # the first one counts


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GLOVE + b"b 1 2\n", r"line 4: 2 numbers after the word and a blank, expected 3. Correct this line"),
        (b"b 1 2 3 4\n", r"line 1: 4 numbers after .* or set --data.num_dims 4"),
        (b"the\t1\t2\t3\n", r"line 1: 0 numbers after .* Correct this line"),
        (b"the 1  2\n", r"line 1: 2 numbers"),
        (b"the\n", r"line 1: 0 numbers"),
        (GLOVE.replace(b"2", b"two"), r"line 1: 'two' is not a finite number"),
        (GLOVE.replace(b"-1e-2", b"nan"), r"line 2: 'nan' is not a finite number"),
        (GLOVE.replace(b"-1e-2", b"1e99"), r"line 2: '1e99' is not a finite number"),
        (GLOVE.replace(b"-1e-2", b"1_0"), r"line 2: '1_0' is not a finite number"),
        (b"the 1  2\n, 1 2 3\t4\n", r"line 1: 2 numbers"),
    ],
)
def test_a_file_of_vectors_that_is_wrong_is_refused_with_its_line(content: bytes, says: str) -> None:
    with pytest.raises(FormatError, match=f"^glove.txt, {says}"):
        read_vectors(content, {"the", ",", "aé"}, 3, where="glove.txt")


def test_a_word_that_is_not_utf8_is_refused_with_its_line() -> None:
    content = b"the 1 2 3\n\xff 1 2 3\n"
    assert set(read_vectors(content, {"the"}, 3, where="a")) == {"the"}
    with pytest.raises(FormatError, match=r"^a, line 2: the word is not UTF-8"):
        read_vectors(content, None, 3, where="a")


@given(st.binary(max_size=40) | st.text("a1. -e\n", max_size=40).map(str.encode), st.integers(1, 3))
def test_any_bytes_are_read_or_refused_in_words(content: bytes, num_dims: int) -> None:
    try:
        vectors = read_vectors(content, {"a", "1", "e", ""}, num_dims, where="a")
    except FormatError as error:
        assert str(error).startswith("a, line ")
    else:
        assert all(len(vector) == num_dims and np.isfinite(vector).all() for vector in vectors.values())


def test_senna_is_read_line_by_line_from_two_files() -> None:
    words, numbers = b"PADDING\nthe\n00\n", b"0 0\n1 2 \r\n3 4\n"
    assert as_lists(read_senna(words, numbers, {"the", "00", "no"}, 2)) == {"the": [1, 2], "00": [3, 4]}
    with pytest.raises(FormatError, match=r"^embeddings\.txt, line 3: 1 numbers"):
        read_senna(words, b"0 0\n1 2\n3\n", {"the"}, 2)
    with pytest.raises(FormatError, match=r"3 lines and embeddings\.txt 2"):
        read_senna(words, b"0 0\n1 2\n", {"the"}, 2)


@pytest.mark.parametrize("inner", ["", "hash", "embeddings"])
def test_files_of_senna_are_found_as_its_archive_has_them(tmp_path: Path, inner: str) -> None:
    (tmp_path / inner).mkdir(exist_ok=True)
    (tmp_path / inner / "words.lst").write_text("the")
    assert senna_file(tmp_path, "words.lst") == tmp_path / inner / "words.lst"
    with pytest.raises(DataNotFound, match=r"no embeddings\.txt.*Correct --data\.senna"):
        senna_file(tmp_path, "embeddings.txt")


def test_packed_vectors_are_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(GLOVE))
    assert as_lists(read_vectors(unpack(tmp_path / "a.txt.gz"), {"the"}, 3, where="a")) == {"the": [1, 2, 3]}


def test_the_vectors_of_glove_are_as_published() -> None:
    sources, data = Sources(), data_set("glove_6b")
    if reason := sources.missing(data):
        pytest.skip(reason)
    file = data.files["vectors"]
    content = sources.read(data, file)
    wanted = {line.partition(b" ")[0].decode() for line in content.split(b"\n") if line}
    vectors = read_vectors(content, wanted, 50, where=file.name)
    assert len(vectors) == 45487
    assert vectors["the"][:3].tolist() == pytest.approx([0.418, 0.24968, -0.41242])  # as published


def test_words_of_a_shape_share_a_drawn_vector_unless_they_have_one_of_their_own() -> None:
    like = np.arange(12.0).reshape(3, 4)
    drawn = by_shape(
        ["@a", "@b_1", "#c", "http://x.y/z", "bit.ly/q", "2nd", ":-)", "naïve", "isn't"], like=like
    )
    assert set(drawn) == {"@a", "@b_1", "#c", "http://x.y/z", "bit.ly/q", "2nd", ":-)"}
    assert (drawn["@a"] == drawn["@b_1"]).all() and (drawn["http://x.y/z"] == drawn["bit.ly/q"]).all()
    assert len({tuple(vector) for vector in drawn.values()}) == 5
