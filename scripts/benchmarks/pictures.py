"""What the parts of the schemes on pictures cost: masks by a network that reads both, their search, windows.

    python -m scripts.benchmarks.pictures

Parity first: both sides of each comparison return the same. CPU time, one thread, the networks of horses at
24x24. For a training step of FCN-CE see scripts.benchmarks.training, for the Gaussian field
scripts.benchmarks.gaussian_training.
"""

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from energies.masks import MaskEnergy
from energies.spaces import PixelMasks
from inference.gradient import Blank, GradientInference
from networks.fcn import FCN, AveragedCrops, Windows
from scripts.options import alone
from scripts.peers.timing import show, side_by_side

PICTURES, SIZE, SIDE, STEPS = 4, 24, 32, 10
SAMPLES = (1, 16, 48)  # masks a picture


def of_samples() -> dict[str, dict[str, float]]:
    """Microseconds a mask: energies and the gradient of the weights, in one call or mask by mask."""
    energy, x = MaskEnergy(dropout=0.0), torch.rand(PICTURES, 3, SIZE, SIZE)
    found = {}
    for k in SAMPLES:
        masks = torch.rand(k, PICTURES, SIZE, SIZE)

        def at_once(y: Tensor = masks) -> Tensor:
            return _learnt(energy, lambda: energy(x, y).sum())

        def one_by_one(y: Tensor = masks) -> Tensor:
            return _learnt(energy, lambda: torch.stack([energy(x, mask).sum() for mask in y]).sum())

        torch.testing.assert_close(at_once(), one_by_one(), rtol=1e-3, atol=1e-3)
        times = side_by_side({"in one call": at_once, "mask by mask": one_by_one}, repeats=1)
        found[f"K = {k}"] = {name: spent / (k * PICTURES) for name, spent in times.items()}
    return found


def _learnt(energy: MaskEnergy, loss: Callable[[], Tensor]) -> Tensor:
    """The gradient of the first layer, after a backward pass to all weights."""
    energy.zero_grad()
    loss().backward()
    assert energy.first.weight.grad is not None
    return energy.first.weight.grad.clone()


def of_search() -> dict[str, dict[str, float]]:
    """Microseconds a step of gradient-based inference on a window: the picture's part once, or each time."""
    energy, x = MaskEnergy(dropout=0.0), torch.rand(PICTURES, 3, SIZE, SIZE)
    space, search = PixelMasks(), GradientInference(Blank(), STEPS)
    like = torch.zeros(PICTURES, SIZE, SIZE)
    with torch.no_grad():
        given = energy.given(x)

    def anew(y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            y = y.requires_grad_()
            value = energy(x, y)
            return value.detach(), torch.autograd.grad(value.sum(), y)[0]

    calls = {
        "picture read once": partial(search, given.value_and_gradient, space, like),
        "picture read at each step": partial(search, anew, space, like),
    }
    one, other = (call().y for call in calls.values())
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    times = side_by_side(calls, repeats=1)
    return {"a window": {name: spent / (STEPS * PICTURES) for name, spent in times.items()}}


def of_windows() -> dict[str, dict[str, float]]:
    """Microseconds of an answer by 36 windows of a picture: window by window, or all in one call."""
    torch.manual_seed(0)
    net, windows, x = FCN().eval(), Windows(SIZE), torch.rand(PICTURES, 3, SIDE, SIDE)
    crops = AveragedCrops(net).eval()

    @torch.no_grad()
    def at_once() -> Tensor:
        cut = torch.stack([window for (window,) in windows.cut(x)])
        return windows.mean(net(cut.flatten(0, 1)).sigmoid().unflatten(0, cut.shape[:2]), x)

    @torch.no_grad()
    def one_by_one() -> Tensor:
        return crops(x).sigmoid()

    torch.testing.assert_close(at_once(), one_by_one(), rtol=1e-3, atol=1e-3)
    times = side_by_side({"window by window": one_by_one, "all in one call": at_once}, repeats=1)
    return {"a picture": {name: spent / PICTURES for name, spent in times.items()}}


def main() -> None:
    """Check, time, print."""
    show("a mask: its energy and the gradient of the weights", of_samples(), "in one call")
    show("a step of gradient-based inference", of_search(), "picture read once")
    show("an answer by 36 windows", of_windows(), "window by window")


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
