"""Every file in conf/ builds its objects, and every setting of a table fits the scheme it is for."""

import os
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf

from committed import committed
from energies.pretrained import PartlyPretrainedEnergy, PretrainedEnergy
from experiments.plan.compose import SEED
from experiments.plan.layers import file_and_row, layered, rows_of, split
from experiments.plan.parser import ParseOnly
from experiments.plan.runs import layers_of
from experiments.plan.spec import read_table
from experiments.run.cli import TrainCLI
from networks.pretrained import CheckpointUnusable, PretrainedNet, load_part
from scheme_runs import PARTS, QUICK, STILL, configs, kind_of, needs, runs, train_checkpoints

DATA = committed("conf/data/*.yaml")
TABLES = [str(path) for path in committed("conf/tables/*.yaml")]
RUNS = runs()
WATCHED = {"label_sets": "val/example_f1", "chains": "val/word_accuracy", "sentences": "val/accuracy"}
WATCHED |= {"texts": "val/example_f1"}
WATCHED |= {"masks": "val/iou", "pictures": "val/iou", "roles": "val/f1"}
SETS = ("label_sets", "texts")
OWN_TAGS = ["--data.tags=[B-A, I-A, O]", "--data.num_tags=3", "--data.train=mine.txt"]
OWN_TAGS += [f"--data.num_{name}=9" for name in ("words", "vectors", "characters")]
NUMBER = re.compile(r"=-?\d[\d.e-]*$")
SPACES = {
    "label_sets": "LabelSets",
    "texts": "LabelSets",
    "masks": "PixelMasks",
    "pictures": "PixelMasks",
}  # else TagSequences


def stem(path: Path) -> str:
    return path.stem


def build(folder: Path, *arguments: str) -> TrainCLI:
    return TrainCLI([*arguments, *QUICK], run_dir=str(folder))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return train_checkpoints(tmp_path_factory.mktemp("checkpoints"))


READ: dict[str, Any] = {}  # data by their config: they are read once


def fit_if_the_data_is_there(cli: TrainCLI) -> dict[str, torch.Tensor]:
    """Train three batches; the scores of validation."""
    data = cli.datamodule
    if missing := data.missing():
        pytest.skip(missing)
    if str(cli.config.data) not in READ:
        data.setup()
        READ[str(cli.config.data)] = data.splits, data.tables
    data.splits, data.tables = READ[str(cli.config.data)]
    cli.trainer.fit(cli.model, cli.datamodule)
    return {k: v for k, v in cli.trainer.callback_metrics.items() if k.startswith("val/")}


# One run of each scheme and kind of answer. test_ddp.py trains every objective, in small sizes.
OF_EACH_SCHEME = {(name.split(",")[0].split()[0], name.rpartition(", ")[2]): name for name in reversed(RUNS)}


@pytest.mark.parametrize("name", sorted(OF_EACH_SCHEME.values()))
def test_each_scheme_trains_in_its_own_sizes_and_its_checkpoint_loads(
    name: str, checkpoints: dict[str, str], tmp_path: Path
) -> None:
    given = OmegaConf.create(layered(RUNS[name]).tree["model"]["init_args"])
    costs = {
        "inference.steps": 2,
        "guess.init_args.num_samples": 4,
        "inner_steps": 2,
    }  # enough for three batches
    few = [
        f"--model.init_args.{key}={most}"
        for key, most in costs.items()
        if (OmegaConf.select(given, key) or 0) > most
    ]
    cli = build(tmp_path, *RUNS[name], *needs(RUNS[name], checkpoints), *few)
    before = {name: p.clone() for name, p in cli.model.named_parameters()}
    scores = fit_if_the_data_is_there(cli)
    after = dict(cli.model.named_parameters())
    moved = after.keys() != before.keys() or any(not torch.equal(before[n], p) for n, p in after.items())
    assert moved is not name.startswith(STILL)
    kind = name.rpartition(", ")[2]
    assert torch.isfinite(scores[WATCHED[kind]])
    kept = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    space = f"energies.spaces.{SPACES.get(kind, 'TagSequences')}"
    assert kept["hyper_parameters"]["space"]["class_path"] == space


def test_each_scheme_and_objective_is_of_a_run() -> None:
    used = {file for given in RUNS.values() for file in layered(given).files}
    written = [path for dial in ("scheme", "objective") for path in committed(f"conf/{dial}/*.yaml")]
    assert {*map(str, written)} <= used


PRINTED = {  # thousands of trained parameters, InfNet+ Table 2: POS, NER
    "bilstm": (166, 239),
    "margin": (333, 479),
    "perceptron": (333, 479),
    "separated": (500, 719),
    "shared": (339, 485),
    "stacked": (335, 481),
}


@pytest.mark.parametrize("row", PRINTED)
def test_inference_networks_have_the_sizes_of_the_paper(row: str, tmp_path: Path) -> None:
    """PyTorch's LSTM has 800 (POS) or 1,024 (NER) biases more, and no peepholes, 600 of POS."""
    table = read_table("infnet_joint")
    pos, ner = (configs(*table.layers(row, column)) for column in ("pos", "ner"))
    own = ["--data.vectors=tweets.txt", "--data.num_dims=100"]
    for arguments, printed, predicts, margin in (
        ([*pos, *own], PRINTED[row][0], 166, 1),
        (ner, PRINTED[row][1], 239, 3),
    ):
        sizes = build(tmp_path, *arguments).model.sizes()
        assert sizes["trained_parameters"] / 1000 == pytest.approx(printed, abs=margin)
        assert sizes["inference_parameters"] / 1000 == pytest.approx(predicts, abs=1)


@pytest.mark.parametrize("column", ["ner", "ner_plus", "ner_plus_plus"])
def test_each_layout_of_named_entities_builds_and_trains(column: str, tmp_path: Path) -> None:
    cli = build(tmp_path, *configs(*read_table("infnet_global").layers("ge_c", column)))
    assert torch.isfinite(fit_if_the_data_is_there(cli)["val/f1"])


def test_the_bilevel_scheme_moves_the_task_net_more_often(tmp_path: Path) -> None:
    cli = build(tmp_path, *RUNS["implicit cd, label_sets"], "--model.warm_up=0")
    fit_if_the_data_is_there(cli)
    assert cli.model.steps == {"task": 15, "energy": 3}


@pytest.mark.parametrize("data", DATA, ids=stem)
def test_each_data_file_builds_without_touching_a_file(data: Path, tmp_path: Path) -> None:
    sizes = ["--data.num_features=9", "--data.num_labels=4"] if data.stem == "arff" else []
    if (kind := kind_of(data)) in PARTS and (reason := PARTS[kind].missing()):
        pytest.skip(reason)
    sizes += ["--data.num_labels=4"] if data.stem == "own_text" else []
    sizes += OWN_TAGS if data.stem in ("own_tagged", "own_spans") else []
    cli = build(tmp_path, *configs(data, "conf/scheme/cross_entropy.yaml"), *sizes)
    if kind_of(data) not in ("masks", "pictures"):  # one logit a pixel, whatever the size
        num_outputs = cli.datamodule.num_labels if kind_of(data) in SETS else cli.datamodule.num_tags
        last = [module for module in cli.model.task_net.modules() if isinstance(module, torch.nn.Linear)][-1]
        assert last.out_features == num_outputs
    assert isinstance(cli.datamodule, pl.LightningDataModule)
    assert cli.datamodule.seed == cli.config["seed_everything"]


def facts(value: Any, at: str = "") -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
    """What decides whether a config resolves: the arguments a class gets together, and the kind of each."""
    match value:
        case {"class_path": name}:
            given = value.get("init_args") or {}
            yield at, name, *sorted(given)
            yield from facts(given, name)
        case dict():
            for key, under in value.items():
                yield from facts(under, f"{at}.{key}")
        case list():
            for under in value:
                yield from facts(under, at)
        case bool() | None | str():
            yield at, value
        case _:
            yield at, type(value)


@cache
def covering() -> list[tuple[str, ...]]:
    """Command lines of cells that have all facts of all cells."""
    known, chosen = set(), []
    for arguments in cells():
        options = {(NUMBER.sub("=0", option),) for option in split([*arguments])[1]}
        if new := {*facts(layered([*arguments]).tree), *options} - known:
            known |= new
            chosen.append(arguments)
    return chosen


@cache
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
    """Of cells that give a class the same arguments, of the same kinds, one does."""
    parser = ParseOnly()
    for arguments in covering()[quarter::4]:
        assert parser.resolve([*arguments])["model"]["init_args"]["seed"] == SEED


def test_every_row_of_settings_belongs_to_a_row_of_a_table() -> None:
    used = {argument for arguments in cells() for argument in arguments}
    lent = {file_and_row(name) for name in used if ".yaml:" in name}
    todo = list(lent)
    while todo:
        file, row = todo.pop()
        said = rows_of(Path(file))[row]
        for one in [said] if isinstance(said, str) else flat(said.get("over", [])):
            other, of = file_and_row(one)
            below = (os.path.normpath(Path(file).parent / other), of) if of else (file, one)
            todo += [] if below in lent else [below]
            lent.add(below)
    written = {(str(path), row) for path in committed("conf/tuned/*/*.yaml") for row in rows_of(path)}
    assert written == lent


def test_controls_have_the_networks_rates_and_steps_of_their_rows() -> None:
    table = read_table("seal_mlc_controls")
    controlled = {name: name.removesuffix("_alone") for name in table.rows if name.endswith("_alone")}
    assert len(controlled) == 6
    for name, of in (controlled | {"ce_matched": "dynamic_nce", "ce_static": "static_regression"}).items():
        for column in table.columns:
            entries = [file_and_row(table.layers(row, column)[-1]) for row in (name, of)]
            control, row = (rows_of(Path(file))[entry] for file, entry in entries)
            model = row["model"]["init_args"]
            steps = model.get("outer_steps", model.get("task_steps", 1))
            steps *= model["inner_steps"] if model.get("inner") == "task" else 1
            assert (control["net"], control["optimizer"]) == (row["net"], row["optimizer"])
            assert control.get("model", {"init_args": {"task_steps": 1}}) == {
                "init_args": {"task_steps": steps}
            }


def flat(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def test_a_run_by_hand_takes_three_files_and_settings() -> None:
    for arguments in cells():
        files = [file for file in split([*arguments])[0] if "conf/tuned/" not in file]
        assert len(files) <= 3


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
    with pytest.raises(CheckpointUnusable, match=r"none.ckpt, which does not exist: train the run"):
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
