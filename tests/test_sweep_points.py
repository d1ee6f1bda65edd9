"""Points of a sweep equal those of W&B's published search package; random ones hold for good."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.sweep.file import Sweep
from experiments.sweep.parameters import SHAPES, Number, build
from experiments.sweep.points import grid_point, grid_points, grid_size, random_point
from sweep_files import toy_sweep

DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "int_uniform": {"min": -2, "max": 5},
    "uniform": {"min": 0.5, "max": 2.0},
    "q_uniform": {"min": 0.0, "max": 1.0, "q": 0.05},
    "log_uniform": {"min": -9.0, "max": -2.0},
    "log_uniform_values": {"min": 1.0e-4, "max": 0.1},
    "q_log_uniform": {"min": 0, "max": 5, "q": 4},
    "q_log_uniform_values": {"min": 1, "max": 300, "q": 8},
    "inv_log_uniform": {"min": 1.0, "max": 6.0},
    "inv_log_uniform_values": {"min": 1.0e-3, "max": 10.0},
    "normal": {"mu": 3.0, "sigma": 2.0},
    "q_normal": {"mu": 10.0, "sigma": 5.0, "q": 3},
    "log_normal": {"mu": -2.0, "sigma": 0.5},
    "q_log_normal": {"mu": 2.0, "sigma": 1.0, "q": 0.5},
}
ENDS = {  # of draws, from the definitions of W&B
    "int_uniform": (-2, 5),
    "uniform": (0.5, 2),
    "q_uniform": (0, 1),
    "log_uniform": (0.00012340980408667956, 0.1353352832366127),
    "log_uniform_values": (1e-4, 0.1),
    "q_log_uniform": (0, 148),
    "q_log_uniform_values": (0, 304),
    "inv_log_uniform": (0.0024787521766663585, 0.36787944117144233),
    "inv_log_uniform_values": (1e-3, 10),
}
STEPS = {"distribution": "q_uniform"}
GRIDS: dict[str, dict[str, Any]] = {
    "names out of order": {"b": {"values": [3, 1, 2]}, "a": {"values": ["x", "y"]}, "c": {"value": 7}},
    "whole numbers and steps": {"n": {"min": 2, "max": 5}, "q": STEPS | {"min": 0.0, "max": 0.35, "q": 0.1}},
    "steps of whole numbers": {"q": STEPS | {"min": 1, "max": 9, "q": 3}, "a": {"values": [True, None]}},
    "values twice": {"a": {"values": [2, 1, 2, 1.0]}, "b": {"values": ["1", 1]}},
    "lists and pairs": {
        "model.a": {"values": [[1, 2], [1]]},
        "model.b": {"values": [{"lr": 0.1}, {"lr": 0.01, "k": "x"}]},
    },
    "nested": {
        "model": {"parameters": {"z": {"values": [1, 2]}, "a": {"parameters": {"q": {"values": [5, 4]}}}}},
        "data.size": {"values": [8, 16]},
        "zoo": {"value": "v"},
    },
}


def flat(point: dict[str, Any], nested: bool, above: str = "") -> dict[str, Any]:
    """A point of the package, its nested values by dotted name."""
    found: dict[str, Any] = {}
    for name, value in point.items():
        inner = nested and isinstance(value, dict)
        found |= flat(value, nested, f"{above}{name}.") if inner else {f"{above}{name}": value}
    return found


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_has_the_points_of_the_wandb_package_in_its_order(name: str, tmp_path: Path) -> None:
    grid_search = pytest.importorskip("sweeps.grid_search")
    config = {"method": "grid", "parameters": GRIDS[name]}
    found = [run.config for run in grid_search.grid_search_next_runs([], config, n=1000) if run is not None]
    theirs = [flat({key: one["value"] for key, one in point.items()}, name == "nested") for point in found]
    ours = grid_points(toy_sweep(tmp_path, parameters=GRIDS[name]))
    assert [repr(sorted(point.items())) for point in ours] == [
        repr(sorted(point.items())) for point in theirs
    ]
    assert len(ours) > 1


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_equal_those_of_the_wandb_package_at_every_quantile(name: str) -> None:
    params = pytest.importorskip("sweeps.params")
    tree = {"distribution": name, **DISTRIBUTIONS[name]}
    theirs, ours = params.HyperParameter("p", tree), build(name, tree)
    source = random.Random(name)
    for quantile in [1e-9, 1 - 1e-9, *(source.random() for _ in range(300))]:
        value = theirs.ppf(quantile)
        assert ours.at(quantile) == pytest.approx(value, rel=1e-9, abs=1e-12)
        assert isinstance(ours.at(quantile), int) == isinstance(
            getattr(value, "item", lambda value=value: value)(), int
        )


def test_choices_are_drawn_as_in_the_wandb_package() -> None:
    params = pytest.importorskip("sweeps.params")
    for tree in ({"values": ["a", "b", "c"]}, {"values": ["a", "b", "c"], "probabilities": [0.2, 0.5, 0.3]}):
        theirs, ours = params.HyperParameter("p", tree), build("categorical", tree)
        quantiles = [random.Random(0).random() for _ in range(300)]
        assert [ours.at(quantile) for quantile in quantiles] == [
            theirs.ppf(quantile) for quantile in quantiles
        ]


@pytest.mark.parametrize("name", ENDS)
def test_draws_stay_in_their_range_and_reach_both_ends(name: str) -> None:
    parameter, (low, high) = build(name, DISTRIBUTIONS[name]), ENDS[name]
    draws = [parameter.draw(random.Random(number)) for number in range(3000)]
    assert low - 1e-9 <= min(draws) <= low + 0.05 * (high - low)
    assert high + 1e-9 >= max(draws) >= high - 0.05 * (high - low)


def test_a_default_q_rounds_to_whole_numbers_as_floats() -> None:
    parameter = build("q_uniform", {"min": 0, "max": 9})
    assert [parameter.at(quantile) for quantile in (0.0, 0.5, 0.99)] == [0.0, 4.0, 9.0]
    assert isinstance(parameter.at(0.5), float)


@pytest.mark.parametrize("name", [name for name in DISTRIBUTIONS if name != "int_uniform"])
def test_a_number_and_its_quantile_belong_together(name: str) -> None:
    parameter = build(
        name, {key: value for key, value in DISTRIBUTIONS[name].items() if key != "q"} | {"q": 1e-9}
    )
    assert isinstance(parameter, Number)
    for quantile in (0.001, 0.3, 0.5, 0.98):
        assert parameter.quantile(parameter.at(quantile)) == pytest.approx(quantile, abs=1e-3)


def test_every_distribution_is_tested() -> None:
    assert {*DISTRIBUTIONS, "constant", "categorical", "categorical_w_probabilities"} == {*SHAPES}


def test_a_point_of_a_large_grid_is_found_by_its_number(tmp_path: Path) -> None:
    sweep = toy_sweep(tmp_path, parameters={f"p{n}": {"min": 0, "max": 9} for n in range(12)})
    assert grid_size(sweep) == 10**12
    assert grid_point(sweep, 123456789) == dict(zip(sorted(sweep.parameters), [0] * 12, strict=True)) | {
        name: int(digit) for name, digit in zip(sweep.parameters, f"{123456789:012d}", strict=True)
    }


def mixed(folder: Path) -> Sweep:
    """A random sweep with every distribution."""
    parameters = {name: {"distribution": name, **tree} for name, tree in DISTRIBUTIONS.items()}
    parameters["choice"] = {"values": ["a", [1, 2]], "probabilities": [0.75, 0.25]}
    return toy_sweep(folder, method="random", parameters=parameters)


def test_a_random_point_depends_on_seed_and_number_alone(tmp_path: Path) -> None:
    sweep = mixed(tmp_path)
    points = [random_point(sweep, 0, number) for number in range(20)]
    assert [random_point(sweep, 0, number) for number in reversed(range(20))] == points[::-1]
    assert len({repr(point) for point in points}) == 20
    assert random_point(sweep, 1, 0) != points[0]
    code = (
        "from experiments.sweep.file import read_sweep; from experiments.sweep.points import random_point;"
        f"print(random_point(read_sweep({str(sweep.path)!r}), 0, 7))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == repr(points[7])


def test_another_parameter_does_not_change_the_draws_of_the_others(tmp_path: Path) -> None:
    one = toy_sweep(tmp_path, method="random", parameters={"b": {"min": 0.0, "max": 1.0}})
    both = toy_sweep(
        tmp_path, method="random", parameters={"a": {"min": 0.0, "max": 1.0}, "b": {"min": 0.0, "max": 1.0}}
    )
    assert random_point(both, 3, 5)["b"] == random_point(one, 3, 5)["b"] != random_point(both, 3, 5)["a"]


def test_points_are_plain_values(tmp_path: Path) -> None:
    point = random_point(mixed(tmp_path), 0, 0)
    assert yaml.safe_load(yaml.safe_dump(point)) == point
