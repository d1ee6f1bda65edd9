"""A study: claimed by many processes, killed, resumed, and refused in one sentence where it is broken."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from experiments import store
from experiments.errors import SweepError
from experiments.sweep.file import read_sweep
from experiments.sweep.points import grid_points, random_point
from experiments.sweep.study import DONE, FAILED, PRUNED, RUNNING, WAITING, Study, Trial
from experiments.sweep.winner import best_of
from sweep_files import sweep_file, toy_sweep

UNIFORM = {"model.a": {"min": 0.0, "max": 1.0}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with store.inside(tmp_path / "runs"):
        yield tmp_path


def claimed(study: Study, count: int | None = None) -> Trial:
    trial = study.claim(count)
    assert trial is not None
    return trial


def run_all(study: Study, count: int | None = None) -> list[int]:
    """Finish all that is left; the numbers in order."""
    numbers = []
    while (trial := study.claim(count)) is not None:
        study.finish(trial.number, DONE, float(trial.number), f"run{trial.number}")
        numbers.append(trial.number)
    return numbers


def test_a_grid_is_claimed_in_order_and_then_used_up(folder: Path) -> None:
    study = Study.open(toy_sweep(folder))
    assert study.path == folder / "runs/sweeps/toy/study.sqlite"
    assert run_all(study) == list(range(6))
    assert [trial.point for trial in study.trials()] == grid_points(study.sweep)
    assert study.trials()[2] == Trial(2, grid_points(study.sweep)[2], DONE, 2.0, None, "run2")


def test_the_smallest_of_count_run_cap_and_grid_ends_a_sweep(folder: Path) -> None:
    study = Study.open(toy_sweep(folder, run_cap=4))
    assert run_all(study, 3) == [0, 1, 2]
    assert run_all(study, 3) == []
    assert run_all(study, 20) == [3]
    assert run_all(Study.open(toy_sweep(folder)), 20) == [4, 5]  # the cap may change


def test_a_random_sweep_without_a_limit_has_no_end(folder: Path) -> None:
    study = Study.open(toy_sweep(folder, method="random", parameters=UNIFORM))
    assert [claimed(study).number for _ in range(9)] == list(range(9))


def test_a_score_that_reaches_the_target_ends_a_sweep(folder: Path) -> None:
    study = Study.open(toy_sweep(folder, metric={"name": "val/f1", "goal": "maximize", "target": 0.8}))
    for score in (0.2, 0.8):
        study.finish(claimed(study).number, DONE, score)
    assert study.claim() is None
    lower = Study.open(
        read_sweep(sweep_file(folder, {"metric": {"name": "val/loss", "target": 0.8}}, name="low"))
    )
    lower.finish(claimed(lower).number, DONE, 0.9)
    lower.finish(claimed(lower).number, PRUNED, 0.7)
    lower.finish(claimed(lower).number, DONE, 0.7)
    assert lower.claim() is None


def test_failed_trials_are_tried_again_when_asked(folder: Path) -> None:
    study = Study.open(toy_sweep(folder))
    study.finish(claimed(study).number, FAILED, run_id="r")
    assert run_all(study) == [1, 2, 3, 4, 5]
    assert study.retry_failed() == 1
    assert run_all(study) == [0]
    assert study.retry_failed() == 0


def test_released_trials_come_first_and_keep_their_run(folder: Path) -> None:
    study = Study.open(toy_sweep(folder))
    first, second = claimed(study), claimed(study)
    study.report(second.number, 0, 0.5)
    study.release(second.number)
    assert claimed(study) == Trial(1, second.point, RUNNING, 0.5, 0, None)
    assert study.running() == 2
    study.release(first.number, second.number)
    assert (study.running(), study.trials()[0].state) == (0, WAITING)


def test_what_is_finished_stays_so(folder: Path) -> None:
    study = Study.open(toy_sweep(folder))
    number = claimed(study).number
    study.finish(number, DONE, 1.0, "a")
    study.finish(number, FAILED, None, "b")
    study.report(number, 9, 5.0)
    study.release(number)
    trial = study.trials()[0]
    assert (trial.state, trial.score, trial.epoch, trial.run_id) == (DONE, 1.0, None, "a")


def test_a_trial_without_a_beat_is_claimed_again_after_its_lease(folder: Path) -> None:
    sweep = toy_sweep(folder)
    dead, other = Study.open(sweep), Study.open(sweep, lease=0.6)
    alive = Study.open(sweep, lease=0.6)
    assert (claimed(dead).number, claimed(alive).number) == (0, 1)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        alive.beat(1)
        time.sleep(0.05)
    assert other.running() == 1
    assert [claimed(other).number, claimed(other).number] == [0, 2]
    assert other.running() == 3


def test_a_resumed_trial_reports_its_epochs_again(folder: Path) -> None:
    study = Study.open(toy_sweep(folder))
    number = claimed(study).number
    for epoch in range(5):
        assert not study.report(number, epoch, epoch / 10)
    study.report(number, 3, 0.3)
    assert study.reports(number) == {0: 0.0, 1: 0.1, 2: 0.2, 3: 0.3}
    assert study.trials()[0].epoch == 3
    study.report(number, 4, float("nan"))
    assert str(study.reports(number)[4]) == "nan"


def take(path: Path, runs: Path, count: int, all_claimed: Barrier) -> None:
    """What each of several processes does: claim, report, finish; the first trial when all have one."""
    store.RUNS = runs
    study, waited = Study.open(read_sweep(path)), False
    while (trial := study.claim(count)) is not None:
        if not waited:
            all_claimed.wait(60)
            waited = True
        study.report(trial.number, 0, 0.5)
        study.finish(trial.number, DONE, 0.5, f"{os.getpid()}")


def test_processes_share_a_study_and_claim_each_trial_once(folder: Path) -> None:
    path = sweep_file(folder, {"method": "random", "parameters": UNIFORM})
    context = multiprocessing.get_context("spawn")
    arguments = (path, store.RUNS, 60, context.Barrier(4))
    workers = [context.Process(target=take, args=arguments) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    study = Study.open(read_sweep(path))
    trials = study.trials()
    assert [trial.number for trial in trials] == list(range(60))
    assert {trial.state for trial in trials} == {DONE}
    assert len({repr(trial.point) for trial in trials}) == 60
    assert len({trial.run_id for trial in trials}) == 4


KILLED = """
import sys, time
from pathlib import Path
from experiments import store
from experiments.sweep.file import read_sweep
from experiments.sweep.study import Study
store.RUNS = Path(sys.argv[2])
study = Study.open(read_sweep(sys.argv[1]), lease=0.5)
while (trial := study.claim(40)) is not None:
    for epoch in range(3):
        study.report(trial.number, epoch, 0.5)
        time.sleep(0.002)
    study.finish(trial.number, "done", 0.5, "r")
    print(trial.number, flush=True)
"""


def test_a_random_sweep_killed_and_resumed_has_the_points_of_an_unbroken_one(folder: Path) -> None:
    path = sweep_file(folder, {"method": "random", "parameters": UNIFORM})
    command = [sys.executable, "-c", KILLED, str(path), str(store.RUNS)]
    kills = 0
    for wanted in (3, 6, 9):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(wanted):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
    assert kills == 3
    time.sleep(0.6)
    study = Study.open(read_sweep(path), lease=0.5)
    before = {trial.number for trial in study.trials() if trial.state == DONE}
    assert 18 <= len(before) < 40
    assert sorted({*run_all(study, 40)} | before) == list(range(40))
    assert [trial.point for trial in study.trials()] == [random_point(study.sweep, 0, n) for n in range(40)]
    assert {trial.state for trial in study.trials()} == {DONE}


def test_a_changed_file_is_told_from_the_same_one(folder: Path) -> None:
    Study.open(toy_sweep(folder, run_cap=3))
    begun = Study.open(toy_sweep(folder))
    begun.finish(claimed(begun).number, DONE, 0.5)
    Study.open(toy_sweep(folder, name="another title", early_terminate={"type": "hyperband", "min_iter": 2}))
    changes = {
        "parameter model.a": {
            "parameters": {"model.a": {"values": [1, 2]}, "model.b": {"values": [0.1, 0.2]}}
        },
        "parameter model.b, parameter model.c": {
            "parameters": {"model.a": {"values": [1, 2, 3]}, "model.c": {"values": [0.1, 0.2]}}
        },
        "method": {"method": "random"},
        "metric": {"metric": {"name": "val/other"}},
        "config files": {"command": ["scripts/train.py", "--config=conf/data/yeast.yaml", "${args}"]},
    }
    for key, change in changes.items():
        with pytest.raises(
            SweepError, match=rf"begun with other settings .*: {key}\. Undo the change"
        ) as caught:
            Study.open(toy_sweep(folder, **change))
        assert "save the file under another name" in str(caught.value)
    with pytest.raises(SweepError, match=r": seed\. Undo"):
        Study.open(toy_sweep(folder), seed=1)
    Study.open(toy_sweep(folder))


def test_a_search_without_results_gives_way_to_the_changed_file(folder: Path) -> None:
    first = Study.open(toy_sweep(folder, metric={"name": "val/mistyped"}))
    number = claimed(first).number
    assert [trial.state for trial in Study.known(first.sweep)] == [RUNNING]
    with pytest.raises(SweepError, match="begun with other settings"):  # it is at work
        Study.open(toy_sweep(folder))
    first.release(number)
    assert Study.known(toy_sweep(folder)) == [] and len(first.trials()) == 1  # a look writes nothing
    study = Study.open(toy_sweep(folder))
    assert study.trials() == [] and run_all(study) == list(range(6))
    with pytest.raises(SweepError, match=r"metric\. Undo the change"):
        Study.open(first.sweep)


def test_a_study_that_was_killed_as_it_began_is_begun_again(folder: Path) -> None:
    sweep = toy_sweep(folder)
    path = folder / "runs/sweeps/toy/study.sqlite"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert Study.known(sweep) == [] and path.read_bytes() == b""
    assert run_all(Study.open(sweep)) == list(range(6))


def test_a_held_database_is_one_sentence(folder: Path) -> None:
    study = Study.open(toy_sweep(folder), busy=0.3)
    with sqlite3.connect(study.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            SweepError, match=r"Another process has held .*study\.sqlite for 0\.3 seconds\. End it"
        ):
            study.claim()
        other.execute("ROLLBACK")
    other.close()
    assert claimed(study).number == 0


def test_what_is_no_database_is_one_sentence(folder: Path) -> None:
    study = Study.open(toy_sweep(folder))
    study.path.write_bytes(b"no database at all" * 100)
    with pytest.raises(
        SweepError, match=r"study\.sqlite is no study of a sweep \(file is not a database\)\. Remove it"
    ):
        Study.open(study.sweep)
    study.path.unlink()
    with pytest.raises(SweepError, match=r"could not be used: unable to open database file"):
        study.claim()
    study.path.mkdir()
    with pytest.raises(SweepError, match=r"could not be used: unable to open database file"):
        Study.open(study.sweep)
    study.path.rmdir()
    study.path.parent.rmdir()
    study.path.parent.write_text("")
    with pytest.raises(SweepError, match=r"could not be written: File exists"):
        Study.open(study.sweep)


def test_another_database_is_one_sentence(folder: Path) -> None:
    sweep = toy_sweep(folder)
    study = Study.open(sweep)
    study.path.unlink()
    with sqlite3.connect(study.path) as other:
        other.execute("CREATE TABLE trial (id INTEGER)")
    other.close()
    with pytest.raises(SweepError, match=r"is no study of a sweep \(no such column"):
        Study.open(sweep).trials()


FULL = """
import sys
from pathlib import Path
from experiments import store
from experiments.errors import SweepError
from experiments.sweep.file import read_sweep
from experiments.sweep.study import Study
store.RUNS = Path(sys.argv[2])
study = Study.open(read_sweep(sys.argv[1]))
filler = store.RUNS / "filler"
try:
    with filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            pass
except OSError:
    pass
claimed = 0
try:
    while study.claim() is not None:
        claimed += 1
except SweepError as error:
    print(error)
filler.unlink()
print(len(study.trials()) == claimed, study.claim().number == claimed)
"""


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(folder: Path) -> None:
    small = folder / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=200k none {small}"
    if subprocess.run(["unshare", "-m", "bash", "-c", mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    path = sweep_file(folder, {"method": "random", "parameters": UNIFORM})
    command = ["unshare", "-m", "bash", "-c", f'{mount} && exec "$@"', "-", sys.executable, "-c", FULL]
    answer = subprocess.run([*command, str(path), str(small)], capture_output=True, text=True, timeout=100)
    said = f"The disk is full, {small}/sweeps/toy/study.sqlite could not be written. Free some space and"
    assert answer.stdout.startswith(said), answer.stderr
    assert answer.stdout.endswith("it continues.\nTrue True\n")


def test_of_equal_scores_the_earlier_trial_wins(folder: Path) -> None:
    tied = [Trial(number, {}, DONE, 0.5) for number in (0, 1)]
    found = best_of(toy_sweep(folder), tied)
    assert found is not None and found.number == 0


def test_a_trial_that_is_tried_again_has_no_score_of_the_failed_one(folder: Path) -> None:
    study = Study.open(toy_sweep(folder))
    trial = claimed(study)
    study.report(trial.number, 0, 0.9)
    study.finish(trial.number, FAILED)
    assert study.retry_failed() == 1 and study.trials()[trial.number].score is None
