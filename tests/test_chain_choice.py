"""Which path a chain takes, what it needs to be loaded, and what is loaded and compiled when."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from energies.potentials import ChainPotentials
from inference import chain
from inference.chain import paths as chain_paths
from inference.chain import reference as chain_reference
from inference.chain.kernels import fused_best


def run(code: str, root: Path, **variables: str) -> str:
    """What a new process that runs the code prints; it imports what PYTHONPATH names, then the project."""
    path = os.pathsep.join([*filter(None, [variables.pop("PYTHONPATH", "")]), str(root)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables | {"PYTHONPATH": path},
        cwd=Path(variables.get("TMPDIR", root)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_chains_imports_nothing_slow(root: Path) -> None:
    code = "import sys, torch; from inference import chain; print(*sys.modules)"
    loaded = set(run(code, root).split())
    assert "inference.chain" in loaded
    assert not loaded & {"torch._dynamo", "numba", "triton", "scipy", "matplotlib"}


WITHOUT_NUMBA = """
import warnings
import torch
from energies.potentials import ChainPotentials
from inference import chain

torch.manual_seed(0)
u, w = torch.randn(3, 5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
p, tags = ChainPotentials(u, w), torch.zeros(3, 5, dtype=torch.long)

def answers(path):
    loss = chain.nll(p, tags, path=path)
    slopes, best = torch.autograd.grad(loss.sum(), (u, w)), chain.viterbi(p, path=path)
    return loss, *slopes, chain.marginals(p, path=path), *best

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for mine, fused in zip(answers("auto") + answers("auto"), answers("fused") * 2):
        assert mine.equal(fused)
print(*[warning.message for warning in told], sep="\\n")
try:
    chain.viterbi(p, path="compiled")
except ValueError as error:
    print(error)
"""
FALLBACK = "Chains take the fused path, which is slower: "
REFUSAL = "the compiled path cannot be taken: "


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("raise ImportError('Numba needs NumPy 1.0 or less')", "ImportError: Numba needs NumPy 1.0 or less"),
        ("raise AttributeError('_ARRAY_API not found\\nand more')", "AttributeError: _ARRAY_API not found"),
        ("class config: DISABLE_JIT = 0", "ImportError: cannot import name 'njit' from 'numba'"),
    ],
)
def test_a_broken_numba_is_told_once_and_the_fused_path_taken(
    source: str, fault: str, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text(source)
    warning, refusal = run(WITHOUT_NUMBA, root, PYTHONPATH=str(tmp_path)).splitlines()
    assert warning.startswith(f"{FALLBACK}importing numba fails ({fault}") and "--force-reinstall" in warning
    assert refusal.startswith(f"{REFUSAL}importing numba fails ({fault}")


def test_where_numba_can_keep_nothing_the_fused_path_is_taken(root: Path, tmp_path: Path) -> None:
    """Files where numba would make its folders refuse it as a read-only installation does, root included."""
    for package in ("energies", "inference"):
        for source in (root / package).rglob("*.py"):
            copy = tmp_path / source.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    (tmp_path / "inference" / "chain" / "kernels" / "__pycache__").touch()
    (tmp_path / "file").touch()
    nowhere = {name: str(tmp_path / "file") for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    told = run(WITHOUT_NUMBA, root, PYTHONPATH=str(tmp_path), TMPDIR=str(tmp_path), **nowhere).splitlines()
    assert [line.split(":")[0] + ":" for line in told] == [FALLBACK.strip(), REFUSAL.strip()]
    assert all("set NUMBA_CACHE_DIR to a folder it can write to" in line for line in told)


def test_numba_told_not_to_compile_is_not_asked(root: Path) -> None:
    warning, refusal = run(WITHOUT_NUMBA, root, NUMBA_DISABLE_JIT="1").splitlines()
    assert (warning, refusal[: len(REFUSAL)]) == (f"{FALLBACK}NUMBA_DISABLE_JIT is set: unset it.", REFUSAL)


def test_the_path_fits_device_size_and_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    p = ChainPotentials(torch.zeros(2, 3, 2), torch.zeros(2, 2))
    monkeypatch.delenv("STRUCTURED_KERNELS", raising=False)
    assert chain_paths.pick(p, "auto") == "compiled"
    assert chain_paths.pick(ChainPotentials(p.unary, torch.zeros(2, 2, 2)), "auto") == "reference"
    wide = torch.empty(16, 1, 384)
    assert chain_paths.fastest(wide) == "fused"
    assert chain_paths.fastest(wide[1:]) == chain_paths.fastest(wide[..., 1:]) == "compiled"
    assert chain_paths.fastest(wide, maxima=True) == "compiled"
    monkeypatch.setenv("STRUCTURED_KERNELS", "off")
    assert chain_paths.pick(p, "auto") == "fused"
    monkeypatch.delenv("STRUCTURED_KERNELS")
    with pytest.raises(ValueError, match="no path 'quick'"):
        chain_paths.pick(p, "quick")


def test_without_numba_the_fused_path_is_taken_in_silence(root: Path, tmp_path: Path) -> None:
    hidden = "import importlib.util\nimportlib.util.find_spec = lambda name: None\n"
    (refusal,) = filter(None, run(hidden + WITHOUT_NUMBA, root).splitlines())
    assert refusal == f'{REFUSAL}numba is not installed: pip install numba, or use path="auto".'


LATER_CALLS = """
import torch
from energies.potentials import ChainPotentials
from inference import chain
from inference.chain.kernels import decode_loops, loops, tangent_loops
from scripts.compile_chain import every_loop

def compiled():
    files = decode_loops, loops, tangent_loops
    compiled_loops = {x for file in files for x in vars(file).values() if hasattr(x, "signatures")}
    return sum(len(loop.signatures) for loop in compiled_loops)

every_loop()
before = compiled()
for kind in (torch.float32, torch.float64, torch.bfloat16):
    u, w = torch.randn(4, 3, 5).to(kind).mT.requires_grad_(), torch.randn(3, 3).to(kind).T.requires_grad_()
    mask, tags = torch.rand(4, 5) < 0.5, torch.randint(3, (4, 5))
    for p in (ChainPotentials(u, w), ChainPotentials(u, w, mask, end=w[0].detach())):
        chain.nll(p, tags, path="compiled").sum().backward()
        chain.entropy(p, path="compiled").sum().backward()
        chain.marginals(p, path="compiled").square().sum().backward()
        chain.loss_augmented(p, torch.rand(4, 5, 3).to(kind), path="compiled")
print(before > 10, compiled() - before)
"""


def test_compiled_beforehand_no_later_call_compiles(root: Path) -> None:
    assert run(LATER_CALLS, root).split() == ["True", "0"]


def tied(*shape: int) -> Tensor:
    return torch.randint(-1, 2, shape).float()


@pytest.mark.parametrize("draw", [torch.randn, tied])
def test_the_fused_viterbi_finds_the_best_of_long_chains(
    draw: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every length, odd and even, with gaps and ties, all at once and in groups."""
    torch.manual_seed(0)
    mask = torch.rand(24, 40) < torch.linspace(0, 1, 24).unsqueeze(1)
    mask[-1] = True
    for size in (1, 5):
        p = ChainPotentials(draw(24, 40, size), draw(size, size), mask, draw(size), draw(size))
        want = chain_reference.viterbi(p)[1]
        for pairs in (2**20, 2 * size**2, 14 * size**2):
            monkeypatch.setitem(fused_best.PAIRS, "cpu", pairs)
            tags, score = chain.viterbi(p, path="fused")
            torch.testing.assert_close(score, want, rtol=1e-6, atol=1e-5)
            torch.testing.assert_close(p.score(tags), want, rtol=1e-6, atol=1e-5)
            assert not tags[~mask].any()
