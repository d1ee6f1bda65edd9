"""A pretrained text encoder as a feature network.

Shapes: B examples, P word pieces, T words, H features.
"""

from copy import deepcopy
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from networks.inputs import WordPieces
from networks.layers import Dropout, Features
from networks.transformer.adapters import adapted, save_trained_only
from networks.transformer.kept import Kept
from networks.transformer.split import LowerLayers, check_depth, upper_layers, without_pooler
from networks.transformer.weights import EncoderUnusable, check_pooler, check_same, config_of, pretrained

Trained = Literal["full", "top_layers", "adapters", "frozen"]
Pooling = Literal["first", "mean", "pooler", "words"]


class Encoder(Features):
    """A pretrained encoder; the features of a text, or of each word, are its states.

    What trains: all of it (`full`); the `num_top` upper layers, with the pooler where it is used
    (`top_layers`); adapters in every layer (`adapters`); nothing (`frozen`). Layers that do not train and lie
    below all that train run in evaluation mode, without dropout. Those that train have the encoder's own
    dropout. They may have been computed before: the input is then `Kept`.

    Frozen lower layers belong to no network: all encoders of a process share them, and no checkpoint holds
    them. An energy and a task-net that both have an Encoder train two copies of what is above.

    Args:
        encoder: a folder, or a name on the Hugging Face hub: see `weights.place_of`.
        trained: what trains.
        num_top: how many layers `top_layers` trains.
        pooling: the feature of a text is the state of its first piece (`first`), the `mean` of its states,
            or what the encoder's pretrained `pooler` makes of the first (BERT: a linear layer and tanh, as
            SEAL and Implicit). `words`: for each word the state of its first piece, 0 where padded.
        marks: `segments` mark pieces, as those of a predicate. With `full` and `adapters` they are the
            encoder's own token types [SEAL D]. With `top_layers` an embedding of the mark (2, H) is added to
            the states that enter the first trained layer, so lower layers do not depend on it. It starts as
            the difference of each token type of the encoder to the first, or 0 where there is one only.
        dropout: of the features.

    Shapes:
        x: WordPieces or Kept.   returns: (B, H), or (B, T, H) for `words`.

    Raises:
        EncoderUnusable: the encoder cannot be read, or not be used this way.
    """

    def __init__(
        self,
        encoder: str,
        *,
        trained: Trained = "full",
        num_top: int = 2,
        pooling: Pooling = "first",
        marks: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        config = config_of(encoder)
        self.encoder, self.trained, self.pooling = encoder, trained, pooling
        self.size: int = config.hidden_size
        self.num_kept = _num_kept(encoder, config.num_hidden_layers, trained, num_top)
        self.types = marks and trained in ("full", "adapters")
        self.mark: nn.Parameter | None = None
        if pooling == "pooler":
            check_pooler(encoder)
        if marks and trained == "frozen":
            raise EncoderUnusable("marks is true, and a frozen encoder learns none. Set trained: top_layers.")
        if self.types and getattr(config, "type_vocab_size", 0) < 2:
            raise EncoderUnusable(f"{encoder} has no token types for marks. Set trained: top_layers.")
        below = trained in ("top_layers", "frozen")
        self.lower = LowerLayers(encoder, self.num_kept) if below else None
        self.layers: Any = self._trained_part()
        if marks and not self.types:
            self.mark = nn.Parameter(_mark(encoder))
        self.dropout = Dropout(dropout)

    def forward(self, x: WordPieces | Kept) -> Float[Tensor, "B *T H"]:
        check_same(x.encoder, self.encoder)
        if isinstance(x, Kept):
            self._check(x)
            if x.pooling:
                return self.dropout(x.padded.squeeze(1).to(self._dtype()))
        return self.dropout(self._pooled(self._states(x), x))

    def _trained_part(self) -> nn.Module:
        """The layers above those that are kept, and the pooler where it is used."""
        whole = self.lower is None
        model = deepcopy(pretrained(self.encoder)) if whole else upper_layers(self.encoder, self.num_kept)
        if self.pooling != "pooler":
            without_pooler(model)
        if self.trained == "adapters":
            model = adapted(model)
        else:
            model.requires_grad_(self.trained != "frozen")
        save_trained_only(model)
        return model.train()

    def _states(self, x: WordPieces | Kept) -> Tensor:
        """The states of the last layer."""
        if self.lower is None and isinstance(x, WordPieces):
            types = {"token_type_ids": x.segments} if self.types else {}
            return self.layers(input_ids=x.ids, attention_mask=x.attention, **types).last_hidden_state
        if isinstance(x, Kept):
            states = x.padded
        else:
            assert self.lower is not None
            states = self.lower(x.ids, x.attention)
        states = states.to(self._dtype())
        if self.trained == "frozen":
            return states
        if self.mark is not None:
            assert x.segments is not None, "marks are the segments of the input"
            states = states + self.mark[x.segments]
        return self.layers(inputs_embeds=states, attention_mask=x.attention).last_hidden_state

    def _dtype(self) -> torch.dtype:
        """The float type of what trains, or of new tensors where nothing does."""
        return next((p.dtype for p in self.parameters()), torch.get_default_dtype())

    def _pooled(self, states: Tensor, x: WordPieces | Kept) -> Tensor:
        if self.pooling == "words":
            assert x.words is not None and x.mask is not None, "the input has no words"
            place = x.words.long().unsqueeze(-1).expand(-1, -1, states.shape[-1])
            return states.gather(1, place) * x.mask.unsqueeze(-1)
        return pooled(states, x.attention, self.pooling, self.layers)

    def _check(self, x: Kept) -> None:
        """Raise an error if other layers were kept than those that are frozen here."""
        if x.num_layers != self.num_kept:
            raise EncoderUnusable(
                f"The data keeps {x.num_layers} layers of the encoder, the network freezes {self.num_kept}. "
                f"Set --data.kept_layers {self.num_kept}, or num_top of the network to fit."
            )
        if x.pooling and x.pooling != self.pooling:
            raise EncoderUnusable(
                f"The data keeps states pooled as '{x.pooling}', the network has pooling: {self.pooling}. "
                "Set both alike."
            )


def pooled(
    states: Float[Tensor, "B P H"], attention: Bool[Tensor, "B P"], pooling: str, model: nn.Module
) -> Float[Tensor, "B H"]:
    """One state of a text: see Encoder. `model` has the pooler."""
    if pooling == "first":
        return states[:, 0]
    if pooling == "pooler":
        pooler: Any = model.pooler
        return pooler(states)
    real = attention.unsqueeze(-1)
    return (states * real).sum(1) / real.sum(1)


def _num_kept(encoder: str, depth: int, trained: str, num_top: int) -> int:
    """How many layers are frozen below all that train."""
    if trained == "top_layers":
        check_depth(encoder, depth - num_top)
        if not num_top:
            raise EncoderUnusable("num_top is 0: train 1 layer or more, or set trained: frozen.")
        return depth - num_top
    return depth if trained == "frozen" else 0


def _mark(encoder: str) -> Float[Tensor, "2 H"]:
    """The first embedding of marks."""
    model = pretrained(encoder)
    start = torch.zeros(2, model.config.hidden_size)
    types = getattr(model.embeddings, "token_type_embeddings", None)
    if types is not None and len(types.weight) > 1:
        difference = types.weight[:2] - types.weight[0]
        if (wider := getattr(model, "embeddings_project", None)) is not None:  # ELECTRA
            difference = difference @ wider.weight.T
        start.copy_(difference)
    return start
