"""The encoder as a feature network: against transformers, on real sentences and stories."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

import text_world as world

pytest.importorskip("transformers", reason="the extra hf is not installed")

import transformers

from datamodules.text.tokens import NO_WORD, pieces_of
from networks.inputs import WordPieces
from networks.pretrained import load_part
from networks.transformer import Encoder
from networks.transformer.encoder import Pooling, Trained
from networks.transformer.weights import EncoderUnusable, place_of, pretrained, tokenizer_of


@pytest.fixture(scope="module")
def mini() -> str:
    return world.needs_encoder()


@pytest.fixture(scope="module")
def stories(mini: str) -> WordPieces:
    pieces = pieces_of(world.stories(5), mini, max_pieces=64)
    inputs = pieces.inputs(torch.arange(5))
    assert isinstance(inputs, WordPieces)
    return inputs


def marked(mini: str) -> WordPieces:
    """Five examples over three sentences, in each another word is marked."""
    pieces = pieces_of(world.sentences()[:3], mini)
    texts = torch.tensor([0, 0, 1, 2, 2])
    _, mask = pieces.words(texts)
    marks = torch.zeros_like(mask)
    marks[torch.arange(5), torch.tensor([0, 3, 1, 2, 4])] = True
    inputs = pieces.inputs(texts, marked=marks)
    assert isinstance(inputs, WordPieces)
    return inputs


@pytest.mark.parametrize("trained", ["full", "top_layers", "adapters", "frozen"])
@pytest.mark.parametrize("pooling", ["first", "mean", "pooler"])
def test_features_are_those_of_the_pretrained_encoder(
    mini: str, stories: WordPieces, trained: Trained, pooling: Pooling
) -> None:
    if trained == "adapters":
        pytest.importorskip("peft", reason="the extra hf is not installed")
    reference = transformers.AutoModel.from_pretrained(place_of(mini)).eval()
    with torch.no_grad():
        whole = reference(input_ids=stories.ids, attention_mask=stories.attention.long())
        ours = Encoder(mini, trained=trained, pooling=pooling).eval()(stories)
    real = stories.attention.unsqueeze(-1)
    wanted = {
        "first": whole.last_hidden_state[:, 0],
        "mean": (whole.last_hidden_state * real).sum(1) / real.sum(1),
        "pooler": whole.pooler_output,
    }[pooling]
    torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=1e-5)
    assert ours.shape[-1] == Encoder(mini).size


def test_a_word_has_the_state_of_its_first_piece(mini: str) -> None:
    x = marked(mini)
    with torch.no_grad():
        states = pretrained(mini)(input_ids=x.ids, attention_mask=x.attention.long()).last_hidden_state
        ours = Encoder(mini, trained="frozen", pooling="words")(x)
    assert x.words is not None and x.mask is not None
    for b, t in x.mask.nonzero().tolist():
        torch.testing.assert_close(ours[b, t], states[b, x.words[b, t]], atol=1e-5, rtol=1e-5)
    assert not ours[~x.mask].any()


@pytest.mark.parametrize("trained", ["full", "top_layers", "adapters", "frozen"])
def test_gradients_reach_what_trains_and_nothing_else(
    mini: str, stories: WordPieces, trained: Trained
) -> None:
    net = Encoder(mini, trained=trained, num_top=2)
    if trained == "frozen":
        assert not [*net.parameters()]
        assert not net(stories).requires_grad
        return
    net(stories).square().sum().backward()
    moved = {name for name, p in net.named_parameters() if p.grad is not None and p.grad.any()}
    trainable = {name for name, p in net.named_parameters() if p.requires_grad}
    assert moved <= trainable
    layers = {name.split(".")[3] for name in trainable if ".layer." in name}
    assert len(layers) == {"full": 6, "top_layers": 2, "adapters": 6}[trained]
    assert all("lora" in name for name in trainable) == (trained == "adapters")
    assert all(p.grad is None for p in pretrained(mini).parameters())


def test_lower_layers_have_no_dropout_and_upper_ones_have(mini: str, stories: WordPieces) -> None:
    top, frozen = Encoder(mini, trained="top_layers"), Encoder(mini, trained="frozen")
    assert top.lower is not None
    once, twice = (top.lower(stories.ids, stories.attention) for _ in range(2))
    assert torch.equal(once, twice)
    assert torch.equal(frozen.train()(stories), frozen.train()(stories))
    assert not torch.equal(top.train()(stories), top.train()(stories))


def test_two_encoders_share_frozen_layers_and_train_their_own(mini: str, stories: WordPieces) -> None:
    task, energy = Encoder(mini, trained="top_layers"), Encoder(mini, trained="top_layers").eval()
    before = energy(stories).detach()
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    task(stories).square().sum().backward()
    optimizer.step()
    assert torch.equal(energy(stories), before)
    assert not torch.equal(task.eval()(stories), before)


def test_a_mark_enters_at_the_first_trained_layer(mini: str) -> None:
    x = marked(mini)
    net = Encoder(mini, trained="top_layers", pooling="words", marks=True).eval()
    types = pretrained(mini).embeddings.token_type_embeddings.weight
    assert net.mark is not None
    torch.testing.assert_close(net.mark[1].detach(), types[1] - types[0])
    out = net(x)
    assert not torch.equal(out[0], out[1])  # one sentence, two predicates
    out.sum().backward()
    assert net.mark.grad is not None and net.mark.grad[1].any()
    with torch.no_grad():
        net.mark.zero_()
        torch.testing.assert_close(net(x)[0], net(x)[1], atol=1e-5, rtol=1e-5)


def test_marks_of_a_full_encoder_are_its_token_types(mini: str) -> None:
    x = marked(mini)
    with torch.no_grad():
        ours = Encoder(mini, pooling="first", marks=True).eval()(x)
        options = {"attention_mask": x.attention.long(), "token_type_ids": x.segments}
        theirs = pretrained(mini)(input_ids=x.ids, **options).last_hidden_state[:, 0]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("trained", ["full", "top_layers", "adapters"])
def test_a_checkpoint_holds_what_trains_and_restores_it(
    mini: str, stories: WordPieces, trained: Trained, tmp_path: Path
) -> None:
    spec = {
        "class_path": "networks.transformer.Encoder",
        "init_args": {"encoder": mini, "trained": trained, "pooling": "pooler"},
    }
    net = Encoder(**spec["init_args"])  # type: ignore[arg-type]
    with torch.no_grad():
        for p in net.parameters():
            if p.requires_grad:
                p.add_(0.01 * torch.randn_like(p))
    state = {f"task_net.{name}": value for name, value in deepcopy(net).state_dict().items()}
    trainable = {name for name, p in net.named_parameters() if p.requires_grad}
    assert {name.removeprefix("task_net.") for name in state} == trainable
    torch.save({"hyper_parameters": {"task_net": spec}, "state_dict": state}, tmp_path / "best.ckpt")
    again = load_part(str(tmp_path / "best.ckpt"), "task_net").eval()
    assert torch.equal(again(stories), net.eval()(stories))


def small(kind: str, folder: Path) -> None:
    """An encoder of four layers, untrained."""
    config = transformers.AutoConfig.for_model(kind, **world.KINDS[kind])
    transformers.AutoModel.from_config(config).save_pretrained(folder)


@pytest.mark.parametrize("kind", world.KINDS)
def test_layers_of_other_kinds_of_encoders_split_too(kind: str, tmp_path: Path) -> None:
    small(kind, tmp_path)
    ids = torch.randint(3, 99, (3, 7))
    attention = torch.arange(7) < torch.tensor([[7], [4], [2]])
    x = WordPieces(ids * attention, attention, torch.zeros_like(ids))
    with torch.no_grad():
        whole = pretrained(str(tmp_path))(input_ids=x.ids, attention_mask=attention.long())
        for num_top in (1, 3, 4):
            ours = Encoder(str(tmp_path), trained="top_layers", num_top=num_top).eval()(x)
            torch.testing.assert_close(ours, whole.last_hidden_state[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", world.KINDS)
@pytest.mark.parametrize("num_top", [3, 4])
def test_a_mark_tells_predicates_apart_whatever_the_kind_and_the_layers_that_train(
    kind: str, num_top: int, tmp_path: Path
) -> None:
    small(kind, tmp_path)
    ids, attention = torch.randint(3, 99, (1, 7)).expand(2, 7), torch.ones(2, 7, dtype=torch.bool)
    segments, words = torch.zeros(2, 7, dtype=torch.long), torch.arange(7).expand(2, 7)
    segments[0, 2] = segments[1, 5] = 1
    x = WordPieces(ids, attention, segments, words, attention)
    net = Encoder(str(tmp_path), trained="top_layers", num_top=num_top, pooling="words", marks=True).eval()
    assert net.mark is not None and not any("embeddings" in name for name, _ in net.named_parameters())
    with torch.no_grad():
        net.mark[1] += 1.0
    out = net(x)
    assert not torch.equal(out[0], out[1])
    out.square().sum().backward()
    assert net.mark.grad is not None and net.mark.grad[1].any()


def test_weights_that_lack_a_layer_or_the_pooler_are_refused(tmp_path: Path) -> None:
    masked, short = tmp_path / "masked", tmp_path / "short"
    config = transformers.AutoConfig.for_model("bert", **world.KINDS["bert"])
    transformers.BertForMaskedLM(config).save_pretrained(masked)
    with pytest.raises(EncoderUnusable, match=r"has no pooler. Set pooling: first, or mean"):
        Encoder(str(masked), trained="frozen", pooling="pooler")
    Encoder(str(masked), trained="frozen")
    shallow = transformers.AutoConfig.for_model("bert", **world.KINDS["bert"] | {"num_hidden_layers": 3})
    transformers.AutoModel.from_config(shallow).save_pretrained(short)
    config.save_pretrained(short)
    with pytest.raises(EncoderUnusable, match=r"The weights in .*short have no encoder.layer.3"):
        Encoder(str(short))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("trained", ["top_layers", "frozen"])
def test_layers_over_frozen_ones_run_in_their_own_precision(
    mini: str, stories: WordPieces, trained: Trained, dtype: torch.dtype
) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # as Lightning does for 64-true and bf16-true
    try:
        net = nn.Sequential(Encoder(mini, trained=trained), nn.Linear(384, 2)).to(dtype)
        assert net(stories).dtype == dtype
    finally:
        torch.set_default_dtype(before)


def test_every_word_of_a_real_sentence_has_one_first_piece(mini: str) -> None:
    sentences = world.sentences()
    pieces = pieces_of(sentences, mini)
    places, mask = pieces.words(torch.arange(len(sentences)))
    assert mask.sum(1).tolist() == [len(words) for words in sentences]
    tokenizer, assert_word = tokenizer_of(mini), pieces.word
    assert assert_word is not None
    for i in range(0, len(sentences), 40):
        own = slice(int(pieces.offsets[i]), int(pieces.offsets[i + 1]))
        ids, word = pieces.ids[own].tolist(), assert_word[own].tolist()
        for w, text in enumerate(sentences[i]):
            alone = tokenizer([text], is_split_into_words=True, add_special_tokens=False).input_ids
            at = int(places[i, w])
            assert word.index(w) == at and ids[at : at + len(alone)] == alone
        assert word[0] == word[-1] == NO_WORD


def test_a_word_without_a_piece_gets_the_unknown_one(mini: str) -> None:
    pieces = pieces_of([["of", "\x01", "two", "\u200b"], ["one"]], mini)
    places, mask = pieces.words(torch.tensor([0, 1]))
    assert mask.tolist() == [[True] * 4, [True, False, False, False]]
    unknown = tokenizer_of(mini).unk_token_id
    assert pieces.ids[places[0]].tolist()[1::2] == [unknown, unknown]


def test_a_cut_is_told_once_with_its_share(mini: str) -> None:
    with pytest.warns(UserWarning, match=r"25\.0% of 4 texts are cut to 10 pieces\."):
        pieces = pieces_of([["word"] * 30, ["short"], ["one"], ["two"]], mini, max_pieces=10)
    _, mask = pieces.words(torch.arange(4))
    assert mask.sum(1).tolist() == [8, 1, 1, 1]
