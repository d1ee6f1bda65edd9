"""Real sentences and texts for the tests of encoders, and where the encoder is."""

import csv
import gzip
import io
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from networks.transformer.weights import place_of

MINI = "sentence-transformers/all-MiniLM-L6-v2"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
WORDS = 16  # the width of the small encoders
TINY: dict[str, Any] = {"vocab_size": 99, "hidden_size": WORDS, "intermediate_size": 32, "pad_token_id": 0}
KINDS: dict[str, dict[str, Any]] = {
    "bert": TINY | {"num_hidden_layers": 4, "num_attention_heads": 2},
    "roberta": TINY | {"num_hidden_layers": 4, "num_attention_heads": 2},
    "electra": TINY | {"num_hidden_layers": 4, "num_attention_heads": 2, "embedding_size": 8},
    "mpnet": TINY | {"num_hidden_layers": 4, "num_attention_heads": 2},
    "modernbert": TINY | {"num_hidden_layers": 4, "num_attention_heads": 2, "global_attn_every_n_layers": 2},
    "distilbert": {"vocab_size": 99, "dim": WORDS, "hidden_dim": 32, "n_layers": 4, "n_heads": 2},
}


def needs_encoder() -> str:
    """The encoder's name; the test is skipped where it, or what reads it, is not here."""
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    if not Path(place_of(MINI)).is_dir():
        pytest.skip(f"the encoder {MINI} is not here")
    return MINI


@cache
def sentences(part: str = "dev") -> list[list[str]]:
    """The words of sentences with semantic roles."""
    path = DATA / "srl_ewt_propbank" / f"{part}.tsv.gz"
    if not path.is_file():
        pytest.skip("srl_ewt_propbank is not here")
    blocks = gzip.decompress(path.read_bytes()).decode().strip().split("\n\n")
    return [[line.split("\t")[1] for line in block.split("\n")[1:]] for block in blocks]


def stories(count: int) -> list[str]:
    """The first news stories of Reuters-21578's validation part."""
    return [row["text"] for row in _rows()[:count]]


def topics(count: int) -> Tensor:
    """Their topics, (N, L)."""
    names = [name for name in _rows()[0] if name != "text"]
    return torch.tensor([[row[name] == "1" for name in names] for row in _rows()[:count]])


@cache
def _rows() -> list[dict[str, str]]:
    path = DATA / "reuters21578" / "dev.csv.xz"
    if not path.is_file():
        pytest.skip("reuters21578 is not here")
    return [*csv.DictReader(io.StringIO(lzma.decompress(path.read_bytes()).decode()))]
