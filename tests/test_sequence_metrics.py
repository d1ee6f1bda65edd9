"""Scores of tag sequences and spans: by hand, against the figures of conlleval, and against a plain count."""

import gzip
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from datamodules.sources.files import Sources
from lightning_modules.metrics.sequence import SequenceScores
from lightning_modules.metrics.spans import SpanScores

IOB2 = ["B-X", "B-Y", "I-X", "I-Y", "O"]
BIOES = [f"{prefix}-{kind}" for prefix in "BIES" for kind in "XY"] + ["O"]
Pairs = list[tuple[list[str], list[str]]]


def one_hot(sequences: list[list[str]], tags: list[str]) -> Tensor:
    longest = max(map(len, sequences))
    y = torch.zeros(len(sequences), longest, len(tags))
    for row, sequence in enumerate(sequences):
        for place, tag in enumerate(sequence):
            y[row, place, tags.index(tag)] = 1
    return y


def scored(pairs: Pairs, tags: list[str], batch_size: int = 1000) -> SpanScores:
    metric = SpanScores(tags)
    for begin in range(0, len(pairs), batch_size):
        gold, told = zip(*pairs[begin : begin + batch_size], strict=True)
        y, answer = one_hot(list(gold), tags), one_hot(list(told), tags)
        answer[y.sum(-1) == 0] = torch.rand(len(tags))  # whatever stands in padding does not count
        metric.update(answer, y, y.any(-1))
    return metric


def plain_spans(tags: list[str]) -> set[tuple[int, int, str]]:
    """Spans of a sequence one token after the other."""
    spans, open_since, open_kind = set(), 0, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        if open_kind and (tag == "O" or prefix in "BS" or kind != open_kind):
            spans.add((open_since, place, open_kind))
            open_kind = ""
        if tag != "O" and not open_kind:
            open_since, open_kind = place, kind
    return spans


def plain_scores(pairs: Pairs) -> dict[str, float]:
    spans = [(plain_spans(gold), plain_spans(told)) for gold, told in pairs]
    right = sum(len(gold & told) for gold, told in spans)
    actual, found = sum(len(gold) for gold, _ in spans), sum(len(told) for _, told in spans)
    tags = [same for gold, told in pairs for same in map(str.__eq__, gold, told)]
    return {
        "f1": 2 * right / max(actual + found, 1),
        "precision": right / max(found, 1),
        "recall": right / max(actual, 1),
        "accuracy": sum(tags) / max(len(tags), 1),
    }


def conlleval_cases() -> tuple[Path, dict]:
    folder = (Sources().mirror or Path("data")) / "conlleval_cases"
    if not (folder / "expected.json").is_file():
        pytest.skip(f"the reference cases of conlleval are not in {folder}")
    return folder, json.loads((folder / "expected.json").read_text())


def read_pairs(path: Path) -> Pairs:
    blocks = gzip.decompress(path.read_bytes()).decode().strip().split("\n\n")
    lines = [[line.split("\t") for line in block.split("\n")] for block in blocks]
    return [([gold for gold, _ in block], [told for _, told in block]) for block in lines]


@pytest.mark.parametrize("name", ["random-iob2", "perturbed-conll2000-test"])
def test_spans_are_scored_as_conlleval_scores_them(name: str) -> None:
    folder, expected = conlleval_cases()
    pairs, wanted = read_pairs(folder / f"{name}.tsv.gz"), expected[name]
    tags = sorted({tag for pair in pairs for sequence in pair for tag in sequence})
    metric = scored(pairs, tags, batch_size=128)
    got = {score: round(100 * float(value), 2) for score, value in metric.compute().items()}
    assert got == {
        "f1": wanted["f1"],
        "precision": wanted["p"],
        "recall": wanted["r"],
        "accuracy": wanted["acc"],
    }
    counts = (metric.correct, metric.found, metric.actual, metric.positions)
    wanted_counts = [wanted[key] for key in ("correct", "found", "gold", "tokens")]
    assert [int(count.sum()) for count in counts] == wanted_counts
    for kind, (precision, recall, _, found) in wanted["types"].items():
        correct, *wholes = (
            int(c[metric.kinds.index(kind)]) for c in (metric.correct, metric.found, metric.actual)
        )
        assert wholes[0] == found
        shares = [round(100 * correct / whole, 2) if whole else 0.0 for whole in wholes]
        assert shares == [precision, recall]


def sequences_of(tags: list[str]) -> st.SearchStrategy[Pairs]:
    pair = st.lists(st.tuples(st.sampled_from(tags), st.sampled_from(tags)), min_size=1, max_size=7)
    split = pair.map(lambda rows: ([gold for gold, _ in rows], [told for _, told in rows]))
    return st.lists(split, min_size=1, max_size=5)


@given(sequences_of(IOB2), st.integers(1, 3))
def test_spans_of_any_tags_are_those_of_a_plain_count(pairs: Pairs, batch_size: int) -> None:
    got = scored(pairs, IOB2, batch_size).compute()
    assert {name: float(score) for name, score in got.items()} == pytest.approx(plain_scores(pairs), abs=1e-6)


@given(sequences_of(BIOES))
def test_bioes_tags_are_scored_as_the_iob2_tags_they_stand_for(pairs: Pairs) -> None:
    turn = str.maketrans("SE", "BI")
    plain = [tuple([tag.translate(turn) for tag in sequence] for sequence in pair) for pair in pairs]
    ours, theirs = scored(pairs, BIOES).compute(), scored(plain, IOB2).compute()
    assert ours == theirs


def test_neighbouring_single_tokens_are_spans_of_their_own() -> None:
    metric = scored([(["S-X", "S-X", "O"], ["B-X", "E-X", "O"])], BIOES)
    assert (int(metric.actual.sum()), int(metric.found.sum()), int(metric.correct.sum())) == (2, 1, 0)


def test_spans_of_two_sequences_are_as_worked_by_hand() -> None:
    pairs = [
        (["B-X", "I-X", "O", "B-Y"], ["B-X", "I-X", "I-Y", "I-Y"]),  # right: X; the Y told is longer
        (["B-X", "B-X"], ["I-X", "I-X"]),  # told one span, wanted two
    ]
    scores = {name: float(value) for name, value in scored(pairs, IOB2).compute().items()}
    assert scores == pytest.approx(
        {"f1": 2 / (3 + 4), "precision": 1 / 3, "recall": 1 / 4, "accuracy": 1 / 3}
    )


def test_a_span_of_one_sequence_does_not_go_on_in_the_next() -> None:
    metric = scored([(["O", "B-X"], ["O", "B-X"]), (["I-X", "O"], ["I-X", "O"])], IOB2)
    assert int(metric.correct.sum()) == 2


def test_nothing_found_scores_zero_and_not_nan() -> None:
    scores = scored([(["O", "O"], ["O", "O"])], IOB2).compute()
    assert {name: float(score) for name, score in scores.items()} == {
        "f1": 0,
        "precision": 0,
        "recall": 0,
        "accuracy": 1,
    }


@pytest.mark.parametrize("tag", ["X-NP", "B", "B-", "", "NN"])
def test_a_name_that_is_no_tag_of_spans_is_refused(tag: str) -> None:
    with pytest.raises(ValueError, match=f"'{tag}' is no tag of BIOES"):
        SpanScores(["O", tag])


@pytest.mark.parametrize("metric", [SequenceScores(), SpanScores(IOB2)])
def test_states_of_two_processes_add_up(metric: SequenceScores | SpanScores) -> None:
    torch.manual_seed(0)
    whole, halves = metric.clone(), [metric.clone(), metric.clone()]
    for half in halves:
        y = F.one_hot(torch.randint(5, (8, 6)), 5).float() * (torch.rand(8, 6, 1) > 0.2).cummin(1).values
        answer = torch.rand(8, 6, 5)
        half.update(answer, y, y.any(-1))
        whole.update(answer, y, y.any(-1))
    for name in metric.metric_state:
        assert metric._reductions[name].__name__ == "dim_zero_sum"
        setattr(metric, name, sum(getattr(half, name) for half in halves))
    metric._update_count = 2
    together, alone = metric.compute(), whole.compute()
    assert all(float(together[name]) == pytest.approx(float(alone[name])) for name in alone)


def test_word_accuracy_weighs_words_alike_and_accuracy_letters() -> None:
    y, answer = torch.zeros(3, 4, 5), torch.rand(3, 4, 5)
    y[0, :4, 1] = y[1, :1, 2] = 1  # four letters, one letter, an empty row
    answer[0, :3, 1] = answer[0, 3, 0] = answer[1, 0, 2] = 2  # three of four right; right
    metric = SequenceScores()
    metric.update(answer, y, y.any(-1))
    scores = {name: float(value) for name, value in metric.compute().items()}
    assert scores == pytest.approx({"word_accuracy": (3 / 4 + 1) / 2, "accuracy": 4 / 5})


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 99))
def test_padding_changes_no_score(lengths: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    whole, single = (SequenceScores(), SpanScores(IOB2)), (SequenceScores(), SpanScores(IOB2))
    mask = torch.arange(8) < torch.tensor(lengths).unsqueeze(1)
    y = F.one_hot(torch.randint(5, mask.shape, generator=generator), 5).float()  # behind a sentence too
    answer = torch.rand(*mask.shape, 5, generator=generator)
    for metric in whole:
        metric.update(answer, y, mask)
    for metric in single:
        for row, length in enumerate(lengths):
            here = (slice(row, row + 1), slice(length))
            metric.update(answer[here], y[here], mask[here])
    for a, b in zip(whole, single, strict=True):
        together, alone = a.compute(), b.compute()
        assert all(float(together[name]) == pytest.approx(float(alone[name])) for name in alone)
