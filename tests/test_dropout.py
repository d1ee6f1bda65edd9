"""Dropout has torch's numbers where torch draws by the same generator, and its law everywhere."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from networks.layers import Dropout

INTEL = "GenuineIntel" in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "")


def drawn(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output, its gradient and the state that the generator is left in."""
    torch.manual_seed(3)
    y = module(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    return y, gradient, torch.get_rng_state()


@pytest.mark.skipif(INTEL, reason="on Intel torch draws masks by MKL")
@pytest.mark.parametrize("shape", [(1,), (17,), (5, 3), (33, 100), (4, 7, 20)])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks_are_those_of_torch(shape: tuple[int, ...], p: float, dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    for turned in (x, x.movedim(0, -1)):
        for own, torchs in zip(drawn(Dropout(p), turned), drawn(nn.Dropout(p), turned), strict=True):
            assert torch.equal(own, torchs)


def test_a_share_of_p_is_dropped_and_the_rest_scaled() -> None:
    x = torch.ones(200_000)
    y = Dropout(0.3)(x)
    assert y.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert float((y == 0).float().mean()) == pytest.approx(0.3, abs=0.005)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_all_or_nothing_is_torchs_too(p: float) -> None:
    x = torch.randn(50)
    assert torch.equal(Dropout(p)(x), x * (1 - p))


def test_an_evaluated_network_keeps_its_input() -> None:
    x = torch.randn(50)
    assert Dropout(0.5).eval()(x) is x
