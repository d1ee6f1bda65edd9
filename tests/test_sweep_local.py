"""A sweep end to end, with real training: grid, pruning, kills, two processes, adoption, mistakes."""

import io
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

import toy_world
from experiments import store
from experiments.sweep import page
from experiments.sweep.adopt import put
from experiments.sweep.file import read_sweep
from experiments.sweep.study import Study
from toy_world import World, until

world = toy_world.world  # the fixture

RATE, NOISE = "model.init_args.optimizer.init_args.lr", "model.init_args.noise"
COMMAND = ["python", "-m", "scripts.train", "--config=conf/data/toy.yaml", "--config=conf/scheme/toy.yaml"]
GRID = {
    "method": "grid",
    "metric": {"name": "val/example_f1", "goal": "maximize"},
    "parameters": {RATE: {"values": [0.1, 0.001]}, NOISE: {"values": [0.1, 0.5]}},
    "command": [*COMMAND, "--trainer.max_epochs=4", "${args}"],
}
SLOW = [*COMMAND, "--model.init_args.pause=0.4", "--trainer.max_epochs=8", "${args}"]


def write(world: World, **changes: Any) -> None:
    folder = world.folder / "conf/sweeps"
    folder.mkdir(exist_ok=True)
    (folder / "toy_sweep.yaml").write_text(yaml.safe_dump(GRID | changes, sort_keys=False))


def sweep(*options: str) -> tuple[int, str]:
    """Call the engine in this process; its exit code and what it said."""
    from scripts import sweep as script

    said = io.StringIO()
    code = script.main(["toy_sweep", *options], Console(file=said, width=200))
    return code, said.getvalue()


def rows(world: World, number: int) -> list[str]:
    """The epochs in the metrics of a trial's run."""
    run_id = trials()[number].run_id
    lines = (world.folder / "runs" / str(run_id) / "metrics.csv").read_text().split()[1:]
    return [line.split(",")[0] for line in lines]


def trials() -> list[Any]:
    return Study.open(read_sweep("toy_sweep")).trials()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_parameter_that_changes_no_run_ends_the_sweep(world: World, jobs: str) -> None:
    idle = "trainer.enable_progress_bar"
    write(world, parameters={RATE: {"values": [0.1]}, idle: {"values": [True, False]}})
    code, said = sweep("--jobs", jobs)
    assert code == 2 and f"trials 0 and 1 are one run, so {idle} changes nothing there" in said


def test_a_grid_trains_each_point_once_counts_what_is_recorded_and_adopts_the_winner(world: World) -> None:
    write(world)
    assert sweep("--dry-run")[1].count("planned") == 5  # four points and their number
    code, said = sweep("--jobs", "2")
    records = {r["row"]: r for r in world.records("toy_sweep")}
    assert code == 0 and [*sorted(records)] == ["trial_0", "trial_1", "trial_2", "trial_3"]
    assert said.count("start ") == 4 and "4 trials: 4 done" in said
    assert {t.run_id for t in trials()} == {r["id"] for r in records.values()}
    assert all(records[f"trial_{t.number}"]["metrics"]["val/example_f1"] == t.score for t in trials())
    assert "start" not in sweep("--jobs", "2")[1] and sweep("--dry-run")[1].count("done") == 5

    page = Path("results/toy_sweep.md").read_text()
    scores = [line.split("|")[4].strip() for line in page.splitlines() if line.endswith("done |")]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    assert "it is weak" in page and Path("results/toy_sweep_trials.svg").exists()
    for name in ("study", "page"):  # neither the study nor the records' other copies are needed
        if name == "study":
            (world.folder / "runs/sweeps/toy_sweep/study.sqlite").unlink()
        assert sweep("--collect")[0] == 0 and Path("results/toy_sweep.md").read_text() == page
    code, said = sweep("--jobs", "2")  # a study from nothing: all its points are recorded
    assert code == 0 and said.count("taken over") == 4 and "start" not in said

    place = Path("conf/tuned/toys/easy.yaml")
    place.parent.mkdir(parents=True)
    text = "# by hand\nmine: {trainer: {max_epochs: 3}}  # stays\n# of the next\nlast: mine"
    place.write_text(text)
    assert "adopted" in sweep("--collect", "--adopt", f"{place}:best")[1]
    found = place.read_text()
    assert found.startswith(f"{text}\n# From the sweep toy_sweep: val/example_f1 ")
    winner = max(records.values(), key=lambda r: r["metrics"]["val/example_f1"])["config"]
    rate = yaml.safe_load(found)["best"]["model"]["init_args"]["optimizer"]["init_args"]["lr"]
    assert rate == winner["model"]["init_args"]["optimizer"]["init_args"]["lr"]
    assert "already" in sweep("--collect", "--adopt", f"{place}:best")[1] and place.read_text() == found
    code, said = sweep("--collect", "--adopt", f"{place}:mine")
    assert code == 2 and "line 2: the row mine is no sweep's" in said and place.read_text() == found


def test_a_winner_over_a_row_of_its_own_file_is_adopted(world: World) -> None:
    place = Path("conf/tuned/toys/easy.yaml")
    place.parent.mkdir(parents=True)
    place.write_text("mine: {model: {init_args: {pause: 0.01}}}\n")
    write(world, parameters={NOISE: {"value": 0.2}}, command=[*COMMAND, f"--config={place}:mine", "${args}"])
    code, said = sweep("--jobs", "1", "--adopt", f"{place}:best")
    assert code == 0 and f"adopted: {place}:best has trial 0" in said
    row = yaml.safe_load(place.read_text())["best"]
    assert row == {"over": "mine", "model": {"init_args": {"noise": 0.2}}}


def test_a_dry_run_shows_the_trials_of_a_begun_search_and_invents_none(world: World) -> None:
    pytest.importorskip("optuna")
    values = {RATE: {"min": 0.001, "max": 0.1}}
    write(world, method="bayes", parameters=values, command=[*COMMAND, "--trainer.max_epochs=1", "${args}"])
    code, said = sweep("--dry-run", "--count", "8")
    assert code == 0 and said.count("planned ") == 2 and "2 planned\n6 more follow: bayes chooses" in said
    assert not Path("runs/sweeps").exists()
    assert sweep("--jobs", "1", "--count", "3")[0] == 0
    found = trials()
    code, said = sweep("--dry-run", "--count", "8")
    assert [line.split()[1] for line in said.splitlines() if line.startswith("done")] == [
        t.run_id for t in found
    ]
    assert "3 done\n5 more follow" in said and "planned" not in said
    assert trials() == found
    assert "no end" in sweep("--dry-run")[1]


def test_a_mistyped_metric_is_mended_in_the_file_alone(world: World) -> None:
    write(world, metric={"name": "val/example_f2", "goal": "maximize"})
    assert sweep()[0] == 2 and sweep("--dry-run")[0] == 2 and not [*Path("runs").glob("[0-9a-f]*")]
    write(world)
    assert sweep("--jobs", "2")[0] == 0


@pytest.mark.parametrize("metric", [{"goal": "minimize"}, {}])
def test_a_goal_against_the_runs_own_is_refused(world: World, metric: dict[str, str]) -> None:
    write(world, metric={"name": "val/example_f1"} | metric)
    code, said = sweep("--dry-run")
    assert code == 2 and not [*Path("runs").glob("[0-9a-f]*")]
    assert "the goal is to minimize val/example_f1, and the runs' own callbacks have mode max" in said
    assert "toy_sweep.yaml, line 3: metric.name" in said


def test_a_sweep_is_told_from_a_table(world: World) -> None:
    write(world)
    own = Path("conf/sweeps/toy_sweep.yaml")
    for option in ("toy_sweep", str(own)):
        code, said = reproduce(option)
        assert code == 2 and f"make sweep SWEEP={option}" in " ".join(said.split())
        assert "has no trials yet" in reproduce(option, "--collect")[1]
    from scripts import sweep as script

    for table in ("toy", "conf/tables/toy.yaml"):
        said_here = io.StringIO()
        assert script.main([table], Console(file=said_here, width=200)) == 2
        assert f"make reproduce TABLE={table}" in said_here.getvalue()


def reproduce(*options: str) -> tuple[int, str]:
    """Call the command of tables in this process."""
    from scripts import reproduce as script

    said = io.StringIO()
    code = script.main([*options], Console(file=said, width=200))
    return code, said.getvalue()


def test_a_row_of_a_sweep_is_replaced_and_its_surroundings_stay(tmp_path: Path) -> None:
    text = "# From the sweep a: old.\nbest:\n  model: {x: 1}\n\n# of the next\nlast: best\n"
    file = tmp_path / "t.yaml"
    file.write_text(text)
    after = put(text, "best", "# From the sweep b: new.\nbest:\n  model: {x: 2}", file)
    assert after == "# From the sweep b: new.\nbest:\n  model: {x: 2}\n\n# of the next\nlast: best\n"


def test_a_table_takes_the_runs_of_a_sweep(world: World) -> None:
    write(world)
    sweep("--jobs", "2")
    world.table(plain={"sweep": "toy_sweep"})
    world.change("tables/toy.yaml", lambda t: t["rows"]["plain"].pop("config"))
    world.change("tables/toy.yaml", lambda t: t["metric"].update(name="val/example_f1"))
    assert "4 done" in world.reproduce("--dry-run", "--seeds", "0")[1]


def test_a_pruned_run_leaves_no_record_and_resumes_where_a_table_wants_it(world: World) -> None:
    pytest.importorskip("optuna")
    early = {"type": "hyperband", "min_iter": 2, "eta": 2}
    values = {RATE: {"values": [0.3, 1.0e-6]}}
    write(world, early_terminate=early, parameters=values, command=[*COMMAND, "${args}"])
    code, said = sweep("--jobs", "1")
    good, bad = trials()
    assert (
        code == 0 and (good.state, bad.state) == ("done", "pruned") and f"pruned  trial_{bad.number}" in said
    )
    run = Path("runs") / bad.run_id
    assert not (run / "record.json").exists() and (run / "checkpoints/last.ckpt").exists()
    assert 2 <= len(rows(world, 1)) < 5 and [r["row"] for r in world.records("toy_sweep")] == ["trial_0"]
    assert "pruned, its best score" in Path("results/toy_sweep.md").read_text()
    world.table(plain={"set": {RATE: 1.0e-6}})
    assert "resumes after epoch" in world.reproduce("--dry-run", "--seeds", "0")[1]
    assert world.reproduce("--seeds", "0")[0] == 0
    (record,) = world.records()
    assert record["id"] == bad.run_id and record["epochs"] == 5 and record["starts"][1]["epoch"] >= 1


def test_a_killed_sweep_resumes_with_the_same_command_and_runs_nothing_twice(world: World) -> None:
    write(world, command=SLOW)
    first = world.start("toy_sweep", "--jobs", "2", module="scripts.sweep", alone=True)
    until(lambda: sum(_epoch(run) >= 2 for run in Path("runs").glob("[0-9a-f]*/progress.json")) == 2)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    until(lambda: not any(store.is_held(run) for run in Path("runs").glob("[0-9a-f]*")))
    with sqlite3.connect("runs/sweeps/toy_sweep/study.sqlite") as study:
        study.execute("UPDATE trial SET beat = beat - 60")  # a minute later
    code, said = sweep("--jobs", "2")
    assert code == 0 and "4 trials: 4 done" in said
    assert all(rows(world, number) == [str(e) for e in range(8)] for number in range(4))
    starts = {r["row"]: [s["epoch"] for s in r["starts"]] for r in world.records("toy_sweep")}
    assert all(starts[f"trial_{n}"][0] == 0 and starts[f"trial_{n}"][1] >= 1 for n in (0, 1)), starts
    assert starts["trial_2"] == starts["trial_3"] == [0]


def _epoch(progress: Path) -> int:
    try:
        return json.loads(progress.read_text()).get("epoch", 0)
    except (OSError, ValueError):
        return 0


def test_two_processes_share_a_sweep_and_ctrl_c_says_how_to_go_on(world: World) -> None:
    write(world, command=SLOW)
    both = [world.start("toy_sweep", "--jobs", "1", module="scripts.sweep") for _ in range(3)]
    until(lambda: sum(_epoch(run) >= 1 for run in Path("runs").glob("[0-9a-f]*/progress.json")) >= 3)
    both[2].send_signal(signal.SIGINT)
    said, _ = both[2].communicate(timeout=180)
    assert both[2].returncode == 130 and "the same command resumes" in said and "Traceback" not in said
    answers = [process.communicate(timeout=240)[0] for process in both[:2]]
    assert [process.returncode for process in both[:2]] == [0, 0], answers
    assert len({r["id"] for r in world.records("toy_sweep")}) == 4
    assert sum(answer.count("done    trial_") for answer in (*answers, said)) == 4
    assert all(rows(world, number) == [str(e) for e in range(8)] for number in range(4))


@pytest.mark.parametrize(
    ("changes", "options", "says"),
    [
        (
            {"metric": {"name": "val/f1", "goal": "maximize"}},
            [],
            "toy_sweep.yaml, line 3: metric.name is val/f1, which no validation logs. There are: val/example",
        ),
        ({"metric": {"name": "test/example_f1"}}, [], "a sweep judges by validation"),
        (
            {"parameters": {NOISE: {"value": 0.1}, "model.init_args.nose": {"values": [1]}}},
            [],
            "toy_sweep.yaml, line 8: model.init_args.nose: toy_science.ToyScheme has no argument 'nose' "
            "(at model). Did you mean noise",
        ),
        (
            {"method": "random", "parameters": {RATE: {"values": [0.1, "fast"]}}},
            ["--count", "1"],
            f"line 6: {RATE}: Wrong value 'fast' (at model.optimizer.lr): expected float.",
        ),
        (
            {"command": [*COMMAND, "--trainer.max_epoch=3", "${args}"]},
            ["--dry-run"],
            "line 14: command: Unknown option --trainer.max_epoch=3. Did you mean --trainer.max_epochs",
        ),
        ({"method": "random"}, ["--dry-run"], "random has no end. Say how many trials: COUNT=20"),
        ({}, ["--engine", "wandbb"], "--engine wandbb: take local or wandb."),
        ({}, ["--on", "pbs"], "--on pbs: take slurm."),
        ({}, ["--count", "ten"], "--count ten: take a whole number."),
        ({}, ["--colect"], "unrecognized arguments: --colect. All options:  python -m scripts.sweep --help"),
        (
            {},
            ["--adopt", "conf/tuned/toys/esay.yaml:cd"],
            "--adopt conf/tuned/toys/esay.yaml:cd: there is no file conf/tuned/toys/esay.yaml. There are",
        ),
        ({}, ["--engine", "wandb", "--adopt", "conf/tuned/toys/easy.yaml:cd"], "leave ENGINE=wandb out"),
        ({"method": "random"}, [], "random has no end. Say how many trials: COUNT=20"),
        ({}, ["--count", "0"], "--count 0: take 1 or more."),
        ({}, ["--jobs", "-1"], "--jobs -1: take 1 or more"),
        ({}, ["--jobs", "0"], "--jobs 0: take 1 or more, or leave it out."),
        ({}, ["--adopt", "conf/data/toy.yaml:best"], "name a row of a file conf/tuned/FOLDER/FILE.yaml"),
        ({}, ["--collect"], "has no trials yet. Run some:  make sweep SWEEP=toy_sweep"),
        (
            {"command": [*COMMAND, "--config=conf/data/lost.yaml", "${args}"]},
            [],
            "nowhere.arff is not there. Run:  make data DATASET=toy",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(
    world: World, changes: dict[str, Any], options: list[str], says: str
) -> None:
    write(world, **changes)
    code, said = sweep(*options)
    assert code == 2 and " ".join(says.split()) in " ".join(said.split()), said
    assert "Traceback" not in said and not world.records("toy_sweep")
    assert not Path("results/toy_sweep.md").exists() and not Path("runs/sweeps").exists()


def test_the_command_line_refuses_a_sweep_that_is_not_there_and_draws_without_torch(world: World) -> None:
    write(world)
    process = world.start("toy_sweeep", module="scripts.sweep")
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 2 and "Did you mean toy_sweep?" in said and "Traceback" not in said
    code = "import sys; import experiments.sweep.page, experiments.sweep.local; print('torch' in sys.modules)"
    here = Path(__file__).resolve().parent.parent
    told = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_a_file_elsewhere_does_not_write_into_the_results_of_a_committed_sweep(world: World) -> None:
    write(world)
    own = (world.folder / "conf/sweeps/toy_sweep.yaml").read_text()
    (world.folder / "mine").mkdir()
    for name in ("toy_sweep", "other"):
        (world.folder / f"mine/{name}.yaml").write_text(own)
    from scripts import sweep as script

    said = io.StringIO()
    assert script.main(["mine/toy_sweep.yaml"], Console(file=said, stderr=False, width=200)) == 2
    assert not Path("results/toy_sweep.jsonl").exists()
    assert page.handle(read_sweep("mine/other.yaml")) == "mine/other.yaml"
    assert page.handle(read_sweep("toy_sweep")) == "toy_sweep"


def test_a_search_whose_config_files_have_changed_is_neither_continued_nor_adopted(world: World) -> None:
    write(world)
    assert sweep("--jobs", "2")[0] == 0
    world.change("data/toy.yaml", lambda tree: tree["data"]["init_args"].update(batch_size=8))
    place = Path("conf/tuned/toys/easy.yaml")
    place.parent.mkdir(parents=True)
    place.write_text("mine: {trainer: {max_epochs: 3}}\n")
    for options in (["--dry-run"], ["--jobs", "2"], ["--collect", "--adopt", f"{place}:best"]):
        code, said = sweep(*options)
        assert code == 2 and "have changed since trial" in said and "start" not in said
    assert "best" not in place.read_text()
