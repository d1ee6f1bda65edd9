"""W&B offline, without an account: what a run, a resumed run and a table leave, read with W&B's reader."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml

import scripts.train
from experiments.plan import advice
from experiments.tracking import tables
from toy_world import World, until, world  # noqa: F401
from wandb_files import Logged, forget

pytest.importorskip("wandb", reason="the optional package wandb is not installed")

LOGGER = "conf/logger/wandb.yaml"
TOY = ["--config", "conf/data/toy.yaml", "--config", "conf/scheme/toy.yaml", "--config", LOGGER]


@pytest.fixture
def logged(world: World, root: Path, monkeypatch: pytest.MonkeyPatch) -> World:  # noqa: F811
    """A world whose runs can log to W&B, and that has no account."""
    shutil.copytree(root / "conf/logger", "conf/logger")
    forget(monkeypatch, world.folder)
    return world


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def assert_holds(run: Path, found: Logged) -> None:
    """W&B has the run's config, the curves of metrics.csv, and the record."""
    record = json.loads((run / "record.json").read_text())
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert {key: found.config[key] for key in config} == config
    assert found.config["run"]["id"] == record["id"]
    rows = rows_of(run)
    for name in ("val/example_f1", "train/task_loss"):
        assert list(found.rows(name).values()) == pytest.approx([float(row[name]) for row in rows])
    assert list(found.rows("val/example_f1")) == [int(row["epoch"]) for row in rows]
    for name, value in record["metrics"].items():
        assert found.summary[name] == pytest.approx(value), name
    for name in ("id", "epochs", "best_epoch", "stopped", "updates"):
        assert found.summary[name] == record[name], name
    kept = json.loads((found.files[-1].parent / "files/record.json").read_text())
    assert kept == record and {"path": "record.json"} in found.of("files")[-1]["files"]


def test_a_run_by_hand_leaves_config_curves_and_record(logged: World) -> None:
    assert scripts.train.main([*TOY, "--run_dir", "runs/mine"]) == 0
    found = Logged(Path("runs/mine"))
    assert_holds(Path("runs/mine"), found)
    (run,) = found.runs
    assert run["display_name"] == "mine" and run["project"] == "structured-prediction"
    assert run["run_id"].startswith("mine-") and "run_group" not in run
    assert found.of("exit") == [{"exit_code": 0, **found.of("exit")[0]}]
    assert not Path("wandb").exists()


@pytest.mark.parametrize("more", [{}, {"val_check_interval": 0.5}])
def test_what_lightnings_monitors_log_stands_in_the_row_of_its_epoch(
    logged: World, more: dict[str, float]
) -> None:
    monitor = "pytorch_lightning.callbacks.LearningRateMonitor"
    trainer = {"log_every_n_steps": 1, "callbacks+": [{"class_path": monitor}], **more}
    Path("monitor.yaml").write_text(yaml.safe_dump({"trainer": trainer}))
    assert scripts.train.main([*TOY, "--config", "monitor.yaml", "--run_dir", "runs/mine"]) == 0
    found = Logged(Path("runs/mine"))
    assert_holds(Path("runs/mine"), found)
    (rate,) = {name for row in found.of("history") for name in row["item"] if name.startswith("lr-")}
    assert found.rows(rate).keys() == found.rows("val/example_f1").keys()


def test_the_training_curves_of_a_scheme_are_there_with_an_axis_of_their_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    layers = ("data/generated", "scheme/implicit", "objective/cd", "logger/wandb")
    given = [word for name in layers for word in ("--config", f"conf/{name}.yaml")]
    small = ["--trainer.max_epochs=2", "--trainer.limit_train_batches=4", "--run_dir", str(tmp_path / "run")]
    assert scripts.train.main([*given, *small]) == 0
    record, found = json.loads((tmp_path / "run/record.json").read_text()), Logged(tmp_path / "run")
    curves = {name: values for name, values in record["curves"].items() if not name.startswith("val/")}
    assert curves
    for name, values in curves.items():
        assert list(found.rows(f"curve/{name}").values()) == pytest.approx(values)
    assert [*found.rows("curve/point").values()] == [*range(max(map(len, curves.values())))]
    axes = {
        metric["glob_name"]: metric.get("step_metric")
        for metric in found.of("metric")
        if "glob_name" in metric
    }
    assert axes["curve/*"] == "curve/point"


def test_a_run_killed_and_started_again_is_one_run_of_wandb(logged: World) -> None:
    slow = [*TOY, "--model.pause", "0.2", "--run_dir", "runs/mine"]
    process = logged.start(*slow, module="scripts.train", alone=True)
    until(lambda: Path("runs/mine/checkpoints/last.ckpt").exists() and len(rows_of(Path("runs/mine"))) > 1)
    process.kill()
    process.communicate()
    again = logged.start(*slow, module="scripts.train")
    assert again.wait(timeout=180) == 0, again.communicate()[0]
    found = Logged(Path("runs/mine"))
    assert len(found.files) == 2 and len(found.ids) == 1 and all(run["resume"] for run in found.runs)
    assert_holds(Path("runs/mine"), found)


def test_a_stopped_run_is_finished_in_wandb_too(logged: World) -> None:
    process = logged.start(*TOY, "--model.pause", "0.5", "--run_dir", "runs/mine", module="scripts.train")
    until(lambda: Path("runs/mine/metrics.csv").exists())
    process.terminate()
    assert process.wait(timeout=60) == 130
    assert [end["exit_code"] for end in Logged(Path("runs/mine")).of("exit")] == [255]


def test_a_table_logs_its_runs_and_the_rendered_page(logged: World) -> None:
    logged.table(plain={}, wild={"set": {"model.init_args.diverge_at": 2}})
    code, said = logged.reproduce("--seeds", "0", "--logger", LOGGER)
    assert code == 1 and "W&B: artifact toy" in said  # wild diverges
    run, lost = logged.run_of("plain"), logged.run_of("wild")
    found = Logged(run)
    assert_holds(run, found)
    assert found.runs[0]["display_name"] == "plain / easy / seed 0" and found.runs[0]["run_group"] == "toy"
    facts = {"table": "toy", "row": "plain", "column": "easy", "seed": 0}
    assert found.config["run"] == {"id": run.name, **facts}
    assert [end["exit_code"] for end in Logged(lost).of("exit")] == [1]
    table = Logged(Path("runs/tables/toy"))
    assert table.runs[0]["job_type"] == "table"
    files = table.artifact("table")
    assert {n: p.read_bytes() for n, p in files.items()} == {
        name: Path("results", name).read_bytes() for name in ("toy.md", "toy.jsonl")
    }
    (file,) = Path("runs/tables/toy").glob("wandb/offline-run-*/files/media/table/*.table.json")
    drawn = json.loads(file.read_text())
    assert drawn["columns"] == ["method", "Easy"] and drawn["data"][0][0] == "plain"
    assert "(1/2)" in drawn["data"][0][1] and drawn["data"][0][1].split()[0] in said


def test_a_logger_changes_no_id_and_a_fresh_run_is_a_new_run_of_wandb(logged: World) -> None:
    logged.table(plain={})
    logged.reproduce("--seeds", "0")
    (bare,) = logged.records()
    said = logged.reproduce("--seeds", "0", "--logger", LOGGER, "--dry-run")[1]
    assert f"done     {bare['id']}" in said
    for _ in range(2):
        logged.reproduce("--seeds", "0", "--logger", LOGGER, "--fresh")
    (record,) = logged.records()
    assert (record["id"], record["metrics"]) == (bare["id"], bare["metrics"])
    found = Logged(logged.run_of("plain"))
    assert len(found.files) == 1 and found.ids == {Path(found.files[0]).stem.removeprefix("run-")}
    assert len(Logged(Path("runs/tables/toy")).ids) == 1  # the table stays one run, with versions of its page


def test_a_finished_table_can_be_logged_without_running_it(logged: World) -> None:
    logged.table(plain={})
    logged.reproduce("--seeds", "0")
    code, said = logged.reproduce("--collect", "--logger", LOGGER)
    assert code == 0 and "W&B: artifact toy" in said
    assert set(Logged(Path("runs/tables/toy")).artifact("table")) == {"toy.md", "toy.jsonl"}


@pytest.mark.parametrize("more", ["trainer: {logger: false, max_epochs: 3}", "model: {net: '${net}'}"])
def test_a_logger_of_a_table_may_set_nothing_else(logged: World, more: str) -> None:
    Path("conf/logger/more.yaml").write_text(f"{more}\n")
    code, said = logged.reproduce("--logger", "conf/logger/more.yaml")
    assert code == 2 and "sets trainer.logger alone" in said and not Path("runs").exists()


def test_without_the_package_a_table_says_so_before_it_runs(
    logged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)  # as where it is absent
    code, said = logged.reproduce("--logger", LOGGER)
    assert code == 2 and said.strip() == advice.not_installed("wandb") and not Path("runs").exists()


def test_online_without_login_is_one_sentence(logged: World, capsys: pytest.CaptureFixture[str]) -> None:
    live = ["--trainer.logger.init_args.offline=false", "--run_dir", "runs/mine"]
    assert scripts.train.main([*TOY, *live]) == 2
    said = capsys.readouterr().err
    assert "wandb login" in said and "log offline" in said and "Traceback" not in said
