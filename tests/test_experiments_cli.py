"""One run by hand: the same files and numbers as in a table, and one message for each mistake."""

import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import scripts.train
import toy_world
from experiments import store
from experiments.errors import Stopped, UserError
from experiments.plan.layers import BASE
from experiments.plan.parser import ParseOnly
from experiments.run.by_hand import train
from experiments.run.cli import TrainCLI, by_hand_folder
from experiments.run.fit import fit_and_test
from toy_world import World, until

world = toy_world.world  # the fixture

LAYERS = ["--config", "conf/data/toy.yaml", "--config", "conf/scheme/toy.yaml"]
BOTH = [*LAYERS, "--config", "conf/trainer/ddp.yaml", "--trainer.accelerator=cpu", "--trainer.devices=2"]


def by_hand(folder: str, *options: str) -> dict[str, Any]:
    """Train into a folder; the record."""
    return train([*LAYERS, *options, "--run_dir", folder], lambda progress: None)[0]


def test_a_run_by_hand_leaves_the_files_and_the_id_of_a_run_of_a_table(world: World) -> None:
    record = by_hand("runs/mine")
    left = {path.name for path in Path("runs/mine").iterdir()}
    assert left >= {"config.yaml", "metrics.csv", "progress.json", "record.json", "checkpoints"}
    world.table(plain={})
    world.reproduce("--seeds", "0")
    (made,) = world.records()
    assert (record["id"], record["metrics"]) == (made["id"], made["metrics"])


def test_the_config_a_run_leaves_makes_the_same_run(world: World) -> None:
    record = by_hand("runs/mine", "--seed_everything", "3")
    again, _ = train(["--config", "runs/mine/config.yaml", "--run_dir", "runs/two"], lambda progress: None)
    assert (again["id"], again["metrics"]) == (record["id"], record["metrics"])


def test_more_epochs_go_on_where_fewer_ended(world: World) -> None:
    by_hand("runs/mine")
    record = by_hand("runs/mine", "--trainer.max_epochs", "8")
    assert record["epochs"] == 8
    assert record["metrics"] == by_hand("runs/two", "--trainer.max_epochs", "8")["metrics"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed_everything", "5"], "seed_everything: 0 -> 5"),
        (["--model.init_args.optimizer.init_args.lr=0.5"], "lr: .* -> 0.5"),
    ],
)
def test_a_folder_holds_one_run(world: World, options: list[str], message: str) -> None:
    by_hand("runs/mine")
    before = {p: p.read_bytes() for p in Path("runs/mine").rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=f"runs/mine holds a run with other settings: .*{message}.*--run_dir"):
        by_hand("runs/mine", *options)
    assert {p: p.read_bytes() for p in Path("runs/mine").rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("way", ["edited", "lost"])
def test_a_run_whose_config_was_edited_or_lost_resumes_with_its_own_settings_alone(
    world: World, way: str
) -> None:
    by_hand("runs/mine", "--trainer.max_epochs", "2")
    config, rate = Path("runs/mine/config.yaml"), "--model.init_args.optimizer.init_args.lr=0.5"
    written = config.read_text()
    if way == "edited":
        config.write_text(re.sub(r"\blr: .*", "lr: 0.5", written))
    else:
        config.unlink()
    Path("runs/mine/record.json").unlink()
    with pytest.raises(UserError, match=r"began with other settings than runs/mine/config.yaml has .*lr: "):
        by_hand("runs/mine", rate, "--trainer.max_epochs", "4")
    config.write_text(written)
    assert by_hand("runs/mine", "--trainer.max_epochs", "4")["epochs"] == 4


def test_a_run_that_lost_rows_of_its_metrics_has_no_curve_of_other_epochs(world: World) -> None:
    record = by_hand("runs/mine", "--trainer.max_epochs", "3")
    assert len(record["curves"]["val/example_f1"]) == 3
    rows = Path("runs/mine/metrics.csv")
    head, _, *rest = rows.read_text().splitlines(keepends=True)
    rows.write_text("".join([head, *rest]))
    with pytest.warns(match="metrics.csv lacks some of the 5 epochs"):
        record = by_hand("runs/mine", "--trainer.max_epochs", "5")
    assert record["epochs"] == 5 and "val/example_f1" not in record["curves"]


def test_a_run_may_end_earlier_but_not_before_where_it_is(world: World) -> None:
    by_hand("runs/mine", "--trainer.max_epochs", "4")
    with pytest.raises(UserError, match=r"trainer.max_epochs: 4 -> 2"):
        by_hand("runs/mine", "--trainer.max_epochs", "2")
    assert by_hand("runs/mine", "--trainer.max_epochs", "6")["epochs"] == 6


def test_a_moved_run_trains_longer_and_still_knows_its_best_epoch(world: World) -> None:
    still = "--model.init_args.optimizer.init_args.lr=0.0"
    assert by_hand("runs/mine", still, "--trainer.max_epochs", "2")["best_epoch"] == 0
    Path("runs/mine").rename("runs/moved")
    record = by_hand("runs/moved", still, "--trainer.max_epochs", "4")
    assert (record["epochs"], record["best_epoch"]) == (4, 0)
    assert not Path("runs/mine").exists()


def test_a_folder_that_never_trained_is_free(world: World) -> None:
    with pytest.raises(UserError, match="Invalid weight_decay value"):
        by_hand("runs/mine", "--model.init_args.optimizer.init_args.weight_decay=-1")
    assert by_hand("runs/mine")["epochs"] > 0


def test_a_run_of_a_table_is_not_made_longer(world: World) -> None:
    world.table(plain={})
    world.reproduce("--seeds", "0")
    folder = world.run_of("plain")
    with pytest.raises(UserError, match=r"other settings: trainer.max_epochs"):
        train(
            ["--config", f"{folder}/config.yaml", "--run_dir", str(folder), "--trainer.max_epochs=99"],
            lambda progress: None,
        )


def test_the_config_of_a_folder_however_it_was_written_can_move(world: World) -> None:
    by_hand("./runs//mine")
    assert "mine" not in Path("runs/mine/config.yaml").read_text()


def test_what_lightning_refuses_is_one_message(world: World) -> None:
    with pytest.raises(UserError, match="max_epochs"):
        by_hand("runs/mine", "--trainer.max_epochs=-5")


def test_a_run_whose_training_ended_is_only_tested_again(world: World) -> None:
    still = ["--model.init_args.optimizer.init_args.lr=0.0", "--trainer.max_epochs=60", "--run_dir=runs/mine"]
    cli = TrainCLI([*LAYERS, *still])
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)  # and killed before the test
    rows = Path("runs/mine/metrics.csv").read_text()
    told: list[Any] = []
    record = fit_and_test(TrainCLI([*LAYERS, *still]), {}, told.append)
    assert record["epochs"] == 21 and "did not improve for 20 epochs" in record["stopped"]
    assert Path("runs/mine/metrics.csv").read_text() == rows and not told


def test_a_checkpoint_that_was_cut_off_costs_a_new_start_and_nothing_else(world: World) -> None:
    record = by_hand("runs/mine")
    last = Path("runs/mine/checkpoints/last.ckpt")
    for size in (0, 100, last.stat().st_size - 50):
        last.write_bytes(last.read_bytes()[:size])
        assert by_hand("runs/mine")["metrics"] == record["metrics"]


def test_checkpoints_open_with_weights_only(world: World) -> None:
    by_hand("runs/mine")
    for name in ("best", "last"):
        torch.load(f"runs/mine/checkpoints/{name}.ckpt", weights_only=True)


def test_a_folder_in_use_is_refused(world: World) -> None:
    with store.hold(Path("runs/mine")), pytest.raises(UserError, match="in use by another process"):
        by_hand("runs/mine")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_message_and_the_run_goes_on_when_there_is_room(world: World) -> None:
    whole = by_hand("runs/whole", "--trainer.max_epochs", "4")

    def fill(progress: dict[str, Any]) -> None:
        part = Path(f"runs/mine/.record.json.{os.getpid()}.part")
        if not part.is_symlink():
            part.symlink_to("/dev/full")

    with pytest.raises(UserError, match=r"The disk is full, .*runs/mine.*Free some space"):
        train([*LAYERS, "--trainer.max_epochs=4", "--run_dir=runs/mine"], fill)
    assert by_hand("runs/mine", "--trainer.max_epochs", "4")["metrics"] == whole["metrics"]


def test_a_folder_that_cannot_be_made_is_one_message(world: World) -> None:
    Path("runs").mkdir(exist_ok=True)
    Path("runs/file").touch()
    with pytest.raises(UserError, match=r"runs/file.*could not be written: Not a directory"):
        by_hand("runs/file/mine")


def test_a_run_that_diverges_is_one_message_with_its_traceback_beside(world: World) -> None:
    with pytest.raises(UserError, match=r"the loss is NaN in epoch 1.*\n.*runs/mine/error.txt"):
        by_hand("runs/mine", "--model.init_args.diverge_at=1")
    assert "Traceback" in Path("runs/mine/error.txt").read_text()


def test_two_processes_make_one_run_and_go_on_with_it(world: World) -> None:
    """Both see the same toy data, so that they end where one process does."""
    first = world.start(*BOTH, "--trainer.max_epochs=2", module="scripts.train")
    said, _ = first.communicate(timeout=180)
    assert first.returncode == 0 and said.count("test/example_f1") == 1, said
    (folder,) = Path("runs/by_hand").iterdir()
    more = ["--trainer.max_epochs=4", f"--run_dir={folder}"]
    second = world.start(*BOTH, *more, module="scripts.train")
    said, _ = second.communicate(timeout=180)
    record = json.loads((folder / "record.json").read_text())
    assert second.returncode == 0 and record["epochs"] == len(record["curves"]["val/example_f1"]) == 4, said
    assert record["metrics"] == by_hand("runs/one", "--trainer.max_epochs", "4")["metrics"]
    assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["epoch"] == 3


def test_two_processes_that_fail_say_why_and_end(world: World) -> None:
    Path("runs/two/metrics.csv").mkdir(parents=True)  # which the first of them wants to write
    Path("runs/two/lock").touch()
    failed = world.start(*BOTH, "--run_dir=runs/two", module="scripts.train")
    said, _ = failed.communicate(timeout=180)
    assert failed.returncode == 2 and "Traceback" not in said
    assert "runs/two/metrics.csv could not be written" in said


MISTAKES = [
    (["--trainer.max_epoch", "3"], "Unknown option --trainer.max_epoch. Did you mean --trainer.max_epochs"),
    (["--nonsense", "3"], "Unknown option --nonsense"),
    (["--model.init_args.nois", "3"], "ToyScheme has no argument 'nois'"),
    (["--model.init_args.nois", "3"], "Did you mean noise?"),
    (["--model.noise", "abc"], "Wrong value 'abc' (at model.noise): expected"),
    (["--model", "toy_science.ToyShceme"], "Did you mean ToyScheme"),
    (["--model", "toy_sience.ToyScheme"], "There is no class toy_sience.ToyScheme"),
    (["--config", "conf/data/tyo.yaml"], "no file conf/data/tyo.yaml. Did you mean conf/data/toy.yaml"),
    (["--config", "not_yaml.yaml"], "not_yaml.yaml, line 1 is not YAML"),
    (["--config", "unknown.yaml"], "Unknown key trainer.max_epoch. Did you mean trainer.max_epochs"),
    (["--config", "top.yaml"], "Unknown key modle. Did you mean model"),
    (
        ["--config", "deep.yaml"],
        "ToyNet has no argument 'widht' (at model.net), in deep.yaml. Did you mean width",
    ),
    (["--config", "reference.yaml"], "model.init_args.noise refers to a key that no file sets"),
]


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_a_mistake_in_an_option_or_a_file_is_one_message(
    world: World, options: list[str], words: str
) -> None:
    Path("not_yaml.yaml").write_text("model: [3")
    Path("unknown.yaml").write_text("trainer: {max_epoch: 3}")
    Path("top.yaml").write_text("modle: 3")
    Path("deep.yaml").write_text("model: {init_args: {net: {init_args: {widht: 3}}}}")
    Path("reference.yaml").write_text("model: {init_args: {noise: '${data.init_args.nois}'}}")
    with pytest.raises(UserError) as caught:
        TrainCLI([*LAYERS, *options])
    assert words in str(caught.value) and len(str(caught.value).splitlines()) < 8


def test_what_is_not_given_is_asked_for(world: World) -> None:
    for arguments in ([], ["--config", "conf/data/toy.yaml"]):
        with pytest.raises(UserError, match=r"No (model|data) is given.*conf/"):
            TrainCLI(arguments)


def test_the_script_prints_the_numbers_or_one_message(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scripts.train.main([*LAYERS, "--run_dir=runs/good"]) == 0
    said = capsys.readouterr().out
    assert "test/example_f1" in said and "files: runs/good" in said
    assert scripts.train.main([*LAYERS, "--trainer.max_epoch", "3"]) == 2
    said = capsys.readouterr().err
    assert "Did you mean --trainer.max_epochs" in said and "Traceback" not in said


def test_ctrl_c_says_how_to_go_on(world: World) -> None:
    slow = ["--model.init_args.pause=0.2", "--trainer.max_epochs=300", "--run_dir=runs/slow"]
    stopped = world.start(*LAYERS, *slow, module="scripts.train")
    until(lambda: Path("runs/slow/checkpoints/last.ckpt").exists())
    stopped.send_signal(2)
    said, _ = stopped.communicate(timeout=180)
    assert stopped.returncode == 130 and "--run_dir runs/slow" in said and "Traceback" not in said


def test_a_run_stopped_before_its_first_checkpoint_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise Stopped(tmp_path)

    by_hand = ModuleType("experiments.run.by_hand")
    by_hand.train = stop  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "experiments.run.by_hand", by_hand)
    assert scripts.train.main(LAYERS) == 130
    said = " ".join(capsys.readouterr().err.split())
    assert f"Stopped before an epoch was saved. To begin again, add: --run_dir {tmp_path}" in said


@pytest.mark.parametrize("called", [False, True])
def test_ctrl_c_while_a_run_is_built_is_one_message(
    called: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    half = ModuleType("experiments.run.by_hand")  # broken off while it is imported, or later
    setattr(half, *("train", stop) if called else ("__getattr__", stop))
    monkeypatch.setitem(sys.modules, "experiments.run.by_hand", half)
    assert scripts.train.main(LAYERS) == 130
    said = capsys.readouterr().err
    assert said == "Stopped before training. The same command starts the run, or resumes it.\n"


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_logger_works_without_account_and_never_holds_the_results(
    world: World, root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name, reason=f"the optional package {name} is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    record = by_hand("runs/mine", "--config", str(root / f"conf/logger/{name}.yaml"))
    plain = by_hand("runs/two")
    assert (record["id"], record["metrics"]) == (plain["id"], plain["metrics"])
    assert json.loads(Path("runs/mine/record.json").read_text())["metrics"] == record["metrics"]
    found = [path for path in Path("runs/mine").rglob("*") if "wandb" in path.name or "tfevents" in path.name]
    assert found and not Path("wandb").exists() and not Path("lightning_logs").exists()
    if name == "wandb":
        import wandb

        wandb.finish()


def test_the_base_layer_is_below_every_file(world: World) -> None:
    assert BASE.exists()
    config = ParseOnly().resolve(LAYERS)
    assert config["trainer"]["max_epochs"] == 5 and config["trainer"]["num_sanity_val_steps"] == 0
    assert [c["class_path"].split(".")[-1] for c in config["trainer"]["callbacks"]] == [
        "EarlyStopping",
        "ModelCheckpoint",
    ]
    assert config["trainer"]["callbacks"][1]["init_args"]["dirpath"] == "@run_dir/checkpoints"


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["conf/scheme/infnet.yaml", "conf/objective/joint_stacked.yaml"], "infnet-joint_stacked-"),
        (["conf/scheme/cross_entropy.yaml", "conf/tuned/seal_mlc/bibtex.yaml:ce"], "cross_entropy-"),
        (["elsewhere/own.yaml"], "own-"),
    ],
)
def test_a_folder_by_hand_is_called_after_its_scheme_and_objective(files: list[str], name: str) -> None:
    found = by_hand_folder([part for f in ["conf/data/toy.yaml", *files] for part in ("--config", f)])
    assert Path(found).name.startswith(name)
