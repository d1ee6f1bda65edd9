"""Where runs live: nothing finished is ever lost, whatever happens to the files."""

import json
import os
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
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
