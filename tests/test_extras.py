"""What each make goal installs: the tests all that they test, a table only what its file names."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from experiments.plan.layers import file_and_row
from experiments.plan.spec import read_table

TABLES = sorted(path.stem for path in Path("conf/tables").glob("*.yaml"))


def installed(root: Path, folder: Path, *goal: str) -> list[str]:
    """The extras that a goal installs at once where nothing is; nothing is run."""
    folder.joinpath("Makefile").write_text((root / "Makefile").read_text())
    for needed in ("pyproject.toml", "constraints.txt"):
        folder.joinpath(needed).touch()
    done = subprocess.run(["make", "-n", *goal], cwd=folder, capture_output=True, text=True, check=True)
    (extras,) = set(re.findall(r'pip install .* -e "\.\[(.*?)\]"', done.stdout))
    return extras.split(",")


def test_a_table_installs_what_it_names_and_the_tests_what_they_need(root: Path, tmp_path: Path) -> None:
    tables = tmp_path / "conf" / "tables"
    tables.mkdir(parents=True)
    (tables / "plain.yaml").write_text("title: plain\nrows: {a: {}}\n")
    (tables / "text.yaml").write_text("title: text\nextras: [hf, wandb] # of its rows\n")
    assert installed(root, tmp_path, "reproduce", "TABLE=plain") == ["dev"]
    assert installed(root, tmp_path, "reproduce", "TABLE=text") == ["dev", "hf", "wandb"]
    assert installed(root, tmp_path, "table", "TABLE=text") == ["dev"]
    assert installed(root, tmp_path, "test") == ["dev", "hf"]
    assert installed(root, tmp_path, "test", "EXTRAS=dev") == ["dev"]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_the_extra_of_its_encoders(name: str, root: Path) -> None:
    table = read_table(name)
    known = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*table.extras} <= known.keys()
    cells = [(row, column) for row in table.rows for column in table.columns if table.has(row, column)]
    files = {Path(file_and_row(layer)[0]) for cell in cells for layer in table.layers(*cell)}
    todo = [*files]
    while todo:
        file = todo.pop()
        lower = {file.parent / name for name in re.findall(r"^over: *(\S+)", file.read_text(), re.MULTILINE)}
        todo += lower - files
        files |= lower
    reads = any("networks.transformer" in file.read_text() for file in files)
    assert ("hf" in table.extras) == reads
