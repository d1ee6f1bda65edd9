"""The hypergradient of an energy against the packages that people use.

    python -m scripts.benchmarks.hypergradient

Parity first: each gradient is compared with float64; a package with a wrong one is reported and left out.
Then all are timed in turn, in several rounds: one thread, CPU time. The task-net is an MLP 1836-150-159 on a
batch of 32, the energy 159-16-1. Each call gets the batch and returns the gradient in the energy's
parameters. Beside each time is its ratio to the best other package's (under 1 is faster). Then follow the
cost by the number of products, the cost by the width of the input, the time of an outer iteration with each
solver, and the cheapest second derivative for a BiLSTM on tweets.

The others are not dependencies of this project. Packages that are not installed are reported and left out:

    pip install --no-deps --target peers --ignore-requires-python betty-ml==0.2.1
    pip install --no-deps --target peers torchopt==0.7.3 optree graphviz
    PYTHONPATH=peers python -m scripts.benchmarks.hypergradient
"""

import argparse
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from datamodules.batches import Batch, Batches
from energies.base import SumEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.spaces import LabelSets
from experiments.run.cli import quiet_lightning
from inference.bilevel import (
    Bilevel,
    ConjugateGradient,
    Dropped,
    Dual,
    Exact,
    FiniteDifference,
    ForwardDifference,
    Hypergradient,
    Identity,
    Neumann,
    Products,
    Solver,
    hypergradient,
    largest_curvature,
)
from inference.guesses import Combined, Point, Sampled
from lightning_modules.implicit import Implicit
from lightning_modules.metrics.multilabel import MultiLabelScores
from lightning_modules.metrics.sequence import SequenceScores
from losses.objectives import Contrastive
from networks.mlp import LabelMLP
from scripts.benchmarks.sequences import tweets, ways
from scripts.peers.bare import trainer
from scripts.peers.hypergradient import PEERS, Contender, Task
from scripts.peers.timing import print_table, show, side_by_side

BATCH, FEATURES, WIDTH, LABELS, PATTERNS = 32, 1836, 150, 159, 16
NUM_BATCHES = 60  # of an epoch in which outer iterations on label sets are timed
TWEET_BATCHES = 10
TERMS = (5, 20)
MORE_TERMS = (1, 5, 10, 20)
WIDTHS = (459, 918, 1836, 3672, 7344)
OURS: dict[str, Products] = {
    "ours, Dual": Dual(),
    "ours, Exact": Exact(),
    "ours, FiniteDifference": FiniteDifference(),
    "ours, ForwardDifference": ForwardDifference(),
}
SOLVERS: dict[str, Solver] = {
    "no implicit term": Dropped(),
    "identity": Identity(),
    "Neumann, K=1": Neumann(1),
    "Neumann, K=5": Neumann(5),
    "Neumann, K=20": Neumann(20),
    "conjugate gradient, 10 steps": ConjugateGradient(10, damping=0.1),
}
CD = (Contrastive(), Combined([Point(), Sampled(9)]), partial(torch.optim.Adam, lr=1e-3, fused=True))
whole = partial(Implicit, warm_up=0, damping=1.0)  # no series stops early
RIGHT = {
    "ours, FiniteDifference": 2e-2,
    "ours, ForwardDifference": 2e-2,
}  # largest relative error; 1e-6 for the others


def task_of(terms: int, *, features: int = FEATURES) -> Task:
    """A network after some steps of cross-entropy; a divisor above the largest curvature."""
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net = LabelMLP(features, LABELS, num_layers=1, width=WIDTH)
    x = (torch.rand(BATCH, features, generator=g) < 68 / features).float()
    y = (torch.rand(BATCH, LABELS, generator=g) < 2.4 / LABELS).float()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(20):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(net(x), y, reduction="none").sum(-1).mean().backward()
        optimizer.step()
    task = Task(net, LabelMixEnergy(LABELS, PATTERNS), x, y, 1.0, terms)
    return replace(task, divisor=1.1 * float(largest_curvature(task.bilevel(), Dual(), iterations=30)))


def own(products: Products, t: Task) -> Contender:
    """This project, with its check for divergence."""
    return lambda: found_by(products, t).gradient


def found_by(products: Products, t: Task) -> Hypergradient:
    """This project's hypergradient with all its fields."""
    return hypergradient(t.bilevel(), Neumann(t.terms), products, divisor=t.divisor)


def deviation(found: list[Tensor], right: Hypergradient) -> float:
    """Error of the gradient of all parameters, relative to the norm of the implicit gradient."""
    apart = sum(float((a.double() - b).square().sum()) for a, b in zip(found, right.gradient, strict=True))
    return math.sqrt(apart / sum(float(b.square().sum()) for b in right.implicit))


def contenders(t: Task) -> tuple[dict[str, Contender], dict[str, float], dict[str, str]]:
    """The contenders, their errors, and the reasons why others are left out.

    Raises:
        RuntimeError: the series of this task does not converge, so there is nothing to compare.
    """
    wide = t.double()
    reference = found_by(Exact(), wide)
    if bool(reference.diverged):
        raise RuntimeError("the series grew in float64: give the task a larger divisor.")
    makers: dict[str, Callable[[Task], Contender]] = {
        name: partial(own, products) for name, products in OURS.items()
    } | PEERS
    taking, errors, missing = {}, {}, {}
    for name, make in makers.items():
        try:
            call = make(t)
            error = deviation(call(), reference)
        except Exception as trouble:
            missing[name] = f"{type(trouble).__name__}: {str(trouble).strip().splitlines()[0]}"
            continue
        if error <= RIGHT.get(name, 1e-6):
            taking[name], errors[name] = call, error
        else:
            missing[name] = f"wrong: relative error {error:.1e}"
    return taking, errors, missing


def written(times: dict[str, float]) -> dict[str, str]:
    """Milliseconds, and the ratio to the best peer."""
    best = min((us for name, us in times.items() if name in PEERS), default=math.nan)
    return {name: f"{us / 1e3:.2f}  x{us / best:.2f}" for name, us in times.items()}


def compare(columns: dict[str, Task], title: str, repeats: int, *, without: tuple[str, ...] = ()) -> None:
    """Check, time and print."""
    times: dict[str, dict[str, str]] = {}
    errors: dict[str, dict[str, str]] = {}
    missing: dict[str, dict[str, str]] = {}
    for column, t in columns.items():
        taking, wrong_by, missing[column] = contenders(t)
        calls = {name: call for name, call in taking.items() if name not in without}
        times[column] = written(side_by_side(calls, repeats))
        errors[column] = {name: f"{error:.1e}" for name, error in wrong_by.items()}
    print_table(f"{title}, ms and ratio to the best peer", times)
    if not without:
        print_table("relative error against float64", errors)
    if any(missing.values()):
        print_table("left out", missing)


def on_label_sets(solver: Solver) -> tuple[Implicit, Batches]:
    """CD, five steps of the task-net to one of the energy; two-layer nets."""
    torch.manual_seed(0)

    def net() -> LabelMLP:
        return LabelMLP(FEATURES, LABELS, num_layers=2, width=WIDTH, dropout=0.5)

    energy = SumEnergy(LocalEnergy(net()), LabelMixEnergy(LABELS, PATTERNS))
    task_optimizer = partial(torch.optim.AdamW, lr=1e-3, fused=True)
    space, metric = LabelSets(LABELS), MultiLabelScores(LABELS)
    x = (torch.rand(NUM_BATCHES * BATCH, FEATURES) < 68 / FEATURES).float()
    y = (torch.rand(NUM_BATCHES * BATCH, LABELS) < 2.4 / LABELS).float()
    module = whole(net(), energy, *CD, task_optimizer, solver, Dual(), space=space, metric=metric)
    return module, Batches(x, y, batch_size=BATCH, seed=0)


def on_tweets(solver: Solver, products: Products) -> tuple[Implicit, Batches]:
    """The same of a BiLSTM and a chain."""
    of = ways()["separated"]
    (net,) = of.networks.predictors()
    task_optimizer = partial(torch.optim.SGD, lr=0.05, momentum=0.9, fused=True)
    space, metric = of.space, SequenceScores()
    module = whole(net, of.energy, *CD, task_optimizer, solver, products, space=space, metric=metric)
    return module, tweets()


def iterations(makers: Mapping[str, Callable[[], tuple[Implicit, Batches]]]) -> dict[str, float]:
    """Microseconds of an outer iteration, with its five task steps."""

    def epoch(make: Callable[[], tuple[Implicit, Batches]]) -> None:
        trainer().fit(*make())

    times = side_by_side({name: partial(epoch, make) for name, make in makers.items()}, repeats=1)
    return {name: us / len(makers[name]()[1]) for name, us in times.items()}


def tagging() -> dict[str, Callable[[], list[Tensor]]]:
    """Hypergradients of a chain's energy for a BiLSTM on ten batches of tweets, by kind of second derivative.

    Raises:
        RuntimeError: two kinds give different gradients.
    """
    module = ways()["separated"]
    (net,) = module.networks.predictors()

    def problem(batch: Batch) -> Bilevel:
        energy, space = module.energy.over(batch.mask), module.space.over(batch.mask)

        def inner(logits: Tensor) -> Tensor:
            return (space.supervise(logits, batch.y) + energy(batch.inputs, space.relax(logits))).mean()

        def outer(logits: Tensor) -> Tensor:
            guess = space.relax(logits)
            gap = energy(batch.inputs, batch.y) - energy(batch.inputs, guess)
            return (space.cost(guess, batch.y) + gap).clamp_min(0).mean()

        return Bilevel(net, batch.inputs, inner, outer, list(module.energy.parameters()))

    problems = [problem(batch) for batch in islice(tweets(), TWEET_BATCHES)]
    divisor = 1.5 * max(float(largest_curvature(p, Exact(), iterations=10)) for p in problems)

    def by(products: Products, *, fused: bool) -> list[Tensor]:
        with torch.backends.mkldnn.flags(enabled=fused):
            parts = [hypergradient(p, Neumann(5), products, divisor=divisor).implicit for p in problems]
        return [part.flatten() for several in parts for part in several]

    right = torch.cat(by(Exact(), fused=False))
    found: dict[str, Callable[[], list[Tensor]]] = {
        "central differences": partial(by, FiniteDifference(), fused=True),
        "forward differences": partial(by, ForwardDifference(), fused=True),
        "central differences, LSTM step by step": partial(by, FiniteDifference(), fused=False),
        "double backward": partial(by, Exact(), fused=True),
        "double backward, LSTM step by step": partial(by, Exact(), fused=False),
    }
    for name, call in found.items():
        if (torch.cat(call()) - right).norm() > 2e-2 * right.norm():
            raise RuntimeError(f"{name}: another gradient than by double backward.")
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.benchmarks.hypergradient", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--repeats", type=int, default=10, help="calls a round (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="without the costs by products and by width")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    quiet_lightning()
    torch.set_num_threads(1)
    compare({f"K={k}": task_of(k) for k in TERMS}, "hypergradient", arguments.repeats)
    if arguments.short:
        return
    few = ("ours, FiniteDifference", "ours, ForwardDifference", "torch.func, vjp of grad")
    compare({f"K={k}": task_of(k) for k in MORE_TERMS}, "by products", arguments.repeats, without=few)
    wide = {f"D={width}": task_of(5, features=width) for width in WIDTHS}
    compare(wide, "by input width, K=5", arguments.repeats, without=few)
    title = "an outer iteration, 5 steps of the task-net"
    sets = {name: partial(on_label_sets, solver) for name, solver in SOLVERS.items()}
    show(title, {"bibtex": iterations(sets)}, "no implicit term")
    ways_to_tag = {
        "no implicit term": partial(on_tweets, Dropped(), FiniteDifference()),
        "central differences, K=5": partial(on_tweets, Neumann(5), FiniteDifference()),
        "forward differences, K=5": partial(on_tweets, Neumann(5), ForwardDifference()),
    }
    show(title, {"tweets": iterations(ways_to_tag)}, "no implicit term")
    taken = {name: us / TWEET_BATCHES for name, us in side_by_side(tagging(), repeats=1).items()}
    show("hypergradient of a BiLSTM that tags ten tweets, K=5", {"POS": taken}, "central differences")


if __name__ == "__main__":
    main()
