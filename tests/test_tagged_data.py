"""Tweets and named entities: the real files against published counts, small ones by hand, wrong ones."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from datamodules.conll2003 import CoNLL2003, adapted
from datamodules.errors import DataMismatch, DataNotFound, FormatError
from datamodules.readers.conll import Sentences, read_sentences
from datamodules.readers.span_tags import (
    bio_from_iob1,
    bioes_from_bio,
)
from datamodules.sources.files import Sources, shown
from datamodules.sources.registry import DataFile, data_set
from datamodules.tagged import TaggedSentences
from datamodules.twitter_pos import TwitterPOS
from lightning_modules.metrics.spans import SpanScores
from test_span_tags import bio_from_bioes, iob1_from_bio

CONF = Path(__file__).resolve().parent.parent / "conf" / "data"
NAMES = {
    "train": {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600},
    "validation": {"LOC": 1837, "MISC": 922, "ORG": 1341, "PER": 1842},
    "test": {"LOC": 1668, "MISC": 702, "ORG": 1661, "PER": 1617},
}
ANOTHER_VERSION = "ignore:.*not the sentences that the committed results.*"


def described(name: str) -> tuple[type[Any], dict[str, Any]]:
    """The class and the arguments of a file in conf/data."""
    data = yaml.safe_load((CONF / f"{name}.yaml").read_text())["data"]
    module, _, kind = data["class_path"].rpartition(".")
    return getattr(import_module(module), kind), data["init_args"] | {"seed": 0}


def loaded(name: str) -> TaggedSentences:
    """The data of conf/data, read; skips the test when a file is not there."""
    kind, arguments = described(name)
    data = kind(**arguments)
    if reason := data.missing():
        pytest.skip(reason)
    data.setup()
    return data


@pytest.fixture(scope="module")
def tweets() -> TwitterPOS:
    return loaded("twitter_pos")


@pytest.fixture(scope="module")
def news() -> CoNLL2003:
    return loaded("conll2003")


@pytest.fixture(scope="module")
def published() -> dict[str, Sentences]:
    """The three files of named entities as they come, without the lines between articles."""
    data, sources = data_set("conll2003_en"), Sources()
    if reason := sources.missing(data):
        pytest.skip(reason)
    files = {part: (sources.read(data, file), file.name) for part, file in data.files.items()}
    read = {part: read_sentences(text, where=name, num_columns=4) for part, (text, name) in files.items()}
    return {part: sentences.without("-DOCSTART-") for part, sentences in read.items()}


def tags_of(file: Sentences) -> list[tuple[str, ...]]:
    ends = [0, *file.lengths.cumsum().tolist()]
    return [file.columns[-1][start:end] for start, end in pairwise(ends)]


def test_the_tweets_have_their_published_counts(tweets: TwitterPOS) -> None:
    splits = tweets.splits
    assert {part: len(split.inputs) for part, split in splits.items()} == {
        "train": 1327, "validation": 500, "test": 547,
    }  # fmt: skip
    assert [int(split.mask.sum()) for split in splits.values()] == [14619 + 4823, 7152, 7707]
    assert [int(split.mask.sum(1).max()) for split in splits.values()] == [38, 36, 38]
    assert "".join(tweets.names) == "!#$&,@ADEGLMNOPRSTUVXYZ^~"
    assert splits["train"].y.any(0).any(0).all()
    assert len(tweets.checksums) == 7


def test_the_news_have_their_published_counts(news: CoNLL2003) -> None:
    splits = news.splits
    assert [len(split.inputs) for split in splits.values()] == [14041, 3250, 3453]
    assert [int(split.mask.sum()) for split in splits.values()] == [203621, 51362, 46435]
    assert [int(split.mask.sum(1).max()) for split in splits.values()] == [113, 109, 124]
    assert all(split.y.any(0).any(0).all() for split in splits.values())  # 17 tags in each part
    for part, split in splits.items():
        metric = SpanScores(news.names)
        for rows in split.y.split(1000):
            metric.update(rows.float(), rows.float(), rows.any(-1))
        assert dict(zip(metric.kinds, metric.actual.tolist(), strict=True)) == NAMES[part]


def test_padding_is_zero_everywhere_and_real_tokens_nowhere(tweets: TwitterPOS, news: CoNLL2003) -> None:
    sizes = [news.num_words, news.num_cases, news.num_pos, news.num_chunks]
    for data, num_ids in ((tweets, [tweets.num_words]), (news, sizes)):
        for split in data.splits.values():
            assert split.mask is not None and split.inputs.values.shape[2] == len(num_ids)
            assert (split.inputs.values.dtype, split.y.dtype) == (torch.int64, torch.bool)
            assert torch.equal(split.y.sum(-1), split.mask.long())
            for ids, size in zip(split.inputs.values.unbind(-1), num_ids, strict=True):
                assert torch.equal(ids != 0, split.mask) and int(ids.max()) < size


def test_the_share_of_tokens_with_a_vector_is_the_one_told_in_the_settings(
    tweets: TwitterPOS, news: CoNLL2003
) -> None:
    for data, shares in ((tweets, (0.9523, 0.9491, 0.9486)), (news, (0.9773, 0.9795, 0.9713))):
        rows, vectors = data.tables["rows"], data.tables["vectors"]
        assert not vectors[:2].any() and vectors[rows[rows > 1]].any(1).all()
        for split, share in zip(data.splits.values(), shares, strict=True):
            known = rows[split.inputs.values[..., 0][split.mask]] > 1
            assert float(known.float().mean()) == pytest.approx(share, abs=1e-4)


def test_the_gap_of_the_long_vectors_has_a_linear_map_of_the_short_ones(news: CoNLL2003) -> None:
    long = news.published_vectors("glove_6b", None, 100, part="vectors_100d")
    short = news.published_vectors("glove_6b", None, 50)
    assert "'s" not in long
    both = sorted(long.keys() & short.keys())
    a, b = (torch.tensor([vectors[w].tolist() for w in both]).double() for vectors in (short, long))
    image = torch.linalg.solve(a.T @ a, a.T @ b)  # the normal equations
    told = {"the": torch.tensor(long["the"]), "'s": torch.tensor(short["'s"].tolist()).double() @ image}
    for vector in told.values():
        assert float((news.tables["vectors"] - vector).abs().amax(1).min()) < 1e-5


def test_entities_of_the_files_go_to_bioes_and_back(published: dict[str, Sentences]) -> None:
    for part, file in published.items():
        marks = set()
        for iob1 in tags_of(file):
            bio = bio_from_iob1(iob1)
            assert bio_from_iob1(bio) == bio and iob1_from_bio(bio) == list(iob1)
            bioes = bioes_from_bio(bio)
            assert bio_from_bioes(bioes) == bio
            marks |= set(bioes)
            touching = [tag for before, tag in pairwise(iob1) if tag[0] == "B" and before[1:] == tag[1:]]
            assert len(touching) == sum(tag[0] == "B" for tag in iob1)
        assert len(marks) == 17
        assert sum(tag[0] == "B" for iob1 in tags_of(file) for tag in bio_from_iob1(iob1)) == sum(
            NAMES[part].values()
        )


TRAIN = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nbeats VBZ I-VP O\n'S POS I-NP O\n\nPeter NNP I-NP I-PER\n"
OTHER = "\n-DOCSTART- -X- -X- O\n\nüñ FW I-XP I-PER\n" + "B NNP I-NP B-PER\n" * 5
SIZES = {"num_words": 8, "num_vectors": 8, "num_cases": 4, "num_pos": 5, "num_chunks": 4, "longest_word": 5}
VECTORS = "eu 1 2\npeter 3 4\n"

Small = Callable[..., CoNLL2003]


@pytest.fixture
def small(tmp_path: Path) -> Small:
    """Makes the data of three small files, any of which can be given, with two numbers a word."""

    def make(*, vectors: str = VECTORS, options: dict[str, Any] | None = None, **files: str) -> CoNLL2003:
        (tmp_path / "conll2003_en").mkdir(exist_ok=True)
        for file, text in {"train": TRAIN, "testa": OTHER, "testb": OTHER, **files}.items():
            (tmp_path / "conll2003_en" / f"eng.{file}").write_bytes(text.encode())
        (tmp_path / "mine.txt").write_bytes(vectors.encode())
        own = {"vectors": str(tmp_path / "mine.txt"), "num_dims": 2, "num_characters": 13}
        places = {"folder": str(tmp_path), "mirror": ""}
        return CoNLL2003(**(described("conll2003")[1] | SIZES | own | places | (options or {})))

    return make


@pytest.mark.filterwarnings(ANOTHER_VERSION)
def test_a_small_set_is_read_as_by_hand(small: Small) -> None:
    data = small()
    data.setup()
    words = {word: number for number, word in enumerate(["'S", "B", "EU", "Peter", "beats", "üñ"], 2)}
    train, test = data.splits["train"], data.splits["test"]
    assert train.inputs.values[:, :3].tolist() == [
        [[words["EU"], 2, 2, 2], [words["beats"], 3, 4, 3], [words["'S"], 3, 3, 2]],
        [[words["Peter"], 2, 2, 2], [0] * 4, [0] * 4],
    ]
    told = [
        [data.names[int(row.int().argmax())] for row in y[m]]
        for y, m in zip(train.y, train.mask, strict=True)
    ]
    assert told == [["S-ORG", "O", "O"], ["S-PER"]]
    unknown = [words["B"], 2, 2, 2]  # FW, XP
    assert test.inputs.values[0].tolist() == [[words["üñ"], 3, 1, 1], *[unknown] * 5]
    assert [data.names[int(row.int().argmax())] for row in test.y[0]] == ["S-PER"] * 6
    rows, vectors = data.tables["rows"], data.tables["vectors"]
    assert vectors[rows[words["EU"]]].tolist() == [1, 2] and rows[words["beats"]] == 1
    letters = data.tables["characters"]
    assert letters[words["üñ"]].tolist() == [1, 1, 0, 0, 0]  # never seen in training
    assert train.inputs.values.shape == (2, 6, 4) and test.mask is not None and int(test.mask.sum()) == 6
    assert [batch.inputs.values.shape[1] for batch in data.train_dataloader()] == [3]


@pytest.mark.filterwarnings(ANOTHER_VERSION)
def test_line_ends_empty_lines_and_ways_to_tag_change_nothing(small: Small) -> None:
    wanted = small()
    wanted.setup()
    bio = TRAIN.replace("I-ORG", "B-ORG").replace("I-PER", "B-PER")
    for train in ("\n\n" + TRAIN, TRAIN.replace("\n", "\r\n"), "\r\n" + TRAIN.rstrip(), bio):
        data = small(train=train)
        data.setup()
        assert torch.equal(data.splits["train"].inputs.values, wanted.splits["train"].inputs.values)
        assert torch.equal(data.splits["train"].y, wanted.splits["train"].y)


@pytest.mark.filterwarnings(ANOTHER_VERSION)
@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"train": "EU NNP I-ORG\n"}, r"^eng\.train, line 1: 3 columns, a token has 4"),
        ({"testa": "\nEU NNP I-NP I-ORG\n\nb\n"}, r"^eng\.testa, line 4: 1 columns"),
        ({"testb": "EU NNP I-NP O\nEU NNP I-NP I-GPE\n"}, r"^eng\.testb, line 2: the tag 'I-GPE' is none of"),
        ({"testb": "EU NNP I-NP S-ORG\n"}, r"^eng\.testb, line 1: the tag 'S-ORG'"),
        ({"vectors": VECTORS + "b 1 2 3\n"}, r"mine\.txt, line 3: 3 numbers after the word .* expected 2"),
        ({"vectors": "eu 1 2 3\npeter 3 4 5\n"}, r"mine\.txt, line 1: 3 numbers.*file of 2-d vectors"),
        ({"vectors": "eu 1 x\n"}, r"mine\.txt, line 1: 'x' is not a finite number"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(small: Small, files: dict, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        small(**files).setup()


@pytest.mark.filterwarnings(ANOTHER_VERSION)
def test_sizes_tags_and_dimensions_that_do_not_fit_are_told(small: Small) -> None:
    wrong = {"num_chunks": 9, "num_cases": 3, "num_words": 7, "longest_word": 30}
    says = r"num_words is 8, not 7.*num_cases is 4, not 3.*num_chunks is 4.*--data\.longest_word 5"
    with pytest.raises(DataMismatch, match=says):
        small(options=wrong).setup()
    with pytest.raises(DataMismatch, match=r"not O and B-, I-, E- and S- of each kind"):
        small(options={"tags": ["B-LOC", "I-LOC", "O"]})
    for kind, dimensions in ((CoNLL2003, "50 or 100"), (TwitterPOS, "125")):
        name = "conll2003" if kind is CoNLL2003 else "twitter_pos"
        with pytest.raises(DataMismatch, match=rf"{dimensions} dimensions, not 7.*--data\.vectors FILE"):
            kind(**(described(name)[1] | {"num_dims": 7}))
    for strange in ("", "hund 1 2\n"):
        with pytest.raises(DataMismatch, match=r"None of the 6 words of conll2003_en has a vector"):
            small(vectors=strange).setup()


def test_a_set_of_nothing_but_headings_is_told(small: Small) -> None:
    heading = "-DOCSTART- -X- O O\n\n"
    sizes = {"num_words": 6, "num_vectors": 6}
    with pytest.raises(DataMismatch, match="No row is left for test"):
        small(testa=TRAIN, testb=heading, options=sizes).setup()


def test_other_sentences_than_those_of_the_results_are_told(small: Small) -> None:
    with pytest.warns(UserWarning, match=r"eng\.train, eng\.testa, eng\.testb of conll2003_en: not the"):
        small().setup()


def test_the_results_version_is_known_whatever_its_tags_and_headings(published: dict[str, Sentences]) -> None:
    data = data_set("conll2003_en")
    for part, file in published.items():
        assert adapted(file).digest() == data.files[part].reads_as
        bio = tuple(tag for tags in tags_of(file) for tag in bio_from_iob1(tags))
        other = Sentences((*file.columns[:-1], bio), file.lengths)
        assert adapted(other).digest() == data.files[part].reads_as


def tiny_tweets(folder: Path, vectors: str, packed: bool = False) -> TwitterPOS:
    """Tweets of a few tokens, with a user's vectors."""
    texts = {
        "train": "u\tO\nLOL\t!\n",
        "train_more": "Lol\t!\n",
        "validation": "U\tO\n",
        "test": "u\tO\nö\t!\n",
    }
    (folder / "twitter_pos").mkdir()
    for part, text in texts.items():
        (folder / "twitter_pos" / part).write_text(text)
    path = folder / ("mine.txt.gz" if packed else "mine.txt")
    path.write_bytes(gzip.compress(vectors.encode()) if packed else vectors.encode())
    sizes = {"num_words": 7, "num_vectors": 7, "num_characters": 7, "longest_word": 3}
    places = {"vectors": str(path), "folder": str(folder), "mirror": ""}
    data = TwitterPOS(**(described("twitter_pos")[1] | sizes | {"num_dims": 1} | places))
    data.text = replace(data.text, files={part: DataFile(part) for part in texts})
    return data


@pytest.mark.parametrize("packed", [False, True])
def test_tweets_look_words_up_in_a_users_file_as_they_are_written(tmp_path: Path, packed: bool) -> None:
    data = tiny_tweets(tmp_path, "UUUNKKK 9\nlol 1\nLOL 2\nu 3\n", packed)
    data.setup()
    words = {word: number for number, word in enumerate(["LOL", "Lol", "U", "u", "ö"], 2)}
    rows, vectors = data.tables["rows"], data.tables["vectors"]
    assert {word: float(vectors[rows[number]]) for word, number in words.items()} == {
        "LOL": 2, "Lol": 9, "U": 9, "u": 3, "ö": 9,
    }  # fmt: skip
    assert float(vectors[0]) == 0 and int(rows[words["ö"]]) == 1
    train = data.splits["train"]
    assert train.inputs.values.tolist() == [[[words["u"]], [words["LOL"]]], [[words["Lol"]], [0]]]
    assert set(data.checksums) == {"train", "train_more", "validation", "test", shown(data.own["vectors"])}


def test_tweets_without_a_vector_start_from_zero_when_the_file_has_none_for_them(tmp_path: Path) -> None:
    data = tiny_tweets(tmp_path, "LOL 1\n")
    data.setup()
    assert not data.tables["vectors"][:2].any() and int((data.tables["rows"] > 1).sum()) == 1


def test_a_tag_that_is_not_in_the_list_is_refused_and_not_replaced(tmp_path: Path) -> None:
    data = tiny_tweets(tmp_path, "lol 1\n")
    (tmp_path / "twitter_pos" / "train_more").write_text("a\tN\n\nb\t*\n")
    with pytest.raises(FormatError, match=r"^train_more, line 3: the tag '\*' is none of the 25"):
        data.setup()


def test_words_in_capitals_have_the_tweet_vectors_of_their_lower_case(tweets: TwitterPOS) -> None:
    short = tweets.published_vectors("glove_twitter_25d", {"lol", "rt"}, 25)
    spelled = tweets.tables["characters"]
    number = {char: index for index, char in enumerate(sorted(_characters(tweets)), 2)}
    spelling = torch.zeros(spelled.shape[1], dtype=torch.long)
    spelling[:2] = torch.tensor([number[char] for char in "RT"])
    (word,) = (spelled == spelling).all(1).nonzero()[:, 0].tolist()
    vector = tweets.tables["vectors"][tweets.tables["rows"][word]]
    assert vector[:25].tolist() == short["rt"].tolist() and vector[25:].any()


def _characters(tweets: TwitterPOS) -> set[str]:
    return set("".join(tweets.read()["train"].columns[0]))


@pytest.mark.parametrize("name", ["twitter_pos", "conll2003"])
def test_files_that_are_absent_are_told(name: str, tmp_path: Path) -> None:
    kind, arguments = described(name)
    places = {"folder": str(tmp_path), "mirror": ""}
    with pytest.raises(DataNotFound, match=r"no file nowhere\.txt \(--data\.vectors\)"):
        kind(**(arguments | places | {"vectors": "nowhere.txt"})).setup()
    says = {
        "twitter_pos": r"oct27\.train.*make data DATASET=twitter_pos.*25d\.subset.*glove\.6B\.100d",
        "conll2003": r"eng\.train, eng\.testa, eng\.testb.*trec\.nist\.gov.*glove\.6B\.50d.*--data\.vectors",
    }
    data = kind(**(arguments | places))
    with pytest.raises(DataNotFound, match=says[name]):
        data.setup()
    assert "make data DATASET=conll2003" not in data.missing()  # nobody offers it


def test_what_cannot_be_downloaded_says_what_to_do(tmp_path: Path) -> None:
    sources = Sources(tmp_path, "")
    for name, says in (
        ("conll2003_en", r"eng\.train is not offered for download.*Put eng\.train.*Reuters corpus RCV1"),
        ("glove_6b", r"not offered for download.*glove\.6B\.zip"),
        ("glove_twitter_25d", r"not offered for download.*--data\.vectors FILE"),
    ):
        with pytest.raises(DataNotFound, match=rf"^{name} could not be fetched: .*{says}"):
            sources.fetch(data_set(name))


def test_the_short_vectors_alone_serve_for_named_entities() -> None:
    kind, arguments = described("conll2003")
    data = kind(**(arguments | {"num_dims": 50}))
    assert [len(part.files) for part in data.registered()] == [3, 1]
    if reason := data.missing():
        pytest.skip(reason)
    data.setup()
    assert data.tables["vectors"].shape == (data.num_vectors, 50)
    assert "glove.6B.100d.subset.txt" not in data.checksums
