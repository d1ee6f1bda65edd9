"""Mean field against loops written out, and against the log Z it bounds."""

import math
import re

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from energies.potentials import ChainPotentials
from inference.base import Status
from inference.chain import reference as exact
from inference.chain.mean_field import MeanField, elbo

ORDERS = ["odd_even", "sequential"]


def chain(
    seed: int, length: int = 7, size: int = 3, *, scale: float = 2.0, ends: bool = False
) -> ChainPotentials:
    torch.manual_seed(seed)
    real = torch.arange(length) < torch.tensor([[length], [max(length - 3, 1)], [1]])
    ones = [torch.randn(size, dtype=torch.float64) for _ in range(2)] if ends else [None, None]
    unary = scale * torch.randn(3, length, size, dtype=torch.float64)
    return ChainPotentials(unary, scale * torch.randn(size, size, dtype=torch.float64), real, *ones)


def by_loops(p: ChainPotentials, order: str, sweeps: int) -> Tensor:
    """The q of each example, one number at a time; the potentials have no end scores."""
    answer = torch.zeros_like(p.unary)
    for b, positions in enumerate(m.nonzero().flatten().tolist() for m in p.real()):
        u, w = p.unary[b, positions].tolist(), p.pairwise.tolist()
        tags = range(len(w))

        def normal(scores: list[float]) -> list[float]:
            weights = [math.exp(s - max(scores)) for s in scores]
            return [x / sum(weights) for x in weights]

        q = [normal(row) for row in u]
        places = list(range(len(u)))
        turn = {"sequential": places, "odd_even": places[0::2] + places[1::2]}[order]
        for _ in range(sweeps):
            for t in turn:
                scores = [
                    u[t][s]
                    + (sum(q[t - 1][r] * w[r][s] for r in tags) if t else 0)
                    + (sum(w[s][r] * q[t + 1][r] for r in tags) if t + 1 < len(u) else 0)
                    for s in tags
                ]
                q[t] = normal(scores)
        answer[b, positions] = torch.tensor(q, dtype=torch.float64).view(-1, len(w))
    return answer


@given(st.integers(1, 8), st.integers(1, 3), st.sampled_from(ORDERS), st.integers(0, 99))
def test_sweeps_are_those_of_plain_loops(length: int, sweeps: int, order: str, seed: int) -> None:
    p = chain(seed, length)
    scores = MeanField(sweeps, order).scores(p)
    found = scores.softmax(-1) * p.real().unsqueeze(-1)
    torch.testing.assert_close(found, by_loops(p, order, sweeps))
    torch.testing.assert_close(MeanField(sweeps, order)(p).y, found)


@pytest.mark.parametrize("order", ORDERS)
def test_positions_left_out_in_between_are_stepped_over(order: str) -> None:
    p = chain(1)
    holes = torch.tensor([[1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]]).bool()
    p = ChainPotentials(p.unary, p.pairwise, holes)
    torch.testing.assert_close(MeanField(4, order)(p).y, by_loops(p, order, 4))


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_the_bound_never_falls_and_stays_below_log_z(order: str, ends: bool) -> None:
    for seed in range(10):
        p = chain(seed, ends=ends)
        bounds = torch.stack([-MeanField(k, order)(p).energy for k in range(1, 8)])
        assert (bounds.diff(dim=0) >= -1e-10).all()
        assert (bounds <= exact.log_partition(p) + 1e-10).all()


def test_the_answer_says_whether_the_last_sweep_changed_the_bound() -> None:
    p = chain(0)
    for sweeps, status in ((2, Status.OUT_OF_STEPS), (200, Status.CONVERGED)):
        found = MeanField(sweeps)(p)
        change = (MeanField(sweeps - 1)(p).energy - found.energy).max()
        assert found.status is status and bool(change > 1e-3) is (status is Status.OUT_OF_STEPS)


@pytest.mark.parametrize("order", ORDERS)
def test_without_couplings_mean_field_is_exact(order: str) -> None:
    p = chain(3)
    alone = ChainPotentials(p.unary, torch.zeros_like(p.pairwise), p.mask)
    found = MeanField(1, order)(alone)
    torch.testing.assert_close(found.y, exact.marginals(alone))
    torch.testing.assert_close(-found.energy, exact.log_partition(alone))


def test_the_bound_of_one_certain_answer_is_its_score() -> None:
    p = chain(4)
    y = torch.nn.functional.one_hot(p.unary.argmax(-1), 3).double() * p.real().unsqueeze(-1)
    torch.testing.assert_close(elbo(p, y), p.score(p.unary.argmax(-1)))


@pytest.mark.parametrize("order", ORDERS)
def test_gradients_flow_through_all_sweeps(order: str) -> None:
    p = chain(5, length=4, ends=True)
    given = [t.requires_grad_() for t in (p.unary, p.pairwise, p.start, p.end)]

    def q(unary: Tensor, pairwise: Tensor, start: Tensor, end: Tensor) -> Tensor:
        scores = MeanField(2, order).scores(ChainPotentials(unary, pairwise, p.mask, start, end))
        return scores.softmax(-1) * p.real().unsqueeze(-1)

    assert torch.autograd.gradcheck(q, given)


def test_a_table_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="one matrix of pairwise scores for all steps"):
        MeanField()(ChainPotentials(torch.zeros(1, 3, 2), torch.zeros(2, 2, 2)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused_by_name_and_place(value: float) -> None:
    places = {"unary": (1, 2, 0), "pairwise": (0, 1), "start": (2,), "end": (1,)}
    for name, place in places.items():
        p = chain(6, ends=True)
        getattr(p, name)[place] = value
        told = re.escape(f"mean field needs finite scores; a {name} score is {value} at index {list(place)}")
        for answer in (MeanField(), MeanField().scores):
            with pytest.raises(ValueError, match=told):
                answer(p)


def test_scores_at_masked_positions_and_scores_whose_sum_overflows_are_taken() -> None:
    p = chain(6)
    before = MeanField()(p).y
    p.unary[~p.real()] = math.nan
    torch.testing.assert_close(MeanField()(p).y, before)
    large = ChainPotentials(torch.full((1, 4, 2), 2e38), torch.zeros(2, 2))
    assert MeanField()(large).y.eq(0.5).all()


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 sweep, not 0"):
        MeanField(0)
    with pytest.raises(ValueError, match="no order 'even_odd' of sweeps; there are odd_even, sequential"):
        typed = object.__new__(MeanField)  # the tests' type checker stops the constructor before it looks
        object.__setattr__(typed, "order", "even_odd")
        typed.__post_init__()
