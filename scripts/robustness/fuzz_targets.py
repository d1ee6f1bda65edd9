"""The targets of the fuzz: readers of data, tables and sweeps, records, files of runs, checkpoints.

A target has valid files, a way to damage one, and a function that reads the bytes and uses the result
(renders it, pads it, encodes it) as a run or a page would.
"""

import gzip
import io
import json
import lzma
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from rich.console import Console

from datamodules.errors import DataError
from datamodules.ocr import padded
from datamodules.readers.arff import read_arff, read_csv
from datamodules.readers.conll import read_sentences
from datamodules.readers.encode import ENCODINGS, Filler
from datamodules.readers.ocr import read_letters
from datamodules.readers.propbank import read_propositions
from datamodules.readers.span_tags import bio_from_iob1, bioes_from_bio
from datamodules.readers.vocabulary import read_senna, read_vectors
from datamodules.sources.files import opened
from datamodules.splits import read_fold_table
from experiments import store
from experiments.errors import UserError
from experiments.page import page, plots
from experiments.page.render import show
from experiments.page.state import read_state, state_file
from experiments.page.summary import Summary, summarise
from experiments.plan.spec import read_table
from experiments.plan.table import Table
from experiments.plan.yaml_file import read_yaml
from experiments.run.epochs import read_rows
from experiments.sweep.file import read_sweep
from experiments.sweep.points import grid_point, grid_size, random_point
from networks.pretrained import CheckpointUnusable, build, load_part
from scripts.robustness.damage import damaged_checkpoint, saved
from scripts.robustness.mutate import damaged_text, damaged_tree

ROOT = Path(__file__).resolve().parents[2]
REFUSALS = (DataError, UserError, CheckpointUnusable)
TABLES = ("quickstart", "infnet_stability", "infnet_steps", "infnet_differences", "scaling_unary")
SWEEPS = ("infnet_shared", "implicit_cd", "scaling_ocr_joint")
CELLS = 30  # of a table with made-up records
TAGS = ("O", "B-NP", "I-NP", "B-VP", "I-VP")
BETWEEN = b"\n----\n"  # the two files of SENNA in one case
RUN = "0123456789abcdef"
SMALL = """
title: A table with all that a table may have
source: {paper: none, table: 1}
metric: {name: val/f1, scale: 100, digits: 2, better: higher}
seeds: [0, 1]
reported_runs: 3
columns:
  one: {label: One, config: [conf/data/yeast.yaml], note: a note}
  two: {label: Two, config: [conf/data/generated.yaml], instead_of: one, metric: val/accuracy}
rows:
  ce: {label: CE, config: [conf/scheme/cross_entropy.yaml], note: "see [there](there.md)"}
  nce: {label: NCE, config: conf/scheme/energy_net.yaml, needs: {model.x: ce}, columns: [one]}
  point_0: {label: P, config: [conf/scheme/energy_net.yaml], set: {model.y: 1, model.lr: 0.1}}
  point_1: {label: P, config: [conf/scheme/energy_net.yaml], set: {model.y: 1, model.lr: 0.2}}
  cited: {label: Somebody 2009, cited: true}
reported: {ce: {one: [60.0, 1.5], two: 3}, cited: {one: 55.4}}
claims:
  - {says: "NCE helps", holds: nce >= ce + 3, on: [one]}
  - {says: "and on average", holds: "min(ce, point_0) <= 2 * nce", on: [one], across: mean}
measures: [{title: Seconds, metric: {name: seconds, digits: 1, better: lower}, rows: [ce, nce]}]
ratios: [{says: longer, of: nce, to: ce, reported: 2.5}]
changes: [{title: Changes, row: ce, column: one}]
figures:
  - {name: a, title: C, kind: curves, column: one, rows: [ce, nce], curve: val/f1, smooth: 2, scale: linear}
  - {name: b, title: Sweep, kind: sweep, column: one, values: {point_0: 0.5, point_1: 2}, lines: [ce]}
notes: [Nothing here is real.]
"""
RECORD: dict[str, Any] = {
    "id": RUN, "table": "small", "row": "ce", "column": "one", "seed": 0,
    "metrics": {"val/f1": 0.6, "test/f1": 0.5, "val/accuracy": 0.25}, "epochs": 3, "best_epoch": 2,
    "stopped": "max_epochs 3 reached", "seconds": 1.5, "updates": {"task": 9, "energy": 3},
    "curves": {"val/f1": [0.1, 0.4, 0.6], "phase": [0, 0, 1]},
    "findings": {"changes": [["A", "B", 3], ["B", "A", 1]]},
    "data": {"a.arff": "00"}, "versions": {"torch": "2.13.0"}, "device": "cpu", "cpu": "a core", "cores": 2,
    "commit": "0123456789", "dirty": False, "config": {"seed_everything": 0, "model": {"lr": 0.1}},
    "starts": [{"epoch": 0, "commit": "01234", "dirty": False, "device": "cpu", "cpu": "a core"}],
}  # fmt: skip
RECORDS = [
    RECORD | {"row": row, "column": column, "seed": seed, "id": f"{row}-{column}-{seed}"}
    for row, column in (("ce", "one"), ("nce", "one"), ("point_0", "one"), ("point_1", "one"), ("ce", "two"))
    for seed in (0, 1)
]
STATE = {"ids": {"ce/one/0": RUN, "nce/one/0": "another"}, "missing": {"two": "it is not here"}}

Feed = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """Valid files, a function that damages one, a function that reads it, and its share of the cases."""

    name: str
    wholes: tuple[bytes, ...]
    feed: Feed
    share: int
    change: Callable[[bytes, random.Random], bytes] = damaged_text

    def damage(self, draw: random.Random) -> bytes:
        """A damaged file."""
        return self.change(draw.choice(self.wholes), draw)


@contextmanager
def targets() -> Iterator[dict[str, Target]]:
    """All targets by name; they use a temporary working directory."""
    before = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("conf").symlink_to(ROOT / "conf")
            Path("small.yaml").write_text(SMALL)
            store.RESULTS.mkdir()
            every = [*_data(), *_tables(), *_runs()]
            yield {target.name: target for target in every}
        finally:
            os.chdir(before)


def _data() -> Iterator[Target]:
    yield Target("arff", _arff(), _read_arff, 20)
    yield Target("csv", (b"a,'b c',l\n1,,0\n-2e3, ? ,1\n",), _read_csv, 10)
    sentence = b"-DOCSTART- -X- O\n\nThe DT B-NP\ncat NN I-NP\nsat VBD B-VP\n\nIt PRP I-NP\n"
    yield Target("conll", (sentence, sentence * 3), _read_conll, 8)
    yield Target("propbank", (_propbank(), _propbank().replace(b"\n", b"\r\n")), _read_propbank, 8)
    yield Target("letters", (_letters(), _letters().replace(b"\n", b"\t\r\n")), _read_letters, 8)
    folds = (
        b"file,row,fold\n"
        + b"".join(b"a.arff,%d,%d\n" % (i, i % 10 + 1) for i in range(12))
        + b"b.arff,0,10\n"
    )
    yield Target(
        "folds", (folds,), lambda content: read_fold_table(content, {"a.arff": 12, "b.arff": 1}, "f"), 5
    )
    vectors = b"2 3\nthe 1 2 3\n, 0.5 -1e-2 0\na\xc3\xa9 7 8 9\n"
    yield Target("vectors", (vectors, vectors[4:]), _read_vectors, 6)
    yield Target("senna", (b"PADDING\nthe\n00\n" + BETWEEN + b"0 0\n1 2 \r\n3 4\n",), _read_senna, 4)
    packed = gzip.compress(sentence * 20), lzma.compress(sentence * 20)
    yield Target(
        "packed", packed, lambda content: opened(content, ".gz" if content[:1] == b"\x1f" else ".xz"), 5
    )


def _tables() -> Iterator[Target]:
    tables = [ROOT / "conf/tables" / f"{name}.yaml" for name in TABLES]
    texts = (path.read_bytes() + _tuned(path) for path in tables)
    yield Target("table", (SMALL.encode(), *texts), _read_table, 14, _damaged_yaml)
    sweeps = tuple((ROOT / "conf/sweeps" / f"{name}.yaml").read_bytes() for name in SWEEPS)
    yield Target("sweep", sweeps, _read_sweep, 5, _damaged_yaml)
    lines = "".join(f"{json.dumps(record)}\n" for record in RECORDS).encode()
    yield Target("records", (lines,), _read_records, 14, _damaged_lines)
    yield Target("state", (json.dumps(STATE, indent=0).encode(),), _read_state, 5, _damaged_json)


def _tuned(path: Path) -> bytes:
    """The key that names the settings of a table, which has another name here."""
    return b"" if "\ntuned:" in path.read_text() else f"\ntuned: {path.stem}\n".encode()


def _runs() -> Iterator[Target]:
    progress = {"id": RUN, "state": "failed", "reason": "it is NaN", "epoch": 3, "seconds": 1.5}
    files = (json.dumps(RECORD, indent=1).encode(), json.dumps(progress).encode())
    yield Target("run", files, _read_run, 5, _damaged_json)
    rows = b"epoch,val/f1,train/loss\n0,0.5,1.25\n1,0.75,\n2,0.5,nan\n"
    yield Target("curves", (rows,), _read_curves, 4)
    yield Target("checkpoint", (_checkpoint(),), _read_checkpoint, 10, damaged_checkpoint)


def _arff() -> tuple[bytes, ...]:
    labels = "@attribute l {0,1}\n@attribute m {1,0}\n"
    head = f"@relation x\n@attribute a numeric\n@attribute 'b c' {{u,'v w',x}}\n{labels}@data\n"
    meka = f"@relation 'x: -C 2 -split 1'\n{labels}@attribute a real\n@data\n"
    clus = "@RELATION x\n@ATTRIBUTE a numeric\n@ATTRIBUTE class hierarchical 01,01/02,03\n@DATA\n"
    texts = (
        f"% made up\n{head}1.5,u,0,1\n?,'v w',1,0 \n-2, x ,1,1\n",
        f"{head}{{0 1.5, 3 1}}\n{{1 'v w'}}\n{{}}\n{{0 -1e3,2 1}}\n",
        f"{meka}1,0,0.5\n0,1,2\n",
        f"{clus}1,01/02@03\n2,01\n0.5,03\n",
    )
    return tuple(text.encode() for text in texts)


def _read_arff(content: bytes) -> None:
    table = read_arff(content, where="x.arff", num_labels=0 if b"-C" in content else 2)
    for encode in ENCODINGS.values():
        x = encode(table.x, table.features, len(table.y))
        for scale in (None, "range", "standard"):
            Filler(x, scale=scale)(x.copy())


def _read_csv(content: bytes) -> None:
    read_csv(content, where="x.csv", num_labels=1)


def _read_conll(content: bytes) -> None:
    for tags in (TAGS, ()):
        found = read_sentences(content, where="x.txt", tags=tags).without("-DOCSTART-")
        found.digest()
        bioes_from_bio(bio_from_iob1(found.columns[-1]))


def _propbank() -> bytes:
    columns = ("Dogs NNS - - B-ARG0 O", "seem VBP seem seem.01 B-V O", "to TO - - B-ARG1 O")
    rows = [*columns, "bark VB bark bark.01 I-ARG1 B-V"]
    lines = [f"{number} {row}".replace(" ", "\t") for number, row in enumerate(rows, 1)]
    return "\n".join(["# a 0", *lines, "", "# a 1", "1\t#\t#\t-\t-", ""]).encode()


def _read_propbank(content: bytes) -> None:
    for roles in (("V", "ARG0", "ARG1"), ()):
        found = read_propositions(content, where="x.tsv", roles=roles, untagged=not roles)
        found.roles()


def _letters() -> bytes:
    words, lines, number = ("ab", "c", "bab"), [], 0
    for fold, word in enumerate(words):
        for place, letter in enumerate(word):
            number += 1
            following = number + 1 if place < len(word) - 1 else -1
            pixels = f"{ord(letter):08b}" * 16
            lines.append("\t".join(map(str, (number, letter, following, 1, place, fold, *pixels))))
    return "\n".join(lines).encode() + b"\n"


def _read_letters(content: bytes) -> None:
    words = read_letters(content, where="letter.data")
    words.digest()
    padded(words)


def _read_vectors(content: bytes) -> None:
    read_vectors(content, None, 3, where="vectors.txt")
    read_vectors(content, {"the", "aé"}, 3, where="vectors.txt")


def _read_senna(content: bytes) -> None:
    words, _, numbers = content.partition(BETWEEN)
    read_senna(words, numbers, {"the", "00"}, 2)


def _damaged_yaml(content: bytes, draw: random.Random) -> bytes:
    if draw.randrange(2):
        return damaged_text(content, draw)
    Path("whole.yaml").write_bytes(content)
    tree = damaged_tree(read_yaml(Path("whole.yaml")).tree, draw)
    return yaml.dump(tree, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False).encode()


def _read_sweep(content: bytes) -> None:
    Path("fuzz.yaml").write_bytes(content)
    sweep = read_sweep("fuzz.yaml")
    for number in range(CELLS):
        random_point(sweep, 0, number)
        if number < (grid_size(sweep) or 0):
            grid_point(sweep, number)


def _read_table(content: bytes) -> None:
    Path("fuzz.yaml").write_bytes(content)
    table = read_table("fuzz.yaml")
    cells = [(r, c) for r in table.rows for c in table.columns if table.has(r, c)][:CELLS]
    names = {table.metric_name(c): 0.5 for c in table.columns}
    records = [
        RECORD | {"row": r, "column": c, "id": f"{r}-{i}", "metrics": names} for i, (r, c) in enumerate(cells)
    ]
    lines = [json.dumps(record) for record in records]
    store.results_file("fuzz").write_text("\n".join(lines))
    _draw(table, {}, figures=len(content) % 4 == 0)


def _draw(table: Table, state: dict[str, dict[str, str]], *, figures: bool) -> Summary:
    """Render a table without writing its page; draw one figure only, because drawing is slow."""
    summary = summarise(table, state)
    show(summary, Console(file=io.StringIO(), width=120))
    page.markdown(summary).encode()
    if figures:
        plots.draw(replace(summary, table=replace(table, figures=table.figures[:1])))
    return summary


def _damaged_lines(content: bytes, draw: random.Random) -> bytes:
    if draw.randrange(2):
        return damaged_text(content, draw)
    lines = content.splitlines()
    place = draw.randrange(len(lines))
    lines[place] = json.dumps(damaged_tree(json.loads(lines[place]), draw)).encode()
    return b"\n".join(lines)


def _damaged_json(content: bytes, draw: random.Random) -> bytes:
    return (
        damaged_text(content, draw)
        if draw.randrange(2)
        else json.dumps(damaged_tree(json.loads(content), draw)).encode()
    )


def _read_records(content: bytes) -> None:
    store.results_file("small").write_bytes(content)
    _draw(read_table("small.yaml"), STATE, figures=len(content) % 16 == 0)
    store.keep("small", [RECORD])
    warnings = store.read_results("small").warnings
    if warnings:
        raise AssertionError(f"what was broken is still there: {warnings}")


def _read_state(content: bytes) -> None:
    state_file("small").write_bytes(content)
    _draw(read_table("small.yaml"), read_state("small"), figures=False)


def _read_run(content: bytes) -> None:
    folder = store.run_dir(RUN)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("record.json", "progress.json"):
        (folder / name).write_bytes(content)
    if record := store.read_record(RUN):
        store.keep("small", [record])
    _draw(read_table("small.yaml"), STATE, figures=False)


def _read_curves(content: bytes) -> None:
    folder = store.run_dir(RUN)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_bytes(content)
    for row in read_rows(folder):
        int(row["epoch"])
        [float(value) for value in row.values() if value]


def _checkpoint() -> bytes:
    layout = {"class_path": "networks.mlp.MLP", "init_args": {"num_features": 3, "width": 4}}
    weights = build(layout).state_dict()
    state = {f"task_net.{name}": weight for name, weight in weights.items()}
    return saved({"epoch": 1, "hyper_parameters": {"task_net": layout}, "state_dict": state})


def _read_checkpoint(content: bytes) -> None:
    Path("best.ckpt").write_bytes(content)
    whole = store.is_whole(Path("best.ckpt"))
    load_part("best.ckpt", "task_net")
    if not whole:
        raise AssertionError("what can be read is held to be damaged")
