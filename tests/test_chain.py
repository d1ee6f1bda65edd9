"""Chains against counting: every function, sizes and masks drawn, in float64."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import one_hot

import chain_oracle as oracle
from energies.chain import ChainEnergy
from energies.constraints import Constraints
from energies.potentials import ChainPotentials
from inference import chain

SUMS = ("reference", "fused", "compiled")


@st.composite
def potentials(draw: st.DrawFn, tables: tuple[str, ...] = ("one", "step", "example")) -> ChainPotentials:
    """Chains of up to 4 positions and 3 tags; a matrix a step only where padding stands at the tail."""
    examples, length, size = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    torch.manual_seed(draw(st.integers(0, 99)))
    table = draw(st.sampled_from(tables))
    shape = {"one": (), "step": (length - 1,), "example": (examples, length - 1)}[table]
    kind = draw(st.sampled_from(["none", "tail", "any"]))
    mask = None if kind == "none" else torch.rand(examples, length) < 0.7
    if mask is not None and (kind == "tail" or table != "one"):
        mask = mask.sort(1, descending=True).values
    start, end = (torch.randn(size).double() if draw(st.booleans()) else None for _ in range(2))
    unary, pairwise = torch.randn(examples, length, size).double(), torch.randn(*shape, size, size).double()
    return ChainPotentials(unary, pairwise, mask, start, end)


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(potentials())
def test_sums_are_those_of_counting(p: ChainPotentials) -> None:
    close(chain.log_partition(p), oracle.log_partition(p))
    close(chain.marginals(p), oracle.marginals(p))
    close(chain.pairwise_marginals(p), oracle.pairwise_marginals(p))
    close(chain.entropy(p), oracle.entropy(p))


@settings(max_examples=30)
@given(potentials(("one",)), st.sampled_from(SUMS))
def test_sums_are_those_of_counting_on_every_path(p: ChainPotentials, path: chain.Path) -> None:
    close(chain.log_partition(p, path=path), oracle.log_partition(p))
    close(chain.marginals(p, path=path), oracle.marginals(p))
    close(chain.entropy(p, path=path), oracle.entropy(p))


@settings(max_examples=40)
@given(potentials(), st.data())
def test_the_best_answers_are_those_of_counting(p: ChainPotentials, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(SUMS)) if p.pairwise.dim() == 2 else "reference"
    cost, k = torch.rand_like(p.unary), data.draw(st.integers(1, 5))
    for best, q in (
        (chain.viterbi(p, path=path), p),
        (chain.loss_augmented(p, cost, path=path), p.plus(cost)),
    ):
        close(best.score, q.score(best.tags))
        close(best.score, torch.stack([oracle.answers(q, row)[1].max() for row in range(len(q.unary))]))
    close(chain.max_marginals(p), oracle.max_marginals(p))
    tags, scores = chain.k_best(p, k)
    for row in range(len(p.unary)):
        _, found = oracle.answers(p, row)
        ranked = found.sort(descending=True).values[:k]
        there = len(ranked)
        close(scores[:there, row], ranked)
        assert scores[there:, row].eq(-math.inf).all()
        close(p.score(tags)[:there, row], ranked)
        assert len(tags[:there, row].unique(dim=0)) == there


@settings(max_examples=40)
@given(potentials())
def test_scores_of_tags_and_of_one_hot_answers_are_those_of_the_loop(p: ChainPotentials) -> None:
    for row in range(len(p.unary)):
        tags, scores = oracle.answers(p, row)
        every = tags.unsqueeze(1).expand(-1, len(p.unary), -1)  # (Y, B, T)
        close(p.score(every.masked_fill(~p.real(), -100))[:, row], scores)
        close(p.score(one_hot(every, p.unary.shape[2]).double())[:, row], scores)


@settings(max_examples=40)
@given(potentials())
def test_the_slope_is_the_derivative_of_the_relaxed_score(p: ChainPotentials) -> None:
    y = torch.randn(2, *p.unary.shape).double().requires_grad_()
    score, (slope,) = p.score(y), torch.autograd.grad(p.score(y).sum(), y)
    value, gradient = p.relaxed().value_and_gradient(y)
    close(value, score.detach())
    close(gradient, slope)
    assert not value.requires_grad and not gradient.requires_grad


def test_a_relaxed_score_is_minus_infinity_only_where_mass_is_on_what_is_forbidden() -> None:
    allowed = torch.tensor([[True, False], [True, True]])
    p = ChainPotentials(torch.tensor([[[1.0, 2.0], [3.0, 4.0], [-math.inf, 6.0]]]), torch.ones(2, 2))
    p = Constraints(allowed, starts=torch.tensor([False, True])).on(p)
    tags = torch.tensor([[[1, 1, 1]], [[0, 1, 1]], [[1, 0, 1]], [[1, 1, 0]]])
    expected = [[2 + 4 + 6 + 2.0], [-math.inf], [-math.inf], [-math.inf]]
    y = one_hot(tags, 2).float().requires_grad_()
    assert p.score(tags).tolist() == p.score(y).tolist() == expected
    (slope,) = torch.autograd.grad(p.score(y)[0].sum(), y)
    assert slope[0, 0, :, 1].tolist() == [2 + 1, 4 + 2, 6 + 1] and slope[0, 0, 1, 0] < -1e38
    assert not slope.isnan().any()
    half = p.score(y.detach().lerp(y.detach().flip(-1), 0.01))
    assert half.eq(-math.inf).all()


@given(potentials(("one",)), st.sampled_from(SUMS))
@settings(max_examples=25)
def test_nll_is_log_z_less_the_gold_score(p: ChainPotentials, path: chain.Path) -> None:
    tags = torch.randint(0, p.unary.shape[2], p.unary.shape[:2])
    loss = chain.nll(p, tags.masked_fill(~p.real(), -100), path=path)
    close(loss, oracle.log_partition(p) - p.score(tags))


def test_samples_have_the_marginals_and_repeat_with_their_generator() -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, True], [False, True, True], [False, False, False]])
    p = ChainPotentials(torch.randn(3, 3, 3), torch.randn(3, 3), mask, torch.randn(3), torch.randn(3))
    drawn = chain.sample(p, 4000, torch.Generator().manual_seed(1))
    assert drawn[:, ~mask].eq(0).all()
    share = one_hot(drawn, 3).float().mean(0) * mask.unsqueeze(-1)
    assert (share - chain.marginals(p)).abs().max() < 0.03
    pairs = torch.einsum(
        "nbts,nbtr->btsr", one_hot(drawn[..., :-1], 3).float(), one_hot(drawn[..., 1:], 3).float()
    )
    assert (pairs[0] / 4000 - chain.pairwise_marginals(p)[0]).abs().max() < 0.03
    assert drawn.equal(chain.sample(p, 4000, torch.Generator().manual_seed(1)))


def test_empty_chains_give_zero() -> None:
    mask = torch.tensor([[False, False], [True, False]])
    p = ChainPotentials(torch.randn(2, 2, 3).double(), torch.randn(3, 3).double(), mask)
    for path in SUMS:
        assert chain.log_partition(p, path=path)[0] == 0
        assert chain.entropy(p, path=path)[0] == 0
        assert chain.viterbi(p, path=path).score[0] == 0
    nothing = ChainPotentials(torch.randn(2, 0, 3), torch.randn(3, 3))
    assert chain.log_partition(nothing).equal(torch.zeros(2))
    assert chain.viterbi(nothing).tags.shape == (2, 0)
    assert chain.k_best(nothing, 2)[1].tolist() == [[0, 0], [-math.inf, -math.inf]]


def test_what_stands_at_masked_positions_counts_for_nothing() -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[True, False, True, False]])
    unary, pairwise = torch.randn(1, 4, 3), torch.randn(3, 3)
    spoilt = unary.masked_fill(~mask.unsqueeze(-1), math.nan)
    for path in SUMS:
        p, q = (ChainPotentials(u, pairwise, mask, end=torch.randn(3)) for u in (unary, unary))
        q = ChainPotentials(spoilt, pairwise, mask, end=p.end)
        for function in (chain.log_partition, chain.marginals, chain.entropy):
            torch.testing.assert_close(function(p, path=path), function(q, path=path))
        assert chain.viterbi(p, path=path).tags.equal(chain.viterbi(q, path=path).tags)


def test_errors_name_the_shape_the_place_and_the_way_out() -> None:
    unary, pairwise = torch.zeros(2, 4, 3), torch.zeros(3, 3)
    with pytest.raises(ValueError, match=r"pairwise scores have shape \(4, 4\).*\(3, 3\)"):
        ChainPotentials(unary, torch.zeros(4, 4))
    with pytest.raises(ValueError, match=r"unary scores have shape \(4, 3\).*\(examples, positions, tags\)"):
        untyped = object.__new__(
            ChainPotentials
        )  # the tests' type checker stops the constructor before it looks
        object.__setattr__(untyped, "unary", unary[0])
        object.__setattr__(untyped, "pairwise", pairwise)
        untyped.__post_init__()
    with pytest.raises(ValueError, match=r"start scores have shape \(2,\); 3 tags need \(3,\)"):
        ChainPotentials(unary, pairwise, start=torch.zeros(2))
    with pytest.raises(ValueError, match=r"mask is torch\.float32.*bool"):
        ChainPotentials(unary, pairwise, torch.ones(2, 4))
    p = ChainPotentials(unary, pairwise)
    for path in SUMS:
        with pytest.raises(ValueError, match=r"tag 3 at position 2 of example 1 is outside 0\.\.2"):
            chain.nll(p, torch.tensor([[0, 0, 0, 0], [0, 0, 3, 0]]), path=path)
    steps = ChainPotentials(unary, torch.zeros(3, 3, 3))
    with pytest.raises(ValueError, match="fused path takes one matrix"):
        chain.log_partition(steps, path="fused")
    gap = ChainPotentials(unary, torch.zeros(3, 3, 3), torch.tensor([[True, False, True, True]] * 2))
    with pytest.raises(ValueError, match="pads at the tail only"):
        chain.log_partition(gap)
    huge = ChainPotentials(torch.zeros(1, 1, 1).expand(10**6, 10**3, 100), torch.zeros(100, 100))
    with pytest.raises(ValueError, match="GiB are free: take fewer examples"):
        chain.pairwise_marginals(huge)
    for path in SUMS:
        with pytest.raises(ValueError, match=r"log_partition would need.*GiB are free: take fewer examples"):
            chain.log_partition(huge, path=path)
        with pytest.raises(ValueError, match="marginals would need"):
            chain.marginals(huge, path=path)
        with pytest.raises(ValueError, match="nll would need"):
            chain.nll(huge, torch.zeros(1, 1).long().expand(10**6, 10**3), path=path)
    with pytest.raises(ValueError, match="a smaller k"):
        chain.k_best(huge, 5)
    steep = ChainPotentials(
        torch.zeros(1, 1, 1, requires_grad=True).expand(200, 10**4, 100), torch.zeros(100, 100)
    )
    with pytest.raises(ValueError, match="log_partition would need about 298"):
        chain.log_partition(steep, path="reference")
    with pytest.raises(ValueError, match=r"tags are torch.int64 of shape \(2, 4, 3\).*argmax"):
        p.score(torch.zeros(2, 4, 3).long())
    nll = inspect.unwrap(chain.nll)  # the tests' type checker would stop it before it looks
    with pytest.raises(ValueError, match=r"tags are torch.int64 of shape \(4, 2\)"):
        nll(p, torch.zeros(4, 2).long())
    with pytest.raises(ValueError, match=r"tags are torch\.float32"):
        nll(p, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"one answer an example, \(examples, positions\), not \(5, 2, 4\)"):
        nll(p, torch.zeros(5, 2, 4).long())
    with pytest.raises(ValueError, match=r"relaxed answer of shape \(2, 4\)"):
        p.score(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"matrix of \(2, 2\), and the potentials have 3 tags"):
        Constraints(torch.ones(2, 2).bool()).on(p)
    with pytest.raises(ValueError, match="0 answers are requested; take a whole number from 1"):
        chain.k_best(p, 0)
    with pytest.raises(ValueError, match="0 answers are requested; take a whole number from 1"):
        chain.sample(p, 0)


@pytest.mark.parametrize("path", SUMS)
def test_scores_that_are_no_numbers_and_rules_that_leave_nothing_are_errors(path: chain.Path) -> None:
    for value in (math.nan, math.inf):
        unary, pairwise, ends = torch.zeros(3, 4, 3), torch.zeros(3, 3), torch.tensor([0.0, value, 0.0])
        unary[1, 2, 0] = value
        bad = [ChainPotentials(unary, pairwise)]
        pairwise = pairwise.clone()
        pairwise[0, 1] = value
        bad.append(ChainPotentials(torch.zeros(3, 4, 3), pairwise))
        bad.append(ChainPotentials(torch.zeros(3, 4, 3), torch.zeros(3, 3), start=ends))
        bad.append(ChainPotentials(torch.zeros(3, 4, 3), torch.zeros(3, 3), end=ends))
        places = (r"unary.*\[1, 2, 0\]", r"pairwise.*\[0, 1\]", r"start.*\[1\]", r"end.*\[1\]")
        for p, where in zip(bad, places, strict=True):
            for function in (chain.log_partition, chain.marginals, chain.entropy, chain.viterbi):
                with pytest.raises(ValueError, match=where):
                    function(p, path=path)
    lengths = torch.tensor([[True, False], [True, True]])
    stuck = ChainPotentials(torch.zeros(2, 2, 2), torch.full((2, 2), -math.inf), lengths)
    for function in (chain.log_partition, chain.marginals, chain.entropy, chain.viterbi):
        with pytest.raises(ValueError, match=r"no answer of example 1 \(2 real .* reached at position 1\."):
            function(stuck, path=path)
    with pytest.raises(ValueError, match=r"no answer of example 1 \(2 real"):
        chain.nll(stuck, torch.zeros(2, 2).long(), path=path)
    alone = ChainPotentials(stuck.unary[:1], stuck.pairwise, lengths[:1])  # needs no pair
    assert chain.log_partition(alone, path=path).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("path", SUMS)
def test_rules_that_leave_nothing_are_told_by_where_they_end(path: chain.Path) -> None:
    pairwise = torch.full((3, 3), -math.inf)
    pairwise[1, 2] = 0
    with pytest.raises(ValueError, match=r"no answer of example 0 .* no tag can be reached at position 2\."):
        chain.log_partition(ChainPotentials(torch.zeros(1, 5, 3), pairwise), path=path)
    holes = torch.tensor([[False, True, True, False, True]])
    with pytest.raises(ValueError, match=r"\(3 real positions\) .* no tag can be reached at position 4\."):
        chain.viterbi(ChainPotentials(torch.zeros(1, 5, 3), pairwise, holes), path=path)
    end = torch.tensor([0.0, 0.0, -math.inf])
    with pytest.raises(ValueError, match="reached at its last position may end it"):
        chain.marginals(ChainPotentials(torch.zeros(1, 2, 3), pairwise, end=end), path=path)
    start = torch.full((3,), -math.inf)
    with pytest.raises(ValueError, match=r"reached at position 0\."):
        chain.entropy(ChainPotentials(torch.zeros(1, 2, 3), torch.zeros(3, 3), start=start), path=path)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("path", SUMS)
def test_gold_tags_that_are_forbidden_are_told_by_place(path: chain.Path, scale: float) -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[True] * 5, [True, False, True, True, True]])
    gold, never = torch.tensor([[0] * 5, [0, -100, 2, 1, 0]]), -math.inf
    for name, place, says in (
        ("unary", (1, 3, 1), "the unary score of tag 1 at position 3 is -inf"),
        ("pairwise", (0, 2), "the pairwise score of tag 2 at position 2 after tag 0 is -inf"),
        ("start", (0,), "the start score of tag 0 at position 0 is -inf"),
        ("end", (0,), "the end score of tag 0 at position 4 is -inf"),
    ):
        unary, pairwise = scale * torch.randn(2, 5, 3), scale * torch.randn(3, 3)
        p = ChainPotentials(unary, pairwise, mask, torch.zeros(3), torch.zeros(3))
        assert chain.nll(p, gold, path=path).isfinite().all()
        getattr(p, name)[place] = never
        row = 0 if name in ("start", "end") else 1
        with pytest.raises(ValueError, match=f"gold tags of example {row} are forbidden: {says}"):
            chain.nll(p, gold, path=path)
    tables = torch.zeros(2, 4, 3, 3)
    tables[1, 2, 0, 0] = never
    with pytest.raises(ValueError, match=r"example 1 .* of tag 0 at position 3 after tag 0"):
        chain.nll(ChainPotentials(torch.zeros(2, 5, 3), tables), torch.zeros(2, 5).long())


@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
def test_decoded_spans_obey_their_scheme(scheme: str) -> None:
    torch.manual_seed(0)
    kinds = [f"{prefix}-{kind}" for kind in ("NP", "VP") for prefix in scheme.replace("O", "")]
    tags = ["O", *kinds]
    rules = Constraints.for_spans(tags, scheme)
    p = rules.on(ChainPotentials(3 * torch.randn(50, 6, len(tags)), torch.zeros(len(tags), len(tags))))
    for path in SUMS:
        for row in [*chain.viterbi(p, path=path).tags, *chain.sample(p, 1)[0]]:
            assert _is_well_formed([tags[s] for s in row], scheme)
        assert chain.marginals(p, path=path).sum(-1).allclose(torch.ones(50, 6))
    torch.testing.assert_close(chain.log_partition(p), chain.log_partition(p, path="reference"))
    best, _ = chain.k_best(p, 3)
    for row in best.flatten(0, 1):
        assert _is_well_formed([tags[s] for s in row], scheme)
    highest = chain.max_marginals(p)
    torch.testing.assert_close(highest.amax(-1), chain.viterbi(p).score.unsqueeze(1).expand(-1, 6))
    forbidden = [not tag.startswith(("B", "O", "S")) for tag in tags]
    assert highest[:, 0, forbidden].eq(-math.inf).all()


def _is_well_formed(tags: list[str], scheme: str) -> bool:
    """By reading from left to right: which kind of span is open."""
    kind = ""
    for tag in tags:
        prefix, _, this = tag.partition("-")
        if prefix in ("I", "E") and this != kind:
            return False
        if scheme == "BIOES" and prefix not in ("I", "E") and kind:
            return False
        kind = this if prefix in ("B", "I") else ""
    return scheme == "BIO" or not kind


def test_constraints_refuse_what_is_no_tag() -> None:
    with pytest.raises(ValueError, match="'E-NP' is no tag of BIO"):
        Constraints.for_spans(["O", "E-NP"])
    for tag in ("B", "I-", "O-", "O-NP", "-NP", ""):
        with pytest.raises(ValueError, match=f"'{tag}' is no tag of BIO"):
            Constraints.for_spans(["O", "B-NP", tag])
    with pytest.raises(ValueError, match="BIO or BIOES"):
        Constraints.for_spans(["O"], "IOB2")


def test_a_chain_energy_is_minus_the_score_of_its_potentials() -> None:
    torch.manual_seed(0)
    energy = ChainEnergy(nn.Linear(5, 3), 3, ends=True).double()
    nn.init.normal_(energy.start), nn.init.normal_(energy.end)
    x, mask = torch.randn(2, 4, 5).double(), torch.tensor([[True] * 4, [True, True, False, False]])
    tags = torch.randint(0, 3, (2, 4))
    y = one_hot(tags, 3).double() * mask.unsqueeze(-1)
    p = energy.potentials(x, mask)
    close(energy(x, y, mask), -p.score(tags))
    relaxed = (y * 0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: energy(x, y, mask), relaxed)
    many = torch.rand(6, 2, 4, 3).double()
    close(energy(x, many)[4], energy(x, many[4]))
    plain = ChainEnergy(nn.Linear(5, 3), 3, pairwise_std=0.0).double()
    close(plain(x, y), -(plain.net(x) * y).sum((1, 2)))
