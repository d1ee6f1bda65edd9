"""The last rung's messages, by products, are those of the reference."""

import math

import pytest
import torch

from energies.potentials import ChainPotentials
from inference import chain_reference as reference
from inference.kernels import log_space
from inference.kernels.log_space import LogSpace
from inference.kernels.problem import Problem, Slopes


def drawn(scale: float, pairs: float, *, rules: bool = False, length: int = 6) -> ChainPotentials:
    """Ragged chains, some empty, of these sizes of scores; with rules some scores are -inf."""
    g = torch.Generator().manual_seed(int(scale + 10 * pairs))
    unary, pairwise, ends = (
        torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((12, length, 5), (5, 5), (2, 5))
    )
    unary, pairwise = scale * unary, pairs * pairwise
    if rules:
        pairwise[0, 1:3], pairwise[3], unary[:, 1::2, 4] = -math.inf, -math.inf, -math.inf
        pairwise[:, 0] = pairs
    mask = torch.arange(length) < torch.randint(length + 1, (12, 1), generator=g)
    return ChainPotentials(unary, pairwise, mask, scale * ends[0], scale * ends[1])


@pytest.mark.parametrize("rules", [False, True])
@pytest.mark.parametrize("pairs", [1e-3, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2, 1e4])
def test_messages_are_the_references(scale: float, pairs: float, rules: bool) -> None:
    c = reference.Chain.of(drawn(scale, pairs, rules=rules))
    for own, right in (
        (log_space.forward_messages, reference.forward_messages),
        (log_space.backward_messages, reference.backward_messages),
    ):
        torch.testing.assert_close(own(c), right(c), rtol=1e-12, atol=1e-12)


def test_only_what_may_have_lost_something_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[int] = []
    plain = reference.forward_messages

    def counted(c: reference.Chain) -> torch.Tensor:
        again.append(len(c.unary))
        return plain(c)

    monkeypatch.setattr(reference, "forward_messages", counted)
    log_space.forward_messages(reference.Chain.of(drawn(1e4, 10.0)))
    assert not again
    log_space.forward_messages(reference.Chain.of(drawn(1e4, 1e4)))
    assert len(again) == 1 and 0 < again[0] < 12


def test_messages_have_the_references_gradient() -> None:
    for p in (drawn(1e2, 1.0), drawn(1e2, 1e4)):
        found = []
        for way in (log_space, reference):
            unary, pairwise = p.unary.clone().requires_grad_(), p.pairwise.clone().requires_grad_()
            c = reference.Chain.of(ChainPotentials(unary, pairwise, p.mask))
            value = (way.forward_messages(c) + way.backward_messages(c)).log_softmax(-1)[..., 0]
            found.append(torch.autograd.grad(torch.where(c.real, value, 0).sum(), (unary, pairwise)))
        for mine, right in zip(*found, strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pairs", [1.0, 1e3])
@pytest.mark.parametrize("length", [1, 5])
def test_rows_slopes_and_their_changes_are_the_references(length: int, pairs: float) -> None:
    p = drawn(1e2, pairs, length=length)
    tags = torch.zeros(p.unary.shape[:2], dtype=torch.long)
    solved = LogSpace(Problem(p.unary, p.pairwise, p.start, p.end, p.mask, tags))
    scores = [x.clone().requires_grad_() for x in (p.unary, p.pairwise, p.start, p.end) if x is not None]
    rows = reference.log_partition(q := ChainPotentials(*scores[:2], p.mask, *scores[2:])) - q.score(tags)
    weight = torch.linspace(-1, 2, 12, dtype=torch.float64)
    torch.testing.assert_close(solved.rows, rows.detach(), rtol=1e-12, atol=1e-9)
    right = torch.autograd.grad((rows * weight).sum(), scores, create_graph=True)
    way = [torch.randn_like(x) for x in scores]
    along = sum((g * d).sum() for g, d in zip(right, way, strict=True))
    bent = torch.autograd.grad(along, scores, allow_unused=True, materialize_grads=True)
    for mine, wanted in zip(solved.tangent(weight, Slopes(*way))[1], bent, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-9)
    for mine, wanted in zip(solved.gradient(weight), right, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-9)
    assert solved.gradient(weight, pairs=False).pairwise is None
