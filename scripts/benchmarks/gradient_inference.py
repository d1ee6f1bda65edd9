"""Cost of gradient-based inference: the closed-form energy gradient against autograd.

    python -m scripts.benchmarks.gradient_inference

Parity first: all ways give the same energies, gradients and answers. CPU time, one thread, batch of 32. Whole
searches are over the energies of SEAL's DVN rows. Autograd through the whole energy computes its network
again at every step, as the released code does.
"""

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from energies.base import Energy, SumEnergy, ValueAndGradient, differentiated
from energies.chain import ChainEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.spaces import LabelSets
from inference.gradient import Blank, GradientInference, composed
from inference.guesses import GuessContext
from losses.objectives import Objective, Regression
from networks.mlp import LabelMLP
from scripts.options import alone
from scripts.peers.timing import show, side_by_side

SIZES = [(159, 16), (159, 200), (983, 200), (3993, 200), (3993, 300)]  # labels, patterns
CHAINS = [(10, 16, 25), (32, 15, 17), (32, 113, 17)]  # sentences, positions, tags
NETS = {"bibtex": (1836, 159, 1, 300), "delicious": (500, 983, 2, 500), "eurlexev": (5000, 3993, 2, 500)}
READINGS = {"bibtex": (1836, 159, 1, 150), "cal500": (68, 174, 1, 150)}
PATTERNS, STEPS = 200, 20


def mixes() -> dict[str, dict[str, float]]:
    """Microseconds of the label-mix energy and its gradient in the answer."""
    found = {}
    for labels, patterns in SIZES:
        torch.manual_seed(0)
        energy, x, y = LabelMixEnergy(labels, patterns), torch.zeros(32, 1), torch.rand(1, 32, labels)
        closed: ValueAndGradient = energy.value_and_gradient(x)
        autograd: ValueAndGradient = partial(differentiated, energy.given(x))
        functional = torch.func.grad_and_value(lambda y, e=energy, x=x: e(x, y).sum())
        for got, want in zip(closed(y), autograd(y), strict=True):
            torch.testing.assert_close(got, want)
        torch.testing.assert_close(functional(y)[0], autograd(y)[1])
        calls = {"closed form": closed, "autograd.grad": autograd, "torch.func": functional}
        found[f"L={labels} G={patterns}"] = side_by_side(
            {name: partial(call, y) for name, call in calls.items()}, repeats=50
        )
    return found


def chains() -> dict[str, dict[str, float]]:
    """Microseconds of a chain's energy and its gradient in the answer, for sentences of various lengths."""
    found = {}
    for sentences, length, tags in CHAINS:
        torch.manual_seed(0)
        real = torch.arange(length) < torch.randint(3, length + 1, (sentences, 1))
        real[0] = True
        energy = ChainEnergy(nn.Linear(8, tags), tags, ends=True)
        given = energy.given(torch.randn(sentences, length, 8), real)
        y = torch.randn(1, sentences, length, tags).softmax(-1) * real.unsqueeze(-1)
        autograd = partial(differentiated, given)
        for got, want in zip(given.value_and_gradient(y), autograd(y), strict=True):
            torch.testing.assert_close(got, want)
        calls = {"closed form": partial(given.value_and_gradient, y), "autograd.grad": partial(autograd, y)}
        found[f"{sentences}x{length}x{tags}"] = side_by_side(calls, repeats=50)
    return found


def searches() -> dict[str, dict[str, float]]:
    """Microseconds a step of a search that starts from the input."""
    found = {}
    for name, (features, labels, layers, width) in NETS.items():
        torch.manual_seed(0)
        local = LocalEnergy(LabelMLP(features, labels, num_layers=layers, width=width))
        energy, space = SumEnergy(local, LabelMixEnergy(labels, PATTERNS)).eval(), LabelSets(labels)
        search, x = GradientInference(Blank(), steps=STEPS), (torch.rand(32, features) < 0.04).float()

        def whole(x: Tensor, e: Energy = energy) -> ValueAndGradient:
            def value_and_gradient(y: Tensor) -> tuple[Tensor, Tensor]:
                with torch.enable_grad():
                    rows = e(x, y.requires_grad_())
                    (gradient,) = torch.autograd.grad(rows.sum(), y)
                return rows.detach(), gradient

            return value_and_gradient

        def once(x: Tensor, e: Energy = energy) -> ValueAndGradient:
            return partial(differentiated, e.given(x))

        @torch.no_grad()
        def run(
            slope: Callable[[Tensor], ValueAndGradient],
            s: GradientInference = search,
            p: LabelSets = space,
            x: Tensor = x,
        ) -> Tensor:
            return s(slope(x), p, x).y

        calls = {
            "closed form": partial(run, energy.value_and_gradient),
            "autograd, network once": partial(run, once),
            "autograd, whole energy": partial(run, whole),
        }
        for call in calls.values():
            torch.testing.assert_close(call(), calls["closed form"](), rtol=0, atol=1e-3)
        times = side_by_side(calls, repeats=3)
        found[name] = {call: time / STEPS for call, time in times.items()}
    return found


def readings() -> dict[str, dict[str, float]]:
    """Microseconds a step of a search by DVN's reading of its energy, from the input."""
    found = {}
    for name, (features, labels, layers, width) in READINGS.items():
        torch.manual_seed(0)
        local = LocalEnergy(LabelMLP(features, labels, num_layers=layers, width=width))
        energy = SumEnergy(local, LabelMixEnergy(labels, 16)).eval()
        x, objective = (torch.rand(32, features) < 0.04).float(), Regression()
        case = GuessContext(energy, objective, LabelSets(labels), x, torch.zeros(32, labels))
        search = GradientInference(Blank(), steps=STEPS)

        def reading(e: Tensor, _: Tensor, o: Objective = objective) -> Tensor:
            return o.inference_energy(e)

        calls = {
            "written out": partial(case.search, search, objective.inference_value_and_gradient),
            "autograd": partial(case.search, search, partial(composed, target=reading)),
        }
        if not torch.equal(calls["written out"]().y, calls["autograd"]().y):
            raise SystemExit(f"{name}: the searches end in different answers.")
        times = side_by_side(calls, repeats=20)
        found[name] = {call: time / STEPS for call, time in times.items()}
    return found


def main() -> None:
    """Check, time, print."""
    show(f"a step of a search of {STEPS} by -sigmoid(-E)", readings(), "written out")
    show("energy and gradient in the answer", mixes(), "closed form")
    show("the same of a linear chain", chains(), "closed form")
    show(f"a step of a search of {STEPS}, from the input", searches(), "closed form")


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
