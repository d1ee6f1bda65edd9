"""What the scripts say of themselves, and of a package that is not installed."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser
from lightning_utilities.core.imports import RequirementCache

import scripts.train
from committed import ROOT, committed, data_of
from experiments.plan import advice
from experiments.plan.advice import EXTRAS
from scripts.train import OPTIONS


def test_help_of_training_is_short_and_names_options_and_files_that_there_are(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setenv("COLUMNS", "80")
    assert scripts.train.main(["--config", "conf/data/bibtex.yaml", "--help"]) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 100
    assert short.index("\n  -c, --config") < short.index("\n  --run_dir") < short.index("\n  --trainer")
    with pytest.raises(SystemExit) as ended:
        scripts.train.main(["--help", "all"])
    whole = capsys.readouterr().out
    assert ended.value.code == 0 and "--trainer.gradient_clip_val" in whole
    assert "torch.nn.Linear" not in whole
    named = set(re.findall(r"--[\w.]+", " ".join(option for of in OPTIONS.values() for option in of)))
    assert len(named) > 12
    for option in named - {"--model.NAME", "--data.NAME", "--net.NAME"}:
        assert option in short and (option in whole or option == "--cluster")  # which is not the run's
    for name in ("cross_entropy", "joint_stacked", "genbase_clean", "wandb"):
        assert name in short


@pytest.mark.parametrize(
    "kind", sorted({data_of(ROOT / at)["class_path"] for at in committed("conf/data/*.yaml")})
)
def test_every_option_of_a_data_module_has_its_help(kind: str) -> None:
    module, _, name = kind.rpartition(".")
    parser = ArgumentParser()
    options = parser.add_class_arguments(getattr(import_module(module), name), "data")
    without = [action.dest for action in parser._actions if action.dest in options and not action.help]
    assert options and not without


def test_every_command_names_itself_as_it_is_typed_or_takes_no_options() -> None:
    texts = {at: (ROOT / at).read_text() for at in committed("scripts/**/*.py")}
    commands = {at: text for at, text in texts.items() if '\nif __name__ == "__main__":' in text}
    assert len(commands) > 25
    names = {at: ".".join(at.with_suffix("").parts) for at in commands}
    unnamed = [at for at, text in commands.items() if f'"python -m {names[at]}"' not in text]
    left = [str(at) for at in unnamed if "alone(main, __doc__)" not in commands[at]]
    assert left == ["scripts/train.py"]  # whose options LightningCLI reads


def test_only_arguments_that_a_class_takes_are_suggested() -> None:
    assert "num_train" in advice.arguments_of("datamodules.twitter_pos.TwitterPOS")  # by way of **sentences
    assert "num_train" not in advice.arguments_of("datamodules.mlc.MultiLabelData")  # its parent has it


@pytest.mark.parametrize("script", ["train", "reproduce"])
def test_help_comes_without_torch(root: Path, script: str) -> None:
    said = f"from scripts.{script} import main\ntry: main(['--help'])\n"
    command = [sys.executable, "-c", f"import sys\n{said}finally: assert 'torch' not in sys.modules"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0 and f"usage: python -m scripts.{script}" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("logger", "checks"),
    [
        ("wandb", {"pytorch_lightning.loggers.wandb._WANDB_AVAILABLE": "wandb"}),
        (
            "tensorboard",
            {
                "lightning_fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE": "tensorboard",
                "lightning_fabric.loggers.tensorboard._TENSORBOARDX_AVAILABLE": "tensorboardX",
            },
        ),
    ],
)
def test_a_logger_that_is_not_installed_is_told_by_the_extra_that_has_it(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    logger: str,
    checks: dict[str, str],
) -> None:
    monkeypatch.chdir(root)
    for check, package in checks.items():
        monkeypatch.setattr(check, RequirementCache(f"{package}>=9999"))  # as where it is absent
    layers = ("data/generated", "scheme/cross_entropy", f"logger/{logger}")
    given = [word for name in layers for word in ("--config", f"conf/{name}.yaml")]
    assert scripts.train.main([*given, "--run_dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"{logger} is not installed. Run:  make setup EXTRAS=dev,{logger}" in said
    assert f'pip install -c constraints.txt -e ".[{logger}]"' in said and len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_an_extra_that_a_message_names_has_the_package(root: Path) -> None:
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(re.match(rf"{package}\b", wanted) for wanted in extras[extra])


def test_every_way_to_install_that_is_written_down_has_the_pinned_versions(root: Path) -> None:
    texts = [
        root / "README.md",
        *(root / "docs").glob("*.md"),
        *(root / "conf").rglob("*.yaml"),
        root / "Makefile",
    ]
    lines = [line for path in texts for line in path.read_text().splitlines()]
    found = [line for line in lines if re.search(r"pip install (?!--disable)|-m pip install", line)]
    assert len(found) > 3 and all(re.search(r"-c (CLONE/)?constraints\.txt", line) for line in found), found
