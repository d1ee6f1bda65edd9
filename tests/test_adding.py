"""What docs/adding.md shows is all that an addition takes: its files are counted, and trained in a copy."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from committed import ROOT
from datamodules.ocr import OCRLetters
from datamodules.sources.files import Sources
from make_mlc import sparse_arff
from networks.transformer.weights import place_of
from scripts.check_size import SCIENCE
from text_parts import ENCODER, no_encoder

PAGE = (ROOT / "docs" / "adding.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
MOST = {  # files of an addition
    "An energy": 1,
    "An energy of sequences": 2,
    "An objective": 1,
    "A search": 1,
    "A data set of a known format": 2,
    "Your own pictures": 1,
    "Your own texts": 1,
    "A scheme": 2,
    "A table": 1,
    "A kind of potential": 3,
    "A kind of answer": 4,
}

FEW = [f"--trainer.limit_{part}_batches=3" for part in ("train", "val", "test")]


def files(section: str) -> dict[str, str]:
    """The files of a section, by path."""
    return dict(re.findall(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```$", section, re.DOTALL | re.MULTILINE))


def commands(section: str) -> list[list[str]]:
    """The commands of a section, their words."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    text = "".join(text for language, text in blocks if not language)
    return [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()]


def test_every_section_is_counted() -> None:
    assert SECTIONS.keys() == MOST.keys()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository without records, and data of a user's own."""
    for folder in (*SCIENCE, "experiments", "scripts", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "data" / "mine").mkdir(parents=True)
    for part in ("train", "test"):
        (tmp_path / f"data/mine/mine-{part}.arff").write_text(sparse_arff(40, 12, 4, words=6, tags=2))
    for part in ("pictures", "masks"):
        (tmp_path / "data" / "mine" / part).mkdir()
        for number in range(10):
            square = np.zeros((40, 40), np.uint8)
            square[number : number + 20, 10:30] = 255
            Image.fromarray(square).save(tmp_path / f"data/mine/{part}/{number}.png")
    lines = [f"{word} number {k},{word}" for k in range(10) for word in ("red", "green", "blue")]
    (tmp_path / "data/mine/mine.csv").write_text("\n".join(["text,labels", *lines]))
    return tmp_path


@pytest.mark.parametrize("name", MOST)
def test_what_the_page_adds_is_few_files_and_trains(copy: Path, name: str) -> None:
    if name == "Your own texts" and (reason := no_encoder()):
        pytest.skip(reason)
    if name == "An energy of sequences" and (reason := OCRLetters().missing()):
        pytest.skip(reason)
    added = files(SECTIONS[name])
    assert 1 <= len(added) <= MOST[name]
    for path, text in added.items():
        assert (copy / path).parent.is_dir(), f"{path} needs a folder of its own"
        (copy / path).write_text(text)
    data = Sources()
    there = os.environ | {"DATA_DIR": str(data.folder), "DATA_MIRROR": str(data.mirror or "")}
    there |= {"OMP_NUM_THREADS": "1", "MODEL_DIR": str(Path(place_of(ENCODER)).parent)}
    todo = commands(SECTIONS[name])
    for words in todo:
        done = subprocess.run(
            [sys.executable, *words[1:], *(FEW if "scripts.train" in words else ())],
            cwd=copy,
            env=there,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(path.read_text()) for path in copy.glob("runs/**/record.json")]
    named = [path.removesuffix(".py").replace("/", ".") for path in added if path.endswith(".py")]
    assert len(records) >= len(todo) and all(1 <= r["epochs"] <= 2 and r["metrics"] for r in records)
    assert all(part in json.dumps(r["config"]) for r in records for part in named)
