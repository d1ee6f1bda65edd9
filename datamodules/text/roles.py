"""Semantic roles: the arguments of each predicate of a sentence, as BIO tags of its words.

Shapes: U sentences, N predicates, T words of the longest sentence, S tags.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datamodules.base import NEW, DeviceData, Split
from datamodules.errors import DataMismatch, DataNotFound, no_file
from datamodules.readers.propbank import Propositions, read_propositions
from datamodules.sources.files import Sources, shown, unpack
from datamodules.sources.needed import as_config
from datamodules.sources.registry import data_set
from datamodules.splits import PARTS
from datamodules.text.kept import keep
from datamodules.text.tokens import Pieces, pieces_of
from energies.constraints import bio_tags

NAME = "srl_ewt_propbank"
NO_TAG = -1  # of a word in a file of new sentences
RAISE = "Raise --data.max_pieces, or leave them out."  # what to do about long sentences


class SemanticRoles(DeviceData):
    """One example a predicate: its sentence x as word pieces, the predicate marked; tags y (N, T, S) one-hot.

    [SEAL §4.3]

    Segments mark the pieces of the predicate's word. All predicates of a sentence share its text, so what is
    kept of an encoder's lower layers is computed once a sentence. A word's tag belongs to its first piece.
    Sentences without a predicate are not used.

    The tags are the `bio_tags` of `roles`, which are those of all three parts. A role that training lacks is
    an answer that cannot be learnt; its arguments count as missed.

    Args:
        roles: in the order of their tags.
        num_tags: S, twice the number of roles and 1 for O, checked.
        encoder: whose word pieces these are: a folder, or a name on the Hugging Face hub. See Encoder.
        max_pieces: the most word pieces that a sentence may have.
        kept_layers: how many layers of the encoder are computed once and kept; 0: none.
        train: a user's own file for training, in the columns of `readers.propbank`.
        validation: a user's own file for validation.
        test: a user's own file for testing.
        batch_size: predicates of a training batch.
        eval_batch_size: predicates of a validation or test batch.
        seed: draws the order of the training predicates, with the epoch.
        pool: how many batches at a time are sorted by length; left out, 1: none are. See Batches.
        num_train: how many of the training predicates are used, drawn with the seed; left out, all.
        folder: where data is kept; left out, DATA_DIR or data/.
        mirror: a folder to read data from; left out, DATA_MIRROR or ../shared/data. Empty: none.
    """

    def __init__(
        self,
        roles: list[str],
        num_tags: int,
        *,
        encoder: str,
        max_pieces: int = 512,
        kept_layers: int = 0,
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        batch_size: int = 16,
        eval_batch_size: int = 128,
        seed: int = 0,
        pool: int | None = None,
        num_train: int | None = None,
        folder: str | None = None,
        mirror: str | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            pool=1 if pool is None else pool,
            num_train=num_train,
        )
        self.roles, self.num_tags, self.names = roles, num_tags, bio_tags(roles)
        self.encoder, self.max_pieces, self.kept_layers = encoder, max_pieces, kept_layers
        given = {"train": train, "validation": validation, "test": test}
        self.own = {part: Path(path) for part, path in given.items() if path}
        self.text = data_set(NAME).only(*(part for part in PARTS if part not in self.own))
        self.sources = Sources(folder, mirror)
        if (count := len(bio_tags([*dict.fromkeys(roles)]))) != num_tags:
            raise DataMismatch(
                f"num_tags is {num_tags}, and {len(set(roles))} different roles have {count} tags. Correct "
                "--data.roles or --data.num_tags."
            )

    def missing(self) -> str | None:
        """See DeviceData.missing."""
        for part, path in self.own.items():
            if not path.is_file():
                return no_file(path, part)
        return self.sources.missing(self.text) if self.text.files else None

    def source_files(self) -> dict[str, Any] | None:
        """See DeviceData.source_files."""
        return None if self.own else as_config([self.text], self.sources)

    def prepare_data(self) -> None:
        """Download what is not here."""
        self.sources.fetch(self.text)

    def load(self) -> dict[str, Split]:
        """Read the predicates and give the words of their sentences to the encoder's tokenizer."""
        if reason := self.missing():
            raise DataNotFound(reason)
        splits = self._splits({part: self.read(part) for part in PARTS})
        if self.new:
            content, name = unpack(self.new), shown(self.new)
            new = read_propositions(content, where=name, roles=self.roles, untagged=True)
            splits |= self._splits({NEW: new})
        return splits

    def _splits(self, parts: dict[str, Propositions]) -> dict[str, Split]:
        """The predicates of these parts; what is kept of their encoder's layers is one file."""
        sentences = {
            part: torch.tensor(read.sentence).unique(return_inverse=True) for part, read in parts.items()
        }
        words = [parts[part].words[index] for part, (used, _) in sentences.items() for index in used.tolist()]
        pieces = pieces_of(words, self.encoder, max_pieces=self.max_pieces)
        self._check_lengths(words, pieces, "Leave them out of --new." if NEW in parts else RAISE)
        kept = None
        if self.kept_layers:
            kept = keep(pieces, self.encoder, self.kept_layers, folder=self.sources.folder)
        splits, first = {}, 0
        for part, (used, texts) in sentences.items():
            y, predicate = encoded(parts[part], self.roles)
            splits[part] = Split(pieces.inputs(first + texts, marked=predicate, kept=kept), y)
            first += len(used)
        return splits

    def read(self, part: str) -> Propositions:
        """The predicates of one part."""
        if part in self.own:
            name, content = shown(self.own[part]), unpack(self.own[part])
        else:
            file = self.text.files[part]
            name, content = file.name, self.sources.read(self.text, file)
        return read_propositions(self.record_checksum(name, content), where=name, roles=self.roles)

    def _check_lengths(self, words: Sequence[Sequence[str]], pieces: Pieces, advice: str) -> None:
        """Check that no sentence was cut: each of its words has a tag."""
        counts = pieces.words(torch.arange(len(pieces)))[1].sum(1)
        lengths = torch.tensor([len(sentence) for sentence in words])
        if cut := (counts != lengths).nonzero().flatten().tolist():
            start = " ".join(words[cut[0]][:5])
            raise DataMismatch(
                f"{len(cut)} sentences have more than {self.max_pieces} word pieces; the first has "
                f"{len(words[cut[0]])} words and begins: {start}. {advice}"
            )


def encoded(part: Propositions, roles: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Tags y (N, T, S) one-hot, or none where unknown, and which word is the predicate, (N, T); both bool."""
    names = bio_tags(roles)
    number = {"": NO_TAG} | {tag: index for index, tag in enumerate(names)}
    lengths = torch.tensor([len(tags) for tags in part.tags])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    tags = torch.tensor([number[tag] for column in part.tags for tag in column])
    y = torch.zeros(*mask.shape, len(names), dtype=torch.bool)
    known = tags != NO_TAG
    example, place = (index[known] for index in mask.nonzero(as_tuple=True))
    y[example, place, tags[known]] = True
    predicate = torch.arange(mask.shape[1]) == torch.tensor(part.place).unsqueeze(1)
    return y, predicate
