"""What a run is called: stable, blind to what cannot change a number, the same however it is built."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import toy_world
from experiments.plan.identity import difference, identity, run_id
from experiments.plan.runs import compose, make_plan
from experiments.plan.spec import read_table
from toy_world import World

world = toy_world.world  # the fixture

CONFIG: dict[str, Any] = {
    "seed_everything": 3,
    "run_dir": "runs/x",
    "trainer": {
        "max_epochs": 5,
        "logger": False,
        "default_root_dir": None,
        "enable_progress_bar": False,
        "log_every_n_steps": None,
        "callbacks": [
            {
                "class_path": "p.EarlyStopping",
                "init_args": {"monitor": "val/f1", "patience": 20, "verbose": False},
            },
            {
                "class_path": "p.ModelCheckpoint",
                "init_args": {"monitor": "val/f1", "dirpath": "runs/x/checkpoints"},
            },
        ],
    },
    "model": {"class_path": "m.Scheme", "init_args": {"lr": 0.001, "width": 8, "teacher": None}},
    "data": {
        "class_path": "d.Data",
        "init_args": {"name": "bibtex", "folder": "data", "num_workers": 0, "seed": 3},
    },
}


def changed(place: str, value: object) -> dict[str, Any]:
    """CONFIG with one key set."""
    config = deepcopy(CONFIG)
    *path, last = place.split(".")
    tree: Any = config
    for key in path:
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    tree[last] = value
    return config


def test_the_id_of_a_known_config_never_changes() -> None:
    assert run_id(identity(CONFIG)) == "25d8774b860704e8"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("run_dir", "elsewhere"),
        ("trainer.logger", {"class_path": "pytorch_lightning.loggers.WandbLogger"}),
        ("trainer.default_root_dir", "elsewhere"),
        ("trainer.enable_progress_bar", True),
        ("trainer.log_every_n_steps", 7),
        ("trainer.callbacks.1.init_args.dirpath", "elsewhere"),
        ("trainer.callbacks.0.init_args.verbose", True),
        ("data.init_args.folder", "elsewhere"),
        ("data.init_args.mirror", "elsewhere"),
        ("data.init_args.num_workers", 4),
        ("model.init_args.new_option", None),
    ],
)
def test_what_cannot_change_a_number_changes_no_id(place: str, value: object) -> None:
    assert run_id(identity(changed(place, value))) == run_id(identity(CONFIG))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("seed_everything", 4),
        ("trainer.max_epochs", 6),
        ("trainer.devices", 2),
        ("trainer.callbacks.0.init_args.patience", 5),
        ("model.init_args.lr", 0.01),
        ("model.init_args.teacher", "0123456789abcdef"),
        ("data.init_args.name", "genbase"),
    ],
)
def test_what_can_change_a_number_changes_the_id(place: str, value: object) -> None:
    assert run_id(identity(changed(place, value))) != run_id(identity(CONFIG))


def test_the_first_option_of_a_class_changes_no_id() -> None:
    bare, optional = ({"class_path": "m.Part"} | more for more in ({}, {"init_args": {"option": None}}))
    one, other = (changed("model.init_args.part", part) for part in (bare, optional))
    assert run_id(identity(one)) == run_id(identity(other)) == run_id(identity(identity(other)))


def test_a_callback_that_only_shows_things_changes_no_id() -> None:
    config = deepcopy(CONFIG)
    config["trainer"]["callbacks"].append({"class_path": "p.RichProgressBar"})
    config["trainer"]["callbacks"].append(
        {"class_path": "p.ModelCheckpoint", "init_args": {"filename": "last"}}
    )
    assert run_id(identity(config)) == run_id(identity(CONFIG))


def test_two_identities_are_compared_key_by_key() -> None:
    old, new = identity(CONFIG), identity(changed("model.init_args.lr", 0.01))
    assert difference(old, new) == ["model.init_args.lr: 0.001 -> 0.01"]


def test_a_difference_within_a_list_names_the_item() -> None:
    old, new = ({"callbacks": [{"patience": patience}, {"k": 1}]} for patience in (10, 40))
    assert difference(old, new) == ["callbacks.0.patience: 10 -> 40"]
    assert difference(old, {"callbacks": []}) == [f"callbacks: {old['callbacks']} -> []"]


def test_places_left_open_are_filled_wherever_they_stand() -> None:
    tree = {
        "seed": compose.SEED,
        "path": "@run_dir/x",
        "list": ["@needs/a", True, 1],
        "text": f"s{compose.SEED}",
    }
    filled = compose.fill(tree, {compose.SEED: 2, "@run_dir": "runs/1", "@needs/a": "best.ckpt"})
    assert filled == {"seed": 2, "path": "runs/1/x", "list": ["best.ckpt", True, 1], "text": "s2"}


def test_a_cell_is_parsed_once_for_all_seeds_and_remembered_until_a_file_changes(world: World) -> None:
    parsed: list[compose.Layers] = []

    def parse(cells: list[compose.Layers]) -> list[compose.Composed]:
        parsed.extend(cells)
        return [compose.compose(cell) for cell in cells]

    def ids(seeds: list[int]) -> list[str]:
        plan = make_plan(read_table("toy"), ["plain"], ["easy"], seeds, parse=parse, missing=lambda data: {})
        return [run.id for run in plan.runs]

    first = ids([0, 1, 2])
    assert len(set(first)) == 3 and len(parsed) == 1
    assert ids([0, 1, 2]) == first and len(parsed) == 1
    world.change("scheme/toy.yaml", lambda tree: tree["trainer"].update(max_epochs=6))
    assert set(ids([0])).isdisjoint(first) and len(parsed) == 2


def test_the_id_of_a_run_holds_the_id_of_the_run_it_needs(world: World) -> None:
    def plan(row: str) -> Any:  # noqa: ANN401
        table = read_table("toy")
        parse = lambda cells: [compose.compose(cell) for cell in cells]  # noqa: E731
        return make_plan(table, [row], ["easy"], [0], parse=parse, missing=lambda data: {})

    needed, taught = plan("taught").runs
    assert (needed.places, needed.asked) == ([("plain", "easy")], False)
    assert taught.identity["model"]["init_args"]["teacher"] == needed.id
    assert taught.filled()["model"]["init_args"]["teacher"] == f"runs/{needed.id}/checkpoints/best.ckpt"
    assert needed.id == plan("plain").runs[0].id
    world.change(
        "tables/toy.yaml", lambda tree: tree["rows"]["plain"].update(set={"model.init_args.noise": 0.2})
    )
    assert plan("taught").runs[1].id != taught.id


def test_a_mistake_in_a_layer_names_the_cell_and_what_was_meant(world: World) -> None:
    Path("conf/scheme/toy.yaml").write_text(
        "model: {class_path: toy_science.ToyScheme, init_args: {nois: 1}}"
    )
    message = compose.compose(compose.Layers(("conf/data/toy.yaml", "conf/scheme/toy.yaml")))
    assert isinstance(message, str)
    assert "ToyScheme has no argument 'nois'" in message and "Did you mean noise" in message
    assert "conf/scheme/toy.yaml" in message


def test_a_resolved_config_is_plain_json_with_defaults_written_out(world: World) -> None:
    config = compose.compose(compose.Layers(("conf/data/toy.yaml", "conf/scheme/toy.yaml")))
    assert isinstance(config, dict)
    assert config == json.loads(json.dumps(config))
    assert config["model"]["init_args"]["noise"] == 0.1
    assert config["model"]["init_args"]["net"]["init_args"]["num_labels"] == 4
    assert config["data"]["init_args"]["seed"] == compose.SEED
