"""A cut of the real Reuters-21578 stories as files of a user's own, and the options that read them."""

import csv
import io
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import pytest

from committed import ROOT, data_of
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from networks.transformer.weights import place_of

ENCODER = data_of(ROOT / "conf/data/reuters.yaml")["init_args"]["encoder"]
NEEDED = {"train": 60, "validation": 20, "test": 20}  # stories of a part


def no_encoder() -> str:
    """Why the encoder cannot be used here; empty where it can."""
    if not find_spec("transformers"):
        return "transformers is not installed: it is in the extra hf"
    return "" if Path(place_of(ENCODER)).is_dir() else f"{ENCODER} is in no folder here"


def cut_encoder(folder: Path, layers: int) -> Path:
    """The pretrained encoder's first layers, each a quarter as wide (3 of 12 heads), as a folder in `folder`.

    Checkpoints are mostly its embeddings: with all of them a run of two steps would do little but write.
    """
    from safetensors.torch import load_file, save_file

    whole, cut = Path(place_of(ENCODER)), folder / f"{layers}-layers"
    cut.mkdir()
    for path in whole.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            (cut / path.name).symlink_to(path.resolve())
    config = json.loads((whole / "config.json").read_text())
    narrow = {name: config[name] // 4 for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
    sizes = {config[name]: size for name, size in narrow.items() if name.endswith("_size")}
    weights = {
        name: weight[tuple(slice(sizes.get(size, size)) for size in weight.shape)].contiguous()
        for name, weight in load_file(whole / "model.safetensors").items()
    }
    (cut / "config.json").write_text(json.dumps(config | narrow | {"num_hidden_layers": layers}))
    save_file(weights, cut / "model.safetensors", {"format": "pt"})
    return cut


def missing() -> str:
    """Why runs on stories cannot be tested here; empty where they can."""
    return no_encoder() or Sources().missing(data_set("reuters21578")) or ""


def rows_of(part: str, count: int) -> list[list[str]]:
    """The header and the first stories of a part; skips the test when they are not here."""
    data, sources = data_set("reuters21578"), Sources()
    if reason := sources.missing(data):
        pytest.skip(reason)
    content = sources.read(data, data.files[part]).decode()
    reader = csv.reader(io.StringIO(content, newline=""))
    return [next(reader) for _ in range(count + 1)]


def write_csv(path: Path, rows: list[list[str]]) -> Path:
    """A CSV file of these rows."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@cache
def options() -> tuple[str, ...]:
    """Options of a run on 100 stories of Reuters with a small encoder, for conf/data/own_text.yaml."""
    folder = Path(mkdtemp(prefix="texts-"))
    files = {part: write_csv(folder / f"{part}.csv", rows_of(part, count)) for part, count in NEEDED.items()}
    own = [f"--data.{part}={path}" for part, path in files.items()]
    own += [f"--data.encoder={cut_encoder(folder, 6)}", f"--data.folder={folder}"]
    return (*own, "--data.num_labels=90", "--data.max_pieces=48")
