"""The reward of a citation's rules as an energy.   [SG-SPEN; Implicit §5, citations]

Shapes: B citations, T tokens, S tags, V word ids, C cues.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from energies.base import ConditionedEnergy, MaskedEnergy
from energies.citation.cues import CUES
from energies.citation.rules import LONGEST, OTHERS, RULES, Citation, miscued_penalties, ranges
from networks.inputs import Inputs
from networks.sizes import at_least, match_answers


class CitationRules(MaskedEnergy):
    """Minus the reward of an answer: the sum of its violations, each with the penalty of its rule.

    E(x, y) = -R(x, y) = sum_r penalty_r violations_r(x, y) >= 0

    It has no parameters. Rules and penalties are those of the released code of SG-SPEN. What is not here:
    its gazetteers of titles, authors, universities, conferences and places, which are in no public file. To
    build them from the training text would take the tags of more citations than are labelled.

    A word is the first of the numbers of its position; its cues are in the vocabulary's table `cues`.

    Shapes:
        x: ids (B, T, ...).   y: (..., B, T, S), relaxed or one-hot.   returns: (..., B).

    Raises:
        ValueError: `tags` are not those of the rules.
    """

    cues: Tensor

    def __init__(self, num_words: int, tags: Sequence[str]) -> None:
        super().__init__()
        at_least(1, num_words=num_words)
        if sorted(tags) != sorted(LONGEST):
            raise ValueError(f"tags are {', '.join(tags)}: the rules are about {', '.join(sorted(LONGEST))}.")
        self.number = {tag: number for number, tag in enumerate(tags)}
        self.register_buffer("cues", torch.zeros(num_words, len(CUES), dtype=torch.bool))

    def initialise(self, tables: dict[str, Tensor]) -> None:
        """Take the cues of each word from the vocabulary.

        Raises:
            ValueError: the vocabulary has none, or another number of words.
        """
        if "cues" not in tables or tables["cues"].shape != self.cues.shape:
            raise ValueError(
                "the vocabulary has no table `cues` of this size: rules of citations need the data "
                "datamodules.citations.fields.Citations, and its num_words."
            )
        self.cues.copy_(tables["cues"])

    def renumber(self, tables: dict[str, Tensor], known: Tensor) -> None:
        """See networks.words.WordFeatures.renumber."""
        self.cues = tables["cues"]

    def check_answers(self, y: Tensor) -> None:
        """Raise ValueError if the data have another number of tags."""
        match_answers(y, num_tags=len(self.number))

    def given(self, x: Inputs, mask: Tensor | None = None) -> ConditionedEnergy:
        """The cues are looked up once; their rules are one product."""
        citation = self.citation(x, mask)
        real, of_cues = citation.mask.unsqueeze(-1), miscued_penalties(citation)

        def energy(y: Tensor) -> Tensor:
            y = y * real
            others = [penalty * rule(citation, y) for penalty, rule in OTHERS.values()]
            return torch.stack([(of_cues * y).sum((-2, -1)), *others]).sum(0)

        return ConditionedEnergy(energy)

    def violations(
        self, x: Inputs, y: Shaped[Tensor, "... B T S"], mask: Tensor | None = None
    ) -> dict[str, Float[Tensor, "... B"]]:
        """How often an answer violates each rule, by its name, without the penalties."""
        citation = self.citation(x, mask)
        y = y * citation.mask.unsqueeze(-1)
        return {name: rule(citation, y) for name, rule in RULES.items()}

    def citation(self, x: Inputs, mask: Tensor | None) -> Citation:
        """What rules read of a batch."""
        words = x.values[..., 0]  # type: ignore[union-attr, index]  # one of networks.inputs
        mask = torch.ones_like(words, dtype=torch.bool) if mask is None else mask
        cues = dict(zip(CUES, (self.cues[words] & mask.unsqueeze(-1)).unbind(-1), strict=True))
        return Citation(cues | {"range": ranges(cues["dash"])}, mask, self.number)
