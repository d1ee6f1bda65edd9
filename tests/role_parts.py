"""Semantic roles cut from the published files, for tests that train: real sentences, few of them.

Runs on them use a cut of the pretrained encoder, see `cut_encoder`.
"""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from committed import ROOT, data_of
from datamodules.sources.files import Sources
from datamodules.sources.registry import data_set
from text_parts import cut_encoder, no_encoder

NEEDED = {"train": 32, "validation": 6, "test": 6}  # sentences of a part
SHORT = 15  # lines of a sentence
CONF = ROOT / "conf" / "data" / "srl.yaml"
DATA = data_of(CONF)["init_args"]


def missing() -> str:
    """Why runs on roles cannot be tested here; empty where they can."""
    return no_encoder() or Sources().missing(data_set("srl_ewt_propbank")) or ""


def first_sentences(part: str, count: int, *, short: bool = False) -> bytes:
    """The first sentences of a part, or its first short ones."""
    data = data_set("srl_ewt_propbank")
    sentences = Sources().read(data, data.files[part]).split(b"\n\n")
    kept = [s for s in sentences if not short or s.count(b"\n") < SHORT]
    return b"\n\n".join(kept[:count]) + b"\n"


@cache
def options() -> tuple[str, ...]:
    """The options of a run on few short sentences; no states of the encoder are kept."""
    folder = Path(mkdtemp(prefix="roles-"))
    for part, count in NEEDED.items():
        (folder / f"{part}.tsv").write_bytes(first_sentences(part, count, short=True))
    files = [f"--data.{part}={folder / part}.tsv" for part in NEEDED]
    files.append(f"--data.encoder={cut_encoder(folder, 3)}")
    return (*files, "--data.kept_layers=0", "--data.num_train=40")  # even: two processes share all
