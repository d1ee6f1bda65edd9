"""The last rung's messages, by products, are those of the reference."""

import math

import pytest
import torch

from energies.potentials import ChainPotentials
from inference import chain
from inference.chain import reference as reference
from inference.chain.criteria import MarginalCrossEntropy
from inference.chain.kernels import log_space
from inference.chain.kernels.log_space import LogSpace
from inference.chain.kernels.problem import Problem, ScoreGradient


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
    mask[::3] &= torch.rand(4, length, generator=g) < 0.7
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


def paid(gap: float) -> ChainPotentials:
    """A tag that its neighbours forbid by `gap` and its own score pays for: likely, after a tiny sum."""
    unary = torch.tensor([[[0.0, 0.0], [0.0, gap], [0.0, 0.0], [0.0, -gap]]])
    return ChainPotentials(unary.double(), torch.tensor([[0.0, -gap], [0.0, -gap]]).double())


@pytest.mark.parametrize(
    "p",
    [
        *(drawn(1e2, pairs, length=length) for pairs in (1.0, 200.0, 1e3) for length in (1, 5)),
        *map(paid, (200.0, 360.0, 560.0)),
    ],
)
def test_rows_slopes_and_their_changes_are_the_references(p: ChainPotentials) -> None:
    g = torch.Generator().manual_seed(0)
    tags = torch.zeros(p.unary.shape[:2], dtype=torch.long)
    solved = LogSpace(Problem(p.unary, p.pairwise, p.start, p.end, p.mask, tags))
    given = (p.unary, p.pairwise, p.start, p.end)
    leaves = [None if x is None else x.clone().requires_grad_() for x in given]
    scores = [x for x in leaves if x is not None]
    assert leaves[0] is not None and leaves[1] is not None
    q = ChainPotentials(leaves[0], leaves[1], p.mask, leaves[2], leaves[3])
    rows = reference.log_partition(q) - q.score(tags)
    weight = torch.linspace(-1, 2, len(rows), dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(solved.rows, rows.detach(), rtol=1e-12, atol=1e-9)
    right = torch.autograd.grad((rows * weight).sum(), scores, create_graph=True)
    found = solved.gradient(weight)
    for mine, wanted in zip(
        (x for x, y in zip(found, given, strict=True) if y is not None), right, strict=True
    ):
        torch.testing.assert_close(mine, wanted.detach(), rtol=1e-9, atol=1e-9)
    assert solved.gradient(weight, pairs=False).pairwise is None
    way = [None if x is None else torch.randn(x.shape, generator=g, dtype=torch.float64) for x in given]
    along = sum((a * b).sum() for a, b in zip(right, (d for d in way if d is not None), strict=True))
    slope, *bent = torch.autograd.grad(along, [weight, *scores], allow_unused=True, materialize_grads=True)
    of_rows, changes = solved.tangent(weight, ScoreGradient(*way))
    torch.testing.assert_close(of_rows, slope, rtol=1e-9, atol=1e-9)
    for mine, wanted in zip((x for x in changes if x is not None), bent, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("path", ["auto", "fused"])
@pytest.mark.parametrize("gap", [200.0, 420.0, 560.0])
def test_probabilities_have_a_gradient_where_a_likely_tag_follows_a_tiny_sum(
    gap: float, path: chain.Path, kind: torch.dtype
) -> None:
    slopes = []
    for way in (path, "reference"):
        unary, pairwise = (x.to(kind).requires_grad_() for x in (paid(gap).unary, paid(gap).pairwise))
        belief = chain.marginals(ChainPotentials(unary, pairwise), path=way)
        slopes.append(torch.autograd.grad(belief[0, 1, 1], (unary, pairwise)))
    for mine, right in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-6)


def test_one_token_sentences_need_no_table() -> None:
    unary = torch.tensor([[[0.0, 900.0], [0.0, 0.0]]]).double().requires_grad_()
    mask = torch.tensor([[True, False]])
    p = ChainPotentials(unary, torch.full((2, 2), -math.inf).double(), mask)
    alone = LogSpace(Problem(unary[:, :1], torch.zeros(2, 2).double(), None, None, None, None))
    of_rows, changes = alone.tangent(
        torch.ones(1).double(), ScoreGradient(torch.ones(1, 1, 2).double(), None, None, None)
    )
    assert of_rows.item() == pytest.approx(1) and changes.unary is not None and not changes.unary.any()
    y = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]).double()
    loss = MarginalCrossEntropy().loss(p, y)
    (slope,) = torch.autograd.grad(loss.sum(), unary)
    assert loss.item() == pytest.approx(900) and slope[0, 0].tolist() == pytest.approx([-1, 1])
