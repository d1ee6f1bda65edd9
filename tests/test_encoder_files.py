"""Encoders that cannot be read, or do not fit what they are asked to do: one sentence each."""

import json
import shutil
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn

import text_world as world

pytest.importorskip("transformers", reason="the extra hf is not installed")

import transformers

from datamodules.errors import DataMismatch
from datamodules.text.tokens import pieces_of
from networks.transformer import Encoder
from networks.transformer.weights import EncoderUnusable, checksum, place_of, pretrained, tokenizer_of


@pytest.fixture(scope="module")
def mini() -> str:
    return world.needs_encoder()


@pytest.fixture
def folder(mini: str, tmp_path: Path) -> Path:
    """A copy of the encoder whose files a test may change."""
    copy = tmp_path / "encoder"
    shutil.copytree(place_of(mini), copy, copy_function=shutil.copyfile)
    copy.chmod(0o755)
    return copy


def test_a_tokenizer_of_another_encoder_is_refused(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"] += [
        {**content["added_tokens"][0], "id": 30522 + i, "content": f"[MORE{i}]"} for i in range(3)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(EncoderUnusable, match=r"does not match its weights: it has 30,525 word pieces"):
        pieces_of(["a text"], str(folder))
    assert checksum(str(folder)) != checksum(world.MINI)


def test_a_folder_without_its_tokenizer_and_other_foreign_parts_are_told(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        (folder / name).rename(folder / f"{name}.away")
    with pytest.raises(EncoderUnusable, match=r"it has 5 word pieces, they have .* 30,522.*tokenizer.json"):
        pieces_of(["a text"], str(folder))
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        (folder / f"{name}.away").rename(folder / name)
    tokenizer_of.cache_clear()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": 7}))
    with pytest.warns(UserWarning, match="pads with piece 0, config.json says 7"):
        pieces_of(["a text"], str(folder))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 30600}))
    with pytest.raises(
        EncoderUnusable, match=r"word_embeddings.weight has the shape \(30522, 384\) in one and"
    ):
        Encoder(str(folder))


def test_texts_that_a_tokenizer_does_not_know_are_told(mini: str) -> None:
    with pytest.warns(UserWarning, match=r"6\d\.\d% of the pieces are unknown to the tokenizer"):
        pieces_of(["\u1200\u1201 \u1202 \u1203 \u1204"], mini)


class Unavailable(BaseHTTPRequestHandler):
    """A hub that cannot answer now."""

    def do_GET(self) -> None:
        self.send_response(503)
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *args: object) -> None: ...


@pytest.mark.parametrize("listens", [False, True])
def test_a_hub_that_does_not_answer_is_asked_once(
    listens: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A closed port in its place, or one that says 503."""
    server = HTTPServer(("127.0.0.1", 0), Unavailable)
    if listens:
        Thread(target=server.serve_forever, daemon=True).start()
    else:
        server.server_close()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    began, name = time.monotonic(), f"somebody/nothing-{listens}"
    with (
        pytest.warns(UserWarning, match="The Hugging Face hub does not answer"),
        pytest.raises(EncoderUnusable, match=rf"{name} is no folder here.*--data.encoder FOLDER"),
    ):
        tokenizer_of(name)
    assert time.monotonic() - began < 20 and "Retrying" not in capfd.readouterr().err
    if listens:
        server.shutdown()


def test_unusable_encoders_are_named_in_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderUnusable, match=r"nobody/nothing is no folder here.*--data.encoder FOLDER"):
        Encoder("nobody/nothing")
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(EncoderUnusable, match="cannot be read"):
        Encoder(str(folder))
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(EncoderUnusable, match=r"cannot be read.*--data.encoder FOLDER"):
        Encoder(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(EncoderUnusable, match="cannot be read"):
        Encoder(str(folder))


WRONG = [
    ({"trained": "top_layers", "num_top": 7}, "has 6 layers"),
    ({"trained": "top_layers", "num_top": 0}, "num_top is 0"),
    ({"trained": "frozen", "marks": True}, "Set trained: top_layers"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_settings_that_do_not_fit_are_refused(mini: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(EncoderUnusable, match=says):
        Encoder(mini, **options)


def test_more_pieces_than_the_encoder_reads_are_refused(mini: str) -> None:
    with pytest.raises(DataMismatch, match="reads 3 to 512 pieces"):
        pieces_of(["a text"], mini, max_pieces=513)


@pytest.mark.parametrize(("kind", "most"), [("bert", 22), ("roberta", 20), ("mpnet", 20)])
def test_encoders_that_count_positions_from_the_padding_read_fewer_pieces(
    kind: str, most: int, folder: Path, tmp_path: Path
) -> None:
    options = world.KINDS[kind] | {"vocab_size": 30522, "max_position_embeddings": 22, "pad_token_id": 1}
    config = transformers.AutoConfig.for_model(kind, **options)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / kind)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(folder / name, tmp_path / kind / name)
    with pytest.raises(DataMismatch, match=f"reads 3 to {most} pieces"):
        pieces_of(["a text"], str(tmp_path / kind), max_pieces=most + 1)
    x = pieces_of(["a text " * 30], str(tmp_path / kind), max_pieces=most).inputs(torch.tensor([0]))
    assert Encoder(str(tmp_path / kind))(x).isfinite().all()


def test_pieces_of_another_encoder_are_refused(mini: str, folder: Path) -> None:
    for pieces in (pieces_of(["a text"], mini), pieces_of([["a", "text"]], mini)):
        x = pieces.inputs(torch.tensor([0])).rows(torch.tensor([0]))
        with pytest.raises(
            EncoderUnusable, match=r"the network reads .*Set --data.encoder and the network's"
        ):
            Encoder(str(folder))(x)
        Encoder(place_of(mini))(x)


def test_without_the_extra_one_sentence_says_what_to_install(mini: str) -> None:
    code = f"""if True:
        import sys
        from networks.transformer import Encoder
        for module in ("transformers", "peft"):
            sys.modules[module] = None
            try: Encoder({mini!r}, trained="adapters")
            except ValueError as error: print(error)
            del sys.modules[module]
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for line, module in zip(done.stdout.splitlines(), ("transformers", "peft"), strict=True):
        assert f"needs {module}, which is not installed. Run:  make setup EXTRAS=dev,hf" in line


def test_layers_are_in_training_mode_only_where_they_train(mini: str) -> None:
    net = nn.ModuleList([Encoder(mini, trained="top_layers")]).train()
    assert not pretrained(mini).training
    assert all(part.training for part in net[0].layers.modules())
