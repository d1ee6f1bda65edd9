"""The fuzz of all that reads files: a few of its cases, and that it finds what there is to find."""

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.errors import TableError
from scripts.robustness import fuzz
from scripts.robustness.fuzz_targets import Target, targets
from scripts.robustness.mutate import damaged_tree


def test_a_few_damaged_files_of_each_kind_are_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fuzz, "SLOW", fuzz.STOP)  # a busy machine is no finding
    code = fuzz.main(["--cases", "200", "--seed", "7"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert re.search(r"^ all +200 ", said, re.MULTILINE)


def test_a_case_is_the_same_each_time_it_is_drawn() -> None:
    with targets() as every:
        for target in every.values():
            assert target.damage(random.Random("x")) == target.damage(random.Random("x"))
            assert any(target.damage(random.Random(seed)) not in target.wholes for seed in range(5))
        small = {"a": {"b": [1, 2]}}
        assert any(damaged_tree(small, random.Random(seed)) != small for seed in range(5))
        assert small == {"a": {"b": [1, 2]}}


def bare(content: bytes) -> None:
    raise KeyError("epoch")


def wordy(content: bytes) -> None:
    raise TableError("x" * 5000)


def slow(content: bytes) -> None:
    began = time.process_time()
    while time.process_time() - began < 0.2:
        pass


def endless(content: bytes) -> None:
    while True:
        pass


def test_a_kept_case_is_fed_again_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folds-0-1.case").write_bytes(b"file,row\n")
    assert fuzz.main(["--replay", "folds-0-1.case"]) == 0
    assert "refused" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        fuzz.main(["--only", "arf"])


@pytest.mark.parametrize(
    ("feed", "says"),
    [(bare, "KeyError: 'epoch'"), (wordy, "5000 characters"), (slow, "took 0."), (endless, "GivenUp")],
)
def test_what_stands_out_is_kept_and_can_be_fed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feed: Callable[[bytes], None], says: str
) -> None:
    monkeypatch.setattr(fuzz, "SLOW", 0.1)
    monkeypatch.setattr(fuzz, "STOP", 0.5)
    whole = [True]
    target = Target("it", (b"abc",), lambda content: whole.pop() if whole else feed(content), 1)
    tally = fuzz.Tally()
    fuzz.run(target, tally, seed=3, cases=1, kept=tmp_path)
    (found,) = tally.findings
    assert str(tmp_path / "it-3-0.case") in found and says in found
    assert says in fuzz.feed(target, (tmp_path / "it-3-0.case").read_bytes(), fuzz.Tally())
