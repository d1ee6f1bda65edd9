"""The page of findings over a toy table: what stands beside a verdict, the counts, wrong templates."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import toy_world
from experiments import store
from experiments.errors import TableError
from experiments.page import findings
from toy_world import World, fill

world = toy_world.world  # the fixture


def page(entry: dict[str, Any]) -> str:
    """The page with one claim of the toy table."""
    claim = {"table": "toy", "holds": "taught > plain"} | entry
    paper = {"paper": "seal", "says": "Why.", "claims": [claim]}
    Path("docs").mkdir(exist_ok=True)
    findings.SOURCE.write_text(
        yaml.safe_dump({"title": "Found", "says": "All.", "papers": [paper], "sections": []})
    )
    return findings.drawn()


def test_a_line_has_what_makes_a_verdict_less_than_it_seems(world: World) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["scores"] = ["test/map", "test/example_f1_chosen"]
        tree["rows"]["floor"] = {"label": "floor: one answer", "config": ["conf/scheme/toy.yaml"]}

    world.change("tables/toy.yaml", change)
    found = {
        "plain": [(0.50, 0.8), (0.52, 0.7), (0.54, 0.9)],
        "taught": [(0.61, 0.7), (0.61, 0.6), (0.64, 0.8)],
    }
    found["floor"] = [(0.55, 0.1), (0.55, 0.1)]
    for row, runs in found.items():
        for seed, (f1, average) in enumerate(runs):
            record = {"id": f"{row}{seed}", "row": row, "column": "easy", "seed": seed}
            store.keep("toy", [record | {"metrics": {"test/example_f1": f1, "test/map": average}}])
    text = page({"but": {"easy": "with fewer samples: {toy/easy/taught[0] : .1f}"}})
    (line,) = (line for line in text.splitlines() if line.startswith("| reproduced | `taught > plain`"))
    assert "taught - plain +10.00 [+7.52, +12.48], 3 pairs; " in line
    assert (
        "MAP: fails" in line
        and "F1 at the chosen threshold: not kept by all runs" in line
        and "1 seed beyond the plan, undecided without them" in line
    )
    assert "below the floor: `plain`" in line and "with fewer samples: 61.0" in line
    assert (
        "The paper's claims: 1 reproduced, 1 not run. Reproduced or refuted with seeds beyond the plan: 1."
        in text
    )


def test_a_remark_on_a_column_that_the_claim_has_not_is_refused(world: World) -> None:
    fill()
    with pytest.raises(
        TableError, match=r"findings\.yaml: `taught > plain` has no verdict on esay\. Correct"
    ):
        page({"but": {"esay": "a misspelt column"}})


def test_runs_that_are_the_same_are_counted_apart(world: World) -> None:
    fill({"plain": [0.50, 0.52], "taught": [0.50, 0.52]})
    assert "1 level" in (text := page({})) and "Level because the runs are identical: 1." in text
