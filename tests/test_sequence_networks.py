"""Networks over words: their sizes, what they start from, what they compute, that padding changes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from networks.bilstm import BiLSTM, Tagger
from networks.char_bilstm import CharBiLSTM
from networks.char_cnn import CharCNN
from networks.chunking import LinearTagger
from networks.inputs import Sequences
from networks.layers import Features
from networks.mlp import StackedHead
from networks.pretrained import build
from networks.words import WordFeatures

WORDS, VECTORS, POS, CASES, LETTERS, LONGEST = 30, 25, 8, 4, 12, 6
CONF = Path(__file__).resolve().parent.parent / "conf"


def tables(num_dims: int = 5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, LONGEST + 1, (WORDS, 1), generator=generator)
    rows = torch.randint(1, VECTORS, (WORDS,), generator=generator)
    vectors = torch.randn(VECTORS, num_dims, generator=generator)
    lengths[0], rows[0], vectors[0] = 0, 0, 0
    characters = torch.randint(1, LETTERS, (WORDS, LONGEST), generator=generator)
    return {"characters": characters * (torch.arange(LONGEST) < lengths), "rows": rows, "vectors": vectors}


def words(*, tuned: bool = True, letters: Features | None = None, **options: object) -> WordFeatures:
    features = WordFeatures(
        WORDS,
        VECTORS,
        num_dims=5,
        tuned=tuned,
        letters=letters,
        longest_word=LONGEST,
        **{"columns": [(POS, 3)], **options},
    )
    features.initialise(tables())
    return features


def with_char_bilstm() -> WordFeatures:
    return words(letters=CharBiLSTM(LETTERS, size=3, width=4))


def with_char_cnn() -> WordFeatures:
    return words(letters=CharCNN(LETTERS, size=3, filters=4), tuned=False, columns=[(POS, 3), (CASES, 2)])


TAGGERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: LinearTagger(with_char_bilstm(), 5, width=7),
    "bilstm": lambda: Tagger(BiLSTM(words(tuned=False), 7), 5, bias=False),
    "deep": lambda: Tagger(BiLSTM(with_char_bilstm(), 7, num_layers=2), 5),
    "letters": lambda: Tagger(BiLSTM(with_char_cnn(), 7), 5),
}


def tagger(name: str) -> nn.Module:
    torch.manual_seed(0)
    return TAGGERS[name]().eval()


def features_of(net: nn.Module) -> WordFeatures:
    return next(module for module in net.modules() if isinstance(module, WordFeatures))


def sentences(lengths: list[int], seed: int = 0, longest: int = 0) -> Sequences:
    """Ids, of which those behind a sentence mean nothing."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), longest or max(lengths))
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)
    x = [torch.randint(1, size, shape, generator=generator) for size in (WORDS, POS, CASES)]
    return Sequences(torch.stack(x, dim=-1), mask)


def alone(x: Sequences, row: int, length: int) -> Sequences:
    """One sentence without its padding."""
    return Sequences(x.values[row : row + 1, :length], x.mask[row : row + 1, :length])


def number_of_parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_networks_of_chunking_have_the_sizes_of_the_paper() -> None:
    sizes = yaml.safe_load((CONF / "data" / "conll2000.yaml").read_text())["data"]["init_args"]
    letters = CharBiLSTM(sizes["num_characters"])
    columns = [(sizes["num_pos"], 10)]
    features = WordFeatures(
        sizes["num_words"],
        sizes["num_vectors"],
        columns=columns,
        letters=letters,
        longest_word=sizes["longest_word"],
    )
    first, second = 200 * (10 + 50) + 400, 200 * (100 + 50) + 400  # per direction; torch has two biases
    spelled = 82 * 10 + 2 * (first + second)
    assert features.size == 50 + 10 + 2 * 50
    assert number_of_parameters(letters) == spelled == 86_420
    assert number_of_parameters(features) == 17_348 * 50 + 46 * 10 + spelled == 954_280
    linear, chain = LinearTagger(features, 23), Tagger(BiLSTM(features, 300, num_layers=2), 23)
    assert number_of_parameters(linear) == 954_280 + 160 * 300 + 300 + 300 * 23 + 23 == 1_009_503
    first, second = 1200 * (160 + 300) + 2400, 1200 * (600 + 300) + 2400
    assert number_of_parameters(chain) == 954_280 + 2 * (first + second) + 600 * 23 + 23 == 4_241_703


@pytest.mark.parametrize(
    ("width", "num_tags", "paper", "peepholes", "ours"),
    [(100, 25, 166_425, 3 * 100, 166_625), (128, 17, 238_865, 0, 239_889)],
    ids=["pos", "ner"],
)
def test_inference_nets_have_the_sizes_of_the_paper_but_for_peepholes_and_a_second_bias(
    width: int, num_tags: int, paper: int, peepholes: int, ours: int
) -> None:
    net = Tagger(BiLSTM(WordFeatures(40, 30, num_dims=100, tuned=False), width), num_tags)
    gates = 4 * width
    cell = gates * (100 + width) + gates + peepholes  # one direction, as the authors have it
    assert 2 * cell + 2 * width * num_tags + num_tags == paper
    assert number_of_parameters(net) == paper - 2 * peepholes + 2 * gates == ours
    energy = Tagger(net.features, num_tags, bias=False)
    assert number_of_parameters(energy) == ours - num_tags


def test_a_word_is_its_last_state_forwards_and_first_state_backwards() -> None:
    torch.manual_seed(0)
    net = CharBiLSTM(9, size=3, width=4)
    spelled = [[3, 1, 4, 1, 5], [8], [2, 6]]
    padded = torch.tensor([word + [0] * (7 - len(word)) for word in spelled])
    for word, read in zip(spelled, net(padded), strict=True):
        states, _ = net.lstm(net.embedding(torch.tensor(word)).unsqueeze(1))
        torch.testing.assert_close(read, torch.cat([states[-1, 0, :4], states[0, 0, 4:]]))


def test_filters_keep_their_strongest_trace_in_each_word_alone() -> None:
    torch.manual_seed(0)
    net = CharCNN(9, size=3, filters=6).double().eval()
    weight, bias = net.convolution.weight, net.convolution.bias
    spelled = [[3, 1, 4, 1, 5], [8], [2, 6]]
    padded = torch.tensor([word + [0] * (7 - len(word)) for word in spelled])
    for word, read in zip(spelled, net(padded), strict=True):
        zero = torch.zeros(3, dtype=torch.float64)
        letters = [zero, zero, *net.embedding.weight[torch.tensor(word)], zero, zero]
        windows = [letters[start : start + 3] for start in range(len(word) + 2)]
        for number, value in enumerate(read):
            traces = [
                bias[number] + sum(weight[number, :, offset] @ letter for offset, letter in enumerate(window))
                for window in windows
            ]
            torch.testing.assert_close(value, torch.stack(traces).tanh().max())


def test_what_lies_behind_a_word_is_no_trace_even_if_the_word_has_weak_ones() -> None:
    net = CharCNN(2, size=1, filters=1).double().eval()
    with torch.no_grad():
        net.embedding.weight[1] = -1
        net.convolution.weight.fill_(1)
        net.convolution.bias.fill_(0)
    words = torch.tensor([[1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [1] * 7])
    expected = torch.tensor(-1.0, dtype=torch.float64).tanh()  # windows of 1, 2, 3, ... letters
    torch.testing.assert_close(net(words), expected.expand(3, 1))


def test_letters_start_small_and_are_dropped_in_training_only() -> None:
    torch.manual_seed(0)
    net = CharCNN(50)
    started = net.embedding.weight[1:]
    assert started.abs().max() <= 0.1**0.5 and not net.embedding.weight[0].any()
    torch.testing.assert_close(started.var(), torch.tensor(0.1 / 3), rtol=0.1, atol=0)
    word = torch.tensor([[7, 3, 9, 2]])
    assert not torch.equal(net(word), net(word))
    net.eval()
    assert torch.equal(net(word), net(word))


@pytest.mark.parametrize("name", TAGGERS)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any), st.integers(0, 9), st.integers(0, 4))
def test_padding_changes_no_score_and_has_none(name: str, lengths: list[int], seed: int, more: int) -> None:
    net = tagger(name)
    x = sentences(lengths, seed, longest=max(lengths) + more)
    scores = net(x)
    assert scores.shape == (*x.mask.shape, 5)
    assert not scores[~x.mask].any()
    for row, length in enumerate(lengths):
        if length:
            torch.testing.assert_close(scores[row, :length], net(alone(x, row, length))[0])


@pytest.mark.parametrize("num_layers", [1, 2])
def test_two_directions_are_a_packed_bidirectional_lstm(num_layers: int) -> None:
    torch.manual_seed(0)
    net = BiLSTM(words(), 6, num_layers=num_layers).double()
    oracle = nn.LSTM(8, 6, num_layers, bidirectional=True, batch_first=True).double()
    pairs = []
    for layer in range(num_layers):
        for lstm, suffix in ((net.rightwards[layer], ""), (net.leftwards[layer], "_reverse")):
            mine = dict(lstm.named_parameters())
            pairs += [(p, getattr(oracle, f"{n[:-1]}{layer}{suffix}")) for n, p in mine.items()]
    with torch.no_grad():
        for mine, its in pairs:
            its.copy_(mine)
    x, lengths = sentences([3, 1, 7, 5]), torch.tensor([3, 1, 7, 5])
    packed = pack_padded_sequence(net.features(x), lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(oracle(packed)[0], batch_first=True)
    states = net(x)
    torch.testing.assert_close(states, expected)
    ours, theirs = zip(*pairs, strict=True)
    weight = torch.randn_like(states)
    slopes = torch.autograd.grad((states * weight).sum(), [*ours, net.features.vectors])
    wanted = torch.autograd.grad((expected * weight).sum(), [*theirs, net.features.vectors])
    for slope, its in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(slope, its)


def test_a_batch_that_was_read_in_inference_mode_trains() -> None:
    net, x = BiLSTM(words(), 6), sentences([3, 1])
    with torch.inference_mode():
        scores = net(x)
    torch.testing.assert_close(net(x), scores)
    net(x).sum().backward()


def test_a_token_is_scored_alone_or_among_its_neighbours() -> None:
    x = sentences([4, 3])
    changed = Sequences(x.values.clone(), x.mask)
    changed.values[0, 3] = torch.tensor([WORDS, POS, CASES]) - x.values[0, 3]
    for name in TAGGERS:
        net = tagger(name)
        before, after = net(x), net(changed)
        assert torch.allclose(before[0, 0], after[0, 0], atol=1e-7) == (name == "linear")
        torch.testing.assert_close(before[1], after[1])


@pytest.mark.parametrize("name", TAGGERS)
@pytest.mark.parametrize("lengths", [[4, 3], [1], [1, 0, 1]], ids=str)
def test_all_that_a_batch_uses_is_trained(name: str, lengths: list[int]) -> None:
    net, x = tagger(name).train(), sentences(lengths)
    net(x).square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())
    still = {n for n, p in net.named_parameters() if not p.grad.any()}
    if max(lengths) == 1:  # nothing came before: no state to weigh
        still = {n for n in still if "weight_hh" not in n}
    assert still == set()


def test_only_the_vectors_of_the_words_in_a_batch_move() -> None:
    net, x = tagger("deep"), sentences([4, 3])
    net(x).square().sum().backward()
    features = features_of(net)
    touched = features.vectors.grad.any(1).nonzero()[:, 0].tolist()
    assert touched == sorted(set(features.rows[x.values[..., 0][x.mask]].tolist()))


def test_features_are_those_of_the_tables() -> None:
    features, given_tables = with_char_bilstm(), tables()
    tokens = torch.tensor([[[7, 2], [3, 4]], [[7, 5], [9, 1]]])
    real = torch.tensor([[True, True], [True, False]])
    read, ids = features(Sequences(tokens, real)), tokens[..., 0]
    assert read.shape == (2, 2, features.size) and features.size == 5 + 8 + 3
    torch.testing.assert_close(read[real][:, :5], given_tables["vectors"][given_tables["rows"][ids[real]]])
    letters = features.letters(given_tables["characters"][torch.tensor([7, 3, 7])])
    torch.testing.assert_close(read[real][:, 5:13], letters)
    torch.testing.assert_close(read[real][:, 13:], features.columns[0].weight[tokens[real][:, 1]])
    assert not read[1, 1].any()


def test_columns_nobody_asked_for_are_not_read() -> None:
    x = sentences([4, 3])
    none, one = words(columns=[]), words(columns=[(POS, 3)])
    assert (none.size, one.size) == (5, 8)
    torch.testing.assert_close(none(x), none(Sequences(x.values[..., :1], x.mask)))
    torch.testing.assert_close(one(x), one(Sequences(x.values[..., :2], x.mask)))


def test_fixed_vectors_are_no_parameters_and_count_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = words(tuned=False, columns=[])
    assert number_of_parameters(fixed) == 0
    assert "vectors" in fixed.state_dict()
    assert number_of_parameters(words(columns=[])) == VECTORS * 5
    monkeypatch.setattr(Tensor, "unique", None)
    x = sentences([4, 4])
    assert torch.equal(fixed(x), tables()["vectors"][tables()["rows"][x.values[..., 0]]])
    assert not fixed(x).requires_grad


@pytest.mark.parametrize("name", ["linear", "bilstm"])
def test_tables_are_taken_over_once_and_a_checkpoint_keeps_what_was_learned(name: str) -> None:
    net = tagger(name)
    features = features_of(net)
    with torch.no_grad():
        features.vectors += 1
    features.initialise(tables())
    learned = tables()["vectors"] + 1
    assert torch.equal(features.vectors, learned)
    other = TAGGERS[name]()
    other.load_state_dict(net.state_dict())
    features_of(other).initialise(tables())
    assert torch.equal(features_of(other).vectors, learned)
    assert torch.equal(other(sentences([3, 2])), net(sentences([3, 2])))


def test_tables_of_another_size_are_refused() -> None:
    features = WordFeatures(WORDS, VECTORS, num_dims=7)
    with pytest.raises(
        ValueError, match=r"'vectors' is \(25, 5\), the network was built for \(25, 7\)\. Give"
    ):
        features.initialise(tables())


def test_dropout_falls_on_what_is_read_and_what_is_given() -> None:
    torch.manual_seed(0)
    net = BiLSTM(words(), 40, dropout=0.3)
    x = sentences([20] * 20)
    states = net(x)
    assert (states == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)
    seen = []
    net.rightwards[0].register_forward_pre_hook(lambda _, read: seen.append(read[0]))
    net(x)
    assert (seen[0] == 0).float().mean().item() == pytest.approx(0.3, abs=0.05)
    net.eval()
    assert torch.equal(net(x), net(x)) and not (net(x) == 0).any()


def test_a_bilstm_has_second_derivatives() -> None:
    torch.manual_seed(0)
    net = BiLSTM(WordFeatures(6, 5, num_dims=2), 2).double()
    x = Sequences(
        torch.tensor([[[1], [3], [5]], [[2], [4], [5]]]), torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    )
    net.features.rows.copy_(torch.tensor([0, 1, 2, 3, 4, 1]))
    names, values = zip(*net.named_parameters(), strict=True)

    def states(*parameters: Tensor) -> Tensor:
        return functional_call(net, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(states, values)
    assert torch.autograd.gradgradcheck(states, values)


def test_the_second_derivative_of_a_fused_lstm_is_that_of_the_plain_one() -> None:
    torch.manual_seed(0)
    net = BiLSTM(words(), 16)
    x, parameters = sentences([5, 9, 1]), list(net.parameters())
    found = []
    for fused in (True, False):
        with torch.backends.mkldnn.flags(enabled=fused):
            loss = net(x).square().sum()
            slopes = torch.autograd.grad(loss, parameters, create_graph=True)
            found.append(torch.autograd.grad(sum(s.square().sum() for s in slopes), parameters))
    for fused, plain in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-3 * plain.abs().max().item())


def test_a_stacked_head_is_one_affine_map_of_the_answer_and_the_truth() -> None:
    head = StackedHead(2)
    with torch.no_grad():
        head.output.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, -1.0, 0.0, 1.0]]))
        head.output.bias.copy_(torch.tensor([0.5, 0.0]))
    prediction, y = torch.tensor([0.25, 0.75]), torch.tensor([False, True])
    expected = torch.tensor([0.25 + 1.5 + 4 + 0.5, -0.75 + 1])
    torch.testing.assert_close(head(prediction, y), expected)
    shape = (3, 4, 5, 2)
    torch.testing.assert_close(head(prediction.expand(shape), y.expand(shape)), expected.expand(shape))
    assert (
        number_of_parameters(StackedHead(25)) == 25 * 50 + 25
    )  # [InfNet+ Table 2: 335K stacked, 333K without]


def test_a_tagger_is_rebuilt_from_what_a_checkpoint_says_of_it() -> None:
    letters = {"class_path": "networks.char_cnn.CharCNN", "init_args": {"num_characters": LETTERS}}
    sizes = {"num_words": WORDS, "num_vectors": VECTORS, "num_dims": 5, "longest_word": LONGEST}
    features = {
        "class_path": "networks.words.WordFeatures",
        "init_args": {**sizes, "tuned": False, "columns": [[POS, 3], [CASES, 2]], "letters": letters},
    }
    net = build(
        {
            "class_path": "networks.bilstm.Tagger",
            "init_args": {
                "features": {
                    "class_path": "networks.bilstm.BiLSTM",
                    "init_args": {"features": features, "width": 7, "dropout": 0.3},
                },
                "num_tags": 5,
            },
        }
    )
    assert features_of(net).size == 5 + 30 + 3 + 2
    features_of(net).initialise(tables())
    assert net(sentences([3, 1])).shape == (2, 3, 5)
