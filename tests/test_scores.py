"""The three scores of label sets: what records tell, and how pages show them beside each other."""

from typing import Any

import pytest

import toy_world
from experiments import store
from experiments.page import page
from experiments.page.scores import GRID, derived
from experiments.page.summary import summarise
from experiments.plan.spec import read_table
from lightning_modules.metrics import multilabel
from toy_world import World

world = toy_world.world  # the fixture
HALF, CHOSEN = "test/example_f1_at_half", "test/example_f1_chosen"


def record(
    thresholds: list[float] | None = None, validation: int | None = None, **metrics: float
) -> dict[str, Any]:
    """A run that kept F1 by threshold, k / 100 at the k-th, with validation's largest at one place."""
    found: dict[str, Any] = {"metrics": {f"test/{name}": value for name, value in metrics.items()}}
    if thresholds:
        found["config"] = {"model": {"init_args": {"metric": {"init_args": {"thresholds": thresholds}}}}}
    if validation is not None:
        best = [float(place == validation) for place in range(len(GRID))]
        by_threshold = [place / 100 for place in range(len(GRID))]
        found["findings"] = {"val/f1_by_threshold": best, "test/f1_by_threshold": by_threshold}
    return found


def test_the_grid_is_that_of_the_metric() -> None:
    assert pytest.approx(multilabel.GRID) == GRID and GRID[13] == 0.5


def test_the_threshold_is_the_one_that_validation_likes() -> None:
    assert derived(record([0.5], 7, example_f1=0.9), CHOSEN) == 0.07
    assert derived(record([0.0, 0.5], 7, example_f1=0.9), CHOSEN) == 0.07


@pytest.mark.parametrize("kind", ["micro_f1", "macro_f1"])
def test_micro_and_macro_f1_choose_a_threshold_of_their_own(kind: str) -> None:
    found = record([0.5], 3, **{"example_f1": 0.9, kind: 0.6})
    assert derived(found, f"test/{kind}_at_half") == 0.6 and derived(found, f"test/{kind}_chosen") is None
    best = [float(place == 9) for place in range(len(GRID))]
    found["findings"] |= {
        f"val/{kind}_by_threshold": best,
        f"test/{kind}_by_threshold": [k / 50 for k in range(len(GRID))],
    }
    assert derived(found, f"test/{kind}_chosen") == 0.18 and derived(found, CHOSEN) == 0.03
    assert derived(record([0.0, 0.3], 3) | {"findings": found["findings"]}, f"test/{kind}_at_half") == 0.26


def test_older_records_tell_what_their_own_thresholds_say() -> None:
    assert derived(record([0.0, 0.5], example_f1=0.9), CHOSEN) == 0.9
    assert derived(record([0.5], example_f1=0.9), CHOSEN) is None
    assert derived(record([0.5], example_f1=0.9), HALF) == 0.9
    assert derived(record([0.0, 0.5], example_f1=0.9), HALF) is None
    assert derived(record([0.0, 0.3], 7, example_f1=0.9), HALF) == 0.13
    assert derived(record(example_f1=0.9), "test/other") is None


def test_cells_show_the_scores_beside_each_other_and_verdicts_what_they_are_by_the_others(
    world: World,
) -> None:
    world.change("tables/toy.yaml", lambda t: t.update(scores=[HALF, CHOSEN, "test/map"]))
    for row, f1, ranks, place in (("plain", 0.1, 0.5, 3), ("taught", 0.3, 0.4, None)):
        for seed in (0, 1, 2):
            made = record(
                [0.5], place if seed else None, example_f1=f1 + seed / 1000, map=ranks + seed / 1000
            )
            known = {"id": f"{row}{seed}", "row": row, "column": "easy", "seed": seed, "seconds": 1}
            store.keep("toy", [known | made | {"device": "cpu", "cpu": "a core"}])
    text = page.markdown(summarise(read_table("toy")))
    assert "## F1 at 0.5 · F1 at the chosen threshold · MAP" in text
    assert "| plain | 10.10 · 3.00 (2/3) · 50.10 |" in text and "| taught | 30.10 · - · 40.10 |" in text
    said = "3 pairs; 1 seed beyond the plan; F1 at the chosen threshold: not kept by all runs; MAP: fails)"
    assert f"+20.00, the same in every run, {said}" in text
    assert "F1 at 0.5:" not in text  # the table's own
