"""Cost of one step of gradient-based inference: the closed-form energy gradient against autograd.

    python -m scripts.benchmark_gradient_inference

Parity first: all contenders give the same energies and gradients. CPU time, one thread, batch of 32.
"""

from functools import partial

import torch

from energies.base import Energy
from energies.mlc import LabelMixEnergy
from energies.spaces import LabelSets
from inference.gradient import Blank, GradientInference
from scripts.timing import show, side_by_side

SIZES = [(159, 16), (159, 400), (983, 200), (3993, 16), (3993, 400)]
STEPS = 10


def main() -> None:
    """Check, time, print."""
    slopes: dict[str, dict[str, float]] = {}
    searches: dict[str, dict[str, float]] = {}
    for labels, patterns in SIZES:
        torch.manual_seed(0)
        energy, x, y = LabelMixEnergy(labels, patterns), torch.zeros(32, 1), torch.rand(1, 32, labels)
        closed, autograd = energy.slope(x), Energy.slope(energy, x)
        functional = torch.func.grad_and_value(lambda y, e=energy, x=x: e(x, y).sum())
        for got, want in zip(closed(y), autograd(y), strict=True):
            torch.testing.assert_close(got, want)
        torch.testing.assert_close(functional(y)[0], autograd(y)[1])
        name = f"L={labels} G={patterns}"
        slopes[name] = side_by_side(
            {
                "closed form": partial(closed, y),
                "autograd.grad": partial(autograd, y),
                "torch.func": partial(functional, y),
            },
            repeats=50,
        )
        search, space = GradientInference(Blank(), steps=STEPS), LabelSets(labels)
        searches[name] = side_by_side(
            {
                "closed form": partial(search, closed, space, x),
                "autograd.grad": partial(search, autograd, space, x),
            },
            repeats=5,
        )
    show("energy and gradient in the answer", slopes, "closed form")
    show(f"whole search, {STEPS} steps of projected Adam", searches, "closed form")


if __name__ == "__main__":
    main()
