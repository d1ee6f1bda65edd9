"""What kept layers save: the time of an epoch over real news stories, against computing all layers each time.

    python -m scripts.benchmarks.encoder

Parity first: kept layers change outputs by rounding to float16 only, and gradients as little. CPU time, one
thread. The encoder is MiniLM, six layers; the two upper ones train, or none.
"""

import csv
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from datamodules.batches import Batches
from datamodules.errors import DataNotFound
from datamodules.sources.files import Sources, unpack
from datamodules.text.kept import keep
from datamodules.text.tokens import Pieces, pieces_of
from networks.inputs import Inputs
from networks.transformer import Encoder
from networks.transformer.encoder import Trained
from scripts.options import alone

MINI = "sentence-transformers/all-MiniLM-L6-v2"
STORIES, BATCH, LONGEST = 120, 16, 256
DEPTH, TOP = 6, 2
WAYS: list[tuple[Trained, int, str | None]] = [("top_layers", DEPTH - TOP, None), ("frozen", DEPTH, "mean")]
HALF = 1e-2  # what rounding to float16 below two layers may change


def stories() -> tuple[list[str], Tensor]:
    """Texts of Reuters-21578 and their topics."""
    where = Sources()
    places = [place / "reuters21578" / "dev.csv.xz" for place in (where.folder, where.mirror) if place]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataNotFound(f"There is no {places[0]}: put the file there.")
    rows = [*csv.DictReader(io.StringIO(unpack(path).decode()))][:STORIES]
    topics = [name for name in rows[0] if name != "text"]
    return [row["text"] for row in rows], torch.tensor(
        [[float(row[name]) for name in topics] for row in rows]
    )


class Classifier(nn.Module):
    """An encoder and a linear layer."""

    def __init__(self, encoder: Encoder, num_labels: int) -> None:
        super().__init__()
        self.encoder, self.output = encoder, nn.Linear(encoder.size, num_labels)

    def forward(self, x: Inputs) -> Tensor:
        return self.output(self.encoder(x))


def epoch(net: Classifier, inputs: Inputs, y: Tensor) -> float:
    """Seconds of CPU time of an epoch of cross-entropy."""
    moved = [p for p in net.parameters() if p.requires_grad]
    optimizer, data = torch.optim.AdamW(moved, lr=1e-4), Batches(inputs, y, batch_size=BATCH, seed=0, pool=20)
    net.train()
    began = time.process_time()
    for batch in data:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(batch.inputs), batch.y).backward()
        optimizer.step()
    return time.process_time() - began


def check(net: Encoder, kept: Inputs, pieces: Inputs) -> None:
    """Raise an error unless both inputs give the same features and, where it trains, gradients."""
    net.eval()
    gradients = []
    for batch in (kept, pieces):
        net.zero_grad()
        out = net(batch)
        if out.requires_grad:
            out.square().mean().backward()
            gradients.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
    with torch.no_grad():
        torch.testing.assert_close(net(kept), net(pieces), atol=HALF, rtol=HALF)
    if gradients and torch.cosine_similarity(gradients[0], gradients[1], dim=0) < 0.9999:
        raise AssertionError("the gradients differ")


def seconds(work: Callable[[], object]) -> float:
    """CPU time."""
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(pieces: Pieces, y: Tensor, folder: Path) -> Table:
    """A row for what trains."""
    table = Table(title=f"{STORIES} stories, {len(pieces.ids):,} pieces, batches of {BATCH}")
    for name in (
        "trained",
        "computed once (s)",
        "pieces a second",
        "epoch, kept (s)",
        "epoch, computed (s)",
        "ratio",
    ):
        table.add_column(name, justify="right")
    texts = torch.arange(len(pieces))
    for trained, layers, pooling in WAYS:
        once = seconds(lambda: keep(pieces, MINI, layers, folder=folder, pooling=pooling))  # noqa: B023
        kept = pieces.inputs(texts, kept=keep(pieces, MINI, layers, folder=folder, pooling=pooling))
        computed = pieces.inputs(texts)
        torch.manual_seed(0)
        net = Classifier(Encoder(MINI, trained=trained, num_top=TOP, pooling="mean"), y.shape[1])
        some = torch.arange(8)
        check(net.encoder, kept.rows(some), computed.rows(some))
        fast, slow = (epoch(net, inputs, y) for inputs in (kept, computed))
        numbers = (
            f"{once:.1f}",
            f"{len(pieces.ids) / once:,.0f}",
            f"{fast:.2f}",
            f"{slow:.1f}",
            f"{slow / fast:.1f}",
        )
        table.add_row(trained, *numbers)
    return table


def main() -> None:
    """Parity, then the table."""
    torch.set_num_threads(1)
    texts, y = stories()
    pieces = pieces_of(texts, MINI, max_pieces=LONGEST)
    with TemporaryDirectory() as folder:
        Console().print(compare(pieces, y, Path(folder)))


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
