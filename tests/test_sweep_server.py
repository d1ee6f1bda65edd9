"""The engine `wandb`: W&B's own client and agents, with a server on this machine that keeps what they say."""

import csv
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

import scripts.train
from experiments.errors import SweepError
from experiments.plan.compose import Layers
from experiments.plan.identity import identity, run_id
from experiments.plan.parser import ParseOnly
from experiments.sweep import server
from experiments.sweep.file import read_sweep
from experiments.tracking import agent
from toy_world import World, world  # noqa: F401
from wandb_files import forget
from wandb_server import KEY, SWEEP, Server

wandb = pytest.importorskip("wandb", reason="the optional package wandb is not installed")

LAYERS = ("conf/data/toy.yaml", "conf/scheme/toy.yaml")
COMMAND = ["${env}", "python", "-m", "scripts.train", *(f"--config={file}" for file in LAYERS), "${args}"]
SWEEP_FILE = {
    "method": "grid",
    "metric": {"name": "val/example_f1", "goal": "maximize"},
    "parameters": {
        "model.init_args.noise": {"values": [0.00001, 0.1]},
        "trainer.max_epochs": {"value": 2},
    },
    "command": COMMAND,
}
# A point as a sweep has it, and with every form of a value that an agent writes.
POINT = {
    "model.init_args.noise": 1e-05,
    "model.init_args.diverge_at": None,
    "model.init_args.net.init_args.width": 9,
    "trainer.max_epochs": 2,
    "trainer.detect_anomaly": True,
    "trainer.enable_model_summary": False,
    "model.init_args.optimizer.init_args.betas": [0.8, 0.99],
}


@pytest.fixture
def toys(world: World, root: Path, monkeypatch: pytest.MonkeyPatch) -> World:  # noqa: F811
    """A world with a sweep of the toy scheme, where no W&B account is known."""
    for kind in ("logger", "sweeps"):
        shutil.rmtree(f"conf/{kind}", ignore_errors=True)
    shutil.copytree(root / "conf/logger", "conf/logger")
    Path("conf/sweeps").mkdir()
    Path("conf/sweeps/toy.yaml").write_text(yaml.safe_dump(SWEEP_FILE, sort_keys=False))
    forget(monkeypatch, world.folder)
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(here)]))
    return world


def login(monkeypatch: pytest.MonkeyPatch, there: Server) -> None:
    """What a user has after `wandb login` on that server."""
    wandb.teardown()
    monkeypatch.setenv("WANDB_BASE_URL", there.url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)


def launch(**options: Any) -> tuple[int, str]:
    said = io.StringIO()
    defaults = {"jobs": 1, "count": None, "project": "toys", "entity": None}
    code = server.launch(read_sweep("toy"), **defaults | options, console=Console(file=said, width=200))
    return code, said.getvalue()


def test_the_server_gets_the_file_and_its_agents_train(toys: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = {"model.init_args.noise": 1e-05, "trainer.max_epochs": 2}
    with Server([trial]) as there:
        login(monkeypatch, there)
        code, said = launch(count=1)
    assert code == 0 and f"agent --forward-signals me/toys/{SWEEP}" in said
    (sent,) = there.of("UpsertSweep")
    assert yaml.safe_load(sent["config"]) == SWEEP_FILE and sent["projectName"] == "toys"
    (asked,) = there.of("CreateAgent")
    assert (asked["entityName"], asked["projectName"], asked["sweep"]) == ("me", "toys", SWEEP)
    (folder,) = Path("runs/by_hand").iterdir()
    record = json.loads((folder / "record.json").read_text())
    assert record["config"]["model"]["init_args"]["noise"] == 1e-05 and record["epochs"] == 2
    assert record["id"] == local_id(trial) and folder.name == f"toy-{there.started[0]}"
    assert_logged(there, folder, record)


def assert_logged(there: Server, folder: Path, record: dict[str, Any]) -> None:
    """The run that the server knows of is the trial, with the config, curves and record of the folder."""
    calls = [call for call in there.of("UpsertBucket") if call.get("config")]
    assert {call["name"] for call in calls} == {there.started[0]} and calls[0]["sweep"] == SWEEP
    sent = json.loads(calls[-1]["config"])
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert {key: sent[key]["value"] for key in config} == config
    rows, summaries = there.lines("wandb-history.jsonl"), there.lines("wandb-summary.json")
    with (folder / "metrics.csv").open() as file:
        expected = [float(row["val/example_f1"]) for row in csv.DictReader(file)]
    assert [r["val/example_f1"] for r in rows if "val/example_f1" in r] == pytest.approx(expected)
    for name, value in record["metrics"].items():
        assert summaries[-1][name] == pytest.approx(value)


def local_id(point: dict[str, Any]) -> str:
    """The id of the run of a point for the local engine, whose settings are those of a table."""
    texts = tuple((k, v if isinstance(v, str) else json.dumps(v)) for k, v in point.items())
    layers = Layers(LAYERS, texts)
    arguments = [a for a in layers.arguments() if not a.startswith("--seed_everything")]
    return run_id(identity(ParseOnly().resolve([*arguments, "--seed_everything=0"])))


@pytest.mark.parametrize("nested", [False, True])
def test_every_form_of_an_agents_values_gives_the_run_of_the_local_engine(
    toys: World, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    monkeypatch.setenv("WANDB_SWEEP_ID", SWEEP)
    monkeypatch.setenv("WANDB_RUN_ID", "trial1")
    point = nest(POINT) if nested else POINT
    words = create_sweep_command_args({"args": {k: {"value": v} for k, v in point.items()}})["args"]
    assert nested or (
        "--trainer.detect_anomaly=True" in words and "--model.init_args.diverge_at=None" in words
    )
    given = agent.own_form([*(f"--config={file}" for file in LAYERS), *words])
    resolved = ParseOnly().resolve(given)
    assert resolved["trainer"]["logger"]["class_path"] == "experiments.tracking.logger.RunLogger"
    assert run_id(identity(resolved)) == local_id(POINT)


def nest(point: dict[str, Any]) -> dict[str, Any]:
    """Dotted names as the nested parameters of a sweep file."""
    tree: dict[str, Any] = {}
    for name, value in point.items():
        *above, last = name.split(".")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        node[last] = value
    return tree


def test_outside_a_sweep_arguments_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_SWEEP_ID", raising=False)
    monkeypatch.setenv("WANDB_RUN_ID", "mine")  # some people set it for every run
    words = ["--model.flag=True", "--model={'a': 1}"]
    assert agent.own_form(words) == words and agent.trial() == ""


def test_trials_are_shared_among_agents() -> None:
    assert server.shares(3, 7) == [3, 2, 2] and server.shares(4, 2) == [1, 1]
    assert server.shares(2, None) == [None, None]
    command = server.agent_command(f"me/toys/{SWEEP}", 3)
    options = ["--forward-signals", "--count", "3"]
    assert command == [sys.executable, "-m", "wandb", "agent", *options, f"me/toys/{SWEEP}"]


def test_without_login_is_one_sentence(toys: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb.teardown()
    with pytest.raises(SweepError, match=r"no login to W&B.*`wandb login`.*ENGINE=local"):
        launch()
    assert not Path("runs").exists()


def test_a_server_that_does_not_answer_or_refuses_is_one_sentence(
    toys: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(refuses=True) as there:
        login(monkeypatch, there)
        with pytest.raises(SweepError, match=r"did not take the sweep toy.*ENGINE=local") as refused:
            launch()
    assert "\n" not in str(refused.value)
    login(monkeypatch, there)  # nobody listens there now
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "2")
    with pytest.raises(SweepError, match=r"did not take the sweep toy.*ENGINE=local"):
        launch()


def test_without_the_package_is_one_sentence(toys: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as where it is not installed
    with pytest.raises(SweepError, match=r"wandb is not installed. Run:  make setup .*ENGINE=local"):
        launch()


def test_a_trial_that_the_server_stops_is_no_failure_for_the_agent(
    toys: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments.errors import Stopped
    from experiments.run import by_hand

    def stop(*_: object) -> None:
        raise Stopped("runs/mine")

    monkeypatch.setattr(by_hand, "train", stop)
    assert scripts.train.main([]) == 130
    monkeypatch.setenv("WANDB_SWEEP_ID", SWEEP)
    monkeypatch.setenv("WANDB_RUN_ID", "trial1")
    assert scripts.train.main([]) == 0
