"""The lower and the upper layers of an encoder, each a model of its own.

Shapes: B examples, P word pieces, H features.
"""

from copy import copy, deepcopy
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from networks.transformer.weights import EncoderUnusable, layers_of, pretrained


class GivenStates(nn.Module):
    """In the place of the embeddings of the upper layers: the states it is given, as they are."""

    def forward(
        self, ids: None = None, inputs_embeds: Tensor | None = None, *rest: Any, **others: Any
    ) -> Tensor:
        assert inputs_embeds is not None
        return inputs_embeds


class LowerLayers:
    """The embeddings and the lowest layers of an encoder, frozen, without dropout.

    No `nn.Module`: it is shared by all encoders of a process that name the same weights, and neither its
    parameters nor its mode are those of a network that uses it.
    """

    def __init__(self, encoder: str, num_layers: int) -> None:
        self.encoder, self.num_layers = encoder, num_layers

    @torch.no_grad()
    def __call__(self, ids: Int[Tensor, "B P"], attention: Bool[Tensor, "B P"]) -> Float[Tensor, "B P H"]:
        """The states above the lowest `num_layers`; all pieces have segment 0."""
        model = _lower(self.encoder, self.num_layers, ids.device)
        return model(input_ids=ids, attention_mask=attention).last_hidden_state


@lru_cache(maxsize=2)
def _lower(encoder: str, num_layers: int, device: torch.device) -> nn.Module:
    """The encoder up to a layer, on a device."""
    whole = pretrained(encoder)
    check_depth(encoder, num_layers)
    model = deepcopy(whole)
    layers = layers_of(model)
    without_pooler(model)
    if num_layers < len(layers):
        _drop_last_norm(model)
        del layers[num_layers:]
    return model.to(device)


def upper_layers(encoder: str, num_kept: int) -> nn.Module:
    """A copy of the layers above the lowest `num_kept`; it takes states as `inputs_embeds`."""
    whole = pretrained(encoder)
    check_depth(encoder, num_kept)
    model = copy(whole)  # the embeddings are not copied
    model._modules = {name: part for name, part in whole._modules.items() if name != "embeddings"}
    model.embeddings = GivenStates()
    if hasattr(model, "embeddings_project"):  # ELECTRA: part of the embeddings
        model.embeddings_project = nn.Identity()
    model = deepcopy(model)
    layers = layers_of(model)
    del layers[:num_kept]
    return model


def check_depth(encoder: str, num_layers: int) -> None:
    """Raise an error if the encoder has fewer layers."""
    depth = pretrained(encoder).config.num_hidden_layers
    if not 0 <= num_layers <= depth:
        raise EncoderUnusable(
            f"{encoder} has {depth} layers, and {num_layers} are to be kept: take 0 to {depth} of them, or "
            "as many trained layers (num_top)."
        )


def without_pooler(model: nn.Module) -> None:
    """Leave out the pooler, if there is one."""
    if getattr(model, "pooler", None) is not None:
        setattr(model, "pooler", None)  # noqa: B010  (no attribute of every model)


def _drop_last_norm(model: nn.Module) -> None:
    """Some encoders normalise the states of their last layer only."""
    for name in ("final_norm", "final_layer_norm", "norm"):
        if isinstance(getattr(model, name, None), nn.Module):
            setattr(model, name, nn.Identity())
