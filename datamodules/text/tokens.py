"""From texts, or sentences of words, to the word pieces of an encoder.

Shapes: U texts, M pieces of all texts, N examples, P pieces of the longest, T words of the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from datamodules.errors import DataMismatch
from networks.inputs import WordPieces
from networks.transformer.kept import Kept
from networks.transformer.weights import config_of, tokenizer_of

NO_WORD = -1  # of a special piece
MANY_UNKNOWN = 0.1  # of all pieces
FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")  # their positions start there


@dataclass(frozen=True)
class Pieces:
    """The word pieces of U distinct texts, one text after the other: text i from `offsets[i]` on.

    `word` is the number of the word that each piece belongs to, NO_WORD for special pieces; None where texts
    were not given as words. `encoder` is whose pieces they are.
    """

    ids: Int[Tensor, " M"]
    offsets: Int[Tensor, " U_plus_1"]
    word: Int[Tensor, " M"] | None = None
    encoder: str = ""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def inputs(
        self,
        texts: Int[Tensor, " N"],
        *,
        marked: Bool[Tensor, "N T"] | None = None,
        kept: Kept | None = None,
    ) -> WordPieces | Kept:
        """Inputs of examples that read these texts: with the states of `kept`, or else as word pieces.

        Segments are 1 on all pieces of `marked` words.
        """
        words, mask = (None, None) if self.word is None else self.words(texts)
        segments = None if marked is None else self._segments(texts, marked)
        if kept is not None:
            return replace(kept, texts=texts, segments=segments, words=words, mask=mask)
        ids, attention = self.padded(texts)
        segments = torch.zeros_like(ids) if segments is None else segments
        return WordPieces(ids, attention, segments, words, mask, self.encoder)

    def padded(self, texts: Int[Tensor, " N"]) -> tuple[Int[Tensor, "N P"], Bool[Tensor, "N P"]]:
        """The ids of the pieces of these texts, 0 where padded, and which are real."""
        rows, attention = self._places(texts)
        return self.ids[rows] * attention, attention

    def words(self, texts: Int[Tensor, " N"]) -> tuple[Int[Tensor, "N T"], Bool[Tensor, "N T"]]:
        """The place of each word's first piece in its text, and which words are real."""
        firsts, counts = self._firsts()
        starts, counts = (F.pad(counts.cumsum(0), (1, 0))[texts].unsqueeze(1), counts[texts])
        place = torch.arange(int(counts.max()))
        mask = place < counts.unsqueeze(1)
        return firsts[(starts + place).clamp_max(len(firsts) - 1)] * mask, mask

    def _firsts(self) -> tuple[Tensor, Tensor]:
        """The first pieces of all words, as places in their texts, and the number of words of each text."""
        assert self.word is not None, "the texts are not given as words"
        owner = torch.arange(len(self)).repeat_interleave(self.offsets.diff())
        same_text = F.pad(owner.diff() == 0, (1, 0))
        again = same_text & F.pad(self.word.diff() == 0, (1, 0))
        first = (self.word != NO_WORD) & ~again
        return (torch.arange(len(self.ids)) - self.offsets[owner])[first], owner[first].bincount(
            minlength=len(self)
        )

    def _places(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """The pieces of each example as indices of all pieces, and which are real, both (N, P)."""
        sizes = self.offsets.diff()[texts]
        place = torch.arange(int(sizes.max()))
        rows = self.offsets[texts].unsqueeze(1) + place
        return rows.clamp_max(len(self.ids) - 1), place < sizes.unsqueeze(1)

    def _segments(self, texts: Tensor, marked: Tensor) -> Tensor:
        assert self.word is not None, "the texts are not given as words"
        rows, attention = self._places(texts)
        word = self.word[rows].long()
        inside = attention & (word != NO_WORD) & (word < marked.shape[1])
        return (marked.gather(1, word.clamp(0, marked.shape[1] - 1)) & inside).long()


def pieces_of(
    texts: Sequence[str] | Sequence[Sequence[str]], encoder: str, *, max_pieces: int = 512
) -> Pieces:
    """The pieces of texts, or of sentences given as words, by the encoder's own tokenizer.

    Texts are cut after `max_pieces`, special pieces included; the share of those cut is reported, and that of
    unknown pieces where it is above a tenth. A word that is nothing to the tokenizer (control characters)
    gets the unknown piece, so each word has a first piece. The words of a sentence that was cut off have
    none: `words` ends before them.

    Raises:
        DataMismatch: the encoder reads no texts of `max_pieces`, or has no embedding of a piece.
        EncoderUnusable: its tokenizer cannot be used.
    """
    tokenizer, config = tokenizer_of(encoder), config_of(encoder)
    most = getattr(config, "max_position_embeddings", max_pieces)
    if getattr(config, "model_type", "") in FROM_PADDING:
        most -= config.pad_token_id + 1
    if not 2 < max_pieces <= most:
        raise DataMismatch(
            f"max_pieces is {max_pieces}: {encoder} reads 3 to {most} pieces. Set --data.max_pieces."
        )
    options = {"truncation": True, "max_length": max_pieces, "return_attention_mask": False}
    if not texts or isinstance(texts[0], str):
        encodings = tokenizer(list(texts), **options).encodings if texts else []
        word = None
    else:
        encodings = _of_words([list(words) for words in texts], tokenizer, options)
        word = torch.tensor(
            [NO_WORD if i is None else i for one in encodings for i in one.word_ids], dtype=torch.int32
        )
    ids = torch.tensor([*chain.from_iterable(one.ids for one in encodings)], dtype=torch.int32)
    if len(ids) and int(ids.max()) >= config.vocab_size:
        raise DataMismatch(
            f"The tokenizer of {encoder} gives piece {int(ids.max())}, its weights have embeddings of "
            f"{config.vocab_size:,}. Take both from one release."
        )
    cut = sum(bool(one.overflowing) for one in encodings)
    if cut:
        rank_zero_warn(
            f"{cut / len(encodings):.1%} of {len(encodings):,} texts are cut to {max_pieces} pieces."
        )
    _warn_of_mismatch(ids, tokenizer, config, encoder)
    lengths = torch.tensor([len(one.ids) for one in encodings], dtype=torch.long)
    return Pieces(ids, F.pad(lengths.cumsum(0), (1, 0)), word, encoder)


def _warn_of_mismatch(ids: Tensor, tokenizer: Any, config: Any, encoder: str) -> None:  # noqa: ANN401
    """Warn of what a tokenizer of other weights, or of another language, would show."""
    padding, unknown = (tokenizer.pad_token_id, getattr(config, "pad_token_id", None)), tokenizer.unk_token_id
    if None not in padding and padding[0] != padding[1]:
        rank_zero_warn(
            f"{encoder}: the tokenizer pads with piece {padding[0]}, config.json says {padding[1]}. "
            "Are both from one release?"
        )
    share = 0.0 if unknown is None or not len(ids) else float((ids == unknown).float().mean())
    if share > MANY_UNKNOWN:
        rank_zero_warn(
            f"{share:.1%} of the pieces are unknown to the tokenizer of {encoder}: are the texts of a "
            "language that it knows, and is it the encoder's own?"
        )


def _of_words(sentences: list[list[str]], tokenizer: Any, options: dict[str, Any]) -> list[Any]:  # noqa: ANN401
    """The encodings of sentences; words without a piece are replaced by the unknown piece."""
    options = {**options, "is_split_into_words": True}
    encodings = tokenizer(sentences, **options).encodings
    gaps = {i: gap for i, one in enumerate(encodings) if (gap := _without_piece(one, len(sentences[i])))}
    if gaps:
        mended = [
            [tokenizer.unk_token if w in gap else word for w, word in enumerate(sentences[i])]
            for i, gap in gaps.items()
        ]
        for i, one in zip(gaps, tokenizer(mended, **options).encodings, strict=True):
            encodings[i] = one
    return encodings


def _without_piece(encoding: Any, num_words: int) -> set[int]:  # noqa: ANN401
    """The words that vanished; those after the cut do not count."""
    there = {word for word in encoding.word_ids if word is not None}
    end = max(there, default=-1) + 1 if encoding.overflowing else num_words
    return set(range(end)) - there
