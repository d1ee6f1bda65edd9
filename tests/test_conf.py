"""Every file in conf/ builds its objects, and every setting of a table fits the scheme it is for."""

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from energies.pretrained import PartlyPretrainedEnergy, PretrainedEnergy
from experiments.cli import ParseOnly, TrainCLI
from experiments.errors import ConfigError
from experiments.spec import read_table
from networks.pretrained import CheckpointUnusable, PretrainedNet, load_part

SCHEMES = sorted(Path("conf/scheme").glob("*.yaml"))
DATA = sorted(Path("conf/data").glob("*.yaml"))
TABLES = sorted(path.stem for path in Path("conf/tables").glob("*.yaml"))
QUICK = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=3", "--trainer.limit_val_batches=1"]
WANTS = {"seal_static": "energy", "spen": "guesser", "nce_mlc": "guesser"}


def stem(path: Path) -> str:
    return path.stem


def build(folder: Path, *arguments: str) -> TrainCLI:
    return TrainCLI([*arguments, *QUICK], run_dir=str(folder))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Real checkpoints of a cross-entropy run and an energy run on generated data."""
    found = {}
    for part, scheme in {"guesser": "cross_entropy_mlc", "energy": "dvn_mlc"}.items():
        folder = tmp_path_factory.mktemp(part)
        cli = build(folder, "--config", "conf/data/generated.yaml", "--config", f"conf/scheme/{scheme}.yaml")
        cli.trainer.fit(cli.model, cli.datamodule)
        found[part] = str(folder / "checkpoints" / "best.ckpt")
    return found


def needs(scheme: Path, checkpoints: dict[str, str]) -> list[str]:
    part = next((part for name, part in WANTS.items() if scheme.stem.startswith(name)), None)
    return [f"--model.{part}.init_args.checkpoint={checkpoints[part]}"] if part else []


@pytest.mark.parametrize("scheme", SCHEMES, ids=stem)
def test_each_scheme_builds_and_trains_from_its_file(
    scheme: Path, checkpoints: dict[str, str], tmp_path: Path
) -> None:
    layers = ["--config", "conf/data/generated.yaml", "--config", str(scheme)]
    cli = build(tmp_path, *layers, *needs(scheme, checkpoints))
    before = {name: p.clone() for name, p in cli.model.named_parameters()}
    cli.trainer.fit(cli.model, cli.datamodule)
    assert any(not torch.equal(before[name], p) for name, p in cli.model.named_parameters())
    assert torch.isfinite(cli.trainer.callback_metrics["val/example_f1"])
    kept = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert kept["hyper_parameters"]["space"]["class_path"] == "energies.spaces.LabelSets"


@pytest.mark.parametrize("layer", sorted(Path("conf/scheme/released").glob("*.yaml")), ids=stem)
def test_each_released_layer_builds_over_its_scheme(
    layer: Path, checkpoints: dict[str, str], tmp_path: Path
) -> None:
    under = {
        "partly_pretrained": "seal_static_nce_mlc",
        "dynamic_margin": "seal_dynamic_margin_mlc",
        "spen": "spen_mlc",
    }
    scheme = Path(f"conf/scheme/{under[layer.stem]}.yaml")
    layers = ["--config", "conf/data/generated.yaml", "--config", str(scheme), "--config", str(layer)]
    cli = build(tmp_path, *layers, *needs(scheme, checkpoints))
    cli.trainer.fit(cli.model, cli.datamodule)
    assert torch.isfinite(cli.trainer.callback_metrics["val/example_f1"])


@pytest.mark.parametrize("data", DATA, ids=stem)
def test_each_data_file_builds_without_touching_a_file(data: Path, tmp_path: Path) -> None:
    sizes = ["--data.num_features=9", "--data.num_labels=4"] if data.stem == "arff" else []
    cli = build(tmp_path, "--config", str(data), "--config", "conf/scheme/cross_entropy_mlc.yaml", *sizes)
    assert isinstance(cli.datamodule, pl.LightningDataModule)
    assert cli.model.task_net.labels.out_features == cli.datamodule.num_labels
    assert cli.datamodule.seed == cli.config["seed_everything"]


def cells() -> list[tuple[str, ...]]:
    """The layers of every cell of every table, each once."""
    tables = [read_table(name) for name in TABLES]
    return sorted({t.layers(r, c) for t in tables for r in t.rows for c in t.columns if t.has(r, c)})


@pytest.mark.parametrize("quarter", range(4))
def test_every_cell_of_a_table_resolves_to_a_config(quarter: int) -> None:
    parser = ParseOnly()
    for layers in cells()[quarter::4]:
        config = parser.resolve(
            [*(part for file in layers for part in ("--config", file)), "--seed_everything=3"]
        )
        assert config["model"]["init_args"]["seed"] == 3


def test_every_settings_file_belongs_to_a_row() -> None:
    used = {file for layers in cells() for file in layers}
    unused = {str(path) for path in Path("conf/tuned").rglob("*.yaml")} - used
    assert {path for path in unused if "/eurlexev/dynamic_margin_released" not in path} == set()


def test_the_loss_net_of_a_finished_run_comes_whole_and_frozen(checkpoints: dict[str, str]) -> None:
    whole, partly = PretrainedEnergy(checkpoints["energy"]), PartlyPretrainedEnergy(checkpoints["energy"])
    kept = torch.load(checkpoints["energy"], weights_only=True)["state_dict"]
    for name, value in whole.energy.state_dict().items():
        assert torch.equal(value, kept[f"energy.{name}"])
        same = torch.equal(value, partly.energy.state_dict()[name])
        assert same == (name in ("local.net.labels.weight", "joint.weights")) or "bias" in name
    assert not any(p.requires_grad for p in [*whole.parameters(), *partly.parameters()])


def test_a_checkpoint_without_the_part_or_not_there_is_refused_with_advice(
    checkpoints: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointUnusable, match="no part 'energy'"):
        load_part(checkpoints["guesser"], "energy")
    with pytest.raises(CheckpointUnusable, match="Train the run it comes from first"):
        PretrainedNet(str(tmp_path / "none.ckpt"))


def test_a_checkpoint_cannot_name_a_class_of_others(checkpoints: dict[str, str], tmp_path: Path) -> None:
    content = torch.load(checkpoints["guesser"], weights_only=True)
    content["hyper_parameters"]["task_net"] = {
        "class_path": "subprocess.Popen",
        "init_args": {"args": "true"},
    }
    torch.save(content, tmp_path / "bad.ckpt")
    with pytest.raises(CheckpointUnusable, match="not one of this project"):
        load_part(str(tmp_path / "bad.ckpt"), "task_net")


def test_a_run_by_hand_without_its_checkpoint_gets_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^no checkpoint at '', wanted for its energy\. Train"):
        build(
            tmp_path,
            *("--config", "conf/data/generated.yaml"),
            *("--config", "conf/scheme/seal_static_nce_mlc.yaml"),
        )
