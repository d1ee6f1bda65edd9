"""Answers of a finished run, and the files that they go to."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import track
from torch import Tensor

from datamodules.base import NEW, DeviceData
from datamodules.tagged import TaggedSentences
from experiments import store
from experiments.errors import UserError
from experiments.plan.yaml_file import Tree, read_yaml
from lightning_modules.base import Scheme
from scripts.finished.run import built, read

Arrays = dict[str, np.ndarray]


def write_answers(
    run: Path, part: str, new: Path | None, out: Path | None, console: Console
) -> tuple[int, Path]:
    """Predict a part of the run's data, or the examples of `new`; how many answers there are, and where.

    Raises:
        UserError: the folder is no finished run, `out` cannot be written as asked, or there is no `new`.
        DataError: the data cannot be read.
    """
    scheme, data = built(run)
    spare_inputs(out or run / f"{part}.jsonl", run, new)
    read_with(data, new, run)
    if new:
        renumber(scheme, data)
    out = where(out, run, data, part)
    arrays = predict(scheme, data, part, console)
    if out.suffix:
        write(out, arrays, data.names)
    else:
        write_masks(out, arrays["answer"], data.new_files)
    return len(arrays["answer"]), out


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
