"""Write the answers of a finished run to a file.

    python -m scripts.predict RUN                               # to the test part, in RUN/test.jsonl
    python -m scripts.predict RUN --out answers.npz --part validation
    python -m scripts.predict RUN --new mine.arff     # a file that training never saw, in RUN/new.jsonl
    python -m scripts.predict RUN --new my-pictures   # a folder of them, their masks in RUN/new/

A .jsonl file has one example a line, in the order of the part: its `row`, from 0; `answer` and `truth`, the
names of the labels or the tag of each position. A .npz file has arrays: `relaxed`, answers before the cut;
`answer` and `truth`, of 0 and 1; and `mask`, the real positions, where answers have some. Label sets are cut
at the threshold that validation chose. A row without a label, or a sentence without tags, is predicted too;
its truth is empty.

The mask of a new picture is a PNG with its name and its size, the object white. Each pixel has the answer of
the nearest pixel that the network saw.

A file of new examples has the format of the run's own files: label sets, texts, or sentences. The run's own
data has to be there too: what training fitted to it, such as scales and numbers of words, stays. A network's
words that training did not know have the vectors of the file of vectors.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from torch import Tensor

from datamodules.base import NEW, DeviceData
from datamodules.errors import DataError
from datamodules.tagged import TaggedSentences
from experiments import store
from experiments.errors import UserError
from experiments.plan.yaml_file import Tree, read_yaml
from lightning_modules.base import Scheme
from scripts.finished_run import built, read
from scripts.options import Options, refused

PARTS = ("test", "validation")
FORMATS = (".jsonl", ".npz", "")  # the last a folder
Arrays = dict[str, np.ndarray]


def main(arguments: list[str] | None = None) -> int:
    """Parse, read the run, predict, write."""
    parser = Options(prog="python -m scripts.predict", description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--part", choices=PARTS, help="of the data (default: test)")
    parser.add_argument(
        "--new",
        type=Path,
        help="examples that training never saw, instead: a file, or a folder of pictures",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="the file, .jsonl or .npz, for masks .npz, of new pictures also a folder (default: in RUN)",
    )
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        given = parser.parse_args(arguments)
        if given.new and given.part:
            raise UserError("--part and --new do not go together. Leave out one of them.")
        part = NEW if given.new else given.part or "test"
        if given.out and given.out.suffix not in FORMATS:
            raise UserError(f"{given.out} is neither .jsonl, .npz nor a folder. Correct --out.")
        scheme, data = built(given.run)
        spare_inputs(given.out or given.run / f"{part}.jsonl", given.run, given.new)
        read_with(data, given.new, given.run)
        if given.new:
            renumber(scheme, data)
        out = where(given.out, given.run, data, part)
        arrays = predict(scheme, data, part, errors)
        if out.suffix:
            write(out, arrays, data.names)
        else:
            write_masks(out, arrays["answer"], data.new_files)
    except (UserError, DataError) as error:
        return refused(error)
    except KeyboardInterrupt:
        errors.print("Stopped before all answers were written. Run the same command again.")
        return 130
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{len(arrays['answer']):,} answers to the {part} part: {escape(str(out))}")
    return 0


def where(out: Path | None, run: Path, data: DeviceData, part: str) -> Path:
    """The file of the answers to a part, or the folder of masks.

    Raises:
        UserError: `out` is not for answers of this kind, or is the folder of the new pictures.
    """
    split, pictures = data.splits[part], bool(data.new_files)
    masks = split.mask is None and split.y.dim() > 2
    out = out or run / f"{part}{'' if pictures else '.npz' if masks else '.jsonl'}"
    if masks and out.suffix == ".jsonl":
        raise UserError("Masks have no names. Take a .npz file:  --out answers.npz")
    if not pictures and not out.suffix:
        raise UserError(f"{out} is no file; a folder is for masks of new pictures. Take .jsonl or .npz.")
    if pictures and out.resolve() == data.new_files[0].parent.resolve():
        raise UserError(f"{out} has the pictures themselves. Give the masks another folder:  --out masks")
    return out


def spare_inputs(out: Path, run: Path, new: Path | None) -> None:
    """Refuse to write over what is read: new examples, and files and folders that the run's data names.

    Raises:
        UserError: `out` is one of them, or a folder that has one of them.
    """
    named = [*_words(read_yaml(run / "config.yaml").tree["data"]), *([str(new)] if new else [])]
    read = {Path(name).resolve() for name in named if os.path.exists(name)}
    if out.suffix and out.resolve() in read:
        raise UserError(
            f"{out} is a file that is read here. Give the answers another:  --out answers{out.suffix}"
        )
    if not out.suffix and out.resolve() in read | {path.parent for path in read if path.is_file()}:
        kind = "the pictures themselves" if new and out.resolve() == new.resolve() else "data of the run"
        raise UserError(f"{out} has {kind}. Give the masks another folder:  --out masks")


def _words(tree: Tree) -> Iterator[str]:
    """All texts in a config."""
    if isinstance(tree, str):
        yield tree
    for node in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _words(node)


def read_with(data: DeviceData, new: Path | None, run: Path) -> None:
    """Read the data of the run, and the file of new examples if there is one.

    Raises:
        UserError: there is no such file, or this data reads none.
    """
    if new and not new.exists():
        raise UserError(f"There is no file {new}. Correct --new.")
    data.every_row, data.new = True, new
    read(data, run)
    if new and NEW not in data.splits:
        raise UserError(
            f"{type(data).__name__} reads no file of new examples; label sets, texts, sentences and pictures "
            "do. Leave out --new."
        )


def renumber(scheme: Scheme, data: DeviceData) -> None:
    """Have networks read words that training did not know; known words keep what was learnt of them."""
    if not isinstance(data, TaggedSentences):
        return
    ids = torch.arange(len(data.tables["rows"]))
    known = ids * (ids < data.num_known)
    for module in scheme.modules():
        if callable(of_module := getattr(module, "renumber", None)):
            of_module(data.tables, known)


def predict(scheme: Scheme, data: DeviceData, part: str, console: Console) -> Arrays:
    """The relaxed and discrete answers to a part, the truth and the mask, example by example."""
    whole = data.splits[part]
    loaders = {"test": data.test_dataloader, "validation": data.val_dataloader, NEW: data.new_dataloader}
    loader = loaders[part]()
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


def write_masks(folder: Path, answers: np.ndarray, pictures: Sequence[Path]) -> None:
    """The mask of each picture as a PNG of the same name, each file whole or not at all.

    Raises:
        UserError: they cannot be written.
    """
    for answer, picture in zip(answers, pictures, strict=True):
        with Image.open(picture) as seen:
            size = ImageOps.exif_transpose(seen).size
        mask = Image.fromarray(answer * 255).resize(size, Image.Resampling.NEAREST)
        with store.replacing(folder / f"{picture.stem}.png") as part:
            mask.save(part, "PNG")


def _labels(arrays: Arrays, name: str, row: int, names: np.ndarray) -> list[str]:
    return [*names[arrays[name][row] > 0]]


def _tags(arrays: Arrays, name: str, row: int, names: np.ndarray) -> list[str | None]:
    real = arrays[name][row][arrays["mask"][row] > 0]
    return [names[tag.argmax()] if tag.any() else None for tag in real] if real.any() else []


def start() -> int:
    """The command: SIGTERM stops it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return main()


if __name__ == "__main__":
    sys.exit(start())
