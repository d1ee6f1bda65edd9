"""Chunking data: the real files against their published counts, small files by hand, wrong files."""

from collections import Counter
from inspect import signature
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from datamodules.conll2000 import CoNLL2000
from datamodules.errors import DataMismatch, DataNotFound, FormatError
from datamodules.readers.conll import joined, read_sentences
from datamodules.sources.registry import data_set
from datamodules.tagged import TaggedSentences, encode
from lightning_modules.metrics.spans import SpanScores

CONF = Path(__file__).resolve().parent.parent / "conf" / "data" / "conll2000.yaml"
CHUNKS_OF_TRAINING = {
    "NP": 55081, "VP": 21467, "PP": 21281, "ADVP": 4227, "SBAR": 2207, "ADJP": 2060, "PRT": 556,
    "CONJP": 56, "INTJ": 31, "LST": 10, "UCP": 2,
}  # fmt: skip
CHUNKS_OF_TEST = {
    "NP": 12422, "PP": 4811, "VP": 4658, "ADVP": 866, "SBAR": 535, "ADJP": 438, "PRT": 106, "CONJP": 9,
    "LST": 5, "INTJ": 2, "UCP": 0,
}  # fmt: skip


def configured(**changes: object) -> CoNLL2000:
    """The data of conf/data/conll2000.yaml; skips the test when a file is not there."""
    described = yaml.safe_load(CONF.read_text())["data"]
    assert described["class_path"] == "datamodules.conll2000.CoNLL2000"
    data = CoNLL2000(**(described["init_args"] | {"seed": 0} | changes))
    if reason := data.missing():
        pytest.skip(reason)
    return data


@pytest.fixture(scope="module")
def real() -> CoNLL2000:
    data = configured()
    data.setup()
    return data


def test_the_real_files_have_their_published_counts(real: CoNLL2000) -> None:
    splits = real.splits
    assert [len(split.inputs) for split in splits.values()] == [8936 - 1787, 1787, 2012]
    tokens = {part: int(split.mask.sum()) for part, split in splits.items()}
    assert (tokens["train"] + tokens["validation"], tokens["test"]) == (211727, 47377)
    assert max(int(splits[part].mask.sum(1).max()) for part in ("train", "validation")) == 78
    assert int(splits["test"].mask.sum(1).max()) == 70
    training = torch.cat([splits[part].y[splits[part].mask] for part in ("train", "validation")])
    unseen = [tag for tag, seen in zip(real.names, training.any(0).tolist(), strict=True) if not seen]
    assert unseen == ["I-LST"]  # which is why there are 23 tags and not 22
    assert set(real.checksums) == {"train.txt", "test.txt", "glove.6B.50d.subset.txt"}


def test_the_tags_are_those_of_both_files_in_alphabetical_order(real: CoNLL2000) -> None:
    data = data_set("conll2000")
    found: set[str] = set()
    for file in data.files.values():
        found |= set(read_sentences(real.sources.read(data, file), where=file.name).columns[2])
    assert sorted(found) == real.names and len(real.names) == 23


def test_the_chunks_are_the_published_ones(real: CoNLL2000) -> None:
    counts = {}
    for name, parts in (("training", ("train", "validation")), ("test", ("test",))):
        metric = SpanScores(real.names)
        for part in parts:
            for rows in real.splits[part].y.split(500):
                metric.update(rows.float(), rows.float(), rows.any(-1))
        counts[name] = dict(zip(metric.kinds, metric.actual.tolist(), strict=True))
        assert float(metric.compute()["f1"]) == 1
    assert counts == {"training": CHUNKS_OF_TRAINING, "test": CHUNKS_OF_TEST}


def test_the_most_frequent_tag_of_each_part_of_speech_scores_as_published(real: CoNLL2000) -> None:
    counts = torch.zeros(real.num_pos, real.num_tags)
    for split in (real.splits["train"], real.splits["validation"]):
        counts.index_add_(0, split.inputs.values[..., 1][split.mask], split.y[split.mask].float())
    test, metric = real.splits["test"], SpanScores(real.names)
    for x, y in zip(test.inputs.values.split(500), test.y.split(500), strict=True):
        metric.update(counts[x[..., 1]], y.float(), y.any(-1))
    scores = {name: round(100 * float(score), 2) for name, score in metric.compute().items()}
    assert (scores["precision"], scores["recall"], scores["f1"]) == (72.58, 82.14, 77.07)


def test_padding_is_zero_everywhere_and_real_tokens_nowhere(real: CoNLL2000) -> None:
    for split in real.splits.values():
        assert split.mask is not None
        assert (split.inputs.values.dtype, split.y.dtype) == (torch.int64, torch.bool)
        for ids in split.inputs.values.unbind(-1):
            assert torch.equal(ids != 0, split.mask)
        assert torch.equal(split.y.sum(-1), split.mask.long())
        assert (
            int(split.inputs.values[..., 0].max()) < real.num_words
            and int(split.inputs.values[..., 1].max()) < real.num_pos
        )


def test_the_tables_spell_each_word_and_share_vectors_between_spellings(real: CoNLL2000) -> None:
    tables = real.tables
    characters, rows, vectors = tables["characters"], tables["rows"], tables["vectors"]
    lengths = (characters != 0).sum(1)
    assert (int(lengths[0]), int(lengths[1])) == (0, 1) and int(lengths[2:].min()) >= 1
    assert int(characters.max()) == real.num_characters - 1
    assert not vectors[:2].any() and vectors[rows[rows > 1]].any(1).all()
    assert int(rows.max()) < len(vectors)
    tokens = torch.cat([split.inputs.values[..., 0][split.mask] for split in real.splits.values()])
    assert 0.97 < float((rows[tokens] > 1).float().mean()) < 0.99


def test_the_share_for_validation_follows_the_split_seed_and_not_the_run(real: CoNLL2000) -> None:
    def lengths(**seeds: int) -> Counter:
        data = configured(**seeds)
        data.setup()
        return Counter(data.splits["validation"].mask.sum(1).tolist())

    drawn = Counter(real.splits["validation"].mask.sum(1).tolist())
    assert lengths(seed=5) == drawn != lengths(split_seed=1)


def test_sizes_that_differ_from_the_files_are_named(real: CoNLL2000) -> None:
    with pytest.raises(
        DataMismatch,
        match=r"num_words is 21591, not 9.*num_pos is 46.* to train,.*cut off.*--data\.num_words 21591",
    ):
        configured(num_words=9, num_pos=8).setup()


def test_files_that_are_absent_are_told(tmp_path: Path) -> None:
    arguments = yaml.safe_load(CONF.read_text())["data"]["init_args"] | {"seed": 0}
    places = {"folder": str(tmp_path), "mirror": ""}
    for changes, says in [
        ({}, r"train\.txt.*make data DATASET=conll2000.*glove.*--data\.vectors"),
        ({"vectors": "nowhere.txt"}, r"no file nowhere\.txt \(--data\.vectors\)"),
        ({"senna": str(tmp_path / "none")}, r"none \(--data\.senna\)"),
    ]:
        data = CoNLL2000(**arguments | places | changes)
        assert data.missing()
        with pytest.raises(DataNotFound, match=says):
            data.setup()
    with pytest.raises(DataMismatch, match="one place"):
        CoNLL2000(**arguments | places | {"vectors": "a", "senna": "b"})


def test_vectors_of_a_user_take_the_place_of_glove(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("the 1 2\nof 3 4\n")
    data = configured(vectors=str(tmp_path / "mine.txt"), num_dims=2)
    data.setup()
    vectors, rows = data.tables["vectors"], data.tables["rows"]
    assert vectors.shape == (data.num_vectors, 2)  # whoever trained them
    assert sorted(vectors[vectors.any(1)].tolist()) == [[1, 2], [3, 4]]
    assert int((rows > 1).sum()) == 6  # the, The, THE; of, Of, OF


def test_senna_takes_the_place_of_glove(tmp_path: Path) -> None:
    (tmp_path / "words.lst").write_text("PADDING\nthe\n0000\n")
    (tmp_path / "embeddings.txt").write_text("0 0\n1 2\n3 4\n")
    data = configured(senna=str(tmp_path), num_dims=2)
    data.setup()
    vectors = data.tables["vectors"]
    assert sorted(vectors[vectors.any(1)].tolist()) == [[1, 2], [3, 4]]
    assert {"words.lst", "embeddings.txt"} < set(data.checksums)


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=6)
TOKENS = st.tuples(WORDS, st.sampled_from(["NN", "DT"]), st.sampled_from(["B-NP", "I-NP", "O"]))
TEXTS = st.lists(st.lists(TOKENS, min_size=1, max_size=5), min_size=1, max_size=5)


@given(
    TEXTS,
    st.sampled_from([" ", "\t", "  ", " \t "]),
    st.sampled_from(["\n", "\r\n", " \n"]),
    st.integers(0, 2),
    st.integers(1, 3),
    st.booleans(),
)
def test_what_was_written_is_read(
    text: list, blank: str, end: str, before: int, between: int, ended: bool
) -> None:
    blocks = [end.join(blank.join(token) for token in sentence) for sentence in text]
    content = end * before + (end + end * between).join(blocks) + (end + end if ended else "")
    read = read_sentences(content.encode(), where="a", tags=["B-NP", "I-NP", "O"])
    assert read.lengths.tolist() == [len(sentence) for sentence in text]
    flat = [token for sentence in text for token in sentence]
    assert list(zip(*read.columns, strict=True)) == flat


def test_ids_stand_where_the_tokens_are() -> None:
    file = read_sentences(b"a NN O\n\nb DT B-NP\na XX O\n", where="a")
    split = encode(file, [{"a": 2, "b": 3}, {"NN": 2, "DT": 3}], ["B-NP", "O"], 3)
    assert split.inputs.values.tolist() == [
        [[2, 2], [0, 0], [0, 0]],
        [[3, 3], [2, 1], [0, 0]],
    ]  # XX is not known
    assert split.mask is not None
    assert split.mask.tolist() == [[True, False, False], [True, True, False]]
    assert split.y.int().tolist() == [[[0, 1], [0, 0], [0, 0]], [[1, 0], [0, 1], [0, 0]]]


def test_sentences_of_several_files_follow_each_other() -> None:
    first, second = (
        read_sentences(text, where="a", num_columns=2) for text in (b"a A\n\nb B\nc C", b"d D\n")
    )
    both = joined([first, second])
    assert both.columns == (("a", "b", "c", "d"), ("A", "B", "C", "D"))
    assert both.lengths.tolist() == [1, 2, 1]


def test_a_word_is_taken_out_with_the_sentence_that_it_alone_was() -> None:
    file = read_sentences(b"X O\n\na A\nX B\nb C\n\nX O\nc D\n\nX X\n", where="a", num_columns=2)
    rest = file.without("X")
    assert rest.columns == (("a", "b", "c"), ("A", "C", "D")) and rest.lengths.tolist() == [2, 1]
    assert rest.digest() == read_sentences(b"\r\na A\r\nb C\n\nc D", where="b", num_columns=2).digest()
    assert rest.digest() != read_sentences(b"a A\n\nb C\nc D", where="b", num_columns=2).digest()


def test_chunking_asks_for_the_short_vectors_only(tmp_path: Path) -> None:
    arguments = yaml.safe_load(CONF.read_text())["data"]["init_args"] | {"seed": 0}
    for name in ("conll2000/train.txt", "conll2000/test.txt", "glove_6b/glove.6B.50d.subset.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert CoNLL2000(**arguments, folder=str(tmp_path), mirror="").missing() is None


def test_a_pool_left_out_leaves_finished_runs_their_names() -> None:
    arguments = yaml.safe_load(CONF.read_text())["data"]["init_args"] | {"seed": 0}
    assert CoNLL2000(**arguments).pool == 1 and CoNLL2000(**arguments, pool=20).pool == 20
    assert signature(TaggedSentences).parameters["pool"].default is None  # None has no part in a run's id


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file has no token"),
        (b"\r\n \n\n", "the file has no token"),
        (b"a NN O\nb NN\n", r"line 2: 2 columns, a token has 3: 'b NN'"),
        (b"\n\r\na NN O extra\n", r"line 3: 4 columns"),
        (b"a NN O\n\nb NN B-XX\n", r"line 3: the tag 'B-XX' is none of the 2: B-NP, O"),
        (b"a NN NaN\n", r"line 1: the tag 'NaN'"),
        (b"a NN O\n\xff\xfe NN O\n", r"line 2: this is not UTF-8"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(content: bytes, says: str) -> None:
    with pytest.raises(FormatError, match=f"^train.txt.*{says}"):
        read_sentences(content, where="train.txt", tags=["B-NP", "O"])


@given(st.binary(max_size=60) | st.text("ab O\n\r\t", max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused_in_words(content: bytes) -> None:
    try:
        read = read_sentences(content, where="a", tags=["O"])
    except FormatError as error:
        assert str(error).startswith("a")
    else:
        assert {len(column) for column in read.columns} == {int(read.lengths.sum())}
