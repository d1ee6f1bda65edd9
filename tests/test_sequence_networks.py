"""Networks over words: their sizes, what they start from, and that padding changes nothing."""

from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from networks.char_bilstm import CharBiLSTM
from networks.chunking import BiLSTMTagger, LinearTagger, WordFeatures

TAGGERS = [LinearTagger, BiLSTMTagger]
SIZES = {"num_words": 30, "num_vectors": 25, "num_pos": 8, "num_characters": 12, "longest_word": 6}


def tables() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 7, (30, 1), generator=generator)
    lengths[0] = 0
    characters = torch.randint(1, 12, (30, 6), generator=generator) * (torch.arange(6) < lengths)
    return {
        "characters": characters,
        "rows": torch.randint(1, 25, (30,), generator=generator),
        "vectors": torch.randn(25, 50, generator=generator),
    }


def tagger(kind: type[nn.Module], num_tags: int = 5, **options: int) -> nn.Module:
    torch.manual_seed(0)
    net = kind(WordFeatures(**SIZES), num_tags, **options)
    net.features.initialise(tables())
    return net


def sentences(lengths: list[int], seed: int = 0, longest: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), longest or max(lengths))
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)
    x = torch.stack([torch.randint(1, size, shape, generator=generator) for size in (30, 8)], dim=-1)
    return x * mask.unsqueeze(-1)


def number_of_parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_networks_have_the_sizes_of_the_paper() -> None:
    conf = Path(__file__).resolve().parent.parent / "conf" / "data" / "conll2000.yaml"
    arguments = yaml.safe_load(conf.read_text())["data"]["init_args"]
    features = WordFeatures(**{name: arguments[name] for name in SIZES})
    first, second = 200 * (10 + 50) + 400, 200 * (100 + 50) + 400  # per direction; torch has two biases
    letters = 82 * 10 + 2 * (first + second)
    assert features.size == 50 + 10 + 2 * 50
    assert number_of_parameters(features.letters) == letters == 86_420
    assert number_of_parameters(features) == 17_348 * 50 + 46 * 10 + letters == 954_280
    linear, chain = LinearTagger(features, 23), BiLSTMTagger(features, 23)
    assert number_of_parameters(linear) == 954_280 + 160 * 300 + 300 + 300 * 23 + 23 == 1_009_503
    first, second = 1200 * (160 + 300) + 2400, 1200 * (600 + 300) + 2400
    assert number_of_parameters(chain) == 954_280 + 2 * (first + second) + 600 * 23 + 23 == 4_241_703


def test_a_word_is_its_last_state_forwards_and_first_state_backwards() -> None:
    torch.manual_seed(0)
    net = CharBiLSTM(9, size=3, width=4)
    words = [[3, 1, 4, 1, 5], [8], [2, 6]]
    padded = torch.tensor([word + [0] * (7 - len(word)) for word in words])
    for word, read in zip(words, net(padded), strict=True):
        states, _ = net.lstm(net.embedding(torch.tensor(word)).unsqueeze(1))
        torch.testing.assert_close(read, torch.cat([states[-1, 0, :4], states[0, 0, 4:]]))


@pytest.mark.parametrize("kind", TAGGERS)
@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 9), st.integers(0, 4))
def test_padding_changes_no_score_and_has_none(
    kind: type[nn.Module], lengths: list[int], seed: int, more: int
) -> None:
    net = tagger(kind, width=7)
    x = sentences(lengths, seed, longest=max(lengths) + more)
    scores = net(x)
    assert scores.shape == (*x.shape[:2], 5)
    assert not scores[x[..., 0] == 0].any()
    for row, length in enumerate(lengths):
        torch.testing.assert_close(scores[row, :length], net(x[row : row + 1, :length])[0])


def test_a_token_is_scored_alone_or_among_its_neighbours() -> None:
    x = sentences([4, 3])
    changed = x.clone()
    changed[0, 3] = torch.tensor([29, 7]) - changed[0, 3] + 1
    for kind, alone in ((LinearTagger, True), (BiLSTMTagger, False)):
        net = tagger(kind, width=7)
        before, after = net(x), net(changed)
        assert torch.allclose(before[0, 0], after[0, 0], atol=1e-7) == alone
        torch.testing.assert_close(before[1], after[1])


@pytest.mark.parametrize("kind", TAGGERS)
def test_all_that_a_batch_uses_is_trained(kind: type[nn.Module]) -> None:
    net, x = tagger(kind, width=7), sentences([4, 3])
    net(x).square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())
    touched = net.features.vectors.weight.grad.any(1).nonzero()[:, 0].tolist()
    assert touched == sorted(set(net.features.rows[x[..., 0][x[..., 0] > 0]].tolist()))
    moved = {name for name, p in net.named_parameters() if p.grad.any()}
    assert moved == {name for name, _ in net.named_parameters()}


def test_features_are_those_of_the_tables() -> None:
    features, given_tables = WordFeatures(**SIZES), tables()
    features.initialise(given_tables)
    tokens = torch.tensor([[7, 2], [3, 4], [7, 5]])
    read = features(tokens)
    torch.testing.assert_close(read[:, :50], given_tables["vectors"][given_tables["rows"][tokens[:, 0]]])
    torch.testing.assert_close(read[:, 50:150], features.letters(given_tables["characters"][tokens[:, 0]]))
    torch.testing.assert_close(read[:, 150:], features.pos.weight[tokens[:, 1]])


def test_tables_are_taken_over_once_and_a_checkpoint_keeps_what_was_learned() -> None:
    net = tagger(LinearTagger)
    with torch.no_grad():
        net.features.vectors.weight += 1
    net.features.initialise(tables())
    learned = tables()["vectors"] + 1
    assert torch.equal(net.features.vectors.weight, learned)
    other = LinearTagger(WordFeatures(**SIZES), 5)
    other.load_state_dict(net.state_dict())
    other.features.initialise(tables())
    assert torch.equal(other.features.vectors.weight, learned)
    assert torch.equal(other(sentences([3, 2])), net(sentences([3, 2])))
