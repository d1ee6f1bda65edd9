"""Where runs live: nothing finished is ever lost, whatever happens to the files."""

import json
import os
import re
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments import store
from experiments.errors import StoreError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(row: str, seed: int = 0, run_id: str = "", value: float = 1.0) -> dict[str, Any]:
    return {"id": run_id or f"{row}{seed}", "row": row, "column": "c", "seed": seed, "metrics": {"m": value}}


def ids(table: str = "t") -> list[str]:
    return [r["id"] for r in store.read_results(table).records]


def test_a_record_stands_where_the_one_of_its_row_column_and_seed_stood() -> None:
    store.keep("t", [record("a"), record("b"), record("a", seed=1)])
    store.keep("t", [record("a", run_id="new")])
    assert ids() == ["new", "b0", "a1"]


def test_a_run_made_anew_renews_its_copies_in_every_table() -> None:
    store.keep("t", [record("a", run_id="shared"), record("b")])
    store.keep("u", [record("x", run_id="shared"), record("y", run_id="shared"), record("z")])
    store.renew(record("a", run_id="shared", value=2.0))

    def values(table: str) -> dict[str, float]:
        return {r["row"]: r["metrics"]["m"] for r in store.read_results(table).records}

    assert values("t") == {"a": 2.0, "b": 1.0}
    assert values("u") == {"x": 2.0, "y": 2.0, "z": 1.0}


def test_a_broken_last_line_is_reported_kept_aside_and_costs_nothing_else() -> None:
    store.keep("t", [record("a"), record("b")])
    path = store.results_file("t")
    path.write_text(path.read_text() + '{"id": "c0", "row": "c", "met')
    found = store.read_results("t")
    assert [r["id"] for r in found.records] == ["a0", "b0"]
    assert "t.jsonl, line 3 is broken" in found.warnings[0]
    store.keep("t", [record("d")])
    assert ids() == ["a0", "b0", "d0"] and not store.read_results("t").warnings
    assert path.with_name("t.jsonl.broken").read_text() == '{"id": "c0", "row": "c", "met\n'


@given(cut=st.integers(min_value=0, max_value=400))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_results_file_cut_anywhere_keeps_every_whole_line(cut: int) -> None:
    path = store.results_file("t")
    path.unlink(missing_ok=True)
    store.keep("t", [record(row) for row in "abcd"])
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    lines = whole[:cut].split(b"\n")
    kept = sum(line in whole.split(b"\n") for line in lines if line)
    assert len(ids()) == kept


def test_a_line_that_is_json_but_no_record_is_broken_too() -> None:
    store.results_file("t").parent.mkdir()
    store.results_file("t").write_text('[1, 2]\n{"id": "x"}\n')
    assert len(store.read_results("t").warnings) == 2


DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"metrics": {"m": float("nan")}}, r"metrics\.m is nan; it has to be a finite number"),
    ({"metrics": {"m": float("inf")}}, r"metrics\.m is inf"),
    ({"metrics": {"m": True}}, r"metrics\.m is True; it has to be a finite number"),
    ({"metrics": {"m": "0.5"}}, r"metrics\.m is '0\.5'"),
    ({"metrics": {"m": 10**400}}, r"metrics\.m is 1000"),
    ({"metrics": {"m" * 100_000: None}}, r"metrics\.m+\.\.\. is 'mmm"),
    ({"metrics": [0.5]}, r"metrics is \[0\.5\]; it has to hold `name: value` pairs"),
    ({"metrics": {"m": "x" * 1_000_000}}, r"metrics\.m is 'xxx"),
    ({"seed": -1}, "seed is -1; it has to be a whole number from 0 to 4294967295"),
    ({"seed": 2**40}, "seed is 1099511627776"),
    ({"seed": True}, "seed is True"),
    ({"seed": 0.0}, r"seed is 0\.0"),
    ({"seed": []}, r"seed is \[\]"),
    ({"row": ["a"]}, r"row is \['a'\]"),
    ({"column": "a/b"}, "column is 'a/b'"),
    ({"id": "../../etc"}, r"id is '\.\./\.\./etc'"),
    ({"seconds": "long"}, "seconds is 'long'"),
    ({"epochs": -1}, "epochs is -1"),
    ({"updates": {"task": -1, "energy": 1}}, r"updates\.task is -1"),
    ({"curves": [1, 2]}, r"curves is \[1, 2\]"),
    ({"curves": {"val/m": [1, None]}}, r"curves\.val/m\[1\] is None; it has to be a number"),
    ({"findings": {"changes": [["A", "B"]]}}, r"findings\.changes\[0\] is \['A', 'B'\]"),
    ({"versions": {"torch": 2}}, r"versions\.torch is 2"),
    ({"commit": 7}, "commit is 7"),
    ({"starts": [{"epoch": 0}]}, r"starts\[0\]\.commit is missing"),
    ({"config": "none"}, "config is 'none'"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_record_that_cannot_be_drawn_is_refused_by_file_line_and_key(
    damage: dict[str, Any], says: str
) -> None:
    lines = [record("a"), record("b") | damage]
    store.results_file("t").parent.mkdir()
    store.results_file("t").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = store.read_results("t")
    assert [r["id"] for r in found.records] == ["a0"]
    assert re.match(rf"results/t\.jsonl, line 2 is broken: {says}", found.warnings[0])
    assert len(found.warnings[0]) < 500
    store.write_json(store.run_dir("b0") / "record.json", record("b") | damage)
    assert store.read_record("b0") is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"[" * 100_000, "it is too deeply nested"),
        (b'[{"id": "b0"}]', "it is .* it has to hold `name: value` pairs"),
        (b'{"id": "b0", "row": "b"}', "column is missing"),
        (json.dumps(record("b")).encode().replace(b'"b"', b'"\xff"'), "it is not UTF-8"),
        (json.dumps(record("b")).encode()[:-1], "it is not JSON"),
        (json.dumps(record("a")).encode(), "line 1 has its row, column and seed already"),
        (json.dumps(record("b") | {"seed": 7}).encode().replace(b"7", b"9" * 5000), "it is not JSON"),
    ],
)
def test_a_line_that_is_no_record_is_refused_and_kept_byte_by_byte(line: bytes, says: str) -> None:
    store.keep("t", [record("a")])
    path = store.results_file("t")
    path.write_bytes(path.read_bytes() + line + b"\n")
    found = store.read_results("t")
    assert len(found.records) == 1
    assert re.match(rf"results/t\.jsonl, line 2 is broken: {says}", found.warnings[0])
    store.keep("t", [record("c")])
    assert path.with_name("t.jsonl.broken").read_bytes() == line + b"\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_named_when_torch_saves(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="disk is full"), store.replacing(tmp_path / "last.ckpt") as part:
        part.symlink_to("/dev/full")
        with part.open("wb") as file:  # as checkpoints are written
            torch.save({"weights": torch.zeros(100_000)}, file)
    with pytest.raises(RuntimeError, match="other"), store.replacing(tmp_path / "last.ckpt"):
        raise RuntimeError("other")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_named_and_leaves_the_old_file() -> None:
    store.keep("t", [record("a")])
    Path(f"results/.t.jsonl.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(StoreError, match=r"disk is full.*results/t.jsonl.*Free some space"):
        store.keep("t", [record("b")])
    assert ids() == ["a0"]


def test_a_folder_that_may_not_be_written_is_named(here: Path) -> None:
    (here / "results").write_text("not a folder")
    with pytest.raises(StoreError, match="could not be written"):
        store.keep("t", [record("a")])


def add_many(first: int) -> None:
    for seed in range(first, first + 20):
        store.keep("t", [record("a", seed=seed)])


def test_two_processes_that_write_one_table_lose_no_line() -> None:
    context = get_context("fork")
    workers = [context.Process(target=add_many, args=(first,)) for first in (0, 100)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(r["seed"] for r in store.read_results("t").records) == [*range(20), *range(100, 120)]


def held_elsewhere(folder: str, answer: Callable[[bool], None]) -> None:
    with store.hold(Path(folder)) as mine:
        answer(mine)


def test_a_run_is_held_by_one_process_and_free_again_when_that_ends() -> None:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    with store.hold(Path("runs/x")) as mine:
        assert mine
        worker = context.Process(target=held_elsewhere, args=("runs/x", theirs.send))
        worker.start()
        assert ours.recv() is False
        worker.join()
    assert not store.is_held(Path("runs/x")) and not store.is_held(Path("runs/never"))


def test_records_of_all_tables_are_found_by_id() -> None:
    store.keep("one", [record("a")])
    store.keep("two", [record("b")])
    assert set(store.finished()) == {"a0", "b0"}


def test_a_small_file_that_was_cut_off_counts_as_absent() -> None:
    store.write_json(Path("runs/a0/record.json"), record("a"))
    assert store.read_record("a0") == record("a")
    Path("runs/a0/record.json").write_text(json.dumps(record("a"))[:20])
    assert store.read_record("a0") is None
