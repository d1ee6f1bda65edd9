"""A toy table end to end, with real training: needs, failures, missing data, kills, two processes, Ctrl-C."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

import toy_world
from experiments.plan.spec import read_table
from experiments.run.board import board, clock
from toy_world import World, until

world = toy_world.world  # the fixture

SLOW = {"model.init_args.pause": 0.4, "trainer.max_epochs": 10}  # slow enough for a busy machine


def finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    said, _ = process.communicate(timeout=180)
    return process.returncode, said


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoints/best.ckpt", weights_only=True)["state_dict"]


def test_a_table_runs_in_order_records_what_it_did_and_runs_nothing_twice(world: World) -> None:
    code, said = world.reproduce("--jobs", "2")
    assert code == 1  # wild diverges
    done = {(r["row"], r["column"], r["seed"]): r for r in world.records()}
    assert set(done) == {(row, "easy", seed) for row in ("plain", "taught") for seed in (0, 1)}
    assert said.index("done    plain / easy / seed 0") < said.index("start   taught / easy / seed 0")
    assert "failed  wild / easy / seed 0: the loss is NaN in epoch 2: try a smaller learning rate" in said
    assert "waits   after / easy / seed 0: needs wild / easy / seed 0: the loss is NaN" in said
    assert "Missing: nowhere.arff is not there" in said

    record = done["taught", "easy", 0]
    run = Path("runs") / record["id"]
    assert record["config"]["model"]["init_args"]["teacher"] == done["plain", "easy", 0]["id"]
    assert record["epochs"] == 5 and record["stopped"] == "max_epochs 5 reached"
    assert set(record["metrics"]) == {"val/example_f1", "test/example_f1"}
    assert {"seconds", "versions", "device", "threads", "commit", "dirty", "finished", "data"} <= set(record)
    assert json.loads((run / "record.json").read_text())["metrics"] == record["metrics"]
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert float(rows[record["best_epoch"]]["val/example_f1"]) == record["metrics"]["val/example_f1"]
    assert "Traceback" in (world.run_of("wild") / "error.txt").read_text()

    before = Path("results/toy.jsonl").read_bytes()
    _, said = world.reproduce()
    assert "start   plain" not in said and "start   wild" in said  # a failed run is tried again
    assert Path("results/toy.jsonl").read_bytes() == before


def test_a_dry_run_says_what_would_run_in_which_order_and_runs_nothing(world: World) -> None:
    code, said = world.reproduce("--dry-run", "--seeds", "0")
    states = {name: state for state, name in re.findall(r"^(\w+) +\w+  (\S+ / \S+ / seed 0)", said, re.M)}
    assert code == 0 and not list(Path("runs").glob("[0-9a-f]*")) and not world.records()
    assert states["plain / easy / seed 0"] == "planned" and states["taught / easy / seed 0"] == "waiting"
    assert states["plain / lost / seed 0"] == "missing"
    assert said.index("plain / easy") < said.index("taught / easy")
    world.reproduce("--rows", "wild", "--seeds", "0")
    assert "failed" in world.reproduce("--dry-run", "--rows", "wild", "--seeds", "0")[1]


def test_a_killed_run_goes_on_from_its_last_epoch_to_the_same_numbers(
    world: World,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.table(plain={"set": SLOW})
    launcher = world.start("toy", "--seeds", "0")
    until(lambda: world.progress("plain").get("epoch", 0) >= 3)
    launcher.kill()
    launcher.communicate()
    run = world.run_of("plain")
    until(lambda: not is_held(run))  # the worker dies with its launcher
    left = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["epoch"] + 1
    assert 2 <= left < 10 and not (run / "record.json").exists()
    assert "resumes after epoch" in world.reproduce("--dry-run", "--seeds", "0")[1]
    rows = (run / "metrics.csv").read_text().splitlines()[1 : left + 1]
    code, _ = world.reproduce("--seeds", "0")
    assert code == 0 and not (run / "checkpoints/last.ckpt").exists()
    after = (run / "metrics.csv").read_text().splitlines()[1:]
    assert after[:left] == rows, "epochs before the kill were not run again"
    assert [row.split(",")[0] for row in after] == [str(e) for e in range(10)]

    unbroken = World(tmp_path_factory.mktemp("unbroken"))
    monkeypatch.chdir(unbroken.folder)
    unbroken.table(plain={"set": SLOW | {"model.init_args.pause": 0.0}})
    unbroken.reproduce("--seeds", "0")
    assert unbroken.records()[0]["metrics"] == world.records()[0]["metrics"]
    assert unbroken.records()[0]["best_epoch"] == world.records()[0]["best_epoch"]
    assert [start["epoch"] for start in world.records()[0]["starts"]] == [0, left]
    ours, theirs = weights(run), weights(unbroken.run_of("plain"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def is_held(run: Path) -> bool:
    from experiments import store

    return store.is_held(run)


def test_two_processes_on_one_table_share_the_work_and_corrupt_nothing(world: World) -> None:
    world.table(plain={"set": SLOW}, taught={"needs": {"model.init_args.teacher": "plain"}})
    first, second = (world.start("toy", "--seeds", "0", "--jobs", "2") for _ in range(2))
    answers = [finish(first), finish(second)]
    assert [code for code, _ in answers] == [0, 0], answers
    assert sorted(r["row"] for r in world.records()) == ["plain", "taught"]
    for row in ("plain", "taught"):
        epochs = [line.split(",")[0] for line in (world.run_of(row) / "metrics.csv").read_text().split()[1:]]
        assert epochs == [str(e) for e in range(len(epochs))]


STOPS: list[tuple[signal.Signals, list[str], str]] = [
    (signal.SIGINT, [], "the same command resumes"),
    (signal.SIGTERM, ["--fresh"], "the same command trains all of them again"),
]


@pytest.mark.parametrize(("sign", "options", "says"), STOPS)
def test_a_stop_is_clean_says_how_to_go_on_and_keeps_what_is_finished(
    world: World, sign: signal.Signals, options: list[str], says: str
) -> None:
    world.table(plain={}, slow={"set": SLOW | {"trainer.max_epochs": 200}})
    launcher = world.start("toy", "--seeds", "0", "--jobs", "1", *options)
    until(lambda: world.records() and world.progress("slow").get("epoch", 0) >= 2)
    launcher.send_signal(sign)
    code, said = finish(launcher)
    assert code == 130 and says in " ".join(said.split()) and "Traceback" not in said
    assert [r["row"] for r in world.records()] == ["plain"]
    assert (world.run_of("slow") / "checkpoints/last.ckpt").exists() and not is_held(world.run_of("slow"))


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_killed_by_the_system_is_a_failure_that_costs_the_others_nothing(
    world: World, sign: signal.Signals
) -> None:
    world.table(slow={"set": SLOW}, plain={})
    launcher = world.start("toy", "--seeds", "0", "--jobs", "1")
    until(lambda: world.progress("slow").get("epoch", 0) >= 2)
    (worker,) = [
        int(p.name)
        for p in Path("/proc").iterdir()
        if p.name.isdigit() and str(world.run_of("slow") / "log.txt") in opened(p)
    ]
    os.kill(worker, sign)
    code, said = finish(launcher)
    assert code == 1 and f"killed by signal {sign}" in said and "resumes from its last epoch" in said
    assert [r["row"] for r in world.records()] == ["plain"]
    rows = (world.run_of("slow") / "metrics.csv").read_text().splitlines()[:2]
    assert world.reproduce("--seeds", "0")[0] == 0
    assert (world.run_of("slow") / "metrics.csv").read_text().splitlines()[:2] == rows, "it began anew"


def opened(process: Path) -> list[str]:
    try:
        return [os.readlink(fd) for fd in (process / "fd").iterdir()]
    except OSError:
        return []


def test_a_record_of_an_earlier_config_is_replaced_when_its_run_is_done_again(world: World) -> None:
    world.table(plain={})
    world.reproduce("--seeds", "0")
    (old,) = world.records()
    world.table(plain={"set": {"model.init_args.noise": 0.2}})
    _code, said = world.reproduce("--dry-run", "--seeds", "0")
    assert "planned" in said and "model.init_args.noise: 0.1 -> 0.2" in said
    world.reproduce("--seeds", "0")
    (new,) = world.records()
    assert new["id"] != old["id"] and new["config"]["model"]["init_args"]["noise"] == 0.2


def test_a_dry_run_names_records_that_lack_a_number_their_row_is_to_have(world: World) -> None:
    world.table(plain={}, other={})
    world.reproduce("--seeds", "0", "--rows", "plain")
    metric = {"name": "test/energy_f1", "scale": 100, "digits": 1, "better": "higher"}
    measure = {"title": "the energy", "metric": metric, "rows": ["plain"]}
    world.change("tables/toy.yaml", lambda tree: tree.update(measures=[measure]))
    lines = world.reproduce("--dry-run", "--seeds", "0")[1].splitlines()
    (plain,) = (line for line in lines if "plain / easy" in line)
    assert plain.startswith("done") and "lacks test/energy_f1: FRESH=1 trains it anew" in plain
    assert not any("lacks" in line for line in lines if "other / easy" in line)


def test_fresh_runs_again_what_is_selected_and_nothing_else(world: World) -> None:
    world.table(plain={}, taught={"needs": {"model.init_args.teacher": "plain"}})
    world.reproduce("--seeds", "0")
    before = {r["row"]: r for r in world.records()}
    code, said = world.reproduce("--fresh", "--rows", "taught", "--seeds", "0")
    after = {r["row"]: r for r in world.records()}
    assert code == 0 and "start   taught" in said and "start   plain" not in said
    assert after["taught"]["metrics"] == before["taught"]["metrics"]


def test_a_needed_run_without_its_checkpoint_runs_again(world: World) -> None:
    world.table(plain={}, taught={"needs": {"model.init_args.teacher": "plain"}})
    world.reproduce("--rows", "plain", "--seeds", "0")
    (world.run_of("plain") / "checkpoints/best.ckpt").unlink()
    assert "start" not in world.reproduce("--rows", "plain", "--seeds", "0")[1]  # nobody needs it yet
    code, said = world.reproduce("--rows", "taught", "--seeds", "0")
    assert code == 0 and "start   plain" in said
    assert sorted(r["row"] for r in world.records()) == ["plain", "taught"]


def test_tables_that_share_a_cell_share_its_run(world: World) -> None:
    world.table(plain={}, again={})
    _code, said = world.reproduce("--seeds", "0")
    assert said.count("start ") == 1 and sorted(r["row"] for r in world.records()) == ["again", "plain"]
    Path("conf/tables/other.yaml").write_text(Path("conf/tables/toy.yaml").read_text())
    from scripts import reproduce

    assert reproduce.main(["other", "--seeds", "0"]) == 0
    assert {r["id"] for r in world.records("other")} == {world.records()[0]["id"]}

    other, old = Path("results/other.jsonl"), "2001-01-01T00:00:00Z"
    other.write_text(other.read_text().replace(world.records()[0]["finished"], old))
    assert {r["finished"] for r in world.records("other")} == {old}
    world.reproduce("--fresh", "--rows", "plain", "--seeds", "0")
    (new,) = {r["finished"] for r in world.records()}
    assert {r["finished"] for r in world.records("other")} == {new} and new != old


def test_a_run_that_finished_just_before_the_plug_was_pulled_is_taken_over(world: World) -> None:
    world.table(plain={})
    world.reproduce("--seeds", "0")
    lines = Path("results/toy.jsonl").read_text()
    Path("results/toy.jsonl").unlink()
    _code, said = world.reproduce("--seeds", "0")
    assert "start" not in said and Path("results/toy.jsonl").read_text() == lines


def test_a_column_that_stands_in_runs_only_where_the_other_has_no_data(world: World) -> None:
    world.table(plain={})
    columns = {"lost": {"config": ["conf/data/toy.yaml", "conf/data/lost.yaml"]}}
    columns["easy"] = {"config": ["conf/data/toy.yaml"], "instead_of": "lost"}
    world.change("tables/toy.yaml", lambda tree: tree.update(columns=columns))
    world.reproduce("--seeds", "0")
    assert [r["column"] for r in world.records()] == ["easy"]
    Path("nowhere.arff").touch()
    _code, _said = world.reproduce("--seeds", "1")
    assert [(r["column"], r["seed"]) for r in world.records()] == [("easy", 0), ("lost", 1)]


def test_a_stop_by_the_user_of_a_selection_that_does_not_exist_is_one_message(world: World) -> None:
    for options, words in [
        (["--rows", "plane"], "no row 'plane' in this table. Did you mean plain"),
        (["--columns", "eesy"], "no column 'eesy' in this table. Did you mean easy"),
        (["--seeds", "one"], "whole numbers"),
        (["--seeds", ","], "whole numbers"),
        (["--seeds", "0,4294967296"], "from 0 to 4294967295"),
        (["--rows", ","], "no row ','"),
        (["--jobs", "-2"], "--jobs -2: take 1 or more"),
        (["--jobs", "0"], "--jobs 0: take 1 or more, or leave it out."),
    ]:
        code, said = world.reproduce(*options)
        assert code == 2 and words in said and "Traceback" not in said


def test_a_terminal_shows_each_run_at_work_with_epoch_best_and_time_left(world: World) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    state = {"name": "plain / easy / seed 0", "epoch": 10, "max_epochs": 30, "seconds": 50.0, "elapsed": 51.0}
    runs = {"x": state | {"latest": 0.4321, "best": 0.44}, "y": {"name": "just begun", "elapsed": 0.1}}
    with board(console, read_table("toy")) as showing:
        showing.tick({"done": 3, "failed": 1}, runs)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "plain / easy / seed 0",
        "10/30",
        "43.21",
        "44.00",
        "51.0 s",
        "01:40",
        "3 done",
        "starting",
    ):
        assert words in said


def test_a_mistake_in_a_config_stops_before_anything_runs(world: World) -> None:
    world.change(
        "tables/toy.yaml", lambda tree: tree["rows"]["wild"].update(set={"model.init_args.diverge": 2})
    )
    code, said = world.reproduce()
    assert code == 2 and "Row wild, column easy" in said and "Did you mean diverge_at" in said
    assert not world.records()


@pytest.mark.parametrize("signals", [1, 2])
def test_small_jobs_do_not_outlive_ctrl_c(signals: int, root: Path) -> None:
    code = (
        "import time; from experiments.run import workers\n"
        "if __name__ == '__main__':\n"
        "    context = workers.server(['json'])\n"
        "    with workers.pool_of(1, context) as pool:\n"
        "        job = pool.submit(time.sleep, 600)\n"
        "        while not job.running(): time.sleep(0.1)\n"
        "        print('at work', flush=True); list(pool.map(time.sleep, [600]))\n"
    )
    begun = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=toy_world.hear_ctrl_c,
    )
    assert begun.stdout is not None and begun.stdout.readline() == "at work\n"
    time.sleep(1)  # until it waits: Python hears no signal between its last look for one and the wait
    for _ in range(signals):
        begun.send_signal(signal.SIGINT)
        time.sleep(1)
    assert begun.wait(timeout=180) != 0


def test_what_an_interrupted_run_left_is_not_taken_for_the_run_that_is_needed(world: World) -> None:
    world.table(plain={}, taught={"needs": {"model.init_args.teacher": "plain"}})
    world.reproduce("--seeds", "0")
    first = {r["row"]: r["metrics"] for r in world.records()}
    (world.run_of("plain") / "record.json").unlink()  # as while it trains once more
    (world.run_of("taught") / "record.json").unlink()
    lines = [line for line in Path("results/toy.jsonl").read_text().splitlines() if '"taught"' not in line]
    Path("results/toy.jsonl").write_text("\n".join(lines) + "\n")
    code, said = world.reproduce("--seeds", "0")
    assert (
        code == 0 and "start   plain" in said and said.index("done    plain") < said.index("start   taught")
    )
    assert {r["row"]: r["metrics"] for r in world.records()} == first


def test_after_an_edit_cells_that_were_not_selected_are_marked_as_of_an_earlier_config(world: World) -> None:
    world.table(plain={}, again={"set": {"model.init_args.noise": 0.2}})
    world.reproduce("--seeds", "0")
    world.change("data/toy.yaml", lambda tree: tree["data"]["init_args"].update(batch_size=8))
    world.reproduce("--seeds", "0", "--rows", "plain")
    page = Path("results/toy.md").read_text().splitlines()
    marked = {row: next(line for line in page if line.startswith(f"| {row} ")) for row in ("plain", "again")}
    assert "†" in marked["again"] and "†" not in marked["plain"]


def test_a_copy_of_a_table_elsewhere_does_not_write_into_its_results(world: World) -> None:
    world.table(plain={})
    Path("drafts").mkdir()
    Path("drafts/toy.yaml").write_text(Path("conf/tables/toy.yaml").read_text())
    from scripts import reproduce

    assert reproduce.main(["drafts/toy.yaml", "--seeds", "0"]) == 2 and not world.records()


def test_a_run_that_failed_here_and_is_recorded_from_elsewhere_has_not_failed(world: World) -> None:
    world.table(plain={})
    world.reproduce("--seeds", "0")
    left = world.run_of("plain")
    (left / "record.json").unlink()
    (left / "progress.json").write_text(json.dumps({"state": "failed", "reason": "out of memory"}))
    world.reproduce("--seeds", "0")
    assert "out of memory" not in Path("results/toy.md").read_text()


def test_code_that_git_does_not_know_yet_makes_a_record_dirty(world: World) -> None:
    toy_world.commit()
    from experiments import record

    assert record.source()["dirty"] is False
    Path("mine.py").write_text("answer = 42\n")
    assert record.source()["dirty"] is True


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (59.0, "59.0 s"),
        (61.9, "01:01"),
        (3_600.0, "01:00:00"),
        (90_000.0, "25:00:00"),
        (400_000.0, "111:06:40"),
    ],
)
def test_a_duration_of_more_than_a_day_counts_its_hours(seconds: float, said: str) -> None:
    assert clock(seconds) == said
