"""Records are renamed: the committed ones get their old names first, and the new ones again."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from committed import ROOT
from experiments import store
from experiments.plan.identity import Tree, run_id
from scripts import rename_records
from scripts.rename_records import ID, STEPS, EmptyArguments, Rename, main

Lines = dict[str, list[dict[str, Any]]]
BARE: dict[str, Any] = {"trainer": {"callbacks": []}}  # what every identity has
FILES = (
    "implicit_mlc.jsonl",
    "seal_mlc.jsonl",
    "scaling_main.jsonl",
    "implicit_time.jsonl",
    "implicit_known.jsonl",
)


def with_empty(tree: Tree) -> Tree:
    """A config as identities were once: a class with options that are all None had empty arguments."""
    if isinstance(tree, dict):
        bare = tree.get("class_path") == "energies.spaces.PixelMasks" and "init_args" not in tree
        return {k: with_empty(v) for k, v in tree.items()} | ({"init_args": {}} if bare else {})
    return [with_empty(v) for v in tree] if isinstance(tree, list) else tree


def aged(lines: Lines, steps: tuple[Rename | EmptyArguments, ...]) -> tuple[Lines, dict[str, str]]:
    """Records with the names they had before these steps, and their old ids by the new ones."""
    ids: dict[str, str] = {}

    def before(config: dict[str, Any]) -> dict[str, Any]:
        for step in reversed(steps):
            if isinstance(step, EmptyArguments):
                config = with_empty(config)
            elif step.of:
                config = step.undone()(config)
            else:
                text = re.sub(rf'"{re.escape(step.new)}(?=[".])', f'"{step.old}', json.dumps(config))
                config = json.loads(text)
        return json.loads(ID.sub(lambda found: ids.get(found[0], found[0]), json.dumps(config)))

    for _ in range(2):  # runs that need others take their ids, then
        ids |= {r["id"]: run_id(before(r["config"])) for rows in lines.values() for r in rows}
    old = {
        name: [r | {"id": ids[r["id"]], "config": before(r["config"])} for r in rows]
        for name, rows in lines.items()
    }
    return old, ids


@pytest.fixture(scope="module")
def committed() -> Lines:
    """A cut through the committed records: every scheme, and runs that others are made from."""
    rows = {n: [json.loads(r) for r in (ROOT / "results" / n).read_text().splitlines()] for n in FILES}
    wanted = {name: [r for r in rows[name] if r["seed"] == 0] for name in FILES}
    assert any("Pretrained" in json.dumps(r["config"]) for r in wanted["seal_mlc.jsonl"])
    return wanted


def write(folder: Path, lines: Lines) -> Path:
    """Result files of these records."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in lines.items():
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def texts(folder: Path) -> dict[str, str]:
    """What the files of a folder hold, locks apart."""
    return {path.name: path.read_text() for path in folder.iterdir() if not path.name.endswith(".lock")}


def call(folder: Path) -> int:
    return main(["--results", str(folder / "results"), "--runs", str(folder / "runs")])


@pytest.mark.parametrize("since", range(len(STEPS)))
def test_records_of_any_time_get_the_names_and_ids_of_today(
    committed: Lines, tmp_path: Path, since: int
) -> None:
    results = write(tmp_path / "results", aged(committed, STEPS[since:])[0])
    expected = texts(write(tmp_path / "expected", committed))
    assert texts(results) != expected
    assert call(tmp_path) == 0
    assert texts(results) == expected
    assert call(tmp_path) == 0
    assert texts(results) == expected


def test_a_record_that_an_older_clone_adds_follows_the_run_it_needs(committed: Lines, tmp_path: Path) -> None:
    old, _ = aged(committed, STEPS)
    place = next(
        i for i, r in enumerate(committed["seal_mlc.jsonl"]) if "PretrainedEnergy" in json.dumps(r["config"])
    )
    mixed = {name: list(rows) for name, rows in committed.items()}
    mixed["seal_mlc.jsonl"][place] = old["seal_mlc.jsonl"][place]
    results = write(tmp_path / "results", mixed)
    assert call(tmp_path) == 0
    assert texts(results) == texts(write(tmp_path / "expected", committed))


def test_ids_on_pages_and_in_plans_follow(committed: Lines, tmp_path: Path) -> None:
    old, ids = aged(committed, STEPS)
    results = write(tmp_path / "results", old)
    new = next(new for new, before in ids.items() if new != before)
    (results / "seal_mlc.cells.json").write_text(json.dumps({"ids": {"a/b/0": ids[new], "a/b/1": "f" * 16}}))
    assert call(tmp_path) == 0
    assert json.loads((results / "seal_mlc.cells.json").read_text())["ids"] == {
        "a/b/0": new,
        "a/b/1": "f" * 16,
    }


@pytest.mark.parametrize("fault", ["a setting was changed by hand", "the config is gone"])
def test_a_record_whose_id_is_not_its_configs_is_refused_and_nothing_is_written(
    committed: Lines, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture
) -> None:
    old, _ = aged(committed, STEPS)
    record = json.loads(json.dumps(old["implicit_mlc.jsonl"][3]))
    if fault == "the config is gone":
        del record["config"]
    else:
        record["config"]["trainer"]["max_epochs"] += 1
    old["implicit_mlc.jsonl"][3] = record
    results = write(tmp_path / "results", old)
    before = texts(results)
    assert call(tmp_path) == 2
    assert "implicit_mlc.jsonl, line 4: the id of this record is not the hash" in capsys.readouterr().err
    assert texts(results) == before


def test_a_config_with_names_of_different_times_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = BARE | {
        "model": {"first": "inference.criteria.Likelihood", "second": "inference.chain.criteria.Likelihood"}
    }
    record = {"id": run_id(config), "row": "a", "column": "b", "seed": 0, "metrics": {}, "config": config}
    results = write(tmp_path / "results", {"toy.jsonl": [record]})
    before = texts(results)
    assert call(tmp_path) == 2
    assert "Does it mix names of different times?" in capsys.readouterr().err
    assert texts(results) == before


def test_a_renamed_argument_is_renamed_in_its_class_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BARE | {
        "a": {"class_path": "losses.joint.Compound", "init_args": {"weight": 0.5, "tau": 1}},
        "b": {"class_path": "losses.task.EnergyAndSupervision", "init_args": {"weight": 0.5}},
    }
    record = {"id": run_id(config), "row": "a", "column": "b", "seed": 0, "metrics": {}, "config": config}
    monkeypatch.setattr(
        rename_records, "STEPS", (Rename("weight", "perceptron_weight", of="losses.joint.Compound"),)
    )
    results = write(tmp_path / "results", {"toy.jsonl": [record]})
    assert call(tmp_path) == 0
    found = json.loads((results / "toy.jsonl").read_text())
    assert found["config"]["a"]["init_args"] == {"perceptron_weight": 0.5, "tau": 1}
    assert found["config"]["b"] == config["b"]
    assert found["id"] == run_id(found["config"])


@pytest.fixture
def folders(committed: Lines, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Run folders of an energy and of a run made from it, by old names; their old ids by the new ones."""
    old, ids = aged(committed, STEPS)
    place, needs = next(
        (i, r)
        for i, r in enumerate(committed["seal_mlc.jsonl"])
        if "PretrainedEnergy" in json.dumps(r["config"])
    )
    needed = needs["config"]["model"]["init_args"]["energy"]["init_args"]["checkpoint"]
    pair = {needed: next(r for rows in old.values() for r in rows if r["id"] == ids[needed])}
    pair[needs["id"]] = old["seal_mlc.jsonl"][place]
    for record in pair.values():
        folder = tmp_path / "runs" / record["id"]
        (folder / "checkpoints").mkdir(parents=True)
        store.write_json(folder / "record.json", record)
        store.write_json(folder / "progress.json", {"id": record["id"], "state": "done"})
        path = f"runs/{ids[needed]}/checkpoints/best.ckpt"
        full = json.loads(json.dumps(record["config"]).replace(ids[needed], path))
        (folder / "config.yaml").write_text(yaml.safe_dump(full, sort_keys=False))
        torch.save({"hyper_parameters": full["model"]["init_args"]}, folder / "checkpoints" / "best.ckpt")
    return tmp_path, {new: record["id"] for new, record in pair.items()}


def test_run_folders_are_renamed_with_all_that_names_their_ids(folders: tuple[Path, dict[str, str]]) -> None:
    folder, ids = folders
    assert any(new != old for new, old in ids.items())
    assert call(folder) == 0
    assert {path.name for path in (folder / "runs").iterdir()} == set(ids)
    for new, old in ids.items():
        run = folder / "runs" / new
        content = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
        everything = "".join(
            (run / name).read_text() for name in ("record.json", "config.yaml", "progress.json")
        )
        assert old == new or old not in everything + json.dumps(content)
        assert json.loads((run / "record.json").read_text())["id"] == new
        written = yaml.safe_load((run / "config.yaml").read_text())
        assert content["hyper_parameters"] == written["model"]["init_args"]
    assert call(folder) == 0


def test_the_trials_of_a_sweep_follow_their_runs(folders: tuple[Path, dict[str, str]]) -> None:
    folder, ids = folders
    path = folder / "runs" / "sweeps" / "toy" / "study.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as study, study:
        study.execute("CREATE TABLE trial (number INTEGER PRIMARY KEY, run_id TEXT)")
        study.executemany("INSERT INTO trial (run_id) VALUES (?)", [(old,) for old in ids.values()])
        study.execute("INSERT INTO trial (run_id) VALUES (NULL)")
    assert call(folder) == 0
    with closing(sqlite3.connect(path)) as study:
        assert [run for (run,) in study.execute("SELECT run_id FROM trial")] == [*ids, None]
    path.write_bytes(b"SQLite format 3" + b"?" * 200)
    assert call(folder) == 2


def test_an_unfinished_run_is_renamed_by_its_config(folders: tuple[Path, dict[str, str]]) -> None:
    folder, ids = folders
    for old in ids.values():
        (folder / "runs" / old / "record.json").unlink()
    assert call(folder) == 0
    assert {path.name for path in (folder / "runs").iterdir()} == set(ids)


def test_a_run_in_use_waits(folders: tuple[Path, dict[str, str]], capsys: pytest.CaptureFixture) -> None:
    folder, ids = folders
    new, old = next(iter(ids.items()))
    with store.hold(folder / "runs" / old):
        assert call(folder) == 0
    assert "is in use" in " ".join(capsys.readouterr().out.split())
    assert (folder / "runs" / old).exists()
    assert call(folder) == 0
    assert (folder / "runs" / new).exists()


def test_a_run_that_is_there_under_both_names_is_told(
    folders: tuple[Path, dict[str, str]], capsys: pytest.CaptureFixture
) -> None:
    folder, ids = folders
    old = next(old for new, old in ids.items() if new != old)
    shutil.copytree(folder / "runs" / old, folder / "kept")
    assert call(folder) == 0
    shutil.copytree(folder / "kept", folder / "runs" / old)
    assert call(folder) == 2
    assert "They are the same run" in " ".join(capsys.readouterr().err.split())
