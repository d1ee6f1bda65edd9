"""Gaussian fields against the matrix written out: scores, norms, the best point, its gradients."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from energies.gaussian import CapEmbeddings, Definite, GaussianEnergy, GaussianPotentials, RaiseRidge
from energies.spaces import PixelMasks
from gaussian_fields import field, written_out
from inference import gaussian
from inference.base import Criterion
from inference.gaussian.criteria import CrossEntropy
from inference.gaussian.solve import Cholesky, ConjugateGradient, NotDefinite

LABELS = [2, 3, 5]


sizes = given(
    b=st.integers(1, 3),
    n=st.integers(1, 5),
    m=st.sampled_from(LABELS),
    d=st.integers(1, 8),
    seed=st.integers(0, 1000),
    signs=st.booleans(),
    masked=st.booleans(),
)
few = settings(max_examples=40, deadline=None)


@few
@sizes
def test_the_mode_solves_the_system_written_out(
    b: int, n: int, m: int, d: int, seed: int, signs: bool, masked: bool
) -> None:
    p = field(b, n, m, d, seed=seed, signs=signs, masked=masked)
    found = gaussian.mode(p).numpy()
    for row in range(b):
        w, u, real = written_out(p, row)
        expected = np.linalg.solve(w + p.ridge * np.eye(len(w)), u).reshape(m, -1).T
        np.testing.assert_allclose(found[row][real], expected, atol=1e-10)
        assert not found[row][~real].any()


@few
@sizes
def test_all_paths_find_the_same_mode_and_gradients(
    b: int, n: int, m: int, d: int, seed: int, signs: bool, masked: bool
) -> None:
    p = field(b, n, m, d, seed=seed, signs=signs, masked=masked)
    weights = torch.randn(p.unary.shape, dtype=torch.float64)
    found = {}
    for path in ("dense", "woodbury", "cg"):
        scores = [x.clone().requires_grad_() for x in (p.unary, p.embedding)]
        s = gaussian.mode(GaussianPotentials(scores[0], scores[1], p.ridge, p.mask), path, tolerance=1e-13)
        first = torch.autograd.grad((weights * s).sum(), scores, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), scores)
        found[path] = [s.detach(), *first, *second]
    for path in ("woodbury", "cg"):
        torch.testing.assert_close(found["dense"][0], found[path][0], atol=1e-10, rtol=0)
        for one, other in zip(found["dense"], found[path], strict=True):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


@few
@sizes
def test_the_log_partition_and_variances_are_those_of_the_normal_distribution_written_out(
    b: int, n: int, m: int, d: int, seed: int, signs: bool, masked: bool
) -> None:
    p = field(b, n, m, d, seed=seed, signs=signs, masked=masked)
    log_z, variances = gaussian.log_partition(p), gaussian.variances(p)
    for row in range(b):
        w, u, real = written_out(p, row)
        system = w + p.ridge * np.eye(len(w))
        inverse = np.linalg.inv(system)
        expected = (u @ inverse @ u + len(w) * np.log(2 * np.pi) - np.linalg.slogdet(system)[1]) / 2
        assert log_z[row].item() == pytest.approx(expected, abs=1e-9)
        of_labels = np.diag(inverse).reshape(m, -1)
        np.testing.assert_allclose(of_labels, np.tile(variances[row].numpy()[real], (m, 1)), atol=1e-10)


def test_conjugate_gradient_stops_each_column_by_itself() -> None:
    p = field(2, 30, 3, 4)
    easy = p.unary.clone()
    easy[0] = 1.0  # all labels alike: nothing is left of them but their mean
    _, a = p.flat()
    solver = ConjugateGradient(a, p.ridge, 3, tolerance=1e-10)
    found = solver(easy)
    assert solver.steps[0, 1:].tolist() == [0, 0] and bool((solver.steps[1] > 1).all())
    assert int(solver.steps.max()) <= 4 + 1  # rank 4: D + 1 distinct eigenvalues
    torch.testing.assert_close(found, Cholesky(a, p.ridge, 3)(easy))


@few
@sizes
def test_scores_and_norms_are_those_of_the_matrix_written_out(
    b: int, n: int, m: int, d: int, seed: int, signs: bool, masked: bool
) -> None:
    p = field(b, n, m, d, seed=seed, signs=signs, masked=masked)
    s = torch.randn(2, b, n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    scores, unary_norm, pairwise_norm = p.quadratic(s), p.unary_norm(), p.pairwise_norm()
    for row in range(b):
        w, u, real = written_out(p, row)
        for draw in range(2):
            point = s[draw, row].numpy()[real].T.reshape(-1)
            expected = -0.5 * point @ (w + p.ridge * np.eye(len(w))) @ point + u @ point
            assert scores[draw, row].item() == pytest.approx(expected, abs=1e-10)
        if real.any():
            assert unary_norm[row].item() == pytest.approx(np.abs(u).mean())
            assert pairwise_norm[row].item() == pytest.approx(np.abs(w).mean())
        mu = np.linalg.eigvalsh(w)[0] if real.any() else 0  # the lowest of W is minus the largest of K
        assert p.largest_eigenvalue()[row].item() == pytest.approx(-mu, abs=1e-10)


@pytest.mark.parametrize("policy", [CapEmbeddings(0.9), RaiseRidge(0.5)])
def test_the_share_is_that_of_the_field_that_inference_uses(policy: Definite) -> None:
    p = replace(field(2, 4, 3, 3).times(1.0, 9.0), policy=policy)
    mu = np.array([-np.linalg.eigvalsh(written_out(p, row)[0])[0] for row in range(2)])
    expected = 0.9 if isinstance(policy, CapEmbeddings) else (mu / (mu + 0.5)).mean()
    assert p.balances()["share"].item() == pytest.approx(expected)
    assert p.balances()["ratio"].item() == pytest.approx(
        float(p.unary_norm().mean() / p.pairwise_norm().mean())
    )


@pytest.mark.parametrize("m", LABELS)
def test_no_point_scores_higher_than_the_mode(m: int) -> None:
    p = field(2, 4, m, 3)
    best = gaussian.mode(p)
    for scale in (1e-3, 1.0):
        near = best + scale * torch.randn(100, *best.shape, dtype=torch.float64)
        assert bool((p.quadratic(near) < p.quadratic(best)).all())
    torch.testing.assert_close(gaussian.mode(p.times(3.0)), 3 * best)  # linear in U


@pytest.mark.parametrize("m", LABELS)
@pytest.mark.parametrize("d", [1, 6])
def test_gradients_of_the_mode_and_the_loss_are_right(m: int, d: int) -> None:
    p = field(2, 3, m, d)
    y = (
        torch.rand(2, 3, dtype=torch.float64)
        if m == 2
        else torch.rand(2, 3, m, dtype=torch.float64).softmax(-1)
    )

    def out(unary: Tensor, embedding: Tensor) -> tuple[Tensor, ...]:
        q = GaussianPotentials(unary, embedding, p.ridge)
        return gaussian.mode(q), CrossEntropy().loss(q, y), q.pairwise_norm(), q.score(y)

    scores = [x.clone().requires_grad_() for x in (p.unary, p.embedding)]
    assert torch.autograd.gradcheck(out, scores)
    assert torch.autograd.gradgradcheck(lambda u, a: gaussian.mode(GaussianPotentials(u, a, p.ridge)), scores)
    assert torch.autograd.gradcheck(
        lambda u, a: gaussian.log_partition(GaussianPotentials(u, a, p.ridge)), scores
    )


def test_the_gradient_is_the_papers(m: int = 3) -> None:
    """[Scaling eq. 15] g = dL/dU solves the system for dL/ds; dL/dA = -sum_m g_m r_m^T A + r_m g_m^T A."""
    p = field(1, 4, m, 2)
    unary, embedding = (x.clone().requires_grad_() for x in (p.unary, p.embedding))
    s = gaussian.mode(GaussianPotentials(unary, embedding, p.ridge))
    wanted = torch.randn_like(s)
    of_unary, of_embedding = torch.autograd.grad(s, (unary, embedding), wanted)
    g = gaussian.mode(GaussianPotentials(wanted, p.embedding, p.ridge))
    torch.testing.assert_close(of_unary, g)
    r = (s.sum(-1, keepdim=True) - s).detach()
    a = p.embedding
    by_hand = -(g @ (r.mT @ a) + r @ (g.mT @ a))
    torch.testing.assert_close(of_embedding, by_hand)


def loud_field() -> GaussianPotentials:
    """Three examples, of which the second has no maximum."""
    p = field(3, 4, 2, 3)
    louder = torch.tensor([1.0, 5.0, 1.0]).view(-1, 1, 1)
    return GaussianPotentials(p.unary, p.embedding * louder, p.ridge)


def test_the_reference_refuses_a_field_without_a_maximum_with_advice() -> None:
    loud = loud_field()
    mu = float(loud.largest_eigenvalue()[1])
    says = rf"example 1 .*A A\^T is {mu:.4g} and.*ridge, 1\.5\. Raise the ridge"
    with pytest.raises(ValueError, match=says):
        gaussian.mode(loud, "dense")
    for integral in (gaussian.log_partition, gaussian.variances):
        with pytest.raises(ValueError, match=says):
            integral(loud)


@pytest.mark.parametrize("path", ["auto", "woodbury", "cg"])
@pytest.mark.parametrize("policy", [CapEmbeddings(), RaiseRidge(0.2)])
def test_other_paths_warn_and_take_the_field_made_definite(path: gaussian.Path, policy: Definite) -> None:
    loud = replace(loud_field(), policy=policy)
    with pytest.warns(UserWarning, match="example 1 has no best answer.*This was done here"):
        found = gaussian.mode(loud, path, tolerance=1e-13)
    torch.testing.assert_close(found, gaussian.mode(loud.definite(), "dense"))


def test_capped_embeddings_change_only_examples_above_the_share() -> None:
    loud = loud_field()
    kept = loud.definite()
    assert kept.largest_eigenvalue()[1].item() == pytest.approx(0.9 * 1.5)
    torch.testing.assert_close(kept.embedding[[0, 2]], loud.embedding[[0, 2]])  # the others were definite
    assert kept.ridge == 1.5
    torch.testing.assert_close(kept.definite().embedding, kept.embedding)  # once more changes nothing


@few
@sizes
def test_the_raised_ridge_is_the_largest_eigenvalue_plus_the_margin(
    b: int, n: int, m: int, d: int, seed: int, signs: bool, masked: bool
) -> None:
    wild = field(b, n, m, d, seed=seed, signs=signs, masked=masked).times(1.0, 100.0)
    p = replace(wild, policy=RaiseRidge(0.3)).definite()
    torch.testing.assert_close(p.embedding, wild.embedding)
    torch.testing.assert_close(p.definite().ridge, p.ridge)
    found, log_z, variances = gaussian.mode(p).numpy(), gaussian.log_partition(p), gaussian.variances(p)
    points = torch.randn(p.unary.shape, dtype=torch.float64)
    scores = p.quadratic(points)
    for row in range(b):
        w, u, real = written_out(p, row)
        mu = max(0.0, -np.linalg.eigvalsh(w)[0]) if real.any() else 0.0
        ridge = float(p.ridge[row])
        assert ridge == pytest.approx(mu + 0.3)
        system = w + ridge * np.eye(len(w))
        inverse = np.linalg.inv(system)
        np.testing.assert_allclose(found[row][real], (inverse @ u).reshape(m, -1).T, atol=1e-8)
        expected = (u @ inverse @ u + len(w) * np.log(2 * np.pi) - np.linalg.slogdet(system)[1]) / 2
        assert log_z[row].item() == pytest.approx(expected, abs=1e-8)
        np.testing.assert_allclose(
            np.diag(inverse).reshape(m, -1)[0], variances[row].numpy()[real], atol=1e-8
        )
        s = points[row].numpy()[real].T.reshape(-1)
        assert scores[row].item() == pytest.approx(-0.5 * s @ system @ s + u @ s, abs=1e-8)
        assert p.rows(torch.tensor([row])).ridge.item() == ridge


@pytest.mark.parametrize("m", LABELS)
@pytest.mark.parametrize("policy", [CapEmbeddings(0.7), RaiseRidge(0.4)])
def test_gradients_under_both_policies_are_right_with_the_largest_eigenvalue_constant(
    m: int, policy: Definite
) -> None:
    """No gradient flows through mu_max: with scale and ridge fixed, finite differences agree."""
    p = field(2, 4, m, 3).times(1.0, 4.0)  # too loud for its ridge
    scores = [x.clone().requires_grad_() for x in (p.unary, p.embedding)]
    top = p.largest_eigenvalue()
    ridge = top + 0.4 if isinstance(policy, RaiseRidge) else p.ridge
    scale = 1.0 if isinstance(policy, RaiseRidge) else (0.7 * 1.5 / top).sqrt().view(-1, 1, 1)

    def by_hand(unary: Tensor, embedding: Tensor) -> Tensor:
        return gaussian.mode(GaussianPotentials(unary, scale * embedding, ridge))

    assert torch.autograd.gradcheck(by_hand, scores)
    assert torch.autograd.gradgradcheck(by_hand, scores)
    weights = torch.randn_like(p.unary)
    automatic = gaussian.mode(GaussianPotentials(*scores, p.ridge, policy=policy).definite())
    torch.testing.assert_close(automatic, by_hand(*scores))
    for one, other in zip(
        torch.autograd.grad(automatic, scores, weights),
        torch.autograd.grad(by_hand(*scores), scores, weights),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    for path in ("dense", "cg"):
        q = GaussianPotentials(p.unary, p.embedding, p.ridge, policy=policy).definite()
        torch.testing.assert_close(
            gaussian.mode(q, path, tolerance=1e-13), automatic.detach(), atol=1e-10, rtol=0
        )


def test_a_field_at_the_edge_of_its_precision_is_made_definite() -> None:
    a = torch.tensor([[[1.0], [0.0]], [[0.1], [0.1]]])  # the first has the eigenvalue 1, its ridge
    p = GaussianPotentials(torch.ones(2, 2, 2), a)
    with pytest.warns(UserWarning, match=r"example 0 has no best answer.*scales its embeddings down"):
        torch.testing.assert_close(gaussian.mode(p), gaussian.mode(p.definite(), "dense"))
    assert "example 3 has no best answer" in str(NotDefinite(3))


def test_masked_positions_change_nothing() -> None:
    short = field(1, 3, 2, 2)
    more = (
        torch.cat([short.unary, torch.full((1, 2, 2), 9.0)], 1),
        torch.cat([short.embedding, torch.full((1, 2, 2), torch.inf)], 1),
    )
    long = GaussianPotentials(*more, short.ridge, torch.tensor([[True] * 3 + [False] * 2]))
    y = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    padded = torch.nn.functional.pad(y, (0, 2), value=0.3)
    criterion = CrossEntropy()
    torch.testing.assert_close(gaussian.mode(long)[:, :3], gaussian.mode(short))
    torch.testing.assert_close(criterion.loss(long, padded), criterion.loss(short, y))
    torch.testing.assert_close(criterion.predict(long)[:, :3], criterion.predict(short))
    torch.testing.assert_close(long.score(padded), short.score(y))
    torch.testing.assert_close(
        long.pairwise_norm() / long.pairwise_unit, short.pairwise_norm() / short.pairwise_unit
    )
    assert not criterion.predict(long)[:, 3:].any()


def test_the_energy_of_masks_is_minus_the_score_of_its_field() -> None:
    torch.manual_seed(0)
    energy = GaussianEnergy(nn.Linear(5, 2), nn.Sequential(nn.Linear(5, 3), nn.ReLU()), ridge=0.5).double()
    x, y = torch.rand(2, 3, 4, 5, dtype=torch.float64), torch.rand(6, 2, 3, 4, dtype=torch.float64)
    p = energy.potentials(x, None).definite()
    s = torch.stack([1 - y, y], -1).flatten(2, 3)  # positions (3, 4) in one
    for row in range(2):
        features = energy.embedding_net(x[row]).flatten(0, 1) / 12**0.5
        scale = min(1.0, 0.9 * 0.5 / float(torch.linalg.eigvalsh(features @ features.T)[-1])) ** 0.5
        k = scale**2 * features @ features.T
        w = torch.kron(torch.ones(2, 2).double() - torch.eye(2).double(), k) + 0.5 * torch.eye(24).double()
        points = s[:, row].mT.flatten(1)
        unary = energy.unary_net(x[row]).flatten(0, 1).T.flatten()
        expected = 0.5 * (points @ w * points).sum(1) - points @ unary
        torch.testing.assert_close(energy(x, y)[:, row], expected)
    torch.testing.assert_close(energy.given(x)(y), -p.score(y))
    value, slope = energy.value_and_gradient(x)(y[0])
    step = 1e-6 * torch.randn_like(y[0])
    lower, upper = energy(x, y[0] - step), energy(x, y[0] + step)
    torch.testing.assert_close((upper - lower) / 2, (slope * step).sum((1, 2)), rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(value, energy(x, y[0]))


@few
@sizes
def test_one_solve_gives_the_losses_under_all_alphas(
    b: int, n: int, m: int, d: int, seed: int, signs: bool, masked: bool
) -> None:
    p, criterion = field(b, n, m, d, seed=seed, signs=signs, masked=masked), CrossEntropy()
    y = torch.rand(b, n, *[m] * (m > 2), dtype=torch.float64)
    alphas = torch.tensor([0.25, 1.0, 8.0], dtype=torch.float64)
    one_by_one = torch.stack([criterion.loss(p.times(float(alpha)), y) for alpha in alphas])
    for found in (criterion.losses, partial(Criterion.losses, criterion)):  # our own, and by repetition
        torch.testing.assert_close(found(p, y, alphas), one_by_one)


def test_one_solve_gives_the_losses_of_pictures() -> None:
    flat, criterion, y = field(2, 12, 2, 3, masked=True), CrossEntropy(), torch.rand(2, 12).double()
    assert flat.mask is not None
    picture = GaussianPotentials(
        flat.unary.view(2, 3, 4, 2), flat.embedding.view(2, 3, 4, 3), flat.ridge, flat.mask.view(2, 3, 4)
    )
    alphas = torch.tensor([0.5, 2.0], dtype=torch.float64)
    found = criterion.losses(picture, y.view(2, 3, 4), alphas)
    torch.testing.assert_close(found, criterion.losses(flat, y, alphas))


def test_predictions_are_answers_of_the_space() -> None:
    p = field(2, 12, 2, 3)
    picture = GaussianPotentials(p.unary.view(2, 3, 4, 2), p.embedding.view(2, 3, 4, 3), p.ridge)
    predicted = CrossEntropy().predict(picture)
    torch.testing.assert_close(predicted.flatten(1), gaussian.mode(p).softmax(-1)[..., 1])
    space = PixelMasks()
    assert space.decode(predicted).shape == (2, 3, 4)
    torch.testing.assert_close(space.relax(picture.logits()), picture.unary.softmax(-1)[..., 1])
