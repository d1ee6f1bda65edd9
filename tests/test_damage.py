"""Damaged checkpoints: refused in a sentence, or as good as whole; runs resume from what is left."""

import io
import re
import shutil
import warnings
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

import toy_world
from energies.pretrained import PretrainedEnergy
from experiments import store
from experiments.errors import CannotResume, UserError
from experiments.plan.parser import ParseOnly
from experiments.plan.runs import compose
from experiments.run import execute
from experiments.run.by_hand import train
from experiments.run.cli import TrainCLI
from networks.pretrained import CheckpointUnusable, load_part, read_checkpoint
from scheme_runs import configs
from scripts.robustness import damage
from toy_world import World

world = toy_world.world  # the fixture

LAYERS = ["--config", "conf/data/toy.yaml", "--config", "conf/scheme/toy.yaml"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a real, short run of an energy."""
    folder = tmp_path_factory.mktemp("real")
    sizes = ["--data.num_features=6", "--data.num_labels=5", "--data.num_rows=60"]
    net = "--model.init_args.energy.init_args.local.init_args.net.init_args.width=4"
    mix = "--model.init_args.energy.init_args.joint.init_args.num_patterns=4"
    files = configs("conf/data/generated.yaml", "conf/scheme/energy_net.yaml", "conf/objective/dvn.yaml")
    cli = TrainCLI([*files, *sizes, net, mix, "--trainer.max_epochs=1"], run_dir=str(folder))
    cli.trainer.fit(cli.model, cli.datamodule)
    return folder / "checkpoints" / "best.ckpt"


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_damaged_bytes_are_refused_or_give_the_same_weights(real: Path, tmp_path: Path) -> None:
    whole, content, file = load_part(str(real), "energy"), real.read_bytes(), tmp_path / "bad.ckpt"
    refused = 0
    for seed in range(150):
        draw = Random(seed)
        file.write_bytes(draw.choice(damage.BYTES)(content, draw))
        try:
            assert same(load_part(str(file), "energy"), whole)
        except CheckpointUnusable as error:
            assert len(str(error)) < 600 and "\n" not in str(error)
            refused += 1
    assert refused > 100


def test_foreign_content_is_refused_or_builds_an_energy(real: Path, tmp_path: Path) -> None:
    content, file, refused = real.read_bytes(), tmp_path / "bad.ckpt", 0
    for seed in range(100):
        draw = Random(seed)
        file.write_bytes(draw.choice(damage.HELD)(content, draw))
        try:
            PretrainedEnergy(str(file))
        except CheckpointUnusable as error:
            assert len(str(error)) < 600 and "\n" not in str(error)
            refused += 1
    assert refused > 40


def test_no_bit_of_a_checkpoint_changes_a_number_unseen(tmp_path: Path) -> None:
    """Some of its bits, and each that could mark an entry as a folder."""
    held, file = {"w": torch.arange(3.0), "epoch": 3}, tmp_path / "bad.ckpt"
    content = io.BytesIO()
    torch.save(held, content)
    entries = [found.start() for found in re.finditer(b"PK\1\2", content.getvalue())]
    folders = [8 * (entry + 38) + 4 for entry in entries]
    seen = 0
    for bit in [*range(0, 8 * len(content.getvalue()), 13), *folders]:
        bad = bytearray(content.getvalue())
        bad[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bad)
        whole = store.is_whole(file)
        try:
            read = read_checkpoint(file)
        except CheckpointUnusable:
            seen += 1
            continue
        assert whole and torch.equal(read["w"], held["w"]) and read["epoch"] == 3
    assert seen > 300


def by_hand(folder: str, *options: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is damaged.*")
        return train([*LAYERS, *options, "--run_dir", folder], lambda progress: None)[0]


def test_a_run_by_hand_goes_on_from_what_is_left_or_says_in_a_sentence_what_to_remove(world: World) -> None:
    more = "--trainer.max_epochs=3"
    by_hand("runs/mine", "--trainer.max_epochs=2")
    files = {path: path.read_bytes() for path in Path("runs/mine").rglob("*") if path.is_file()}
    whole = by_hand("runs/mine", more)["metrics"]
    ends = set()
    for seed in range(18):
        for path, content in files.items():
            path.write_bytes(content)
        draw = Random(seed)
        path = Path("runs/mine/checkpoints") / draw.choice(["last.ckpt", "last.ckpt", "best.ckpt"])
        way = draw.choice([*damage.BYTES, *damage.HELD])
        path.write_bytes(way(files[path], draw))
        try:
            found = by_hand("runs/mine", more)["metrics"]
            assert found == whole if way in damage.BYTES else set(found) == set(whole)
            ends.add("resumed")
        except UserError as error:
            assert "Traceback" not in str(error) and len(str(error)) < 900
            ends.add(type(error.__cause__).__name__)
    assert {"resumed", "CannotResume"} <= ends


def leave_unfinished(*options: str) -> None:
    """Train, and be killed before the test."""
    cli = TrainCLI([*LAYERS, *options])
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)


def test_a_damaged_checkpoint_costs_the_epochs_since_the_one_before(world: World) -> None:
    still = ["--trainer.max_epochs=4", "--model.init_args.pause=0.05"]
    whole = by_hand("runs/whole", *still, "--trainer.max_epochs=6")
    leave_unfinished(*still, "--run_dir=runs/mine")
    last, before = Path("runs/mine/checkpoints/last.ckpt"), Path("runs/mine/checkpoints/before.ckpt")
    assert torch.load(before, weights_only=True)["epoch"] < torch.load(last, weights_only=True)["epoch"] == 3
    last.write_bytes(last.read_bytes()[:-30])
    with pytest.warns(UserWarning, match=r"last\.ckpt is damaged\. Training resumes from what is left"):
        record, _ = train(
            [*LAYERS, *still, "--trainer.max_epochs=6", "--run_dir=runs/mine"], lambda progress: None
        )
    assert record["metrics"] == whole["metrics"] and record["curves"] == whole["curves"]
    assert [start["epoch"] for start in record["starts"]][1] in (1, 2, 3)


def test_a_run_of_a_table_trains_from_what_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign last checkpoint is removed, a damaged one too; then there is one more, or the start."""
    monkeypatch.setattr("sys.argv", ["test"])
    config = ParseOnly().resolve([*LAYERS, "--trainer.max_epochs=4"])
    folder = store.run_dir("r1")
    job = execute.Job("r1", compose.fill(config, {compose.RUN_DIR: str(folder)}), {}, {"seed": 0}, 1)
    whole = execute._train_from_what_is_left(job, folder)
    last, before = (folder / "checkpoints" / name for name in store.RESUMABLE)
    for left in (True, False):
        shutil.rmtree(folder)
        leave_unfinished("--trainer.max_epochs=4", f"--run_dir={folder}")
        kept = torch.load(last, weights_only=True)
        torch.save({"training_ended": ""} | {key: kept[key] for key in ("epoch", "loops")}, last)
        if not left:
            before.write_bytes(before.read_bytes()[:-30])
        with pytest.warns(UserWarning, match="is no checkpoint that this run can resume from"):
            again = execute._train_from_what_is_left(job, folder)
        assert again["metrics"] == whole["metrics"] and again["curves"] == whole["curves"]
        assert len(again["starts"]) == 1 + left


def test_a_table_trains_again_what_another_run_needs_and_is_damaged(world: World) -> None:
    world.reproduce("--seeds", "0", "--rows", "taught", "--columns", "easy")
    before = {record["row"]: record["metrics"] for record in world.records()}
    teacher = world.run_of("plain") / "checkpoints" / "best.ckpt"
    whole = teacher.read_bytes()
    bad = bytearray(whole)
    bad[len(bad) // 3] ^= 1
    teacher.write_bytes(bad)
    code, said = world.reproduce("--seeds", "0", "--rows", "taught", "--columns", "easy", "--fresh")
    assert code == 0, said
    assert teacher.read_bytes() != bytes(bad) and store.is_whole(teacher)
    assert {record["row"]: record["metrics"] for record in world.records()} == before


def test_what_cannot_be_gone_on_from_is_told_with_what_to_do() -> None:
    said = str(CannotResume(Path("runs/a/last.ckpt"), KeyError("loops")))
    assert said.startswith(
        "runs/a/last.ckpt is no checkpoint that this run can resume from (KeyError: 'loops')"
    )
    assert "Remove it, and the run resumes from what is left" in said
