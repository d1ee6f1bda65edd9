"""The CUDA kernels of the chain against log space in float64; without a GPU they run in Triton's interpreter.

The interpreter sees no races and no limits of the hardware: the last tests need a GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # counts only before anything imports triton
triton = pytest.importorskip("triton", reason="triton is not installed: it comes with .[dev] on Linux")
if not ON_GPU and isinstance(triton.language.max, triton.JITFunction):
    raise RuntimeError("TRITON_INTERPRET=1 came too late, triton was imported before: set it in conftest.py")
import inference.chain  # noqa: E402
from energies.potentials import ChainPotentials  # noqa: E402
from inference.chain.kernels import triton_chain as kernels  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
FORBIDDEN = float("-inf")
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow) encountered")
Chain = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def chain(
    lengths: list[int], tags: int, scale: float = 1.0, seed: int = 0, dtype: torch.dtype = TYPES[0]
) -> Chain:
    """Random potentials; what stands at padding must not matter, so it is NaN."""
    generator = torch.Generator().manual_seed(seed)
    batch, time = len(lengths), max(lengths)
    unary = torch.randn(batch, time, tags, generator=generator) * scale
    for b, length in enumerate(lengths):
        unary[b, length:] = float("nan")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rest = [torch.randn(size, generator=generator) * scale for size in [(tags, tags), (tags,), (tags,)]]
    pairwise, start, end = (x.to(DEVICE, wide) for x in rest)
    return unary.to(DEVICE, dtype), pairwise, start, end, torch.tensor(lengths, device=DEVICE)


def wanted_log_z(unary: Tensor, pairwise: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Log Z of one sequence (T, S), by the definition."""
    reached = unary[0] + start
    for row in unary[1:]:
        reached = torch.logsumexp(reached[:, None] + pairwise, 0) + row
    return torch.logsumexp(reached + end, 0)


def wanted(problem: Chain) -> tuple[Tensor, Tensor, Tensor]:
    """Log Z (B,), marginals (B, T, S) and expected transitions (S, S) in float64."""
    unary, pairwise, start, end = (x.detach().double().cpu() for x in problem[:4])
    pairwise.requires_grad_()
    log_z, marginals = [], torch.zeros_like(unary)
    for b, length in enumerate(problem[4].tolist()):
        rows = unary[b, :length].clone().requires_grad_()
        log_z.append(wanted_log_z(rows, pairwise, start, end) if length else rows.sum())
        marginals[b, :length] = torch.autograd.grad(log_z[-1], rows, retain_graph=True)[0]
    total = torch.stack(log_z)
    transitions = torch.autograd.grad(total.sum(), pairwise, allow_unused=True, materialize_grads=True)[0]
    return total.detach(), marginals, transitions


def transitions_of(found: kernels.Sweep, pairwise: Tensor) -> Tensor:
    """Expected transitions of the batch, as the contract of `Sweep` says."""
    counts = torch.einsum("bts,btr->sr", found.alpha[:, :-1].double(), found.right[:, 1:].double())
    return counts * (pairwise - pairwise.max()).double().exp()


def assert_equal(found: kernels.Sweep, problem: Chain, tolerance: float) -> None:
    """All of a sweep is right, and it says so."""
    log_z, marginals, transitions = wanted(problem)
    assert found.safe.all()
    torch.testing.assert_close(found.log_z.double().cpu(), log_z, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.marginals.double().cpu(), marginals, rtol=0, atol=tolerance)
    torch.testing.assert_close(
        transitions_of(found, problem[1]).cpu(), transitions, rtol=tolerance, atol=tolerance
    )


def path_scores(problem: Chain, tags: Tensor) -> Tensor:
    """Score of an answer (B, T) in float64."""
    unary, pairwise, start, end = (x.double() for x in problem[:4])
    scores = []
    for b, length in enumerate(problem[4].tolist()):
        path = tags[b, :length]
        if not length:
            scores.append(unary.new_zeros(()))
            continue
        local = unary[b, torch.arange(length), path].sum() + pairwise[path[:-1], path[1:]].sum()
        scores.append(local + start[path[0]] + end[path[-1]])
    return torch.stack(scores)


def best_score(problem: Chain) -> Tensor:
    """Score of the best answer in float64."""
    unary, pairwise, start, end = (x.double() for x in problem[:4])
    best = unary.new_zeros(len(unary))
    for b, length in enumerate(problem[4].tolist()):
        reached = unary[b, 0] + start
        for row in unary[b, 1:length]:
            reached = (reached[:, None] + pairwise).amax(0) + row
        best[b] = (reached + end).amax() if length else 0
    return best


@pytest.mark.parametrize("dtype", TYPES[:3], ids=str)
@pytest.mark.parametrize("tags", [1, 5, 26, 64, 100])
def test_a_sweep_gives_log_z_marginals_and_transitions(tags: int, dtype: torch.dtype) -> None:
    problem = chain([6, 1, 4], tags, dtype=dtype)
    found = kernels.sweep(*problem)
    assert found.log_z.dtype == torch.float64 and found.alpha.dtype == problem[1].dtype
    assert_equal(found, problem, 1e-12 if dtype == torch.float64 else 3e-6)


@pytest.mark.parametrize("lengths", [[1], [1, 1], [12, 3, 0, 9], [9], [8, 8]], ids=str)
def test_lengths_are_honoured(lengths: list[int]) -> None:
    problem = chain(lengths, 5)
    found = kernels.sweep(*problem)
    assert_equal(found, problem, 3e-6)
    padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    for kept in (found.marginals, found.alpha, found.right):
        assert (kept.cpu()[padding] == 0).all()
    assert (found.right[:, 0] == 0).all()


def test_an_empty_sequence_has_log_z_zero() -> None:
    problem = chain([3, 0], 4)
    found = kernels.sweep(*problem)
    assert found.log_z[1] == 0 and found.safe[1]
    tags, score = kernels.viterbi(*problem)
    assert score[1] == 0 and (tags[1] == 0).all()


def test_forbidden_transitions_and_tags_have_no_probability() -> None:
    unary, pairwise, start, end, lengths = chain([7, 5], 6)
    pairwise[2, 3] = pairwise[4, 4] = start[1] = end[5] = unary[0, 3, 2] = FORBIDDEN
    problem = (unary, pairwise, start, end, lengths)
    found = kernels.sweep(*problem)
    assert_equal(found, problem, 3e-6)
    assert transitions_of(found, pairwise)[2, 3] == 0 and found.marginals[0, 3, 2] == 0


@pytest.mark.parametrize("scale", [1.0, 5.0, 20.0, 100.0, 1e4])
def test_a_sweep_is_right_or_says_that_it_may_not_be(scale: float) -> None:
    problem = chain([12, 12, 9, 2], 23, scale=scale)
    found = kernels.sweep(*problem)
    safe = found.safe.cpu()
    assert safe.all() if scale <= 5 else not safe.all()
    log_z, marginals, _ = wanted(problem)
    torch.testing.assert_close(found.log_z.cpu().double()[safe], log_z[safe], rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(
        found.marginals.cpu().double()[safe], marginals[safe], rtol=0, atol=1e-5 + 1e-6 * scale
    )


@pytest.mark.parametrize("score", [FORBIDDEN, float("inf"), float("nan")], ids=str)
def test_a_position_without_a_finite_score_is_not_safe(score: float) -> None:
    problem = chain([5, 5], 4)
    problem[0][1, 2] = score
    assert kernels.sweep(*problem).safe.tolist() == [True, False]


def test_a_way_that_was_lost_and_counts_in_the_end_is_noticed() -> None:
    """One way loses 60 at each step, the other 110 at once, which underflows; the second is the better."""
    unary = torch.tensor([[[0.0, -110.0], [-60.0, 0.0], [-60.0, 0.0]]], device=DEVICE)
    pairwise = torch.tensor([[0.0, FORBIDDEN], [FORBIDDEN, 0.0]], device=DEVICE)
    ends = torch.zeros(2, device=DEVICE)
    assert not kernels.sweep(unary, pairwise, ends, ends, torch.tensor([3], device=DEVICE)).safe


@pytest.mark.parametrize("dtype", TYPES[:3], ids=str)
@pytest.mark.parametrize("tags", [1, 5, 26, 64, 100])
def test_viterbi_finds_the_best_answer(tags: int, dtype: torch.dtype) -> None:
    problem = chain([6, 1, 4], tags, dtype=dtype)
    best, score = kernels.viterbi(*problem)
    torch.testing.assert_close(path_scores(problem, best), best_score(problem))
    torch.testing.assert_close(score.double(), best_score(problem), rtol=1e-5, atol=1e-5)
    assert best[1, 1:].sum() == 0 and best[2, 4:].sum() == 0


@pytest.mark.parametrize("scale", [100.0, 1e4])
def test_viterbi_needs_no_guard(scale: float) -> None:
    unary, pairwise, start, end, lengths = chain([9, 7], 11, scale=scale)
    pairwise[:, 3] = start[2] = FORBIDDEN
    problem = (unary, pairwise, start, end, lengths)
    best, score = kernels.viterbi(*problem)
    torch.testing.assert_close(path_scores(problem, best), best_score(problem))
    torch.testing.assert_close(score.double(), best_score(problem), rtol=1e-5, atol=1e-5)


def test_of_equal_answers_the_first_tags_are_taken() -> None:
    problem = (torch.zeros(1, 4, 7), torch.zeros(7, 7), torch.zeros(7), torch.zeros(7), torch.tensor([4]))
    best, _ = kernels.viterbi(*(x.to(DEVICE) for x in problem))
    assert (best == 0).all()


def test_too_many_tags_are_refused_with_advice() -> None:
    problem = chain([2], kernels.MAX_TAGS + 1)
    for call in (kernels.sweep, kernels.viterbi):
        with pytest.raises(ValueError, match="at most 128 tags"):
            call(*problem)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_triton_path_has_the_answers_and_slopes_of_log_space(dtype: torch.dtype) -> None:
    unary, *shared, _ = chain([7, 7, 7], 5, dtype=dtype)
    leaves = [x.requires_grad_() for x in (unary, *shared)]
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0]]) == 1
    p = ChainPotentials(unary, shared[0], mask.to(DEVICE), *shared[1:])
    tags, weight = torch.full((3, 7), 2, device=DEVICE), torch.tensor([1.0, 0.3, 2.0], device=DEVICE)
    fast, slow = (inference.chain.nll(p, tags, path=path) for path in ("triton", "reference"))
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    slopes = [torch.autograd.grad((rows * weight).sum(), leaves) for rows in (fast, slow)]
    torch.testing.assert_close(*slopes, rtol=1e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-5)
    found, right = (inference.chain.viterbi(p, path=path) for path in ("triton", "reference"))
    assert torch.equal(found.tags, right.tags)
    torch.testing.assert_close(found.score, right.score)


@pytest.mark.parametrize("kind", ["plain", "forbidden", "large", "late turn"])
def test_the_triton_path_falls_back_where_it_must_and_has_second_derivatives(kind: str) -> None:
    """The late turn: tags that never change, of which only a bad beginning leads to the good middle."""
    unary, pairwise, start, end, _ = (x.double() for x in chain([6, 6, 6, 6], 5))
    if kind == "forbidden":
        pairwise[0, 1], pairwise[1, 2] = FORBIDDEN, -1e4
    if kind == "large":
        unary = 100 * unary
    if kind == "late turn":
        unary, pairwise = torch.zeros_like(unary), torch.full_like(pairwise, FORBIDDEN).fill_diagonal_(0)
        unary[:, :, 0], unary[:, (0, -1), 0] = 20, -100
    tags = torch.zeros(4, 6, dtype=torch.long, device=DEVICE)
    found = []
    for path, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (unary, pairwise, start, end)]
        p = ChainPotentials(leaves[0], leaves[1], None, *leaves[2:])
        rows = inference.chain.nll(p, tags, path=path)
        slopes = torch.autograd.grad(rows.sum(), leaves, create_graph=kind == "plain")
        answers = [rows, *slopes, inference.chain.entropy(p, path=path)]
        if kind == "plain":
            answers += torch.autograd.grad(sum(x.square().sum() for x in slopes), leaves)
        found.append([x.double() for x in answers])
    for fast, right in zip(*found, strict=True):
        torch.testing.assert_close(fast, right, rtol=2e-5, atol=2e-5)


def test_the_kernels_compile_without_a_gpu(tmp_path: Path) -> None:
    """In a process of its own: this one may interpret."""
    script = Path(__file__).with_name("compile_chain_kernels.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(script.parents[1]), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device: real threads, real memory")


@needs_gpu
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("tags", [23, 64, 128])
def test_on_a_gpu_long_chains_are_right_and_repeat(tags: int, dtype: torch.dtype) -> None:
    lengths = torch.randint(1, 201, (48,), generator=torch.Generator().manual_seed(1)).tolist()
    problem = chain([200, *lengths], tags, dtype=dtype)
    first, decoded = kernels.sweep(*problem), kernels.viterbi(*problem)
    assert_equal(first, problem, 1e-10 if dtype == torch.float64 else 3e-5)
    torch.testing.assert_close(path_scores(problem, decoded[0]), best_score(problem), rtol=1e-6, atol=1e-3)
    for _ in range(20):
        for one, other in zip(first, kernels.sweep(*problem), strict=True):
            assert torch.equal(one, other)
        for one, other in zip(decoded, kernels.viterbi(*problem), strict=True):
            assert torch.equal(one, other)
