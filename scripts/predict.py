"""Write the answers of a finished run to a file.

    python -m scripts.predict RUN                               # to the test part, in RUN/test.jsonl
    python -m scripts.predict RUN --out answers.npz --part validation
    python -m scripts.predict RUN --out mine.jsonl --data.test mine.arff     # a file that training never saw
    python -m scripts.predict RUN --out mine.jsonl --data.test mine.tsv      # sentences, tagged or not

A .jsonl file has one example a line, in the order of the part: its `row`, from 0; `answer` and `truth`, the
names of the labels or the tag of each position. A .npz file has arrays: `relaxed`, answers before the cut;
`answer` and `truth`, of 0 and 1; and `mask`, the real positions, where answers have some. Label sets are cut
at the threshold that validation chose. A row without a label, or a sentence without tags, is predicted too;
its truth is empty.

Options of the data, such as --data.test, are those of `python -m scripts.train`.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from torch import Tensor

from datamodules.base import DeviceData
from datamodules.errors import DataError
from datamodules.sources.files import shown
from datamodules.tagged import TaggedSentences
from datamodules.vocabulary import UNKNOWN
from experiments import store
from experiments.errors import UserError
from lightning_modules.base import Scheme
from scripts.finished_run import built, finished, read
from scripts.options import refused

PARTS = ("test", "validation")
FORMATS = (".jsonl", ".npz")
OF_DATA = re.compile(r"--data\.(?!train\b)")
Arrays = dict[str, np.ndarray]


def main(arguments: list[str] | None = None) -> int:
    """Parse, read the run, predict, write."""
    parser = argparse.ArgumentParser(prog="python -m scripts.predict", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--part", choices=PARTS, default="test", help="of the data (default: test)")
    parser.add_argument("--out", type=Path, help="the file, .jsonl or .npz (default: RUN/PART.jsonl)")
    given, options = parser.parse_known_args(arguments)
    out = given.out or given.run / f"{given.part}.jsonl"
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        if strange := [word for word in options if word.startswith("-") and not OF_DATA.match(word)]:
            raise UserError(
                f"{strange[0]} is no option here. There are --part, --out and those of the data, but for "
                "--data.train."
            )
        if out.suffix not in FORMATS:
            raise UserError(f"{out} is neither .jsonl nor .npz. Correct --out.")
        scheme, data = built(given.run, options)
        files = files_of(options)
        if files:
            check(data)
        data.every_row = True
        read(data, given.run, files)
        if files and isinstance(data, TaggedSentences):
            renumber(scheme, data, given.run)
        arrays = predict(scheme, data, given.part, errors, named=out.suffix == ".jsonl")
        write(out, arrays, data.names)
    except (UserError, DataError) as error:
        return refused(error)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{len(arrays['answer']):,} answers to the {given.part} part: {escape(str(out))}")
    return 0


def files_of(options: Sequence[str]) -> list[str]:
    """The files that options give in place of parts of the data."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for part in PARTS:
        parser.add_argument(f"--data.{part}", dest=part)
    return [shown(Path(file)) for file in vars(parser.parse_known_args(options)[0]).values() if file]


def check(data: DeviceData) -> None:
    """Refuse other files where the run cannot read them as it was trained to.

    Raises:
        UserError: it scales features by those of all parts.
    """
    if str(getattr(data, "scale", "")).endswith("all"):
        raise UserError(
            "The features of this run were scaled by those of all parts, so other rows change what it reads. "
            "Train with --data.scale train or --data.scale standard_train."
        )


def renumber(scheme: Scheme, data: TaggedSentences, run: Path) -> None:
    """Have a tagger read sentences it was not trained with: words are numbered with the data.

    A word that the run knows keeps its vector, which training may have changed.
    """
    _, trained = finished(run)
    assert isinstance(trained, TaggedSentences)
    known = torch.zeros(len(data.tables["rows"]), dtype=torch.long)
    known[UNKNOWN] = UNKNOWN
    for word, number in data.words.items():
        known[number] = trained.words.get(word, 0)
    for module in scheme.modules():
        if callable(of_module := getattr(module, "renumber", None)):
            of_module(data.tables, known)


def predict(scheme: Scheme, data: DeviceData, part: str, console: Console, *, named: bool) -> Arrays:
    """The relaxed and discrete answers to a part, the truth and the mask, example by example.

    Raises:
        UserError: answers are to be `named`, and are masks.
    """
    whole = data.splits[part]
    if named and whole.mask is None and whole.y.dim() > 2:
        raise UserError("Masks have no names. Take a .npz file:  --out answers.npz")
    loader = data.test_dataloader() if part == "test" else data.val_dataloader()
    found: dict[str, list[Tensor]] = {"relaxed": [], "answer": []}
    with torch.no_grad():
        for batch in track(loader, "predicting", console=console, transient=True):
            relaxed = scheme.answer_to(batch)
            for name, tensor in (("relaxed", relaxed), ("answer", scheme.decide(batch, relaxed))):
                found[name].append(_padded(tensor, whole.y.shape[1]))
    row = torch.cat(loader.steps()).argsort()  # sentences are read by length
    tensors = {name: torch.cat(parts)[row] for name, parts in found.items()} | {"truth": whole.y}
    if whole.mask is not None:
        tensors["mask"] = whole.mask
    small = {name: tensor.to(torch.uint8) for name, tensor in tensors.items() if name != "relaxed"}
    return {name: tensor.numpy() for name, tensor in (tensors | small).items()}


def _padded(tensor: Tensor, length: int) -> Tensor:
    """A batch of sequences is as long as its longest."""
    missing = length - tensor.shape[1]
    return F.pad(tensor, (0, 0, 0, missing)) if missing else tensor


def write(out: Path, arrays: Arrays, names: Sequence[str]) -> None:
    """One file, written whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    if out.suffix == ".npz":
        with store.replacing(out) as part, part.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return
    told = np.array([*names] or [*map(str, range(arrays["truth"].shape[-1]))], dtype=object)
    named = _tags if "mask" in arrays else _labels
    lines = [
        {"row": row} | {name: named(arrays, name, row, told) for name in ("answer", "truth")}
        for row in range(len(arrays["answer"]))
    ]
    store.write(out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def _labels(arrays: Arrays, name: str, row: int, names: np.ndarray) -> list[str]:
    return [*names[arrays[name][row] > 0]]


def _tags(arrays: Arrays, name: str, row: int, names: np.ndarray) -> list[str | None]:
    real = arrays[name][row][arrays["mask"][row] > 0]
    return [names[tag.argmax()] if tag.any() else None for tag in real] if real.any() else []


if __name__ == "__main__":
    sys.exit(main())
