"""Solutions of A x = b from products, against dense ones."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from inference.bilevel import Neumann
from inference.linear import Product, Vector, conjugate_gradient, dot, neumann, row_dot

DOUBLE = torch.float64


def spectrum(values: list[float], seed: int = 0) -> Tensor:
    """A symmetric matrix with these eigenvalues."""
    g = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=g, dtype=DOUBLE))
    return basis @ torch.diag(torch.tensor(values, dtype=DOUBLE)) @ basis.T


def times(matrix: Tensor) -> Product:
    """Products with vectors that come in two tensors of unequal shapes."""

    def product(z: Vector) -> Vector:
        return two(matrix @ torch.cat([t.flatten() for t in z]))

    return product


def two(flat: Tensor) -> Vector:
    return [flat[:4].view(2, 2), flat[4:]]


def one(z: Vector) -> Tensor:
    return torch.cat([t.flatten() for t in z])


B = two(torch.tensor([1.0, -2, 0.5, 3, 0, 1.5], dtype=DOUBLE))
POSITIVE = [0.5, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_the_series_of_a_number_is_the_one_worked_by_hand() -> None:
    # A = 2, b = 1, c = 4: z = 1, 1/2, 1/4; x = (7/4) / 4; with damping 1: z = 1, 1/4, 1/16; x = (21/16) / 4
    b = [torch.tensor([1.0])]
    assert neumann(lambda z: [2 * z[0]], b, terms=2, divisor=4.0).x[0].item() == 7 / 16
    assert neumann(lambda z: [2 * z[0]], b, terms=2, divisor=4.0, damping=1.0).x[0].item() == 21 / 64
    assert neumann(lambda z: [2 * z[0]], b, terms=0, divisor=4.0).x[0].item() == 1 / 4


def test_the_series_comes_nearer_with_each_term_where_the_divisor_is_the_largest_eigenvalue_or_more() -> None:
    matrix = spectrum(POSITIVE)
    right = torch.linalg.solve(matrix, one(B))
    for divisor in (5.0, 8.0):
        found = [neumann(times(matrix), B, terms=k, divisor=divisor) for k in range(0, 200, 10)]
        errors = [(one(f.x) - right).norm().item() for f in found]
        assert all(after < before for before, after in itertools.pairwise(errors))
        assert errors[-1] < 1e-4 and not any(f.diverged for f in found)
        lengths = [f.left.item() for f in found]
        assert lengths == sorted(lengths, reverse=True)


def test_the_series_stops_at_the_last_good_term_where_the_divisor_is_too_small() -> None:
    matrix = spectrum(POSITIVE)
    divisor = 2.0  # under half of 5
    good, z = 0, one(B)
    while True:
        after = z - matrix @ z / divisor
        if after.norm() > z.norm():
            break
        good, z = good + 1, after
    found = neumann(times(matrix), B, terms=400, divisor=divisor)
    assert found.diverged and one(found.x).isfinite().all()
    torch.testing.assert_close(one(found.x), one(neumann(times(matrix), B, terms=good, divisor=divisor).x))
    assert not neumann(times(matrix), B, terms=good, divisor=divisor).diverged
    assert found.curvature == pytest.approx(divisor * (1 + (after.norm() / z.norm()).item()))
    assert 2 * divisor < found.curvature <= 5


def test_a_negative_eigenvalue_stops_the_series_and_damping_lets_it_go_on() -> None:
    matrix = spectrum([-0.5, 1.0, 2.0, 3.0, 4.0, 5.0])
    found = neumann(times(matrix), B, terms=60, divisor=6.0)
    assert found.diverged and -0.5 <= found.curvature < 0
    damped = neumann(times(matrix), B, terms=400, divisor=6.0, damping=1.0)
    right = torch.linalg.solve(matrix + torch.eye(6, dtype=DOUBLE), one(B))
    assert not damped.diverged
    torch.testing.assert_close(one(damped.x), right)


@pytest.mark.parametrize("solve", [neumann, conjugate_gradient])
def test_what_is_tensor_and_what_is_number_makes_no_difference(solve: object) -> None:
    matrix = spectrum(POSITIVE)
    if solve is neumann:
        a = neumann(times(matrix), B, terms=7, divisor=6.0, damping=0.3)
        b = neumann(times(matrix), B, terms=7, divisor=torch.tensor(6.0), damping=torch.tensor(0.3))
    else:
        a = conjugate_gradient(times(matrix), B, steps=4, damping=0.3)
        b = conjugate_gradient(times(matrix), B, steps=4, damping=torch.tensor(0.3, dtype=DOUBLE))
    torch.testing.assert_close(one(a.x), one(b.x), rtol=1e-6, atol=1e-7)


def test_conjugate_gradient_is_exact_after_as_many_steps_as_there_are_eigenvalues() -> None:
    matrix = spectrum([1.0, 1.0, 1.0, 4.0, 4.0, 9.0])
    right = torch.linalg.solve(matrix, one(B))
    found = conjugate_gradient(times(matrix), B, steps=3)
    torch.testing.assert_close(one(found.x), right)
    assert found.left < 1e-12 and not found.diverged
    early = conjugate_gradient(times(matrix), B, steps=2)
    assert (one(early.x) - right).norm() > 1e-3 and early.left > 1e-3
    torch.testing.assert_close(early.left, (matrix @ one(early.x) - one(B)).norm() / one(B).norm())


def test_conjugate_gradient_goes_on_harmlessly_after_it_has_arrived() -> None:
    matrix = spectrum(POSITIVE)
    found = conjugate_gradient(times(matrix), B, steps=60, tolerance=1e-10)
    torch.testing.assert_close(one(found.x), torch.linalg.solve(matrix, one(B)))
    nothing = conjugate_gradient(times(matrix), two(torch.zeros(6, dtype=DOUBLE)), steps=3)
    assert one(nothing.x).abs().max() == 0 and not nothing.diverged and nothing.left == 0


def test_conjugate_gradient_names_the_direction_that_is_not_positive() -> None:
    found = conjugate_gradient(times(-spectrum(POSITIVE)), B, steps=5)
    assert found.diverged and -5 <= found.curvature <= -0.5 and one(found.x).abs().max() == 0


def test_systems_side_by_side_are_solved_each_for_itself() -> None:
    g = torch.Generator().manual_seed(1)
    matrices = torch.stack(
        [spectrum([1.0, 2.0, 3.0], 1), spectrum([1.0, 5.0, 90.0], 2), -spectrum([1.0, 2, 3])]
    )
    b = torch.randn(3, 3, generator=g, dtype=DOUBLE)

    def product(z: Vector) -> Vector:
        return [(matrices @ z[0].unsqueeze(-1)).squeeze(-1)]

    found = conjugate_gradient(product, [b], steps=3, dot=row_dot)
    right = torch.linalg.solve(matrices, b)
    torch.testing.assert_close(found.x[0][:2], right[:2])
    assert found.diverged.squeeze(1).tolist() == [False, False, True]
    series = neumann(product, [b], terms=300, divisor=4.0, dot=row_dot)
    torch.testing.assert_close(series.x[0][0], right[0])
    assert series.diverged.squeeze(1).tolist() == [False, True, True]


@pytest.mark.parametrize("terms", [0, 1, 9])
@pytest.mark.parametrize(
    ("eigenvalues", "scale"),
    [
        (POSITIVE, 1.0),
        (POSITIVE, 0.0),
        ([*POSITIVE[:5], 40.0], 1.0),
        ([-3.0, *POSITIVE[1:]], 1.0),
        ([math.inf] * 6, 1.0),
        (POSITIVE, math.inf),
    ],
)
def test_looking_at_numbers_on_the_way_changes_nothing(
    terms: int, eigenvalues: list[float], scale: float
) -> None:
    finite = spectrum([min(v, 1e3) for v in eigenvalues])
    matrix = finite if math.isfinite(sum(eigenvalues)) else finite * math.inf
    b = [scale * t for t in B]
    looking = Neumann(terms)(times(matrix), b, divisor=5.0, damping=0.1, dot=dot)
    blind = neumann(times(matrix), b, terms=terms, divisor=5.0, damping=0.1)
    torch.testing.assert_close(looking.x, blind.x)
    assert looking.diverged == blind.diverged
    torch.testing.assert_close(looking.curvature, blind.curvature)
    torch.testing.assert_close(looking.left, blind.left, equal_nan=True)


def test_a_product_that_is_its_own_argument_is_not_written_to() -> None:
    b = [torch.tensor([3.0, 4.0])]
    found = neumann(lambda z: z, b, terms=3, divisor=2.0)
    torch.testing.assert_close(found.x[0], torch.tensor([3.0, 4.0]) * (1 + 1 / 2 + 1 / 4 + 1 / 8) / 2)
    assert b[0].tolist() == [3, 4]
    assert dot(b, b) == 25


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_a_divisor_that_is_none_is_refused_or_told(bad: float) -> None:
    with pytest.raises(ValueError, match="take a positive number"):
        neumann(times(spectrum(POSITIVE)), B, terms=2, divisor=bad)
    found = neumann(times(spectrum(POSITIVE)), B, terms=2, divisor=torch.tensor(bad))
    assert found.diverged and one(found.x).abs().max() == 0


def test_a_product_that_is_not_finite_leaves_nothing() -> None:
    for bad in (math.nan, math.inf):
        found = neumann(lambda z, bad=bad: [t * bad for t in z], B, terms=3, divisor=2.0)
        assert found.diverged and one(found.x).abs().max() == 0 and found.curvature == 0
        searched = conjugate_gradient(lambda z, bad=bad: [t * bad for t in z], B, steps=3)
        assert searched.diverged and one(searched.x).abs().max() == 0


def test_fewer_products_than_none_are_refused() -> None:
    with pytest.raises(ValueError, match="0 products or more"):
        neumann(times(spectrum(POSITIVE)), B, terms=-1, divisor=1.0)
    with pytest.raises(ValueError, match="0 products or more"):
        conjugate_gradient(times(spectrum(POSITIVE)), B, steps=-1)
