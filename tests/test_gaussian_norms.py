"""Norms of large and masked Gaussian fields, half precision, and the reference on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from energies.gaussian import GaussianPotentials
from gaussian_fields import field, written_out
from inference import gaussian


@pytest.mark.parametrize("masked", [False, True])
def test_the_norm_of_many_positions_is_estimated_from_pairs(masked: bool) -> None:
    p = field(3, 300, 2, 4, masked=masked)
    exact = torch.stack([torch.tensor(np.abs(written_out(p, row)[0]).mean()) for row in range(3)])
    torch.testing.assert_close(p.pairwise_norm(), exact, rtol=0.1, atol=0)
    torch.testing.assert_close(p.pairwise_norm(), p.pairwise_norm(), rtol=0, atol=0)  # the same pairs
    torch.testing.assert_close(p.times(1.0, 3.0).pairwise_norm(), 3 * p.pairwise_norm())


def test_the_pairs_of_a_masked_field_are_those_of_its_real_positions() -> None:
    p = field(2, 2000, 2, 4)
    mask = torch.zeros(2, 2000, dtype=torch.bool)
    mask[0, 700:760] = mask[1, ::20] = True
    p = replace(p, mask=mask)
    exact = torch.stack([torch.tensor(np.abs(written_out(p, row)[0]).mean()) for row in range(2)])
    torch.testing.assert_close(p.pairwise_norm(), exact, rtol=0.1, atol=0)
    assert not replace(p, mask=torch.zeros_like(mask)).pairwise_norm().any()


def test_half_precision_is_converted_and_stays_so_under_autocast() -> None:
    p = GaussianPotentials(torch.randn(2, 9, 2).bfloat16(), torch.randn(2, 9, 3).half() / 9)
    assert p.unary.dtype == p.embedding.dtype == torch.float32
    wanted = p.largest_eigenvalue()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(p.largest_eigenvalue(), wanted)
        assert gaussian.mode(p).isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_reference_solves_and_refuses_as_on_the_cpu() -> None:
    p = field(2, 6, 2, 3)
    there = replace(p, unary=p.unary.cuda(), embedding=p.embedding.cuda())
    torch.testing.assert_close(gaussian.mode(there, "dense").cpu(), gaussian.mode(p, "dense"))
    with pytest.raises(ValueError, match="example 0 has no best answer"):
        gaussian.log_partition(there.times(1.0, 1e3))
