"""Two finished runs side by side."""

import re
from pathlib import Path

import pytest

from scripts import compare, train

ROOT = Path(__file__).resolve().parent.parent
COMMAND = ["--config=conf/data/generated.yaml", "--config=conf/scheme/cross_entropy.yaml"]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of two runs that differ in rate and seed, and of one that equals the first."""
    monkeypatch.chdir(ROOT)
    others = ["--optimizer.lr=0.05", "--seed_everything=1"]
    for name, options in (("a", []), ("b", others), ("c", [])):
        command = [*COMMAND, *options, "--trainer.max_epochs=1", f"--run_dir={tmp_path / name}"]
        assert train.main(command) == 0
    return [str(tmp_path / name) for name in "abc"]


def test_what_differs_is_named_and_scores_stand_side_by_side(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert compare.main(runs) == 0
    said = capsys.readouterr().out
    assert f"{runs[0]} -> {runs[1]}:" in said and "seed: 0 -> 1" in said
    assert re.search(r"model\.init_args\.task_optimizer\.init_args\.lr: [\d.]+ -> 0\.05", said)
    second = said.partition(f"{runs[0]} -> {runs[2]}:")[2]
    assert "lr:" not in second and "seed:" not in second
    row = next(line for line in second.splitlines() if "test/example_f1" in line)
    numbers = re.findall(r"\d\.\d{4}", row)
    assert numbers[0] == numbers[2] != numbers[1]


def test_what_is_no_finished_run_is_named(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main([runs[0], str(tmp_path)]) == 2
    assert f"{tmp_path} is no finished run: it has no record.json." in capsys.readouterr().err
    for damage in ('{"bad', "[1]", '{"a": 1}'):
        (tmp_path / "record.json").write_text(damage)
        assert compare.main([runs[0], str(tmp_path)]) == 2
        assert f"{tmp_path / 'record.json'} is damaged: " in capsys.readouterr().err
    assert compare.main(runs[:1]) == 2
    assert "two runs or more" in capsys.readouterr().err
