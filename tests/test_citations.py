"""Citations with few labels, on the real ones: what is read, and each row of the table by its configs."""

from pathlib import Path

import pytest
import torch

from citation_data import CONFIG, all_labelled, citations, from_glove, vectors
from datamodules.errors import DataMismatch, FormatError
from datamodules.readers.conll import read_sentences
from datamodules.readers.references import read_references, tokens_of
from experiments.plan.spec import read_table
from experiments.run.cli import TrainCLI
from scheme_runs import QUICK, configs

TABLE = read_table("implicit_citations")
ROWS = [name for name in TABLE.rows if TABLE.has(name, "c10")]


def text_of(part: str) -> bytes:
    data = from_glove()
    return data.sources.read(data.text, data.text.files[part])


def test_the_files_have_the_citations_of_the_papers() -> None:
    data = all_labelled()
    sizes = {part: (len(split.y), int(split.mask.sum())) for part, split in data.splits.items()}
    assert sizes["validation"] == (100, 3841)
    assert sizes["test"] == (100, 3689)
    train = data.splits["train"]
    assert train.observed is not None and int(train.observed.sum()) == 300
    assert int(train.mask[:300].sum()) == 11652
    assert train.mask.shape == (1300, 118)  # of the longest
    assert train.y.shape[-1] == 13
    assert (train.y.sum(-1) == train.mask)[:300].all()


def test_the_pool_is_read_as_the_labelled_citations_are() -> None:
    references = read_references(text_of("unlabelled"), where="pool")
    assert len(references) == 2376
    assert sum(len(tokens) <= 118 for tokens in references) == 2351
    assert tokens_of("Roever, W.-P. de (1994)") == [*"Roever , W . - P . de ( 1994 )".split()]


def test_an_answer_that_is_not_observed_is_zero_and_fewer_labelled_are_among_more() -> None:
    train = all_labelled().splits["train"]
    assert train.observed is not None and not train.y[~train.observed].any()
    five, ten = citations(num_labelled=5, repeats=2), citations(num_labelled=10, repeats=1)
    for few in (five, ten):
        few.splits = few.load()
    x = five.splits["train"].inputs.values
    assert torch.equal(x[:5], x[5:10])
    assert torch.equal(x[:5], ten.splits["train"].inputs.values[:5])
    assert torch.equal(x[10:], ten.splits["train"].inputs.values[10:])
    other = citations(num_labelled=5, seed=1)
    other.splits = other.load()
    assert not torch.equal(x[:5], other.splits["train"].inputs.values[:5])


def test_the_tags_of_citations_that_were_not_drawn_are_never_read(tmp_path: Path) -> None:
    content = text_of("train").decode()
    plain = citations()
    plain.setup()
    drawn = set(plain._drawn("num_labelled", 10, 1, 300).tolist())
    blocks = content.strip().split("\n\n")
    assert len(blocks) == 300
    hidden = [
        block if number in drawn else "\n".join(line.split("\t")[0] + "\tnote" for line in block.split("\n"))
        for number, block in enumerate(blocks)
    ]
    (tmp_path / "train.tsv").write_text("\n\n".join(hidden))
    changed = citations(train=str(tmp_path / "train.tsv"))
    changed.setup()
    for part, split in plain.splits.items():
        assert torch.equal(split.y, changed.splits[part].y)
        assert torch.equal(split.inputs.values, changed.splits[part].inputs.values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cora\tA. Cau. 1994.\nno tab here\n", "pool.tsv, line 2: no tab between the source"),
        (b"cora\tA. Cau. 1994.\ncora\t  \n", "pool.tsv, line 2: the reference is empty"),
        (b"cora\tA. Cau.\n\ncora\tK\xf6hler\n", "pool.tsv, line 3: this is not UTF-8"),
        (b"\n\n", "pool.tsv: the file has no reference"),
    ],
)
def test_a_bad_line_of_the_pool_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "pool.tsv").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        citations(unlabelled=str(tmp_path / "pool.tsv")).load()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"A\tauthor\n1994\tyear\n", "mine.tsv, line 2: the tag 'year' is none of the 13"),
        (b"A\tauthor\nK\xf6hler\tauthor\n", "mine.tsv, line 2: this is not UTF-8"),
        (b"A\tauthor\n1994\n", "mine.tsv, line 2: 1 columns"),
    ],
)
def test_a_bad_line_of_a_tagged_file_is_named(content: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_sentences(content, where="mine.tsv", num_columns=2, tags=CONFIG["tags"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_labelled": 301}, "num_labelled is 301: take 1 to 300"),
        ({"num_labelled": 0}, "num_labelled is 0: take 1 to 300"),
        ({"num_unlabelled": 2352}, "num_unlabelled is 2352: take 0 to 2,351"),
        ({"repeats": 0}, "repeats is 0"),
    ],
)
def test_a_number_that_does_not_fit_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(DataMismatch, match=message):
        citations(**options).load()


def test_vectors_of_another_size_are_refused() -> None:
    with pytest.raises(DataMismatch, match="100 dimensions, not 50"):
        from_glove(num_dims=50)


@pytest.mark.parametrize("row", ROWS)
def test_each_row_trains_on_the_citations_and_counts_its_violations(row: str, tmp_path: Path) -> None:
    given = [*configs(*TABLE.layers(row, "c10")), *QUICK, "--trainer.limit_test_batches=1"]
    warm = ["--model.warm_up=0"] if row in ("self_training", "pseudo", "cd") else []
    cli = TrainCLI([*given, *warm, f"--data.vectors={vectors()}"], run_dir=str(tmp_path))
    cli.trainer.fit(cli.model, cli.datamodule)
    cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    scores = cli.trainer.callback_metrics
    assert 0 <= scores["test/word_accuracy"] <= 1
    assert scores["test/violations"] >= 0
    assert torch.isfinite(scores["test/rule_energy"])


@pytest.mark.parametrize("row", ["pseudo", "cd"])
def test_what_stands_in_place_of_hidden_answers_changes_no_weight(row: str, tmp_path: Path) -> None:
    given = [*configs(*TABLE.layers(row, "c10")), *QUICK, "--model.warm_up=0", f"--data.vectors={vectors()}"]
    weights = []
    for garbage in (False, True):
        cli = TrainCLI(given, run_dir=str(tmp_path / str(garbage)))
        cli.datamodule.setup()
        train = cli.datamodule.splits["train"]
        assert train.observed is not None
        train.y[~train.observed] = garbage
        cli.trainer.fit(cli.model, cli.datamodule)
        weights.append(cli.model.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize("row", ["self_training", "pseudo", "cd"])
def test_no_epoch_of_the_warm_up_is_judged(row: str, tmp_path: Path) -> None:
    """Nothing rises by 1, so the stop rule ends training with the second epoch that it judges."""
    rule = ["--stop.patience=1", "--stop.min_delta=1.0", "--trainer.max_epochs=7", "--model.warm_up=3"]
    given = [*configs(*TABLE.layers(row, "c10")), *QUICK, *rule, f"--data.vectors={vectors()}"]
    cli = TrainCLI(given, run_dir=str(tmp_path))
    cli.trainer.fit(cli.model, cli.datamodule)
    best = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert cli.trainer.current_epoch == 5
    assert best["epoch"] >= 3
