"""The states of an encoder's frozen layers, computed once and kept in a file.

A file is named by what it was made from: pieces, tokenizer, weights, layers, pooling. It gets its name when
it is whole and on the disk. Of processes that want the same file one computes it, the others wait.

Shapes: U texts, M pieces of all texts, H features.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_info
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from datamodules.errors import DataCorrupt, DataMismatch
from datamodules.sources.download import room_for
from datamodules.text.tokens import Pieces
from networks.transformer.encoder import pooled
from networks.transformer.kept import Kept
from networks.transformer.split import LowerLayers
from networks.transformer.weights import check_pooler, checksum, config_of, pretrained

AT_ONCE = 2048  # pieces of a batch, padding included
FORMAT = 1  # of the files


def keep(pieces: Pieces, encoder: str, num_layers: int, *, folder: Path, pooling: str | None = None) -> Kept:
    """The states of all pieces above the lowest `num_layers` layers, mapped from a file in `folder`/kept.

    They are computed if the file is not there. With `pooling` (first, mean, pooler) each text has one state,
    of the last layer. States are float16; the layers run in float32 in evaluation mode, without dropout.

    Raises:
        DataMismatch: a state is too large for float16; the pooled state is not that of the last layer.
        DiskFull: the disk has no room.
        EncoderUnusable: the encoder cannot be read, or has fewer layers.
    """
    depth, size = config_of(encoder).num_hidden_layers, config_of(encoder).hidden_size
    if pooling and num_layers != depth:
        raise DataMismatch(
            f"States are pooled above all layers: set --data.kept_layers {depth}, not {num_layers}."
        )
    if pooling == "pooler":
        check_pooler(encoder)
    offsets = torch.arange(len(pieces) + 1) if pooling else pieces.offsets
    shape = (int(offsets[-1]), size)
    path = folder / "kept" / f"{_name(pieces, encoder, num_layers, pooling)}.npy"
    with room_for(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            if not path.exists():
                rank_zero_info(
                    f"Computing {num_layers} layers of {encoder} for {len(pieces):,} texts, once: {path}"
                )
                _write(path, shape, _batches(pieces, encoder, num_layers, pooling), offsets)
    states = torch.from_numpy(_mapped(path))
    return Kept(states, offsets, torch.arange(len(pieces)), num_layers, pooling, encoder=encoder)


def _name(pieces: Pieces, encoder: str, num_layers: int, pooling: str | None) -> str:
    """A name that differs where the content would."""
    total = sha256(f"{FORMAT} {checksum(encoder)} {num_layers} {pooling} float16\n".encode())
    for part in (pieces.offsets, pieces.ids):
        total.update(part.numpy().tobytes())
    return total.hexdigest()[:32]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process writes the file."""
    if path.exists():
        yield
        return
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            rank_zero_info(f"Another process computes {path}: waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _mapped(path: Path) -> np.ndarray:
    """The content of a file, mapped copy-on-write: it is never written."""
    try:
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataCorrupt(
            f"{path} is damaged ({error}). Delete it; the next run computes it again."
        ) from None


def _write(
    path: Path, shape: tuple[int, int], batches: Iterator[tuple[int, Tensor]], offsets: Tensor
) -> None:
    """Write texts in any order; the file is whole and on the disk before it gets its name."""
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as sink:
            np.lib.format.write_array_header_1_0(
                sink, {"descr": "<f2", "fortran_order": False, "shape": shape}
            )
            start, row = sink.tell(), 2 * shape[1]
            for text, states in batches:
                _put(sink, start + row * int(offsets[text]), states)
            sink.flush()
            os.fsync(sink.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _put(sink: BinaryIO, place: int, states: Tensor) -> None:
    """Write the states of a text at its place."""
    sink.seek(place)
    sink.write(states.numpy().tobytes())


def _batches(
    pieces: Pieces, encoder: str, num_layers: int, pooling: str | None
) -> Iterator[tuple[int, Tensor]]:
    """Each text and its states in float16, from the longest to the shortest."""
    layers = LowerLayers(encoder, num_layers)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lengths = pieces.offsets.diff()
    order = lengths.argsort(descending=True, stable=True)
    columns = (TextColumn("Encoding texts"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=int(lengths.sum()))
        for texts in _cut(order, lengths):
            ids, attention = (part.to(device) for part in pieces.padded(texts))
            states = layers(ids, attention)
            if pooling:
                states = pooled(states.cpu(), attention.cpu(), pooling, pretrained(encoder)).unsqueeze(1)
            half = states.to("cpu", torch.float16)
            if not half.isfinite().all():
                raise DataMismatch(
                    f"A state of {encoder} is too large for float16. Set trained: full or adapters."
                )
            for text, own, length in zip(texts.tolist(), half, lengths[texts].tolist(), strict=True):
                yield text, own[:length]
            progress.advance(bar, int(lengths[texts].sum()))


def _cut(order: Tensor, lengths: Tensor) -> Iterator[Tensor]:
    """Batches of texts, at most AT_ONCE pieces with padding, or one text."""
    while len(order):
        count = max(1, AT_ONCE // int(lengths[order[0]]))
        yield order[:count]
        order = order[count:]
