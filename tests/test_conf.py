"""Every file in conf/ builds its objects, and every setting of a table fits the scheme it is for."""

from itertools import product
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from committed import committed
from energies.pretrained import PartlyPretrainedEnergy, PretrainedEnergy
from experiments.plan.cli import ParseOnly, TrainCLI
from experiments.plan.compose import SEED
from experiments.plan.runs import layers_of
from experiments.plan.spec import read_table
from networks.pretrained import CheckpointUnusable, PretrainedNet, load_part
from scheme_runs import QUICK, configs, needs, train_checkpoints

SCHEMES = committed("conf/scheme/*.yaml")
DATA = committed("conf/data/*.yaml")
TABLES = [str(path) for folder in ("tables", "sweeps") for path in committed(f"conf/{folder}/*.yaml")]
TASKS = {
    "ocr": "conf/task/ocr.yaml",
    "conll2000": "conf/task/chunking.yaml",
    "twitter_pos": "conf/task/pos.yaml",
    "conll2003": "conf/task/ner.yaml",
}  # by data


def stem(path: Path) -> str:
    return path.stem


def build(folder: Path, *arguments: str) -> TrainCLI:
    return TrainCLI([*arguments, *QUICK], run_dir=str(folder))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return train_checkpoints(tmp_path_factory.mktemp("checkpoints"))


def fit_if_the_data_is_there(cli: TrainCLI) -> dict[str, torch.Tensor]:
    """Train three batches; the scores of validation."""
    if missing := cli.datamodule.missing():
        pytest.skip(missing)
    cli.trainer.fit(cli.model, cli.datamodule)
    return {k: v for k, v in cli.trainer.callback_metrics.items() if k.startswith("val/")}


@pytest.mark.parametrize("scheme", SCHEMES, ids=stem)
def test_each_scheme_builds_and_trains_from_its_file(
    scheme: Path, checkpoints: dict[str, str], tmp_path: Path
) -> None:
    sets = scheme.stem.endswith("_mlc")
    over = ("conf/data/generated.yaml", scheme) if sets else ("conf/data/ocr.yaml", scheme, TASKS["ocr"])
    cli = build(tmp_path, *configs(*over), *needs(scheme, checkpoints))
    before = {name: p.clone() for name, p in cli.model.named_parameters()}
    scores = fit_if_the_data_is_there(cli)
    assert any(not torch.equal(before[name], p) for name, p in cli.model.named_parameters())
    assert torch.isfinite(scores["val/example_f1" if sets else "val/word_accuracy"])
    kept = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    space = "energies.spaces.LabelSets" if sets else "energies.spaces.TagSequences"
    assert kept["hyper_parameters"]["space"]["class_path"] == space


@pytest.mark.parametrize("layer", committed("conf/scheme/scaling/*.yaml"), ids=stem)
def test_each_layer_of_a_chain_builds_and_trains_over_its_scheme(layer: Path, tmp_path: Path) -> None:
    under = {"sgd": "crf_joint", "sgd_stage": "crf_stage"}.get(layer.stem, "crf_scaled")
    cli = build(tmp_path, *configs("conf/data/ocr.yaml", f"conf/scheme/{under}.yaml", layer, TASKS["ocr"]))
    assert torch.isfinite(fit_if_the_data_is_there(cli)["val/word_accuracy"])


@pytest.mark.parametrize("scheme", committed("conf/scheme/infnet/*.yaml"), ids=stem)
def test_each_scheme_of_inference_networks_builds_and_trains_on_tweets(scheme: Path, tmp_path: Path) -> None:
    cli = build(tmp_path, *configs("conf/data/twitter_pos.yaml", scheme, TASKS["twitter_pos"]))
    assert torch.isfinite(fit_if_the_data_is_there(cli)["val/accuracy"])


PRINTED = {  # thousands of trained parameters, InfNet+ Table 2: POS, NER
    "bilstm": (166, 239),
    "margin": (333, 479),
    "perceptron": (333, 479),
    "separated": (500, 719),
    "shared": (339, 485),
    "stacked": (335, 481),
}


@pytest.mark.parametrize("scheme", PRINTED)
def test_inference_networks_have_the_sizes_of_the_paper(scheme: str, tmp_path: Path) -> None:
    """PyTorch's LSTM has 800 (POS) or 1,024 (NER) biases more, and no peepholes, 600 of POS."""
    layer = f"conf/scheme/infnet/{scheme}.yaml"
    pos = configs("conf/data/twitter_pos.yaml", layer, "conf/task/pos.yaml")
    own = ["--data.vectors=tweets.txt", "--data.num_dims=100"]
    ner = configs("conf/data/conll2003.yaml", layer, "conf/task/ner.yaml")
    for arguments, printed, predicts, margin in (
        ([*pos, *own], PRINTED[scheme][0], 166, 1),
        (ner, PRINTED[scheme][1], 239, 3),
    ):
        sizes = build(tmp_path, *arguments).model.sizes()
        assert sizes["trained_parameters"] / 1000 == pytest.approx(printed, abs=margin)
        assert sizes["inference_parameters"] / 1000 == pytest.approx(predicts, abs=1)


@pytest.mark.parametrize("layer", committed("conf/scheme/infnet/label_sets/*.yaml"), ids=stem)
def test_each_way_to_build_inference_networks_trains_on_label_sets(layer: Path, tmp_path: Path) -> None:
    cli = build(tmp_path, *configs("conf/data/generated.yaml", "conf/scheme/infnet_mlc.yaml", layer))
    assert torch.isfinite(fit_if_the_data_is_there(cli)["val/augmented_example_f1"])


@pytest.mark.parametrize("task", ["ner", "ner_plus", "ner_plus_plus"])
def test_each_task_of_named_entities_builds_and_trains(task: str, tmp_path: Path) -> None:
    scheme = Path("conf/scheme/infnet/global_c.yaml")
    cli = build(tmp_path, *configs("conf/data/conll2003.yaml", scheme, f"conf/task/{task}.yaml"))
    assert torch.isfinite(fit_if_the_data_is_there(cli)["val/f1"])


@pytest.mark.parametrize("objective", ["ssvm", "dvn", "cd"])
def test_each_objective_builds_and_trains_over_bilevel_training(objective: str, tmp_path: Path) -> None:
    sets, tags = (f"conf/scheme/implicit/{kind}.yaml" for kind in ("label_sets", "tags"))
    over = f"conf/scheme/implicit/{objective}.yaml"
    cli = build(tmp_path, *configs("conf/data/generated.yaml", sets, over), "--model.warm_up=0")
    assert torch.isfinite(fit_if_the_data_is_there(cli)["val/example_f1"])
    assert cli.model.steps == {"task": 15, "energy": 3}
    layers = configs("conf/data/twitter_pos.yaml", tags, over, TASKS["twitter_pos"])
    cli = build(tmp_path, *layers, "--model.warm_up=0")
    assert torch.isfinite(fit_if_the_data_is_there(cli)["val/accuracy"])


CRITERIA = ["Likelihood", "MarginalCrossEntropy", "StructuredSVM", "MeanFieldCrossEntropy"]


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("scheme", committed("conf/scheme/crf_*.yaml"), ids=stem)
def test_a_setting_gives_a_chain_its_criterion(scheme: Path, criterion: str, tmp_path: Path) -> None:
    setting = f"--model.init_args.criterion.class_path=inference.chain.criteria.{criterion}"
    cli = build(tmp_path, *configs("conf/data/ocr.yaml", scheme, TASKS["ocr"]), setting)
    assert type(cli.model.criterion).__name__ == criterion


@pytest.mark.parametrize("layer", committed("conf/scheme/released/*.yaml"), ids=stem)
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
    task = next((layer for name, layer in TASKS.items() if data.stem.startswith(name)), None)
    if task:
        scheme = "infnet/crf" if data.stem in ("twitter_pos", "conll2003") else "crf_joint"
        cli = build(tmp_path, *configs(data, f"conf/scheme/{scheme}.yaml", task))
        assert cli.model.space.num_tags == cli.datamodule.num_tags
    else:
        sizes = ["--data.num_features=9", "--data.num_labels=4"] if data.stem == "arff" else []
        cli = build(tmp_path, *configs(data, "conf/scheme/cross_entropy_mlc.yaml"), *sizes)
        assert cli.model.task_net.labels.out_features == cli.datamodule.num_labels
    assert isinstance(cli.datamodule, pl.LightningDataModule)
    assert cli.datamodule.seed == cli.config["seed_everything"]


def cells() -> list[tuple[str, ...]]:
    """The command line of every cell of every table, each once."""
    found = set()
    for table in map(read_table, TABLES):
        for name, column in product(table.rows, table.columns):
            if table.has(name, column) and table.columns[column].config:
                found.add(tuple(layers_of(table, name, column).arguments()))
    return sorted(found)


@pytest.mark.parametrize("quarter", range(4))
def test_every_cell_of_a_table_resolves_to_a_config(quarter: int) -> None:
    parser = ParseOnly()
    for arguments in cells()[quarter::4]:
        assert parser.resolve([*arguments])["model"]["init_args"]["seed"] == SEED


def test_every_settings_file_belongs_to_a_row() -> None:
    used = {argument for arguments in cells() for argument in arguments}
    assert {str(path) for path in committed("conf/tuned/**/*.yaml")} <= used


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
    with pytest.raises(CheckpointUnusable, match=r"none.ckpt, where no file is: train the run it comes from"):
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
