"""Pretrained encoders and tokenizers, read from a folder or by their name on the Hugging Face hub.

`transformers` (extra `hf`) is imported when an encoder is first read. Weights are read from safetensors files
only, and no code of a folder or the hub is run.
"""

import os
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import nn

from networks.transformer.hub import work_offline_unless_reached

ROOT = Path(__file__).resolve().parents[2]
INSTALL = 'Run:  make setup EXTRAS=dev,hf  (without make: pip install -c constraints.txt -e ".[hf]").'
ADVICE = "Give a folder with config.json, model.safetensors and tokenizer.json:  --data.encoder FOLDER"
FEWEST = 0.9  # pieces of a tokenizer over embeddings: some encoders have a few more, for round numbers


class EncoderUnusable(ValueError):
    """An encoder that cannot be read, or not be used as the configuration says."""


def place_of(encoder: str) -> str:
    """The folder of an encoder; its hub name, if it is in none of the folders.

    `encoder` is a folder, or a name such as sentence-transformers/all-MiniLM-L6-v2. The last part of a name
    is looked for in the folder MODEL_DIR, in models/, and in ../shared/models beside the repository.
    """
    if Path(encoder).is_dir():
        return encoder
    name = encoder.rsplit("/", 1)[-1]
    given = os.environ.get("MODEL_DIR")
    places = [*([Path(given)] if given else []), ROOT / "models", ROOT.parent / "shared" / "models"]
    return next((str(place / name) for place in places if name and (place / name).is_dir()), encoder)


def check_same(data: str, network: str) -> None:
    """Raise an error if the data were made for another encoder than the network's; "" is not known."""
    if data and data != network and Path(place_of(data)).resolve() != Path(place_of(network)).resolve():
        raise EncoderUnusable(
            f"The data have word pieces or states of {data}, the network reads {network}. "
            "Set --data.encoder and the network's encoder alike."
        )


def library() -> Any:  # noqa: ANN401  (a module)
    """The module `transformers`.

    Raises:
        EncoderUnusable: it is not installed.
    """
    try:
        import transformers
    except ImportError:
        raise EncoderUnusable(
            f"A pretrained encoder needs transformers, which is not installed. {INSTALL}"
        ) from None
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what matters of its reports, we say
    return transformers


@lru_cache(maxsize=1)
def pretrained(encoder: str) -> Any:  # noqa: ANN401  (a PreTrainedModel)
    """The encoder in evaluation mode, frozen. All callers get the same object: copy it to train.

    A pooler that the weights lack is left out.

    Raises:
        EncoderUnusable: it cannot be reached, or a file is missing or damaged, or the weights lack a layer or
            have other sizes than the config.
    """
    safe = {"use_safetensors": True, "weights_only": True, "trust_remote_code": False}
    told = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    model, info = _read(encoder, library().AutoModel, **safe, **told, dtype="float32")
    if wrong := sorted(info["mismatched_keys"]):
        name, found, wanted = wrong[0]
        raise EncoderUnusable(
            f"The weights in {place_of(encoder)} do not fit its config.json: {name} has the shape "
            f"{tuple(found)} in one and {tuple(wanted)} in the other. Take both from one release. {ADVICE}"
        )
    lost = sorted(info["missing_keys"])  # the library would draw them at random
    if any(name.startswith("pooler.") for name in lost):
        model.pooler = None
    if lost := [name for name in lost if not name.startswith("pooler.")]:
        raise EncoderUnusable(
            f"The weights in {place_of(encoder)} have no {lost[0]}, which its config.json asks for, and lack "
            f"{len(lost)} tensors in all. Take both from one release. {ADVICE}"
        )
    return model.eval().requires_grad_(False)


def check_pooler(encoder: str) -> None:
    """Raise an error if the encoder has no pretrained pooler."""
    if getattr(pretrained(encoder), "pooler", None) is None:
        raise EncoderUnusable(f"{encoder} has no pooler. Set pooling: first, or mean.")


def config_of(encoder: str) -> Any:  # noqa: ANN401  (a PreTrainedConfig)
    """The encoder's configuration; its weights are not read."""
    return _read(encoder, library().AutoConfig, trust_remote_code=False)


@lru_cache(maxsize=2)
def tokenizer_of(encoder: str) -> Any:  # noqa: ANN401  (a PreTrainedTokenizerFast)
    """The encoder's own fast tokenizer.

    Raises:
        EncoderUnusable: it cannot be reached, is no fast tokenizer, or knows more ids than the encoder has
            embeddings, or far fewer.
    """
    tokenizer = _read(encoder, library().AutoTokenizer, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise EncoderUnusable(
            f"The tokenizer of {encoder} has no fast form (tokenizer.json), which knows each piece's word. "
            f"{ADVICE}"
        )
    size = config_of(encoder).vocab_size
    if not FEWEST * size <= len(tokenizer) <= size:
        raise EncoderUnusable(
            f"The tokenizer of {encoder} does not match its weights: it has "
            f"{len(tokenizer):,} word pieces, they have embeddings of {size:,}. Take both from "
            f"one release. {ADVICE}"
        )
    return tokenizer


def checksum(encoder: str) -> str:
    """The sha256 of the encoder's config, tokenizer and weights."""
    total, folder = sha256(), Path(place_of(encoder))
    if not folder.is_dir():  # a hub name: its files are in the cache once it is read
        pretrained(encoder)
        from transformers.utils import cached_file

        folder = Path(str(cached_file(encoder, "config.json"))).parent
    for path in sorted([folder / "config.json", folder / "tokenizer.json", *folder.glob("*.safetensors")]):
        content = path.read_bytes() if path.is_file() else b""
        total.update(f"{path.name} {sha256(content).hexdigest()}\n".encode())
    return total.hexdigest()


def _read(encoder: str, kind: Any, **options: Any) -> Any:  # noqa: ANN401
    place = place_of(encoder)
    if not encoder:
        raise EncoderUnusable(f"No encoder is named. {ADVICE}")
    if not Path(place).is_dir():
        work_offline_unless_reached(encoder, "model")
    try:
        return kind.from_pretrained(place, **options)
    except Exception as error:  # files of another origin may fail in any way
        reason = " ".join(str(error).split())[:160]
    if Path(place).is_dir():
        raise EncoderUnusable(f"The encoder in {place} cannot be read ({reason}). {ADVICE}")
    raise EncoderUnusable(_not_reached(encoder))


def _not_reached(encoder: str) -> str:
    return (
        f"The encoder {encoder} is no folder here, and not reached on the Hugging Face hub by this name. "
        f"{ADVICE}"
    )


def layers_of(model: nn.Module) -> nn.ModuleList:
    """The list of an encoder's layers.

    Raises:
        EncoderUnusable: the encoder has no such list, or no embeddings of its own that can be replaced.
    """
    config: Any = model.config
    for owner in model.modules():
        for child in owner.children():
            if (
                isinstance(child, nn.ModuleList)
                and len(child) == config.num_hidden_layers
                and hasattr(model, "embeddings")
            ):
                return child
    raise EncoderUnusable(
        f"The layers of {config.model_type} cannot be split into kept and trained ones. "
        "Set trained: full, or take an encoder of the BERT kind."
    )
