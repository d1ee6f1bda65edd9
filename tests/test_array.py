"""The array test: a table's job array that is killed and requeued ends like the table without a cluster."""

from pathlib import Path

import pytest

from experiments.errors import UserError
from scripts.robustness import array_test
from scripts.robustness.one_machine import SCRIPT, absent, ask, one_machine

pytestmark = pytest.mark.skipif(bool(absent()), reason=f"SLURM is not installed: no {', '.join(absent())}")


def test_an_array_that_is_killed_and_requeued_equals_local_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--runs=10", "--kills=2", "--requeues=1", f"--folder={tmp_path}"]
    assert array_test.main(given) == 0, capsys.readouterr().out
    test = array_test.ArrayTest(tmp_path, runs=10, console=array_test.Console())
    assert not test.faults()
    file = next((tmp_path / "array/runs").glob("*/metrics.csv"))
    file.write_text(file.read_text().replace("\n4,", "\n5,"))
    assert "metrics.csv: 4: epoch" in " ".join(test.faults())
    (tmp_path / "local/results/array_test.jsonl").write_text("")
    assert "local: 0 records of 10" in test.faults()


def test_the_script_says_in_one_sentence_why_it_does_not_start(tmp_path: Path) -> None:
    with one_machine(tmp_path / "slurm"):
        conf = dict(
            line.split("=", 1) for line in (tmp_path / "slurm/slurm.conf").read_text().splitlines() if line
        )
        for folder, port, says in (
            (tmp_path / "slurm", "20000", "is running in"),
            (tmp_path / "other", conf["SlurmctldPort"], "is in use. Name another first port"),
            (tmp_path / "a b", "20000", "no folder with a blank"),
            (tmp_path / "other", "eighty", "PORT is a number"),
        ):
            with pytest.raises(UserError, match=says):
                ask("bash", "-c", '"$0" start "$1" "$2"', str(SCRIPT), str(folder), port)
        assert ask("sinfo", "--noheader", "--format=%D", "--partition=low") == "2"
    with pytest.raises(UserError, match="No SLURM is running in"):
        ask("bash", str(SCRIPT), "stop", str(tmp_path / "slurm"))
