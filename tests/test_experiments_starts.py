"""The starts of a run: its record says which code on which processor trained which epochs."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import toy_world
from experiments import starts, store
from experiments.page import page, render, words
from experiments.page.summary import summarise
from experiments.plan.spec import read_table
from experiments.run.by_hand import train
from toy_world import World, commit

world = toy_world.world  # the fixture

LAYERS = ["--config", "conf/data/toy.yaml", "--config", "conf/scheme/toy.yaml", "--run_dir", "runs/mine"]


def epochs(most: int) -> dict[str, Any]:
    """Train up to so many epochs; the record."""
    return train([*LAYERS, f"--trainer.max_epochs={most}"], lambda progress: None)[0]


def told(record: dict[str, Any]) -> list[tuple[int, str | None, bool | None]]:
    return [(start["epoch"], start["commit"], start["dirty"]) for start in record["starts"]]


def test_a_record_lists_each_start_with_its_code_and_where_it_began(world: World) -> None:
    first = commit()
    epochs(2)
    second = commit()
    assert told(epochs(5)) == [(0, first, False), (2, second, False)]
    Path("conf/scheme/toy.yaml").write_text(Path("conf/scheme/toy.yaml").read_text() + "\n")
    record = epochs(6)
    assert told(record) == [(0, first, False), (2, second, False), (5, second, True)]
    assert {(s["device"], s["cpu"]) for s in record["starts"]} == {("cpu", record["cpu"])}
    assert starts.last(record) == {k: v for k, v in record["starts"][-1].items() if k != "epoch"}


def test_a_start_that_only_tests_is_listed_too(world: World) -> None:
    first = commit()
    epochs(2)
    second = commit()
    assert told(epochs(2)) == [(0, first, False), (2, second, False)]


def test_a_start_none_of_whose_epochs_are_left_is_not_listed(world: World) -> None:
    commit()
    epochs(2)
    for name in ("last", "before"):
        Path(f"runs/mine/checkpoints/{name}.ckpt").unlink(missing_ok=True)
    second = commit()
    assert told(epochs(3)) == [(0, second, False)]


def test_a_run_begun_before_starts_were_listed_says_that_it_does_not_know(world: World) -> None:
    first = commit()
    epochs(2)
    path = Path("runs/mine/checkpoints/last.ckpt")
    kept = torch.load(path, weights_only=True)
    (log,) = (state for key, state in kept["callbacks"].items() if key.startswith("EpochLog"))
    del log["starts"]
    torch.save(kept, path)
    record = epochs(3)
    assert told(record) == [(0, None, None), (2, first, False)]
    assert starts.changed_code(record)
    assert json.loads(Path("runs/mine/record.json").read_text())["starts"] == record["starts"]


def record(row: str, seed: int = 0, **more: Any) -> dict[str, Any]:
    """One in the older form, made on A, unless more is told."""
    place = {"id": f"{row}{seed}", "row": row, "column": "easy", "seed": seed}
    made = {"commit": "c1", "dirty": False, "device": "cpu", "cpu": "A", "seconds": 60.0}
    return place | {"metrics": {"test/example_f1": 0.5}} | made | more


def test_an_older_record_counts_as_one_start() -> None:
    assert starts.of(record("plain")) == [
        {"epoch": 0, "commit": "c1", "dirty": False, "device": "cpu", "cpu": "A"}
    ]


A, B = ({"epoch": 0, "commit": "c1", "dirty": False, "device": "cpu", "cpu": cpu} for cpu in "AB")
GPU = A | {"device": "a GPU"}


@pytest.mark.parametrize(
    ("records", "marked"),
    [
        ([record("plain"), record("plain", 1)], False),
        ([record("plain"), record("plain", 1, cpu="B")], True),  # two seeds, two processors
        ([record("plain"), record("plain", 1, starts=[A, A | {"epoch": 3}])], False),
        ([record("plain", starts=[A, B | {"epoch": 3}])], True),  # moved to another machine
        ([record("plain", starts=[GPU, GPU | {"cpu": "B"}])], False),  # the GPU trained it
        ([record("plain", starts=[A, A | {"epoch": 3, "commit": "c2"}])], True),
        ([record("plain"), record("plain", 1, commit="c2")], False),  # each of one code
        ([record("plain", starts=[A | {"dirty": True}])], False),
        ([record("plain", starts=[A | {"dirty": True}, A | {"dirty": True}])], True),  # changes have no name
        ([record("plain", starts=[starts.UNKNOWN, A])], True),
    ],
)
def test_a_page_marks_what_mixes_processors_or_code(
    world: World, records: list[dict[str, Any]], marked: bool
) -> None:
    store.keep("toy", [*records, record("taught", cpu="B")])
    text = page.markdown(summarise(read_table("toy"), {}))
    assert (")‡ [" in text) is marked and (words.MIXED in text) is marked
    said = io.StringIO()
    render.render(read_table("toy"), Console(file=said, width=800))
    assert (")‡ [" in said.getvalue()) is marked and (words.MIXED in said.getvalue()) is marked
