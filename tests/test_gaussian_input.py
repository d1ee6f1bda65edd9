"""Scores that make no Gaussian field, or one at the edge of its precision; which path is taken."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from energies.gaussian import CapEmbeddings, GaussianPotentials, RaiseRidge
from gaussian_fields import field
from inference import gaussian
from inference.gaussian.criteria import CrossEntropy
from inference.gaussian.solve import Cholesky, ConjugateGradient


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scores_that_are_not_finite_are_named(value: float) -> None:
    p = field(2, 3, 2, 2)
    p.unary[1, 2, 0] = value
    for path in ("woodbury", "cg", "dense"):
        with pytest.raises(ValueError, match="example 1 has a unary score that is not finite"):
            gaussian.mode(p, path)
    with pytest.raises(ValueError, match="example 1 has a unary score that is not finite"):
        gaussian.log_partition(p)
    hidden = GaussianPotentials(p.unary, p.embedding, mask=torch.tensor([[True] * 3, [True, True, False]]))
    assert bool(gaussian.mode(hidden.definite()).isfinite().all())
    q = field(2, 3, 2, 2)
    q.embedding[1, 0, 1] = value
    says = "example 1 has an embedding that is not finite"
    for path in ("woodbury", "cg", "dense"):
        with pytest.raises(ValueError, match=says):
            gaussian.mode(q, path)
    for policy in (CapEmbeddings(), RaiseRidge()):
        with pytest.raises(ValueError, match=says):
            CrossEntropy().loss(replace(q, policy=policy), torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("mask", [None, torch.ones(0, 3, dtype=torch.bool)])
def test_an_empty_batch_has_empty_results(mask: torch.Tensor | None) -> None:
    p = GaussianPotentials(torch.zeros(0, 3, 2), torch.zeros(0, 3, 4), mask=mask)
    assert gaussian.mode(p).shape == (0, 3, 2) and gaussian.variances(p).shape == (0, 3)
    assert gaussian.log_partition(p).shape == (0,)


@pytest.mark.parametrize(
    ("unary", "embedding", "options", "says"),
    [
        ((2, 3, 1), (2, 3, 4), {}, "two labels or more"),
        ((2, 3, 2), (2, 4, 4), {}, "make no Gaussian field"),
        ((2, 0, 2), (2, 0, 4), {}, "no positions or no features"),
        ((2, 3, 2), (2, 3, 0), {}, "no positions or no features"),
        ((2, 3, 2), (2, 3, 4), {"ridge": 0.0}, "ridge is 0"),
        ((2, 3, 2), (2, 3, 4), {"ridge": torch.inf}, "ridge is inf: take a finite number"),
        ((2, 3, 2), (2, 3, 4), {"ridge": torch.ones(3)}, "one for each of the 2 examples"),
        ((2, 3, 2), (2, 3, 4), {"mask": torch.ones(2, 4, dtype=torch.bool)}, "need bool of shape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    unary: tuple[int, ...], embedding: tuple[int, ...], options: dict, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        GaussianPotentials(torch.zeros(unary), torch.zeros(embedding), **options)


def test_scores_of_two_types_take_the_wider_and_integers_are_refused() -> None:
    p = field(2, 3, 2, 4)
    wide = GaussianPotentials(p.unary, p.embedding.float(), torch.tensor(1.5))
    assert gaussian.mode(wide).dtype == torch.float64 and wide.ridge == 1.5
    torch.testing.assert_close(gaussian.mode(wide), gaussian.mode(p), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"embedding scores are torch.int64: call .float()"):
        GaussianPotentials(p.unary, torch.ones(2, 3, 4, dtype=torch.long))


@pytest.mark.parametrize("path", ["woodbury", "cg", "dense"])
def test_embeddings_whose_products_overflow_are_named(path: gaussian.Path) -> None:
    a = torch.ones(2, 3, 4)
    a[1] = 1e20
    loud = GaussianPotentials(torch.ones(2, 3, 2), a)
    with pytest.raises(ValueError, match="example 1 has embeddings whose products are not finite in float32"):
        gaussian.mode(loud, path)
    with pytest.raises(ValueError, match="example 1 has embeddings whose products"):
        loud.definite()


def test_conjugate_gradient_that_runs_out_of_steps_says_so() -> None:
    draw = torch.Generator().manual_seed(0)
    unary, a = torch.randn(2, 1024, 2, generator=draw), torch.randn(2, 1024, 64, generator=draw)
    eigenvalues = torch.stack([torch.linspace(0, 0.5, 64), 1 - torch.logspace(-6, 0, 64)])
    edge = GaussianPotentials(unary, torch.linalg.qr(a).Q * eigenvalues.sqrt().unsqueeze(1))
    with pytest.warns(UserWarning, match=r"its 148 steps: in example 1 a relative residual of .*float64"):
        gaussian.mode(edge, "cg")
    exact = GaussianPotentials(unary.double(), edge.embedding.double())
    torch.testing.assert_close(
        gaussian.mode(exact, "woodbury"), gaussian.mode(exact, "dense"), rtol=1e-6, atol=1e-4
    )


def test_factors_are_taken_unless_features_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for kind in (Cholesky, ConjugateGradient):
        monkeypatch.setattr(gaussian, kind.__name__, _noted(kind, taken))
    for positions, features in ((1024, 256), (1024, 300), (4800, 300), (100, 300)):
        gaussian.mode(GaussianPotentials(torch.ones(1, positions, 2), torch.zeros(1, positions, features)))
    assert taken == [Cholesky, ConjugateGradient, Cholesky, Cholesky]


def _noted(kind: type, taken: list[type]) -> Callable:
    def make(*args: Any, **options: Any) -> Any:  # noqa: ANN401
        taken.append(kind)
        return kind(*args, **options)

    return make


def test_conjugate_gradient_is_stationary_where_scores_have_no_part_in_what_is_unbounded() -> None:
    torch.manual_seed(0)
    a = torch.randn(1, 12, 3, dtype=torch.float64)
    unary = torch.randn(1, 12, 1, dtype=torch.float64).expand(-1, -1, 2)  # the same for both labels
    p = GaussianPotentials(unary, a, ridge=0.5 * float(torch.linalg.matrix_norm(a[0], 2)) ** 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gaussian.mode(p, "cg", tolerance=1e-12).requires_grad_()
    (slope,) = torch.autograd.grad(p.quadratic(found).sum(), found)
    assert slope.abs().max() < 1e-9
    with pytest.warns(UserWarning, match="example 0 has no best answer"):
        gaussian.mode(p, "woodbury")


@pytest.mark.parametrize("name", ["unary", "embedding", "mask"])
def test_arrays_of_numpy_are_named(name: str) -> None:
    given = {
        "unary": torch.zeros(2, 3, 2),
        "embedding": torch.zeros(2, 3, 4),
        "mask": torch.ones(2, 3).bool(),
    }
    p = object.__new__(GaussianPotentials)  # the shape checks of tests would look at its arguments first
    p.__dict__.update(given | {name: given[name].numpy()})
    with pytest.raises(TypeError, match=f"{name} is a ndarray: give a tensor, as torch.as_tensor makes it"):
        p.__post_init__()
