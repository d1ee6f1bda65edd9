"""A file that changes under a run: it is told, nothing that is finished is lost, and a page marks it."""

import json
from pathlib import Path

import numpy as np
import pytest

import toy_world
from experiments import store
from experiments.page.summary import usual_data
from make_mlc import dense_arff
from scripts import reproduce, train
from toy_world import World

world = toy_world.world  # the fixture
ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["--config=conf/data/arff.yaml", "--config=conf/scheme/cross_entropy.yaml"]


def written(file: Path, seed: int) -> Path:
    """Thirty rows that the seed draws."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(30, 3))
    file.write_text(dense_arff(x, (x[:, :2] > draw.normal(size=2)).astype(int) | [[1, 0]]))
    return file


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run on files of one's own."""
    monkeypatch.chdir(ROOT)
    files = [f"--data.{part}={written(tmp_path / f'{part}.arff', 0)}" for part in ("train", "test")]
    return [*LAYERS, *files, "--data.num_features=3", "--data.num_labels=2", f"--run_dir={tmp_path}/run"]


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("more", [2, 4])
def test_a_run_does_not_go_on_with_another_file(
    part: str, more: int, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*command, "--trainer.max_epochs=2"]) == 0
    record = (tmp_path / "run" / "record.json").read_text()
    written(tmp_path / f"{part}.arff", 1)
    capsys.readouterr()
    assert train.main([*command, f"--trainer.max_epochs={more}"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert f"{part}.arff has changed since this run began. Put the old file back, or train anew" in message
    assert (tmp_path / "run" / "record.json").read_text() == record
    written(tmp_path / f"{part}.arff", 0)
    assert train.main([*command, f"--trainer.max_epochs={more}"]) == 0
    again = json.loads((tmp_path / "run" / "record.json").read_text())
    assert again["data"] == json.loads(record)["data"] and again["epochs"] == more


def test_a_page_marks_what_read_another_version_of_a_file(world: World) -> None:
    reproduce.main(["toy"])  # some of its runs fail
    assert "¶" not in Path("results/toy.md").read_text()
    records = store.read_results("toy").records
    column = records[0]["column"]
    for place, record in enumerate(r for r in records if r["column"] == column):
        record["data"] = {"mine.arff": "other" if place == 0 else "usual"}
    Path("results/toy.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert usual_data(r for r in records if r["column"] == column) == {"mine.arff": "usual"}
    reproduce.main(["toy", "--collect"])
    page = Path("results/toy.md").read_text()
    assert page.count("¶") == 2 and "another version of a file than most runs of its column" in page


def test_a_dry_run_names_files_that_have_changed(
    world: World, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in ("data/arff", "data/kinds/label_sets", "scheme/cross_entropy"):
        (world.folder / f"conf/{path}.yaml").parent.mkdir(exist_ok=True)
        (world.folder / f"conf/{path}.yaml").write_text((root / f"conf/{path}.yaml").read_text())
    written(Path("mine.arff"), 0)
    (world.folder / "conf/tables/own.yaml").write_text(
        "title: Own\nmetric: {name: test/example_f1, scale: 100, digits: 2, better: higher}\nseeds: [0]\n"
        "columns: {mine: {config: conf/data/arff.yaml}}\nrows: {ce: {config: conf/scheme/cross_entropy.yaml, "
        "set: {data.init_args.train: mine.arff, data.init_args.num_features: 3, "
        "data.init_args.num_labels: 2, trainer.max_epochs: 1}}}\n"
    )
    assert reproduce.main(["own"]) == 0
    capsys.readouterr()
    assert reproduce.main(["own", "--dry-run"]) == 0
    assert "has changed" not in capsys.readouterr().out
    written(Path("mine.arff"), 1)
    assert reproduce.main(["own", "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "mine.arff has changed since: FRESH=1 trains it anew" in said
    assert reproduce.main(["own", "--fresh"]) == 0
    capsys.readouterr()
    assert reproduce.main(["own", "--dry-run"]) == 0
    assert "has changed" not in capsys.readouterr().out
