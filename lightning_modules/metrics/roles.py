"""Scores of semantic roles: arguments as srl-eval counts them, and broken constraints.

Shapes: B predicates, T positions, S tags, K roles, R core roles.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from energies.constraints import bio_tags
from inference.spans import SpanDecoder, WellFormed, begins_of, starts
from lightning_modules.metrics.spans import scores_of_counts
from networks.sizes import match_names

CORE = ("ARG0", "ARG1", "ARG2", "ARG3", "ARG4", "ARG5", "ARGA")
CONTINUES = "C-"
VERB = "V"
OUTSIDE = -1


class RoleScores(Metric):
    """Precision, recall and F1 of arguments, and the share of predicates that break a constraint.

    [SEAL Table 3, §4.3; srl-eval of CoNLL-2005]

    - f1: of the arguments of all roles together; selects models. precision, recall: the same.
    - ucr: the share of predicates for which a core role, ARG0 to ARG5 or ARGA, begins more than once.
    - gold_ucr: the same of the true tags.
    - bio: the share of predicates whose most likely tags are not BIO, before they are decoded.
    - exact: the share of predicates for which the decoder's answer is surely the best.

    Answers are probabilities; `decoder` makes tags of them. An argument is right when its role and all its
    spans are. A span of role C-X continues the last argument X before it, and is an X itself where there is
    none. R-X is a role of its own. The predicate, V, is not counted.

    Args:
        roles: the S tags are the `bio_tags` of these.
        decoder: left out, the best BIO tags.
    """

    full_state_update = False
    role: Tensor
    begins: Tensor
    continues: Tensor
    core: Tensor
    allowed: Tensor
    counts: Tensor
    broken: Tensor
    predicates: Tensor

    def __init__(self, roles: Sequence[str], decoder: SpanDecoder | None = None) -> None:
        super().__init__()
        self.tags, self.decoder = bio_tags(roles), decoder or WellFormed(list(roles))
        number = {role: index for index, role in enumerate(sorted({*map(argument_of, roles)}))}
        self.num_roles = len(number)
        constraints = self.decoder.constraints
        assert constraints.starts is not None
        kept = {
            "role": [OUTSIDE if tag == "O" else number[argument_of(tag[2:])] for tag in self.tags],
            "begins": [tag.startswith("B-") for tag in self.tags],
            "continues": [tag[2:].startswith(CONTINUES) for tag in self.tags],
            "core": begins_of([role for role in CORE if role in roles], roles).tolist(),
        }
        for name, values in kept.items():
            self.register_buffer(name, torch.tensor(values), persistent=False)
        allowed = torch.cat([constraints.allowed, constraints.starts.unsqueeze(0)])  # the last: from outside
        self.register_buffer("allowed", allowed, persistent=False)
        self.verb = number.get(VERB, OUTSIDE)
        self.add_state("counts", torch.zeros(3, dtype=torch.long), dist_reduce_fx="sum")  # right, found, true
        self.add_state("broken", torch.zeros(4, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("predicates", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def check_answers(self, y: Tensor) -> None:
        """Refuse data of another number of tags."""
        match_names(y, self.tags)

    def update(self, answer: Tensor, y: Tensor, mask: Tensor) -> None:
        """Add a batch: probabilities and one-hot true tags, (B, T, S), and the real positions, (B, T)."""
        decoded = self.decoder(answer, mask)
        true, likely = y.argmax(-1), answer.argmax(-1)
        found_head, found_role, found_begins = self._arguments(decoded.tags, mask)
        head, role, begins = self._arguments(true, mask)
        differs = (found_head != head) | (found_role != role) | (found_begins != begins)
        is_true, is_found = (self._counted(*of) for of in ((head, role), (found_head, found_role)))
        right = is_true & is_found & ~_at(head, differs) & ~_at(found_head, differs)
        self.counts += torch.stack([right.sum(), is_found.sum(), is_true.sum()])
        broken = (
            self._repeats(decoded.tags, mask),
            self._repeats(true, mask),
            self._ill_formed(likely, mask),
        )
        self.broken += torch.stack([rows.sum() for rows in (*broken, ~decoded.exact)])
        self.predicates += len(mask)

    def decide(self, answer: Tensor, mask: Tensor) -> Tensor:
        """The decoder's tags, one-hot (B, T, S); 0 at padding."""
        tags = F.one_hot(self.decoder(answer, mask).tags, len(self.tags))
        return (tags * mask.unsqueeze(-1)).to(answer.dtype)

    def compute(self) -> dict[str, Tensor]:
        """All in [0, 1]; 0 where there is nothing to divide by."""
        ucr, gold_ucr, bio, inexact = self.broken / self.predicates.clamp_min(1)
        return {
            **scores_of_counts(*self.counts),
            "ucr": ucr,
            "gold_ucr": gold_ucr,
            "bio": bio,
            "exact": 1 - inexact,
        }

    def _arguments(self, tags: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each position, (B, T): where its argument begins, its role, whether a span begins there."""
        role = torch.where(real, self.role[tags], OUTSIDE)
        before, continued = F.pad(role[:, :-1], (1, 0), value=OUTSIDE), self.continues[tags]
        other = (role != before) | (continued != F.pad(continued[:, :-1], (1, 0)))
        begins = (role != OUTSIDE) & (self.begins[tags] | other)
        of_role = F.one_hot(role + 1, self.num_roles + 1)[..., 1:].bool() & begins.unsqueeze(-1)
        first = of_role & (of_role.cumsum(1) == 1)
        heads = of_role & (first | ~continued.unsqueeze(-1))
        place = torch.arange(1, tags.shape[1] + 1, device=tags.device).view(1, -1, 1)
        last = (heads * place).cummax(1).values - 1  # of each role, the latest argument's beginning
        head = last.gather(-1, role.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        return torch.where(role == OUTSIDE, OUTSIDE, head), role, begins

    def _counted(self, head: Tensor, role: Tensor) -> Tensor:
        """Where an argument begins that counts, (B, T)."""
        place = torch.arange(head.shape[1], device=head.device)
        return (head == place) & (role != OUTSIDE) & (role != self.verb)

    def _repeats(self, tags: Tensor, real: Tensor) -> Tensor:
        """Whether a core role begins more than once, (B,)."""
        return starts(tags, self.core, real).sum(1).gt(1).any(-1)

    def _ill_formed(self, tags: Tensor, real: Tensor) -> Tensor:
        """Whether tags are not BIO, (B,)."""
        before = F.pad(tags[:, :-1], (1, 0), value=len(self.tags))
        return (~self.allowed[before, tags] & real).any(-1)


def argument_of(role: str) -> str:
    """The role of the argument that a span is part of: X of X and of C-X."""
    return role.removeprefix(CONTINUES)


def _at(head: Tensor, differs: Tensor) -> Tensor:
    """Where arguments begin that differ at one of their positions, (B, T)."""
    counts = torch.zeros_like(head).scatter_add(1, head.clamp_min(0), (differs & (head != OUTSIDE)).long())
    return counts > 0
