"""Linear chains as other packages compute them, behind one interface, for `scripts.benchmarks.chain`.

None of them is a dependency of this project, and a package that cannot be imported is reported, not required.
Each adapter does what the package's users do; inputs are converted before timing.

Shapes: B examples, T positions, S tags.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """Scores with gradients, padding at the end, and gold tags, which are 0 at padding."""

    unary: Tensor  # (B, T, S)
    pairwise: Tensor  # (S, S)
    start: Tensor  # (S,)
    end: Tensor  # (S,)
    mask: Tensor  # (B, T) bool
    lengths: Tensor  # (B,)
    tags: Tensor  # (B, T)

    def double(self) -> Self:
        """The same in float64."""
        scores = {name: getattr(self, name) for name in ("unary", "pairwise", "start", "end")}
        return replace(self, **{name: x.detach().double().requires_grad_() for name, x in scores.items()})


@dataclass(frozen=True)
class Contender:
    """The functions of one implementation. Results are not converted while timing.

    `leaves` are the tensors to differentiate by, scores of positions first.
    """

    leaves: list[Tensor]
    loss: Callable[[], Tensor]  # negative log-likelihood, summed
    marginals: Callable[[], Tensor] | None = None
    viterbi: Callable[[], Any] | None = None
    spread: Callable[[Any], Tensor] = lambda found: found  # marginals or tags as (B, T, ...)


def slope(log_z: Tensor, scores: Tensor) -> Tensor:
    """Marginals by autograd, for a package without them."""
    return torch.autograd.grad(log_z.sum(), scores)[0]


def filled(module: nn.Module, **scores: Tensor) -> Any:  # noqa: ANN401
    """The package's module with the task's scores as parameters."""
    for name, score in scores.items():
        setattr(module, name, nn.Parameter(score.detach().clone()))
    return module.to(next(iter(scores.values())).device)


def from_lists(task: Task) -> Callable[[Any], Tensor]:
    """Tags in lists of lists, or marginals as they are, as a tensor."""

    def spread(found: Any) -> Tensor:  # noqa: ANN401
        if isinstance(found, Tensor):
            return found
        out = torch.zeros_like(task.tags)
        for row, tags in zip(out, found, strict=True):
            row[: len(tags)] = torch.tensor(tags)
        return out

    return spread


def tables(t: Task) -> dict[str, Tensor]:
    """The scores of transitions and ends, by the names that several packages use."""
    return {"transitions": t.pairwise, "start_transitions": t.start, "end_transitions": t.end}


def pytorch_crf(t: Task) -> Contender:
    """The most common one: log space, a loop over positions, autograd."""
    crf = filled(import_module("torchcrf").CRF(t.pairwise.shape[0], batch_first=True), **tables(t))
    return Contender(
        [t.unary, *crf.parameters()],
        lambda: -crf(t.unary, t.tags, t.mask, reduction="sum"),
        lambda: slope(crf._compute_normalizer(t.unary.transpose(0, 1), t.mask.t()), t.unary),
        lambda: crf.decode(t.unary, t.mask),
        from_lists(t),
    )


def pyt_crf(t: Task) -> Contender:
    """A newer package of that design, with the gold score and the back trace vectorised."""
    crf = filled(import_module("pyt_crf").CRF(t.pairwise.shape[0]), **tables(t))
    return Contender(
        [t.unary, *crf.parameters()],
        lambda: crf(t.unary, t.tags, t.mask, reduction="sum"),
        lambda: slope(crf._log_partition(t.unary, t.mask), t.unary),
        lambda: crf.decode(t.unary, t.mask),
        from_lists(t),
    )


def torchcrf(t: Task) -> Contender:
    """TorchCRF, which is not pytorch-crf though that is imported as torchcrf."""
    crf = filled(
        import_module("TorchCRF").CRF(t.pairwise.shape[0]),
        trans_matrix=t.pairwise,
        start_trans=t.start,
        end_trans=t.end,
    )
    return Contender(
        [t.unary, *crf.parameters()],
        lambda: -crf(t.unary, t.tags, t.mask).sum(),
        lambda: slope(crf._compute_denominator_log_likelihood(t.unary, t.mask), t.unary),
        lambda: crf.viterbi_decode(t.unary, t.mask),
        from_lists(t),
    )


def torchlatent(t: Task) -> Contender:
    """Sequences one after another without padding."""
    pack = import_module("torchrua").C
    decoder = filled(
        import_module("torchlatent.crf").CrfDecoder(num_targets=t.pairwise.shape[0]),
        transitions=t.pairwise,
        head_transitions=t.start,
        last_transitions=t.end,
    )
    rows = t.unary.detach()[t.mask].requires_grad_()
    scores, tags = pack(rows, t.lengths), pack(t.tags[t.mask], t.lengths)

    def spread(found: Any) -> Tensor:  # noqa: ANN401
        flat = found if isinstance(found, Tensor) else found.data
        out = flat.new_zeros(*t.mask.shape, *flat.shape[1:])
        out[t.mask] = flat.detach()
        return out

    return Contender(
        [rows, *decoder.parameters()],
        lambda: -decoder(scores).log_probs(tags).sum(),
        lambda: decoder(scores).marginals,
        lambda: decoder(scores).argmax,
        spread,
    )


def supar(t: Task) -> Contender:
    """A parsing package: every answer is a gradient in some semiring."""
    chain = import_module("supar.structs").LinearChainCRF
    size = t.pairwise.shape[0]
    table = t.pairwise.new_zeros(size + 1, size + 1)
    table[:-1, :-1], table[-1, :-1], table[:-1, -1] = t.pairwise.detach(), t.start.detach(), t.end.detach()
    table.requires_grad_()
    return Contender(
        [t.unary, table],
        lambda: -chain(t.unary, table, t.lengths).log_prob(t.tags).sum(),
        lambda: chain(t.unary, table, t.lengths).marginals.detach(),
        lambda: chain(t.unary, table, t.lengths).argmax,
    )


def torch_struct(t: Task) -> Contender:
    """Semirings again, over all pairs (B, T-1, S, S) and in log depth."""
    chain = import_module("torch_struct").LinearChainCRF
    leaves = [x.detach().clone().requires_grad_() for x in (t.unary, t.pairwise, t.start, t.end)]
    rows = torch.arange(len(t.lengths), device=t.lengths.device)
    links = t.mask[:, 1:].unsqueeze(-1)

    def distribution() -> Any:  # noqa: ANN401
        unary, pairwise, start, end = leaves
        pairs = unary[:, 1:].unsqueeze(3) + pairwise.t()
        opening = (unary[:, 0] + start).unsqueeze(1)
        pairs = torch.cat([(pairs[:, 0] + opening).unsqueeze(1), pairs[:, 1:]], 1)
        closing = torch.zeros_like(pairs[..., 0]).index_put((rows, t.lengths - 2), end.expand(len(rows), -1))
        return chain(pairs + closing.unsqueeze(3), lengths=t.lengths)

    def loss() -> Tensor:
        found = distribution()
        edges = chain.struct.to_parts(t.tags, t.pairwise.shape[0], lengths=t.lengths).type_as(t.unary)
        return found.partition.sum() - (found.log_potentials * edges).sum()

    def of_edges(edges: Tensor) -> Tensor:
        return torch.cat([edges[:, :1].sum(2), edges.sum(3) * links], 1)

    return Contender(
        leaves,
        loss,
        lambda: of_edges(distribution().marginals).detach(),
        lambda: of_edges(distribution().argmax).argmax(-1),
    )


PEERS: dict[str, Callable[[Task], Contender]] = {
    "pytorch-crf 0.7.2": pytorch_crf,
    "torchlatent 0.4.3": torchlatent,
    "pyt-crf 0.1.2": pyt_crf,
    "supar 1.1.4": supar,
    "TorchCRF 1.1.0": torchcrf,
    "torch-struct 0.5": torch_struct,
}
