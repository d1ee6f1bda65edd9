"""Search and early stopping by optuna, rebuilt from a study's trials."""

import math
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments import store
from experiments.errors import SweepError
from experiments.sweep import bayes
from experiments.sweep.file import Sweep, read_sweep
from experiments.sweep.points import Point, grid_points, random_point
from experiments.sweep.study import DONE, FAILED, PRUNED, Study
from sweep_files import sweep_file, toy_sweep

pytest.importorskip("optuna")
LR = {"distribution": "log_uniform_values", "min": 1.0e-5, "max": 1.0}
MIXED = {
    "a.lr": LR,
    "a.width": {"min": 1, "max": 64},
    "a.net": {"values": ["x", {"class_path": "y", "init_args": {"k": None}}, [1]]},
    "a.rate": {"distribution": "q_normal", "mu": 3.0, "sigma": 1.0, "q": 0.5},
    "a.fixed": {"value": "v"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with store.inside(tmp_path / "runs"):
        yield tmp_path


def search(sweep: Sweep, score: Callable[[Point], float], count: int, seed: int = 0) -> list[float]:
    """The scores of a whole sweep."""
    study = Study.open(sweep, seed=seed)
    while (trial := study.claim(count)) is not None:
        study.finish(trial.number, DONE, score(trial.point))
    return [trial.score for trial in study.trials() if trial.score is not None]


def loss(point: Point) -> float:
    return (math.log10(point["a.lr"]) + 3.2) ** 2


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_bayes_comes_closer_than_random_points(goal: str, folder: Path) -> None:
    sign = 1 if goal == "minimize" else -1
    metric = {"name": "val/loss", "goal": goal}
    sweep = toy_sweep(folder, method="bayes", parameters={"a.lr": LR}, metric=metric)
    bests, randoms = [], []
    for seed in range(2):
        with store.inside(folder / str(seed)):
            scores = search(sweep, lambda point: sign * loss(point), 30, seed)
        bests.append(sum(sorted(sign * score for score in scores)[:10]))
        randoms.append(sum(sorted(loss(random_point(sweep, seed, number)) for number in range(30))[:10]))
    assert sum(bests) < sum(randoms) / 3


def test_a_bayes_sweep_of_one_process_is_repeated_by_its_seed(folder: Path) -> None:
    sweep = toy_sweep(folder, method="bayes", parameters=MIXED)
    found = []
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        with store.inside(folder / name):
            search(sweep, lambda point: loss(point) + point["a.width"], 14, seed)
            found.append([trial.point for trial in Study.open(sweep, seed=seed).trials()])
    assert found[0] == found[1] != found[2]
    assert found[0][0] == random_point(sweep, 3, 0)


def test_points_of_bayes_are_values_of_the_file(folder: Path) -> None:
    sweep = toy_sweep(folder, method="bayes", parameters=MIXED)
    search(sweep, loss, 16)
    for trial in Study.open(sweep).trials():
        point: dict[str, Any] = trial.point
        assert 1e-5 <= point["a.lr"] <= 1
        assert point["a.width"] in range(1, 65)
        assert point["a.net"] in MIXED["a.net"]["values"]
        assert point["a.rate"] * 2 == int(point["a.rate"] * 2)
        assert point["a.fixed"] == "v"


def test_a_finite_search_tries_each_point_once_and_ends(folder: Path) -> None:
    sweep = toy_sweep(folder, method="bayes")
    search(sweep, lambda point: point["model.a"] * point["model.b"], 100)
    points = [trial.point for trial in Study.open(sweep).trials()]
    assert len(points) == 6
    assert sorted(points, key=repr) == sorted(grid_points(sweep), key=repr)


def test_processes_at_work_do_not_try_the_same_point(folder: Path) -> None:
    sweep = toy_sweep(folder, method="bayes", parameters={"a.lr": LR})
    search(sweep, loss, 12)
    study = Study.open(sweep)
    claimed = [trial.point["a.lr"] for trial in (study.claim(), study.claim(), study.claim()) if trial]
    assert len(set(claimed)) == 3
    # the first is still running when the second is asked for, and counts as a bad one
    assert min(abs(math.log10(one / other)) for one in claimed for other in claimed if one != other) > 0.01


def test_failed_and_infinite_scores_are_left_out_and_pruned_ones_are_used(folder: Path) -> None:
    sweep = toy_sweep(folder, method="bayes", parameters={"a.lr": LR})
    study = Study.open(sweep)
    for state, score in [(DONE, 1.0), (FAILED, 0.5), (DONE, math.inf), (PRUNED, 2.0), (DONE, None)]:
        trial = study.claim()
        assert trial is not None
        study.finish(trial.number, state, score)
    running = study.claim()
    assert running is not None
    rebuilt = bayes._rebuilt(sweep, study.trials(), {3: {0: 3.0, 1: 2.0}}, 0)
    said = [(trial.state.name, trial.value) for trial in rebuilt.trials]
    assert said == [("COMPLETE", 1.0), ("PRUNED", 2.0), ("RUNNING", None)]
    assert rebuilt.trials[1].intermediate_values == {0: 3.0, 1: 2.0}
    assert sweep.parameters["a.lr"].at(rebuilt.trials[2].params["a.lr"]) == pytest.approx(
        running.point["a.lr"]
    )


def curves(study: Study, scores: list[list[float]]) -> list[int]:
    """Train trials one epoch each in turn; how many epochs each had."""
    numbers = [trial.number for trial in (study.claim() for _ in scores) if trial]
    epochs = dict.fromkeys(numbers, 0)
    alive = [*numbers]
    for epoch in range(len(scores[0])):
        for number in [*alive]:
            epochs[number] += 1
            if study.report(number, epoch, scores[number][epoch]):
                study.finish(number, PRUNED)
                alive.remove(number)
    return [*epochs.values()]


def banded(folder: Path, method: str = "grid", **early: object) -> Study:
    parameters = {"a.k": {"min": 0, "max": 8}}
    early = {"type": "hyperband", **early}
    metric = {"name": "val/f1", "goal": "maximize"}
    return Study.open(
        toy_sweep(folder, method=method, parameters=parameters, early_terminate=early, metric=metric)
    )


@pytest.mark.parametrize("method", ["grid", "random", "bayes"])
def test_hyperband_keeps_the_best_third_at_each_band(method: str, folder: Path) -> None:
    study = banded(folder, method, min_iter=2, eta=3)
    best_first = [[9.0 - number] * 10 for number in range(9)]
    # bands after reports 2 and 6; the first to arrive has none to be compared with
    assert curves(study, best_first) == [10, 3, 3, 3, 3, 3, 3, 3, 3]
    assert [trial.state for trial in study.trials()].count(PRUNED) == 8


def test_a_band_compares_with_all_that_reached_it(folder: Path) -> None:
    study = banded(folder, min_iter=1, eta=3)
    scores = [[float(number)] * 4 for number in range(9)]  # each is better than all before
    assert curves(study, scores) == [4] * 9


def test_bands_of_max_iter_end_with_it(folder: Path) -> None:
    study = banded(folder, max_iter=9, s=1, eta=3)  # one band, after report 3
    assert curves(study, [[5.0] * 12, [4.0] * 12, [5.0] * 3 + [6.0] + [0.0] * 8]) == [12, 4, 12]


def test_strict_compares_the_score_at_the_band_and_else_the_best_so_far(folder: Path) -> None:
    fell = [[5.0, 5.0, 5.0, 5.0], [9.0, 1.0, 1.0, 1.0]]
    for strict, epochs in ((False, [4, 4]), (True, [4, 3])):
        with store.inside(folder / str(strict)):
            assert curves(banded(folder, min_iter=2, strict=strict), fell) == epochs


def test_a_score_that_is_no_number_stops_a_run_at_its_band(folder: Path) -> None:
    study = banded(folder, min_iter=2, strict=True)
    assert curves(study, [[1.0, 1.0, math.nan, 1.0], [1.0] * 4]) == [3, 4]


def test_runs_that_failed_are_not_compared_with(folder: Path) -> None:
    study = banded(folder, min_iter=1)
    for number, score in ((0, 9.0), (1, 1.0)):
        trial = study.claim()
        assert trial is not None and trial.number == number
        assert not study.report(number, 0, score)
        assert not study.report(number, 1, score)
        study.finish(number, FAILED)


def test_without_optuna_one_sentence_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    says = r"says method: bayes, which needs optuna: pip install -c constraints\.txt -e '\.\[sweep\]'"
    with pytest.raises(SweepError, match=says):
        Study.open(toy_sweep(folder, method="bayes"))
    with pytest.raises(SweepError, match="says early_terminate, which needs optuna"):
        banded(folder, min_iter=2)
    Study.open(read_sweep(sweep_file(folder, name="grid")))


def test_the_extra_that_is_named_installs_optuna(root: Path) -> None:
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(one.startswith("optuna") for one in extras["sweep"])
    assert "[sweep]" in bayes.INSTALL
