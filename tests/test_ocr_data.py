"""Handwritten words: the real file against its published counts, small files by hand, wrong files."""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from committed import data_of
from datamodules.errors import DataCorrupt, DataError, DataMismatch, DataNotFound, FormatError
from datamodules.ocr import OCRLetters, fold_of_seed, padded, word_groups
from datamodules.readers.ocr import Words, read_letters
from datamodules.sources.files import Sources, check
from datamodules.sources.registry import data_set

CONF = Path(__file__).resolve().parent.parent / "conf" / "data"
WORDS_OF_FOLDS = [626, 704, 684, 698, 693, 651, 739, 717, 690, 675]
LETTERS_OF_FOLDS = [4617, 5375, 5110, 5353, 5270, 5001, 5583, 5370, 5331, 5142]


def configured(name: str = "ocr", **changes: object) -> OCRLetters:
    """The data of conf/data/<name>.yaml; skips the test when the file is not there."""
    described = data_of(CONF / f"{name}.yaml")
    assert described["class_path"] == "datamodules.ocr.OCRLetters"
    data = OCRLetters(**(described["init_args"] | {"seed": 0} | changes))
    if reason := data.missing():
        pytest.skip(reason)
    return data


@pytest.fixture(scope="module")
def real() -> Words:
    data = configured()
    file = data_set("ocr_letters").files["train"]
    return read_letters(data.sources.read(data_set("ocr_letters"), file), where=file.name)


def line(
    number: int, letter: str, following: int, *, fold: object = 0, pixels: str = "01" * 64, **columns: object
) -> list[str]:
    return [str(cell) for cell in (number, letter, following, columns.get("word", 1), 1, fold, *pixels)]


def lettered(*lines: list[str], end: str = "\n") -> bytes:
    return "".join("\t".join(cells) + end for cells in lines).encode()


def drawn(spelled: list[str], folds: list[int]) -> bytes:
    """A file of these words, whose pixels show the letter's code in the first five cells."""
    lines, number = [], 0
    for word, fold in zip(spelled, folds, strict=True):
        for place, letter in enumerate(word):
            number += 1
            following = number + 1 if place < len(word) - 1 else -1
            code = f"{ord(letter) - 97:05b}1".ljust(128, "0")
            lines.append(line(number, letter, following, fold=fold, pixels=code))
    return lettered(*lines)


def test_the_real_file_has_its_published_counts(real: Words) -> None:
    assert (len(real.letters), len(real.lengths), len(set(real.spelled()))) == (52152, 6877, 55)
    assert np.bincount(real.folds).tolist() == WORDS_OF_FOLDS
    assert np.bincount(np.repeat(real.folds, real.lengths)).tolist() == LETTERS_OF_FOLDS
    assert (real.lengths.min(), real.lengths.max()) == (3, 14)
    assert set(real.letters.tolist()) == set(range(26))
    assert real.spelled()[0] == "ommanding"
    assert real.digest() == data_set("ocr_letters").files["train"].reads_as


def test_the_splits_are_folds_with_zeros_behind_each_word() -> None:
    data = configured()
    data.setup()
    assert [len(split.inputs) for split in data.splits.values()] == [
        sum(WORDS_OF_FOLDS[:8]),
        WORDS_OF_FOLDS[8],
        WORDS_OF_FOLDS[9],
    ]
    for split in data.splits.values():
        assert split.mask is not None
        assert split.inputs.values.shape[1:] == (14, 16, 8) and split.y.shape[1:] == (14, 26)
        assert (split.inputs.values.dtype, split.y.dtype, split.mask.dtype) == (
            torch.uint8,
            torch.bool,
            torch.bool,
        )
        assert torch.equal(
            split.inputs.values.flatten(2).any(-1), split.mask
        )  # no letter is blank, all padding is
        assert torch.equal(split.y.sum(-1), split.mask.long())
        assert int(split.inputs.values.max()) == 1
    assert set(data.checksums) == {"letter.data"}
    batch = next(iter(data.train_dataloader()))
    assert batch.mask is not None and batch.inputs.values.shape[1] == int(batch.mask.sum(1).max())


def test_seeds_0_to_8_test_on_each_fold_but_the_one_for_validation() -> None:
    assert [fold_of_seed(seed, 8) for seed in range(10)] == [9, 0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert [OCRLetters(seed=seed).test_fold for seed in (0, 3)] == [9, 2]
    assert OCRLetters(seed=5, test_fold=1).test_fold == 1
    for folds in ({"test_fold": 8}, {"test_fold": 10}, {"test_fold": -1}, {"validation_fold": 12}):
        with pytest.raises(DataMismatch, match="two different folds of 0 to 9"):
            OCRLetters(**folds)


def test_unseen_words_are_in_one_part_only(real: Words) -> None:
    data = configured("ocr_unseen_words")
    data.setup()
    spelled = {
        part: {tuple(word.tolist()) for word in split.y.int().argmax(-1) + split.mask.int()}
        for part, split in data.splits.items()
        if split.mask is not None
    }
    assert sum(map(len, spelled.values())) == len(set.union(*spelled.values())) == 55
    assert sum(len(split.inputs) for split in data.splits.values()) == 6877
    drawn_again = word_groups(real, seed=0)
    assert (drawn_again == word_groups(real, seed=0)).all()
    assert (drawn_again != word_groups(real, seed=1)).any()


def test_groups_of_unseen_words_hold_about_as_many_letters_each(real: Words) -> None:
    for seed in range(20):
        letters = np.bincount(np.repeat(word_groups(real, seed), real.lengths), minlength=10)
        assert letters.min() > 0.9 * letters.mean() and letters.max() < 1.1 * letters.mean()


@given(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=60), st.integers(0, 5))
def test_a_word_is_in_one_group_however_often_it_comes(spelled: list[str], seed: int) -> None:
    words = read_letters(drawn(spelled, [0] * len(spelled)), where="a")
    groups = word_groups(words, seed)
    assert len({(word, group) for word, group in zip(spelled, groups, strict=True)}) == len(set(spelled))
    distinct = Counter({group for group in zip(groups, spelled, strict=True)})
    counts = Counter(group for group, _ in distinct)
    assert max(counts.values()) - min(counts[group] for group in range(10)) <= 1


@given(
    st.lists(st.tuples(st.text("abcxyz", min_size=1, max_size=5), st.integers(0, 9)), min_size=1, max_size=8),
    st.sampled_from(["\n", "\r\n", "\t\n", "\n\n"]),
    st.booleans(),
)
def test_what_was_written_is_read(pairs: list[tuple[str, int]], end: str, packed: bool) -> None:
    spelled, folds = [word for word, _ in pairs], [fold for _, fold in pairs]
    content = drawn(spelled, folds).replace(b"\n", end.encode())
    words = read_letters(gzip.decompress(gzip.compress(content)) if packed else content, where="a")
    assert words.spelled() == spelled and words.folds.tolist() == folds
    codes = words.pixels.reshape(-1, 128)[:, :5] @ (1 << np.arange(4, -1, -1))
    assert (codes == words.letters).all()
    x, y, mask = padded(words)
    assert x.shape == (len(spelled), max(map(len, spelled)), 16, 8)
    assert torch.equal(x.flatten(2).any(-1), mask) and torch.equal(y.any(-1), mask)


def test_words_are_what_the_links_say_not_what_the_order_of_lines_says() -> None:
    content = lettered(line(7, "t", -1, fold=3), line(1, "c", 5, fold=3), line(5, "a", 7, fold=3))
    assert read_letters(content, where="a").spelled() == ["cat"]


GOOD = [line(1, "a", 2), line(2, "b", -1), line(3, "c", -1, fold=4)]
ZEROS = "0" * 128


def changed(index: int, column: int, cell: str) -> list[list[str]]:
    lines = [list(cells) for cells in GOOD]
    lines[index][column] = cell
    return lines


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "the file has no letter"),
        ([GOOD[0][:50]], r"line 1: 50 columns between tabs, a letter has 134"),
        ([*GOOD, ["x"]], r"line 4: 1 columns between tabs"),
        ([GOOD[0] + ["1"]], r"line 1: 135 columns"),
        (changed(1, 1, "B"), r"line 2: the letter is 'B'"),
        (changed(1, 1, ""), r"line 2: the letter is ''"),
        (changed(1, 1, "ab"), r"line 2: the letter is 'ab'"),
        (changed(2, 6 + 8 + 3, "2"), r"line 3: the pixel p_1_3 is '2'; a pixel is 0 or 1"),
        (changed(2, 6, "NaN"), r"line 3: the pixel p_0_0 is 'NaN'"),
        (changed(2, 133, "0.5"), r"line 3: the pixel p_15_7 is '0\.5'"),
        (changed(2, 7, ""), r"line 3: the pixel p_0_1 is ''"),
        ([GOOD[0], line(2, "b", -1, pixels=ZEROS)], r"line 2: no pixel is set"),
        (changed(0, 2, "9"), r"line 1: next_id is 9, the id of no line"),
        (changed(0, 2, "0"), r"line 1: next_id is 0, the id of no line"),
        (changed(0, 2, "1.0"), r"line 1: next_id is '1\.0', which is no whole number"),
        (changed(0, 2, "NaN"), r"line 1: next_id is 'NaN'"),
        (changed(0, 0, "9" * 30), r"line 1: id is '9+', which is no whole number"),
        (changed(0, 0, "1_0"), r"line 1: id is '1_0', which is no whole number"),
        (changed(0, 2, "+2"), r"line 1: next_id is '\+2', which is no whole number"),
        (changed(0, 5, "\u0660"), r"line 1: fold is .*, which is no whole number"),
        (changed(1, 1, "b" * 1_000_000), r"line 2: the letter is 'b{40}\.\.\.'; it has to be"),
        (changed(2, 0, "1"), r"line 3: the id 1 is that of line 1 too"),
        (changed(2, 2, "2"), r"line 3: next_id is 2, as in line 1"),
        (changed(1, 2, "1"), r"line 1: next_id leads round in a circle"),
        (changed(1, 5, "3"), r"line 2: the fold is 3, but the word began in fold 0 \(line 1\)"),
        (changed(1, 5, "10"), r"line 2: the fold is 10; it has to be 0 to 9"),
        (changed(1, 5, ""), r"line 2: fold is ''"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(lines: list[list[str]], says: str) -> None:
    with pytest.raises(FormatError, match=f"^letter.data.*{says}"):
        read_letters(lettered(*lines), where="letter.data")


@given(st.data())
def test_whatever_is_done_to_a_file_it_is_read_or_refused_in_words(data: st.DataObject) -> None:
    content = bytearray(lettered(*GOOD))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        words = read_letters(bytes(content), where="a")
    except FormatError as error:
        assert str(error).startswith("a")
    else:
        assert words.lengths.sum() == len(words.letters) == len(words.pixels)
        assert words.pixels.max() == 1 and words.pixels.any((1, 2)).all()


def placed(folder: Path, content: bytes) -> dict[str, str]:
    (folder / "ocr_letters").mkdir(exist_ok=True)
    (folder / "ocr_letters" / "letter.data.gz").write_bytes(content)
    return {"folder": str(folder), "mirror": ""}


def own(folder: Path, content: bytes) -> dict[str, str]:
    (folder / "my.data.gz").write_bytes(content)
    return {"file": str(folder / "my.data.gz"), "mirror": ""}


def test_letters_of_ones_own_are_named(tmp_path: Path) -> None:
    mine = own(tmp_path, gzip.compress(drawn(["ab", "cd", "e", "b"], [9, 8, 0, 0])))
    data = OCRLetters(num_words=4, num_letters=6, **mine)
    assert data.missing() is None
    data.prepare_data()
    data.setup()
    assert [len(split.inputs) for split in data.splits.values()] == [2, 1, 1]
    with pytest.raises(DataMismatch, match=r"4 words, 6 letters; .*--data\.num_words 4"):
        OCRLetters(**mine).setup()
    assert "There is no file my.data" in str(OCRLetters(file="my.data").missing())


def test_the_published_letters_may_have_other_ids_and_nothing_else_of_their_own(tmp_path: Path) -> None:
    data, file = data_set("ocr_letters"), data_set("ocr_letters").files["train"]
    assert file.url.startswith("https://")
    content = configured().sources.read(data, file)
    check(file, content)
    first, _, rest = content.partition(b"\n")
    _, letter, *cells = first.split(b"\t")
    other_id = b"\t".join([b"99999", letter, *cells, b""]) + b"\n" + rest  # a tab ends the original's lines
    sources = Sources(**placed(tmp_path, gzip.compress(other_id, 1)))
    assert sources.read(data, file) == other_id
    other_pixel = first[:-1] + (b"0" if first.endswith(b"1") else b"1") + b"\n" + rest
    placed(tmp_path, gzip.compress(other_pixel, 1))
    with pytest.raises(
        DataCorrupt, match=r"not the file it should be: its letters have sha256 .* expected 2a49"
    ):
        sources.read(data, file)
    placed(tmp_path, gzip.compress(other_id[:4] + b"_" + other_id[5:], 1))
    with pytest.raises(DataCorrupt, match=r"line 1: id is '9999_'"):
        sources.read(data, file)


def test_a_file_that_is_absent_cut_off_or_lacks_a_fold_is_told(tmp_path: Path) -> None:
    absent = OCRLetters(folder=str(tmp_path), mirror="")
    assert "letter.data" in str(absent.missing()) and "btaskar" in str(absent.missing())
    with pytest.raises(DataNotFound, match="make data DATASET=ocr_letters"):
        absent.setup()
    content = gzip.compress(drawn(["ab"], [9]))
    with pytest.raises(DataCorrupt, match="truncated or damaged"):
        OCRLetters(**placed(tmp_path, content[:-9])).setup()
    with pytest.raises(DataError, match="No row is left for train"):
        OCRLetters(num_words=1, num_letters=2, **own(tmp_path, content)).setup()
