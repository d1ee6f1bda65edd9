"""The figure of docs/gaussian.md: what a Gaussian field does to a noisy mask.

    python -m scripts.figures.noisy_mask

A synthetic picture: a bright shape on dark ground, with noise. Each pixel has a score of even more noise. The
embeddings are random Fourier features of place and brightness, so that near pixels of similar brightness
have similar embeddings. docs/noisy_mask.svg and .png are written, with the numbers inside.
"""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from torch import Tensor

from energies.gaussian import GaussianPotentials
from inference import gaussian
from scripts.figures.axes import draw
from scripts.options import alone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACE = Path("docs/noisy_mask")
SIDE, FEATURES = 64, 128
WIDTHS = (0.3, 0.3, 0.2)  # of the similarity: row, column (from -1 to 1), brightness
GREY, SCORES = 0.1, 1.5  # noise
PIXEL = (32, 20)  # whose similarities are shown


def scene() -> tuple[Tensor, Tensor, GaussianPotentials]:
    """The mask, the picture, and a field over it."""
    draw = torch.Generator().manual_seed(0)
    line = torch.linspace(-1, 1, SIDE)
    rows, columns = torch.meshgrid(line, line, indexing="ij")
    mask = (rows.square() + columns.square() < 0.35) | ((rows - 0.3).abs() < 0.12) & (columns.abs() < 0.9)
    grey = 0.25 + 0.5 * mask + GREY * torch.randn(SIDE, SIDE, generator=draw)
    scores = 2 * mask - 1 + SCORES * torch.randn(SIDE, SIDE, generator=draw)
    waves = torch.randn(3, FEATURES, generator=draw) / torch.tensor(WIDTHS).unsqueeze(1)
    phases = 2 * math.pi * torch.rand(FEATURES, generator=draw)
    features = torch.cos(torch.stack([rows, columns, grey], -1) @ waves + phases)
    field = GaussianPotentials(torch.stack([-scores, scores], -1).unsqueeze(0), features.unsqueeze(0))
    return mask, grey, field.definite()


def overlap(answer: Tensor, mask: Tensor) -> float:
    """Intersection over union."""
    return float((answer & mask).sum() / (answer | mask).sum())


def main() -> int:
    """Draw, print the paths and the numbers."""
    mask, grey, field = scene()
    answers = {
        "each pixel alone": field.unary,
        "the field": gaussian.mode(field),
    }
    found = {name: (s[0, ..., 1] > s[0, ..., 0]) for name, s in answers.items()}
    numbers = {name: round(overlap(answer, mask), 2) for name, answer in found.items()}
    similar = field.embedding[0] @ field.embedding[0][PIXEL]

    def paint(canvas: "Figure") -> None:
        panels = canvas.subplots(1, 5)
        shown = [("picture", grey), ("score of the object", field.unary[0, ..., 1])]
        shown += [(f"{name}\nIoU {numbers[name]:.2f}", answer) for name, answer in found.items()]
        for panel, (title, image) in zip(panels, shown, strict=False):
            panel.imshow(image, cmap="gray")
            panel.set_title(title, fontsize=9)
        panels[-1].imshow(similar, cmap="magma")
        panels[-1].plot(*reversed(PIXEL), "+", color="cyan", markersize=8)
        panels[-1].set_title("similarity to a pixel", fontsize=9)
        for panel in panels:
            panel.set(xticks=[], yticks=[])

    files = draw(PLACE, paint, size=(9.6, 2.3), about=json.dumps(numbers))
    Console().print(numbers, *map(str, files), highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
