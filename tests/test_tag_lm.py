"""Language models of tags: against a walk position by position, derivatives, padding, config."""

import math

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn
from torch.nn.functional import one_hot

from energies.base import Energy, SumEnergy
from energies.chain import ChainEnergy
from energies.tag_lm import TagLM, TagLMEnergy, reversed_sentences
from networks.layers import Features

B, T, S, D, V = 4, 5, 3, 2, 6
LENGTHS = torch.tensor([5, 1, 3, 0])
MASK = torch.arange(T) < LENGTHS.unsqueeze(1)


class Lookup(Features):
    """A vector for each word id, with dropout."""

    size = D

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.vectors, self.dropout = nn.Embedding(V, D), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.vectors(x[..., 0]))


KINDS = {"a": {"backward": False}, "b": {}, "c": {"words": True}}


def build(
    kind: str, dropout: float = 0.0, width: int = 4, num_tags: int = S, of_states: float | None = None
) -> TagLMEnergy:
    torch.manual_seed(0)
    options = dict(KINDS[kind])
    if options.get("words"):
        options |= {"words": Lookup(dropout), "words_weight": 0.3}
    return TagLMEnergy(num_tags, width=width, weight=0.7, dropout=of_states, **options)


@pytest.fixture(params=KINDS)
def energy(request: pytest.FixtureRequest) -> TagLMEnergy:
    return build(request.param).double()


def batch(*samples: int, hard: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    y = torch.randn(*samples, B, T, S).double().softmax(-1)
    y = one_hot(y.argmax(-1), S).double() if hard else y
    return torch.randint(1, V, (B, T, 1)) * MASK.unsqueeze(-1), y * MASK.unsqueeze(-1)


@pytest.mark.parametrize("name", ["weight", "words_weight"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_weights_that_reward_what_is_unlikely_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        TagLMEnergy(S, **{name: value})


def walk(lm: TagLM, tags: Tensor, words: Tensor | None) -> Tensor:
    """-log P of one sentence (T, S), one position after the other."""
    cell = nn.LSTMCell(lm.lstm.input_size, lm.lstm.hidden_size).double()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in lm.lstm.state_dict().items()})
    boundary = torch.eye(S + 1)[S].double()
    symbols = [lm.start, *(torch.cat([tag, torch.zeros(1).double()]) for tag in tags), boundary]
    total, state = torch.zeros(()).double(), None
    for t in range(1, len(symbols)):
        read = symbols[t - 1]
        if words is not None:
            read = torch.cat([words[t - 2] if t > 1 else torch.zeros(D).double(), read])
        state = cell(read.unsqueeze(0), state)
        predicted = lm.output(state[0][0]).softmax(-1)
        total = total - torch.log(symbols[t] @ predicted + 1e-7)
    return total


@pytest.mark.parametrize("hard", [True, False])
def test_the_energy_is_that_of_a_walk_position_by_position(energy: TagLMEnergy, hard: bool) -> None:
    x, y = batch(hard=hard)
    want = []
    for i, n in enumerate(LENGTHS.tolist()):
        tags, words = y[i, :n], None if energy.words is None else energy.words(x[i : i + 1, :n])[0]
        ways = [(tags, words), (tags.flip(0), None if words is None else words.flip(0))]
        each = [walk(lm, way[0], None) for lm, way in zip(energy.of_tags, ways, strict=False)]
        each += [0.3 * walk(lm, *way) for lm, way in zip(energy.of_words, ways, strict=False)]
        want.append(0.7 * sum(each))
    torch.testing.assert_close(energy(x, y, MASK), torch.stack(want))
    assert not hard or torch.equal(energy(x, y.bool(), MASK), energy(x, y, MASK))


def test_the_three_kinds_have_one_two_and_four_models() -> None:
    counts = {kind: (len(build(kind).of_tags), len(build(kind).of_words)) for kind in KINDS}
    assert counts == {"a": (1, 0), "b": (2, 0), "c": (2, 2)}


def test_words_count_only_where_models_read_them(energy: TagLMEnergy) -> None:
    x, y = batch()
    other = torch.where(x > 0, x % (V - 1) + 1, 0)
    assert torch.equal(energy(x, y, MASK), energy(other, y, MASK)) == (energy.words is None)


@pytest.mark.parametrize("hard", [True, False])
def test_a_padded_batch_says_what_each_sentence_says_alone(energy: TagLMEnergy, hard: bool) -> None:
    x, y = batch(2, 3, hard=hard)
    whole = energy(x, y, MASK)
    assert whole.shape == (2, 3, B)
    for i, n in enumerate(LENGTHS.tolist()):
        alone = energy(x[i : i + 1, :n], y[:, :, i : i + 1, :n])
        torch.testing.assert_close(whole[..., i : i + 1], alone)
    torch.testing.assert_close(energy(x, y[1, 2], MASK), whole[1, 2])


def test_no_gradient_reaches_or_leaves_padding(energy: TagLMEnergy) -> None:
    x, y = batch()
    y.requires_grad_()
    (gradient,) = torch.autograd.grad(energy(x, y, MASK).sum(), y)
    assert torch.isfinite(gradient).all()
    assert (gradient[~MASK] == 0).all() and (gradient[MASK] != 0).all()


def test_gradients_agree_with_finite_differences(energy: TagLMEnergy) -> None:
    x, y = batch(2)
    hidden = MASK.unsqueeze(-1)
    assert torch.autograd.gradcheck(lambda y: energy(x, y * hidden, MASK), y.requires_grad_())
    fixed, learned = y.detach(), list(energy.parameters())
    assert torch.autograd.gradcheck(lambda *_: energy(x, fixed, MASK), learned, fast_mode=True)


def test_a_second_derivative_agrees_with_finite_differences() -> None:
    energy = build("b", width=2).double()
    x, y = batch()
    assert torch.autograd.gradgradcheck(lambda y: energy(x, y * MASK.unsqueeze(-1), MASK), y.requires_grad_())


def test_an_untrained_model_finds_every_symbol_about_equally_likely() -> None:
    torch.manual_seed(0)
    energy, num_tags = TagLMEnergy(17, backward=False), 17
    mask = torch.arange(30) < torch.tensor([30, 12, 1]).unsqueeze(1)
    y = one_hot(torch.randint(0, num_tags, (3, 30)), num_tags) * mask.unsqueeze(-1).float()
    want = (mask.sum(1) + 1) * math.log(num_tags + 1)
    torch.testing.assert_close(energy(torch.zeros(3, 30, 1), y, mask).detach(), want, rtol=0.03, atol=0)


def test_models_begin_as_in_the_released_code() -> None:
    start = TagLM(200, width=4).start
    assert start.shape == (201,) and 0.019 < start.abs().max() <= 0.02


def test_a_model_that_learns_prefers_what_it_has_read() -> None:
    torch.manual_seed(0)
    energy = TagLMEnergy(S, width=8)
    x = torch.zeros(1, 4, 1)
    seen, other = (one_hot(torch.tensor([tags]), S).float() for tags in ([0, 1, 2, 1], [1, 2, 1, 0]))
    optimizer = torch.optim.Adam(energy.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        energy(x, seen).sum().backward()
        optimizer.step()
    assert energy(x, seen) < 0.5 < 5 < energy(x, other)
    assert energy(x[:, :3], seen[:, :3]) > 2  # it has learned where the end is, too


def test_words_are_read_once_and_with_one_dropout_mask_for_all_answers() -> None:
    energy = build("c", dropout=0.5).double()
    calls: list[int] = []
    energy.words.register_forward_hook(lambda *_: calls.append(1))
    x, y = batch()
    given = energy.given(x, MASK)
    torch.testing.assert_close(given(y), given(y), rtol=0, atol=0)
    assert len(calls) == 1
    assert not torch.equal(energy(x, y, MASK), energy(x, y, MASK))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_of_states_is_one_mask_for_all_answers_and_none_when_evaluated(kind: str) -> None:
    energy = build(kind, of_states=0.5).double()
    x, y = batch(3)
    truth = one_hot(y[0].argmax(-1), S).double() * MASK.unsqueeze(-1)
    given = energy.given(x, MASK)
    samples, alone = given(y), given(y[1])
    torch.testing.assert_close(samples[1], alone)  # the samples of a batch and one by one
    assert torch.equal(given(truth), given(truth))
    assert not torch.equal(energy(x, truth, MASK), energy(x, truth, MASK))  # two draws
    mean = torch.stack([energy(x, y[0], MASK) for _ in range(50)]).mean(0)
    energy.eval()
    plain = build(kind).double()
    assert torch.equal(energy(x, y, MASK), plain(x, y, MASK))
    torch.testing.assert_close(mean, energy(x, y[0], MASK), rtol=0.1, atol=0)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_a_dropout_that_is_no_share_is_refused(dropout: float) -> None:
    with pytest.raises(ValueError, match=f"dropout is {dropout}: take a number from 0"):
        TagLMEnergy(S, dropout=dropout)


def test_turning_twice_changes_nothing_and_keeps_padding_behind() -> None:
    _, y = batch(2)
    back = reversed_sentences(y, MASK)
    assert torch.equal((back[0] != 0).any(-1), MASK)
    assert torch.equal(back[:, 0], y[:, 0].flip(-2)) and torch.equal(back[:, 2, :3], y[:, 2, :3].flip(-2))
    assert torch.equal(reversed_sentences(back, MASK), y)


def test_a_config_names_the_whole_energy() -> None:
    parser = ArgumentParser()
    parser.add_argument("--energy", type=Energy)
    words = {"class_path": f"{__name__}.Lookup"}
    joint = {"class_path": "energies.tag_lm.TagLMEnergy", "init_args": {"num_tags": S, "words": words}}
    local = {
        "class_path": "energies.chain.ChainEnergy",
        "init_args": {
            "num_tags": S,
            "ends": True,
            "pairwise_range": 0.02,
            "net": {"class_path": "torch.nn.Linear", "init_args": {"in_features": 1, "out_features": S}},
        },
    }
    whole = {"class_path": "energies.base.SumEnergy", "init_args": {"local": local, "joint": joint}}
    energy = parser.instantiate_classes(parser.parse_object({"energy": whole})).energy
    assert isinstance(energy, SumEnergy) and isinstance(energy.local, ChainEnergy)
    assert isinstance(energy.joint, TagLMEnergy) and len(energy.joint.of_words) == 2
