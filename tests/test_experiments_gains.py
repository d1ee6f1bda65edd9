"""Shares of a gain: Fieller's interval against the t-test that it inverts, and the line of a page."""

import random
from statistics import fmean, stdev

import pytest

import toy_world
from experiments import store
from experiments.errors import TableError
from experiments.page.gains import share, shares
from experiments.page.intervals import two_sided
from experiments.page.page import markdown
from experiments.page.summary import summarise
from experiments.plan.spec import read_table
from toy_world import World

world = toy_world.world  # the fixture


def p_of(part: list[float], whole: list[float], r: float) -> float:
    gaps = [a - r * b for a, b in zip(part, whole, strict=True)]
    return two_sided(fmean(gaps), stdev(gaps) / len(gaps) ** 0.5, len(gaps) - 1)


def test_a_constant_share_is_certain() -> None:
    found = share([0.5, 1.0, 1.5], [1.0, 2.0, 3.0])
    assert found is None  # a gain of 1, 2 and 3 may be 0: 2 +- 2.5
    found = share([0.5, 0.55, 0.6], [1.0, 1.1, 1.2])
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5), abs=1e-6)


def test_the_ends_of_the_interval_are_what_the_t_test_just_excludes() -> None:
    draw = random.Random(0)
    for count in (2, 3, 5, 8):
        whole = [10 + draw.gauss(0, 0.2) for _ in range(count)]
        part = [0.4 * b + draw.gauss(0, 0.5) for b in whole]
        found = share(part, whole)
        assert found is not None and found.low < found.mean < found.high
        for end in (found.low, found.high):
            assert p_of(part, whole, end) == pytest.approx(0.05, abs=1e-6)


def test_a_loss_has_no_share() -> None:
    assert share([-1.0, -1.1], [-2.0, -2.1]) is None


def test_one_pair_has_no_interval() -> None:
    assert share([1.0], [2.0]) is None


def keep(numbers: dict[str, list[float]]) -> None:
    """Records of the easy column."""
    for row, values in numbers.items():
        for seed, value in enumerate(values):
            known = {"id": f"{row}{seed}", "row": row, "column": "easy", "seed": seed, "seconds": 1}
            store.keep("toy", [known | {"metrics": {"test/example_f1": value}, "device": "cpu", "cpu": "c"}])


def test_a_page_says_the_share_where_the_gain_is_above_0(world: World) -> None:
    gain = {"title": "Share of the gain", "of": "taught", "over": "plain"}
    world.change("tables/toy.yaml", lambda t: t.update(gains=[gain]))
    world.change(
        "tables/toy.yaml",
        lambda t: t["rows"].update(half={"label": "half", "config": ["conf/scheme/toy.yaml"]}),
    )
    keep({"plain": [0.50, 0.52], "taught": [0.60, 0.621], "half": [0.55, 0.5705]})
    summary = summarise(read_table("toy"), {})
    ((title, (whole, line)),) = shares(summary)
    assert title == "Share of the gain" and line.endswith("half 50 % [50, 50]")
    assert "the gain is +10.05 [" in whole
    assert "## Share of the gain\n\nIntervals are Fieller's" in markdown(summary)


@pytest.mark.parametrize(("better", "found"), [("lower", True), ("higher", False)])
def test_a_gain_has_the_sign_of_the_score(better: str, found: bool, world: World) -> None:
    gain = {"title": "Share", "of": "taught", "over": "plain"}
    world.change("tables/toy.yaml", lambda t: t.update(gains=[gain]))
    world.change("tables/toy.yaml", lambda t: t["metric"].update(better=better))
    half = {"label": "half", "config": ["conf/scheme/toy.yaml"]}
    world.change("tables/toy.yaml", lambda t: t["rows"].update(half=half))
    keep({"plain": [0.60, 0.62, 0.61], "taught": [0.50, 0.521, 0.51], "half": [0.55, 0.5705, 0.56]})
    said = shares(summarise(read_table("toy"), {}))
    assert bool(said) is found
    if found:
        assert "the gain is -9.97 [-" in said[0][1][0]
        assert said[0][1][1].endswith("half 50 % [50, 50]")


def test_a_row_with_fewer_seeds_says_so(world: World) -> None:
    gain = {"title": "Share", "of": "taught", "over": "plain"}
    world.change("tables/toy.yaml", lambda t: t.update(gains=[gain]))
    half = {"label": "half", "config": ["conf/scheme/toy.yaml"]}
    world.change("tables/toy.yaml", lambda t: t["rows"].update(half=half))
    keep({"plain": [0.50, 0.52, 0.51], "taught": [0.60, 0.621, 0.61], "half": [0.55, 0.5705]})
    ((_, lines),) = shares(summarise(read_table("toy"), {}))
    assert lines[1].endswith("half 50 % [50, 50], on 2 of 3 seeds")


def test_a_gain_of_a_row_that_is_not_there_is_refused(world: World) -> None:
    gain = {"title": "Share", "of": "taught", "over": "plane"}
    world.change("tables/toy.yaml", lambda t: t.update(gains=[gain]))
    with pytest.raises(TableError, match="plane"):
        read_table("toy")
