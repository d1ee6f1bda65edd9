"""Which pixels a trained Gaussian field takes for alike: K of two pixels of a test picture, and no picture.

    python -m scripts.figures.similarity RUN_DIR [--picture 0]

The pixels are those that the field is surest of, of the object and of the background. The line is the outline
of its answer. similarity.svg and .png are written to the run's folder or to --out.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from datamodules.errors import DataError
from energies.gaussian import GaussianEnergy
from experiments.errors import UserError
from inference import gaussian
from scripts.figures.axes import draw, heat, span
from scripts.finished.run import finished, of, term
from scripts.options import refused

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def main(arguments: list[str] | None = None) -> int:
    """Parse, read the run, draw."""
    parser = argparse.ArgumentParser(prog="python -m scripts.figures.similarity", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--picture", type=int, default=0, help="number of the test picture (default: 0)")
    parser.add_argument("--out", type=Path, help="another folder than the run's")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    try:
        files = similarity(given.run, given.picture, (given.out or given.run) / "similarity")
    except (UserError, DataError) as error:
        return refused(error)
    console.print(f"files: {', '.join(map(str, files))}", style="dim")
    return 0


@torch.no_grad()
def similarity(run: Path, picture: int, place: Path) -> list[Path]:
    """Draw the similarities of a finished run.

    Raises:
        UserError: the run has no Gaussian field, or its test part no such picture.
    """
    scheme, data = finished(run)
    energy = term(scheme, GaussianEnergy, "a Gaussian field, such as conf/data/weizmann_horses.yaml")
    pictures = data.splits["test"].inputs
    if picture not in range(len(pictures)):
        raise UserError(f"there is no test picture {picture}: take a number of 0 to {len(pictures) - 1}.")
    p = energy.potentials(pictures[picture : picture + 1], None).definite()
    sure = p.logits_of(gaussian.mode(p))[0]  # (H, W)
    shown = {
        "the surest pixel of the object": int(sure.argmax()),
        "the surest pixel of the background": int(sure.argmin()),
    }

    def paint(canvas: "Figure") -> None:
        canvas.suptitle(f"{of(scheme, data)}: similarity to a pixel, and the answer's outline", fontsize=9)
        for panel, (title, place_of) in zip(canvas.subplots(1, len(shown)), shown.items(), strict=True):
            row, column = divmod(place_of, sure.shape[1])
            similar = (p.embedding[0] @ p.embedding[0, row, column]).numpy()
            heat(panel, similar, "$K_{ij}$", top=span(similar))
            panel.contour(sure.numpy(), levels=[0], colors="black", linewidths=1)
            panel.plot(column, row, "+", color="lime", markersize=8)
            panel.set(title=title, xticks=[], yticks=[])

    return draw(place, paint, size=(8.4, 3.8))


if __name__ == "__main__":
    sys.exit(main())
