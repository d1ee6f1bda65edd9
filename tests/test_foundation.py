"""The ground the rest stands on: Makefile, pins, size budget, import rules, and how the scripts start."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from committed import committed
from losses.objectives import margin
from scripts import check_size

# Folders of one machine, and the ways to name a package index.
NOT_OURS_TO_TELL = re.compile(
    r"(?<![\w.~])/(work|tmp|root|home|opt)/|(extra-)?index-url|find-links|pypi\.org/simple"
)
# Each takes half a second or more; they are imported where they are used.
SLOW_PACKAGES = {"datasets", "matplotlib", "optuna", "pandas", "scipy", "sklearn", "tensorboard", "wandb"}
SLOW_PACKAGES |= {"transformers"}


def run(root: Path, *command: str) -> subprocess.CompletedProcess:
    """Run a command in the repository and return what it said."""
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)


def packages_loaded(root: Path, *arguments: str) -> set[str]:
    """The packages that one start of the interpreter imports; it has to succeed."""
    answer = run(root, sys.executable, "-X", "importtime", *arguments)
    timed = re.compile(r"^import time:.*\|(.*)$", flags=re.MULTILINE)
    assert answer.returncode == 0, answer.stdout + timed.sub("", answer.stderr).strip()
    modules = [module.strip() for module in timed.findall(answer.stderr)]
    return {module.partition(".")[0] for module in modules}


def test_make_help_names_every_target(root: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text(), flags=re.MULTILINE))
    shown = set(re.findall(r"^make ([a-z]+) +\S", run(root, "make", "help").stdout, flags=re.MULTILINE))
    assert {"help", "setup", "test", "check", "reproduce", "table", "data", "clean"} <= targets
    assert shown == targets


@pytest.mark.parametrize("target", ["reproduce", "table"])
def test_make_without_a_table_names_the_tables_there_are(root: Path, target: str) -> None:
    answer = run(root, "make", target)
    assert answer.returncode != 0
    assert f"make {target} TABLE=" in answer.stderr
    for table in (root / "conf" / "tables").glob("*.yaml"):
        assert table.stem in answer.stderr


def test_continuous_integration_runs_make_test_and_nothing_else(root: Path) -> None:
    script = root / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert re.findall(r"\bmake .*", script.read_text()) == ["make test"]


def test_every_dependency_is_pinned_without_an_address(root: Path) -> None:
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) and not pin.url for pin in pins)
    assert "torch==2.13.0" in lines
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted = sum(project["optional-dependencies"].values(), project["dependencies"])
    pinned = {canonicalize_name(pin.name): pin.specifier for pin in pins}
    for requirement in map(Requirement, wanted):
        version = str(pinned[canonicalize_name(requirement.name)]).removeprefix("==")
        assert requirement.specifier.contains(version), requirement


def test_no_committed_file_holds_a_machine_path_or_an_index_address(root: Path) -> None:
    if not (root / ".git").exists():
        pytest.skip("this is no git checkout: nothing tells its files from a user's own")
    found = []
    for path in (root / name for name in committed("**")):
        if path.samefile(__file__):
            continue
        lines = path.read_bytes().decode("utf-8", errors="ignore").splitlines()
        name = path.relative_to(root)
        found += [
            f"{name}:{n}: {line.strip()[:90]}"
            for n, line in enumerate(lines, 1)
            if NOT_OURS_TO_TELL.search(line)
        ]
    assert not found


MINE = {
    "data": "data:\n  class_path: datamodules.mlc.MultiLabelData\n"
    "  init_args: {name: mine, train: /home/me/train.arff, num_features: 120, num_labels: 45}\n",
    "tables": "title: Mine\nmetric: {name: test/example_f1}\nseeds: [0]\n"
    "columns: {mine: {config: conf/data/mine.yaml}}\n"
    "rows: {ce: {config: [conf/scheme/cross_entropy.yaml, conf/scheme/mine.yaml]}}\n",
    "scheme": "model: {init_args: {task_net: {class_path: mine.Net}}}\n",
    "tuned": "model: {init_args: {width: 3}}\n",
}


def test_files_of_a_user_do_not_break_the_tests(root: Path, tmp_path: Path) -> None:
    """A clone with data, a table, a scheme, settings and results of a user's own, which git does not have.

    Of what is committed it has one table and no records: the tests read them all.
    """
    if not (root / ".git").exists():
        pytest.skip("this is no git checkout: nothing tells its files from a user's own")
    tables = [path for path in committed("conf/tables/*.yaml") if path.stem != "seal_mlc"]
    for name in sorted({*committed("**")} - {*tables, *committed("results/*.jsonl")}):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, tmp_path / name)
    for command in (["init", "-q"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    own = {tmp_path / f"conf/{folder}/mine.yaml": text for folder, text in MINE.items()}
    own[tmp_path / "results/mine.md"] = "# Mine\n"
    for path, text in own.items():
        path.write_text(text)
    assert committed("conf/**/mine.yaml", tmp_path) == []
    files = [f"tests/test_{name}.py" for name in ("foundation", "mlc_data", "experiments_spec")]
    walks = "file_of_conf or machine_path or every_table_of"
    asked = ["-q", "-p", "no:cacheprovider", *files, "-k", walks]
    answer = run(tmp_path, sys.executable, "-m", "pytest", *asked)
    assert answer.returncode == 0, answer.stdout


def test_every_file_and_function_keeps_the_size_budget(root: Path, capsys: pytest.CaptureFixture) -> None:
    assert check_size.main([str(root)]) == 0, capsys.readouterr().err


def test_a_long_function_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "losses").mkdir()
    body = "    x = 0\n" * check_size.FUNCTION_LINES
    (tmp_path / "losses" / "long.py").write_text(f"\ndef winding():\n{body}")
    assert check_size.main([str(tmp_path)]) == 1
    assert "losses/long.py:2: winding has 61 lines, at most 60" in capsys.readouterr().err


def test_a_folder_of_too_many_modules_breaks_the_size_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "losses").mkdir()
    for number in range(check_size.MODULES + 1):
        assert check_size.main([str(tmp_path)]) == 0
        (tmp_path / "losses" / f"m{number}.py").write_text("x = 0\n")
    assert check_size.main([str(tmp_path)]) == 1 and "losses: 16 modules" in capsys.readouterr().err


def test_a_long_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "losses").mkdir()
    (tmp_path / "losses" / "long.py").write_text("x = 0\n" * (check_size.FILE_LINES + 1))
    assert check_size.main([str(tmp_path)]) == 1
    assert "losses/long.py: 401 lines, at most 400" in capsys.readouterr().err


def test_imports_go_downwards_only(root: Path) -> None:
    command = "from importlinter.cli import lint_imports_command as main; main()"
    answer = run(root, sys.executable, "-c", command, "--no-logo", "--no-cache")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_training_script_starts_without_the_slow_packages(root: Path) -> None:
    assert not packages_loaded(root, "-m", "scripts.train", "--help", "all") & SLOW_PACKAGES


def test_torchmetrics_imports_neither_scipy_nor_transformers_which_later_code_may(root: Path) -> None:
    lean = "from experiments.lean import import_torchmetrics; import_torchmetrics(); "
    later = "from lightning_utilities.core.imports import package_available as there; assert there('scipy'); "
    later += "from torchmetrics.segmentation import HausdorffDistance"
    assert "scipy" in packages_loaded(root, "-c", "import torchmetrics")
    assert not packages_loaded(root, "-c", lean + later) & {"scipy", "transformers"}


@pytest.mark.parametrize("script", ["reproduce", "fetch_data", "predict"])
def test_a_script_that_trains_nothing_starts_without_torch(root: Path, script: str) -> None:
    assert not packages_loaded(root, "-m", f"scripts.{script}", "--help") & {"torch", "pytorch_lightning"}


def test_drawing_a_table_needs_no_torch(root: Path) -> None:
    command = "from experiments.page import page, render, summary; from experiments.plan import spec"
    assert not packages_loaded(root, "-c", command) & {"torch", "pytorch_lightning"}


def test_a_wrong_shape_is_refused_in_the_tests() -> None:
    with pytest.raises(Exception, match="guess_energy"):
        margin(torch.zeros(3), torch.zeros(2, 4), torch.zeros(2, 3))
