"""Records trained again: beside them with --verify, in their place with --fresh, and never by the way."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toy_world
from experiments import store
from experiments.page.intervals import Sample
from experiments.page.verdicts import Cell
from experiments.plan.spec import read_table
from experiments.run.verify import NOISE, compare
from toy_world import World, commit

world = toy_world.world  # the fixture

TAUGHT = {"needs": {"model.init_args.teacher": "plain"}}


def doctor(row: str, seed: int, change: Callable[[float], float]) -> dict[str, Any]:
    """Give a record another number, as if it had been made on another machine."""
    (record,) = (r for r in store.read_results("toy").records if (r["row"], r["seed"]) == (row, seed))
    record["metrics"]["test/example_f1"] = change(record["metrics"]["test/example_f1"])
    for told in (record, *record["starts"]):
        told["cpu"] = "elsewhere"
    store.keep("toy", [record])
    return record


def files(folder: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", [[], ["--rows", "taught"]])
def test_a_run_made_for_its_checkpoint_alone_leaves_its_record_as_it_is(
    world: World, options: list[str]
) -> None:
    world.table(plain={}, taught=TAUGHT)
    world.reproduce("--seeds", "0", "--rows", "plain")
    kept = doctor("plain", 0, lambda value: value + 0.01)
    shutil.copy("results/toy.jsonl", "results/other.jsonl")
    shutil.rmtree(world.run_of("plain"))
    code, said = world.reproduce("--seeds", "0", *options)
    assert code == 0 and "done    plain" in said and "done    taught" in said
    assert [r["row"] for r in world.records()] == ["plain", "taught"] and world.records()[0] == kept
    assert world.records("other") == [kept]
    code, said = world.reproduce("--seeds", "0", "--rows", "plain")
    assert "start" not in said and world.records()[0] == kept


def test_fresh_says_beforehand_what_it_will_replace(world: World) -> None:
    world.table(plain={}, taught=TAUGHT)
    world.reproduce("--seeds", "0")
    kept = doctor("plain", 0, lambda value: value + 0.01)
    shutil.copy("results/toy.jsonl", "results/other.jsonl")
    told = f"replaces {kept['id']}, made {kept['finished']} on elsewhere; its copy in other too"
    assert told in world.reproduce("--seeds", "0", "--fresh", "--dry-run")[1]
    assert "replaces" not in world.reproduce("--seeds", "0", "--dry-run")[1]
    code, said = world.reproduce("--seeds", "0", "--rows", "plain", "--fresh")
    assert (
        code == 0
        and said.index(told) < said.index("start   plain")
        and "taught / easy / seed 0 r" not in said
    )
    (new,) = (r for r in world.records() if r["row"] == "plain")
    assert new != kept and new["metrics"] in [r["metrics"] for r in world.records("other")]


def test_what_is_verified_is_trained_again_and_compared_and_nothing_on_record_changes(world: World) -> None:
    world.table(plain={}, taught=TAUGHT, later={})
    name = commit()
    world.reproduce("--rows", "plain,taught")
    values = {r["seed"]: r["metrics"]["test/example_f1"] for r in world.records() if r["row"] == "plain"}
    doctor("plain", 1, lambda value: value + (value - values[0]) / 2)
    doctor("taught", 1, lambda value: value + 0.3)
    shutil.rmtree(world.run_of("plain"))  # what taught needs is trained for the check as well
    before = files("results") | files("runs")
    code, said = world.reproduce("--verify")
    assert code == 1 and "left out, not finished: later / easy / seed 0; later / easy / seed 1" in said
    lines = {line.partition(": ")[0]: line for line in said.splitlines() if ": committed " in line}
    assert list(lines) == [f"{row} / easy / seed {seed}" for row in ("plain", "taught") for seed in (0, 1)]
    value = f"{100 * values[0]:.2f}"
    assert lines["plain / easy / seed 0"].endswith(
        f"committed {value}, here {value}, difference +0.00: bitwise"
    )
    assert "within the noise of a seed (" in lines["plain / easy / seed 1"]
    assert "difference -30.00: different (" in lines["taught / easy / seed 1"]
    assert "2 bitwise, 1 within the noise of a seed, 1 different" in said and ", elsewhere; commits " in said
    after = files("results") | files("runs")
    assert {path: text for path, text in after.items() if path in before} == before
    made = Path("runs/verify") / name[:12]
    assert {path.parts[:3] for path in after.keys() - before.keys()} == {made.parts}
    assert len(list(made.glob("*/checkpoints/best.ckpt"))) == 4
    again = world.reproduce("--verify")[1]
    assert "start " not in again and set(lines.values()) <= set(again.splitlines())


def test_where_nothing_is_on_record_there_is_nothing_to_verify(world: World) -> None:
    world.table(plain={})
    code, said = world.reproduce("--verify")
    assert code == 2 and "has a record of the current config" in said and "make reproduce TABLE=toy" in said
    store.keep("toy", [{"id": "old", "row": "plain", "column": "easy", "seed": 0, "metrics": {}}])
    code, said = world.reproduce("--verify", "--seeds", "0")
    assert code == 2 and "left out, made with an earlier config: plain / easy / seed 0" in said
    code, said = world.reproduce("--verify", "--collect")
    assert code == 2 and "--collect draws the whole table and runs nothing: leave --verify out." in said


def test_a_check_may_be_planned_without_running_it(world: World) -> None:
    world.table(plain={}, taught=TAUGHT)
    world.reproduce("--seeds", "0")
    code, said = world.reproduce("--seeds", "0", "--rows", "taught", "--verify", "--dry-run")
    assert code == 0 and "1 planned, 1 waiting" in said.splitlines()
    assert not list(Path("runs/verify").rglob("*.ckpt"))


def found(value: float, **more: Any) -> dict[str, Any]:
    speed = {"test/examples_per_second": random.random()}
    metrics = {"test/example_f1": value} | speed
    return {"metrics": metrics, "curves": {"val/f1": [0.4, 0.5]}} | more


ALONE = "one seed is on record, so its noise is not known"


@pytest.mark.parametrize(
    ("spread", "new", "verdict", "noise"),
    [
        (2.0, found(0.5), "bitwise", ""),
        (None, found(0.5), "bitwise", ""),
        (2.0, found(0.5, curves={"val/f1": [0.4, 0.5], "more": [1.0]}), "bitwise", ""),
        (2.0, found(0.5, curves={}), NOISE, "2.00 over 2 seeds; not the same: val/f1"),
        (None, found(0.5, curves={}), "different", f"{ALONE}; not the same: val/f1"),
        (2.0, found(0.5 + 1e-9), NOISE, "2.00 over 2 seeds"),
        (2.0, found(0.519), NOISE, "2.00 over 2 seeds"),
        (2.0, found(0.521), "different", "2.00 over 2 seeds"),
        (0.0, found(0.5 + 1e-9), "different", "0.00 over 2 seeds"),
        (None, found(0.5 + 1e-9), "different", ALONE),
        (2.0, found(0.5, metrics={}), "different", "2.00 over 2 seeds"),
        (2.0, None, "not trained here", ""),
    ],
)
def test_a_run_is_the_same_bit_for_bit_or_within_the_noise_of_a_seed_or_different(
    world: World, spread: float | None, new: dict[str, Any] | None, verdict: str, noise: str
) -> None:
    values = {0: 50.0} if spread is None else {0: 50.0, 1: 54.0}
    cell = Cell("plain", "easy", Sample(50.0, spread, len(values)), None, 2, values=values)
    told = compare(read_table("toy"), cell, found(0.5), json.loads(json.dumps(new)))
    assert (told.verdict, told.noise) == (verdict, noise)
