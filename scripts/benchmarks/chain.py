"""Linear chains against the packages that people use: loss and gradient, marginals, Viterbi.

    python -m scripts.benchmarks.chain [--large] [--wide] [--device cuda] [--shapes ocr] [--bandwidth 4300]

Parity first: the loss, gradient, marginals and best answers of each package are compared with float64; one
that fails is reported and left out. Then all are timed in turn, in several rounds: on a CPU with one thread,
in CPU time; on a GPU by events, and if possible again as a CUDA graph, which has no launch costs. Ours run as
usual, with the check for non-finite scores. Beside each time is its ratio to pytorch-crf's (under 1 is
faster).

The others are not dependencies of this project. Packages that are not installed are reported and left out:

    pip install --no-deps --target peers pytorch-crf==0.7.2 torchlatent==0.4.3 torchrua==0.5.0 supar==1.1.4
    pip install --no-deps --target peers TorchCRF==1.1.0 torch-struct==0.5
    pip install --no-deps --target peers --ignore-requires-python pyt-crf==0.1.2
    pip install --no-deps --target peers nltk stanza dill emoji transformers tokenizers  # for supar, and more
    PYTHONPATH=peers python -m scripts.benchmarks.chain

    python -m scripts.benchmarks.chain --warps     # on a GPU: how many warps a Triton program should have

Shapes: B examples, T positions, S tags.
"""

import argparse
import math
import warnings
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from torch import Tensor

from energies.potentials import ChainPotentials
from inference import chain
from scripts.peers.chain import PEERS, Contender, Task
from scripts.peers.timing import by_events, print_table, side_by_side

SHAPES = {  # B, T, S, real positions
    "ocr": (64, 14, 26, 524),
    "chunk": (32, 78, 23, 857),
    "ner": (32, 113, 17, 592),
    "mid": (32, 512, 64, 32 * 512),
    "large": (256, 512, 64, 256 * 512),
    "wide128": (32, 40, 128, 32 * 40),
    "few256": (4, 40, 256, 4 * 40),
    "wide256": (32, 40, 256, 32 * 40),
    "wide512": (16, 20, 512, 16 * 20),
}
WIDE = ["wide128", "few256", "wide256", "wide512"]  # where the choice of `auto` changes
BASE = "pytorch-crf 0.7.2"
OURS = {"cpu": ["auto", "compiled", "fused", "reference"], "cuda": ["auto", "triton", "fused", "reference"]}
# Pairs of tags at all positions, B T S S, above which a package needs too much memory
MOST_PAIRS = {"torch-struct 0.5": 3e7, "supar 1.1.4": 1e8, "TorchCRF 1.1.0": 1e8, "ours, reference": 1e8}
Calls = dict[str, Callable[[], object]]


def task_of(shape: tuple[int, int, int, int], device: str) -> Task:
    """Scores of scale 1; random lengths from 2 to T, with one T and the given sum."""
    batch, time, size, tokens = shape
    g = torch.Generator().manual_seed(0)
    lengths = torch.full((batch,), 2)
    lengths[0] = time
    while (spare := tokens - int(lengths.sum())) > 0:
        room = (lengths < time).nonzero().squeeze(1)
        chosen = room[torch.randperm(len(room), generator=g)[:spare]]
        lengths[chosen] += 1 if tokens < batch * time else time - 2
    mask = torch.arange(time) < lengths.unsqueeze(1)
    tags = torch.randint(size, (batch, time), generator=g) * mask
    scores = [torch.randn(s, generator=g) for s in [(batch, time, size), (size, size), (size,), (size,)]]
    scores[0] *= mask.unsqueeze(2)
    unary, pairwise, start, end = (x.to(device).requires_grad_() for x in scores)
    return Task(unary, pairwise, start, end, mask.to(device), lengths.to(device), tags.to(device))


def own(path: chain.Path, t: Task) -> Contender:
    """This project on one of its paths."""
    p = ChainPotentials(t.unary, t.pairwise, t.mask, t.start, t.end)
    still = ChainPotentials(*(x.detach() for x in (t.unary, t.pairwise, t.mask, t.start, t.end)))
    return Contender(
        [t.unary, t.pairwise, t.start, t.end],
        lambda: chain.nll(p, t.tags, path=path).sum(),
        lambda: chain.marginals(still, path=path),
        lambda: chain.viterbi(still, path=path).tags,
    )


def gradient(c: Contender) -> tuple[Tensor, ...]:
    """The gradient of a training step, of the chain alone."""
    return torch.autograd.grad(c.loss(), c.leaves)


def deviation(c: Contender, t: Task, right: Contender) -> float:
    """Largest error of the gradient in the scores of positions; raises an error if an answer is wrong.

    Task and reference are in float64.
    """
    torch.testing.assert_close(c.loss().double(), right.loss(), rtol=1e-4, atol=1e-2)
    found, expected = c.spread(gradient(c)[0]), gradient(right)[0]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-3)
    if c.marginals and right.marginals:
        belief = c.spread(c.marginals()).double() * t.mask.unsqueeze(2)
        torch.testing.assert_close(belief, right.marginals(), rtol=0, atol=5e-3)
    if c.viterbi and right.viterbi:
        p = ChainPotentials(t.unary.detach(), t.pairwise, t.mask, t.start, t.end)
        mine, best = (p.score(tags).detach() for tags in (c.spread(c.viterbi()), right.viterbi()))
        torch.testing.assert_close(mine, best, rtol=1e-6, atol=1e-3)
    return float((found.double() - expected).abs().max())


def contenders(t: Task, device: str) -> tuple[dict[str, Contender], dict[str, float], dict[str, str]]:
    """The contenders, their errors, and the reasons why others are left out."""
    wide = t.double()
    pairs = t.unary.numel() * t.pairwise.shape[0]
    right = own("fused" if pairs > MOST_PAIRS["ours, reference"] else "reference", wide)
    makers = {f"ours, {path}": partial(own, path) for path in OURS[device]} | PEERS  # type: ignore[arg-type]
    taking, errors, missing = {}, {}, {}
    for name, make in makers.items():
        if pairs > MOST_PAIRS.get(name, math.inf):
            missing[name] = "takes too much memory here"
            continue
        try:
            taking[name] = make(t)
            errors[name] = deviation(taking[name], wide, right)
        except Exception as error:
            taking.pop(name, None)
            missing[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return taking, errors, missing


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph.

    Raises:
        RuntimeError: the call synchronises with the device, so it cannot be captured.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def graphs(calls: Calls) -> Calls:
    """Those calls that can be captured, as CUDA graphs."""
    found: Calls = {}
    for name, call in calls.items():
        try:
            found[f"{name}, graph"] = captured(call)
        except RuntimeError:
            torch.cuda.synchronize()
    return found


def measure(calls: Calls, device: str, repeats: int) -> dict[str, float]:
    """Microseconds a call."""
    if device == "cpu":
        return side_by_side(calls, repeats)
    return by_events(calls | graphs(calls), repeats)


def written(times: dict[str, float]) -> dict[str, str]:
    """Milliseconds, and the ratio to the base if it was timed."""
    base = times.get(BASE)
    ratio = {name: f"  x{us / base:.3f}" if base else "" for name, us in times.items()}
    return {name: f"{us / 1e3:.3f}{ratio[name]}" for name, us in times.items()}


def distance(times: dict[str, float], t: Task, gigabytes: float) -> dict[str, str]:
    """The least bytes of a gradient, their time, and the ratio of our best time to it."""
    needed = 2 * int(t.lengths.sum()) * t.unary.shape[2] * t.unary.element_size()
    limit = needed / gigabytes / 1e3
    ours = min(us for name, us in times.items() if name.startswith("ours"))
    return {
        "bytes": f"{needed / 1e6:.2f} MB",
        "limit": f"{limit:.1f} us",
        "best of ours": f"x{ours / limit:.1f}",
    }


def compare(names: list[str], device: str, bandwidth: float) -> None:
    """Check, time and print each job at each shape."""
    tables: dict[str, dict[str, dict[str, str]]] = {
        job: {}
        for job in ("loss and gradient, ms", "marginals, ms", "Viterbi, ms", "error", "missing", "limit")
    }
    for shape in names:
        t = task_of(SHAPES[shape], device)
        column = "{} {}x{}x{} ({})".format(shape, *SHAPES[shape])
        Console(stderr=True).print(f"{column}: checking and timing ...")
        taking, errors, missing = contenders(t, device)
        repeats = 1 if shape in ("mid", "large", *WIDE) else 5
        jobs: dict[str, Calls] = {
            "loss and gradient, ms": {name: partial(gradient, c) for name, c in taking.items()},
            "marginals, ms": {name: c.marginals for name, c in taking.items() if c.marginals},
            "Viterbi, ms": {name: c.viterbi for name, c in taking.items() if c.viterbi},
        }
        times = {job: measure(calls, device, repeats) for job, calls in jobs.items()}
        for job, found in times.items():
            tables[job][column] = written(found)
        tables["error"][column] = {name: f"{error:.1e}" for name, error in errors.items()}
        tables["missing"][column] = missing
        tables["limit"][column] = distance(times["loss and gradient, ms"], t, bandwidth)
    for job in jobs:
        print_table(job, tables[job])
    print_table("largest error of the gradient, against float64", tables["error"])
    if any(tables["missing"].values()):
        print_table("left out", tables["missing"])
    if device == "cuda":
        print_table(f"to read the scores and write their gradient at {bandwidth:.0f} GB/s", tables["limit"])


def try_warps() -> None:
    """Microseconds of a Triton sweep, by number of warps: the basis of `triton_chain.WARPS`."""
    from inference.chain.kernels import triton_chain  # only here: the CPU needs no Triton

    columns: dict[str, dict[str, str]] = {}
    for size in (16, 32, 64, 128):
        t = task_of((256, 128, size, 256 * 128), "cuda")
        problem = [x.detach() for x in (t.unary, t.pairwise, t.start, t.end, t.lengths)]
        columns[f"{size} tags"] = {}
        for warps in (1, 2, 4, 8, 16):
            triton_chain.WARPS[size] = warps
            calls: Calls = {
                "sweep": partial(triton_chain.sweep, *problem),
                "Viterbi": partial(triton_chain.viterbi, *problem),
            }
            for job, us in by_events(calls, repeats=10).items():
                columns[f"{size} tags"][f"{job}, {warps} warps"] = f"{us:.0f}"
    print_table("microseconds, B=256 T=128", columns)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.benchmarks.chain", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--shapes", default="ocr,chunk,ner,mid", help="which, with commas (default: %(default)s)"
    )
    parser.add_argument("--large", action="store_true", help="and 256x512x64, which takes minutes on a CPU")
    parser.add_argument("--wide", action="store_true", help="and shapes of 128 tags and more")
    parser.add_argument("--bandwidth", type=float, default=4300, help="of the GPU's memory, in GB/s")
    parser.add_argument("--warps", action="store_true", help="time the Triton kernels alone, by warps")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if arguments.warps:
        try_warps()
        return
    names = [name for name in arguments.shapes.split(",") if name]
    names += ["large"] if arguments.large else []
    names += WIDE if arguments.wide else []
    compare(names, arguments.device, arguments.bandwidth)


if __name__ == "__main__":
    main()
