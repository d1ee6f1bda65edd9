"""Adapters: small trained additions to the linear maps of a frozen encoder."""

from functools import partial
from typing import Any

from torch import nn

from networks.transformer.weights import INSTALL, EncoderUnusable

RANK = 8


def adapted(model: nn.Module) -> nn.Module:
    """The model with a low-rank adapter on each linear map of its layers; nothing else trains.

    W x + B A x, with A and B of rank 8 and B = 0 at first: the adapted model starts as the pretrained one.
    By `peft`. The papers have Pfeiffer adapters, a bottleneck of H/16 with a nonlinearity after each
    feed-forward block [SEAL D]; `peft` has none. Low-rank ones sit in the attention and the feed-forward
    maps. On BERT base they have 1.3 million parameters, Pfeiffer adapters 0.9 million.

    Raises:
        EncoderUnusable: `peft` is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise EncoderUnusable(f"trained: adapters needs peft, which is not installed. {INSTALL}") from None
    maps = [
        name for name, part in model.named_modules() if isinstance(part, nn.Linear) and "pooler" not in name
    ]
    return inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=maps), model)


def save_trained_only(module: nn.Module) -> None:
    """Leave frozen parameters out of checkpoints: they are those of the encoder's folder."""
    frozen = {name for name, part in module.named_parameters() if not part.requires_grad}
    if frozen:
        module.register_state_dict_post_hook(partial(_leave_out, frozen))
        module.register_load_state_dict_pre_hook(partial(_put_back, frozen))


def _leave_out(frozen: set[str], _: nn.Module, state: dict[str, Any], prefix: str, *rest: object) -> None:
    for name in frozen:
        state.pop(prefix + name, None)


def _put_back(frozen: set[str], module: nn.Module, state: dict[str, Any], prefix: str, *rest: object) -> None:
    own = dict(module.named_parameters())
    for name in frozen:
        state.setdefault(prefix + name, own[name].detach())
