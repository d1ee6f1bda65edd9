"""Semantic roles: the real files against their published counts, small files by hand, wrong files."""

import gzip
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from datamodules.errors import DataCorrupt, DataMismatch, DataNotFound, FormatError
from datamodules.readers.propbank import Propositions, read_propositions
from datamodules.sources.files import Sources, shown
from datamodules.sources.registry import data_set
from datamodules.text.roles import SemanticRoles
from energies.constraints import Constraints, bio_tags
from role_parts import CONF, DATA, NEEDED, first_sentences, missing

COUNTS = {  # sentences, with a predicate, tokens, predicates, labels, tokens of the longest
    "train": (12505, 10537, 204151, 40424, 59, 159),
    "validation": (1962, 1529, 24871, 4960, 45, 75),
    "test": (2051, 1532, 24913, 4792, 44, 81),
}
SPANS = {
    "V": 40424, "ARG1": 26889, "ARG0": 15245, "ARG2": 9741, "ARGM-TMP": 5316, "ARGM-ADV": 4407,
    "ARGM-MOD": 3564, "ARGM-NEG": 1909, "ARGM-ADJ": 1688, "ARGM-LOC": 1625, "R-ARG1": 653, "ARG3": 645,
    "R-ARG0": 644, "C-ARG1": 441, "ARG4": 403, "ARG5": 4, "ARGA": 1,
}  # fmt: skip
CORE = ("ARG0", "ARG1", "ARG2", "ARG3", "ARG4", "ARG5", "ARGA")
data_is_here = pytest.mark.skipif(
    bool(Sources().missing(data_set("srl_ewt_propbank"))), reason="srl_ewt_propbank is not here"
)
all_is_here = pytest.mark.skipif(bool(missing()), reason=missing())
TOY = b"""# toy 0
1\tDogs\tNNS\t-\t-\tB-ARG0\tO
2\tseem\tVBP\tseem\tseem.01\tB-V\tO
3\tto\tTO\t-\t-\tB-ARG1\tO
4\tbark\tVB\tbark\tbark.01\tI-ARG1\tB-V

# toy 1
1\t#\t#\t-\t-
2\t1\tCD\t-\t-
"""


@pytest.fixture(scope="module")
def parts() -> dict[str, Propositions]:
    data, sources = data_set("srl_ewt_propbank"), Sources()
    return {
        part: read_propositions(sources.read(data, file), where=file.name, roles=DATA["roles"])
        for part, file in data.files.items()
    }


@data_is_here
def test_the_real_files_have_their_published_counts(parts: dict[str, Propositions]) -> None:
    for name, part in parts.items():
        tokens, longest = sum(map(len, part.words)), max(map(len, part.words))
        used = len(set(part.sentence))
        assert (len(part.words), used, tokens, len(part), len(part.roles()), longest) == COUNTS[name]
    spans = Counter(tag[2:] for column in parts["train"].tags for tag in column if tag[0] == "B")
    assert {role: spans[role] for role in SPANS} == SPANS


@data_is_here
def test_a_predicate_stands_where_its_v_begins_but_for_few(parts: dict[str, Propositions]) -> None:
    apart = {
        name: sum(tags.index("B-V") != place for tags, place in zip(part.tags, part.place, strict=True))
        for name, part in parts.items()
    }
    assert apart == {"train": 11, "validation": 2, "test": 0}


@data_is_here
def test_no_gold_predicate_has_a_core_role_twice(parts: dict[str, Propositions]) -> None:
    for part in parts.values():
        assert all(tags.count(f"B-{role}") <= 1 for tags in part.tags for role in CORE)


@data_is_here
def test_one_role_occurs_in_no_training_sentence_and_once_in_the_test(parts: dict[str, Propositions]) -> None:
    assert parts["validation"].roles() <= parts["train"].roles()
    assert parts["test"].roles() - parts["train"].roles() == {"R-ARGM-ADJ"}
    assert sum(tags.count("B-R-ARGM-ADJ") for tags in parts["test"].tags) == 1
    assert set(DATA["roles"]) == parts["train"].roles() | {"R-ARGM-ADJ"}


def test_a_sentence_has_an_example_for_each_predicate() -> None:
    for content in (TOY, TOY.replace(b"\n", b"\r\n"), b"\n\n" + TOY + b"\n\n", b"\xef\xbb\xbf" + TOY):
        read = read_propositions(content, where="toy.tsv")
        assert read.words == (("Dogs", "seem", "to", "bark"), ("#", "1"))
        assert (read.sentence, read.place) == ((0, 0), (1, 3))
        assert read.tags == (("B-ARG0", "B-V", "B-ARG1", "I-ARG1"), ("O", "O", "O", "B-V"))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (b"3\tto\tTO\t-\t-\tB-ARG1\tO", b"3\tto\tTO\t-\t-\tB-ARG1", "line 4: 6 columns, a token has 7 as"),
        (b"\tB-ARG0\tO", b"\tB-ARG0", "line 2: 6 columns, a token has 7 as the others"),
        (b"3\tto\t", b"3\t\t", "line 4: token 3 of its sentence has no word"),
        (b"3\tto\tTO\t-\t-\tB-ARG1\tO\n", b"", "line 4: token 3 of its sentence has the number '4'"),
        (b"I-ARG1", b"I-ARG2", "line 5: column 6: 'I-ARG2' follows 'B-ARG1'"),
        (b"B-ARG1", b"B-ARG9", "line 4: column 6: the role 'ARG9' is none of 60"),
        (b"B-ARG1", b"X-ARG1", "line 4: column 6: 'X-ARG1' is none of O, B- and I-"),
        (b"B-ARG1", b"ARG1", "line 4: column 6: 'ARG1' is none of O, B- and I-"),
        (b"Dogs", b"D\xf6gs", "line 2: this is not UTF-8"),
        (b"bark.01", b"-", "line 2: the sentence has 1 predicates and 2 columns of tags"),
        (b"I-ARG1\tB-V", b"I-ARG1\tO", "line 2: column 7 of the sentence has no B-V"),
        (b"2\t1\tCD\t-\t-", b"2\t1\tCD\t-", "line 9: 4 columns, a token has 5 or more"),
        (b"2\t1\tCD\t-\t-", b"2 1 CD - -", "line 9: 1 columns, a token has 5 or more"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(before: bytes, after: bytes, says: str) -> None:
    with pytest.raises(FormatError) as error:
        read_propositions(TOY.replace(before, after), where="toy.tsv", roles=DATA["roles"])
    assert str(error.value).startswith(f"toy.tsv, {says}") and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# toy 0\n1\tDogs\tNNS\t-\t-\n"])
def test_a_file_without_predicates_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError, match=r"toy\.tsv: the file has no predicate"):
        read_propositions(content, where="toy.tsv")


def configured(tmp_path: Path, **changes: object):  # noqa: ANN201  (imported late: needs the extra hf)
    """The data of conf/data/srl.yaml, on few sentences unless `changes` name files."""
    from datamodules.text.roles import SemanticRoles

    own = {}
    for part, count in {"train": 30, "validation": 6, "test": 6}.items():
        path = tmp_path / f"{part}.tsv"
        path.write_bytes(first_sentences(part, count))
        own[part] = str(path)
    return SemanticRoles(**{**DATA, "seed": 0, "kept_layers": 0, **own, **changes})


@all_is_here
def test_examples_are_predicates_marked_in_their_sentences(tmp_path: Path) -> None:
    data = configured(tmp_path)
    data.setup()
    names = bio_tags(DATA["roles"])
    assert len(names) == DATA["num_tags"]
    for part in ("train", "test"):
        split, read = data.splits[part], data.read(part)
        assert len(split.inputs) == len(split.y) == len(read)
        for i, (tags, place) in enumerate(zip(read.tags, read.place, strict=True)):
            assert [names[k] for k in split.y[i].int().argmax(-1)[: len(tags)]] == list(tags)
            assert int(split.mask[i].sum()) == len(tags) and not split.y[i, len(tags) :].any()
            marked = split.inputs.segments[i].nonzero().flatten()
            assert int(marked[0]) == int(split.inputs.words[i, place])
            assert len(marked) < 8 and split.inputs.attention[i][marked].all()


@all_is_here
def test_batches_hold_sentences_of_similar_length_and_their_predicates(tmp_path: Path) -> None:
    data = configured(tmp_path, batch_size=4, pool=50)
    data.setup()
    spread = []
    for batch in data.train_dataloader():
        lengths = batch.mask.sum(1)
        spread.append(int(lengths.max() - lengths.min()))
        assert batch.y.shape == (len(batch.inputs), int(lengths.max()), DATA["num_tags"])
        assert torch.equal(batch.y.sum(-1), batch.mask.float())
    assert sum(spread) / len(spread) < 4


@all_is_here
def test_kept_layers_are_computed_once_a_sentence(tmp_path: Path) -> None:
    data = configured(tmp_path, kept_layers=4, folder=str(tmp_path / "data"))
    data.setup()
    inputs = data.splits["train"].inputs
    sentences = len(set(data.read("train").sentence))
    assert len(inputs.texts.unique()) == sentences < len(inputs)
    whole = configured(tmp_path)
    whole.setup()
    index = torch.arange(8)
    kept, pieces = (each.splits["train"].inputs.rows(index) for each in (data, whole))
    assert torch.equal(kept.segments, pieces.segments) and torch.equal(kept.words, pieces.words)
    assert torch.equal(kept.attention, pieces.attention)


@all_is_here
def test_a_share_of_the_predicates_is_drawn(tmp_path: Path) -> None:
    few, more = (configured(tmp_path, num_train=number) for number in (10, 20))
    for data in (few, more):
        data.setup()
    assert len(few.splits["train"].inputs) == 10 == len(few.splits["train"].y)
    of_few, of_more = (
        {tuple(row) for row in data.splits["train"].inputs.ids[:, :12].tolist()} for data in (few, more)
    )
    assert of_few <= of_more


@all_is_here
def test_wrong_files_and_sizes_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataMismatch, match="num_tags is 120, and 60 different roles have 121 tags"):
        configured(tmp_path, num_tags=120)
    with pytest.raises(DataNotFound, match=r"There is no file none\.tsv \(--data\.test\)"):
        configured(tmp_path, test="none.tsv").setup()
    with pytest.raises(DataMismatch, match=r"have more than 12 word pieces.*Raise --data\.max_pieces"):
        configured(tmp_path, max_pieces=12).setup()
    data, long = configured(tmp_path), tmp_path / "long.tsv"
    rows = [f"{at}\tdogs\tNNS\t-\t-" for at in range(1, 600)] + ["600\tbark\tVB\tbark\tbark.01"]
    long.write_text("\n".join(["# toy 0", *rows, ""]))
    data.new = long
    with pytest.raises(DataMismatch, match=r"word pieces; .*\. Leave them out of --new\."):
        data.setup()
    latin = tmp_path / "latin.tsv"
    latin.write_bytes(TOY.replace(b"Dogs", b"D\xf6gs"))
    with pytest.raises(FormatError, match=r"latin\.tsv, line 2: this is not UTF-8"):
        configured(tmp_path, train=str(latin)).setup()


def test_files_that_are_not_here_are_named_with_what_to_do(tmp_path: Path) -> None:
    reason = Sources(tmp_path, "").missing(data_set("srl_ewt_propbank"))
    assert reason is not None and "train.tsv, dev.tsv, test.tsv" in reason and "--data.train" in reason


@data_is_here
def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    data, file = data_set("srl_ewt_propbank"), data_set("srl_ewt_propbank").files["test"]
    folder = tmp_path / data.name
    folder.mkdir()
    (folder / "test.tsv.gz").write_bytes(gzip.compress(Sources().read(data, file) + b"\n"))
    with pytest.raises(DataCorrupt, match=r"test\.tsv\.gz is not the file it should be"):
        Sources(tmp_path, "").read(data, file)


def test_the_config_has_the_constraints_of_its_roles() -> None:
    allowed = Constraints.for_spans(bio_tags(DATA["roles"])).allowed
    assert allowed.shape == (121, 121)
    assert allowed.sum() == 121 * 61 + 60 * 2  # O and B- after any tag, I- after B- and I- of its role
    assert CONF.exists()


@all_is_here
def test_files_of_one_name_have_their_own_checksums(tmp_path: Path) -> None:
    paths = {}
    for part in NEEDED:
        paths[part] = tmp_path / part / "props.conll"
        paths[part].parent.mkdir()
        paths[part].write_bytes(first_sentences(part, 2))
    data = SemanticRoles(**DATA | {part: str(path) for part, path in paths.items()} | {"seed": 0})
    data.load()
    assert data.checksums == {shown(path): sha256(path.read_bytes()).hexdigest() for path in paths.values()}
