"""A figure of masks: the answers that records keep, a line for each row of a table.

Shapes: N pictures, H x W pixels.
"""

import math
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from experiments import store
from experiments.page.summary import Summary
from experiments.plan.table import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

LETTERS = 24  # of a line of a row's name
INCH = 0.75  # the side of a picture
BESIDE, BELOW = 1.06, 1.3  # from one picture to the next, in sides; numbers stand below
FLOOR = "floor: the mean training mask"  # a table's label may speak of columns that have tags

Line = tuple[str, np.ndarray, Sequence[float] | None]  # a name, pictures, the number of each


def answers(record: Mapping[str, Any]) -> tuple[np.ndarray, list[float]] | None:
    """The masks (N, H, W) that a record keeps, and their IoU; None if it keeps none."""
    kept = record.get("findings", {}).get("test/answers")
    if kept is None:
        return None
    shape = len(kept["iou"]), kept["height"], kept["width"]
    packed = np.frombuffer(b64decode(kept["bits"]), np.uint8)
    return np.unpackbits(packed, count=math.prod(shape)).reshape(shape), kept["iou"]


def of_one_seed(figure: Figure, summary: Summary) -> dict[str, store.Record]:
    """Records with answers, by row: those of the lowest seed that most rows have, so of the same pictures."""
    kept = {
        (record["seed"], record["row"]): record
        for record in summary.records
        if record["column"] == figure.column and record["row"] in figure.rows and answers(record)
    }
    counts = Counter(seed for seed, _ in kept)
    chosen = min(counts, key=lambda seed: (-counts[seed], seed), default=0)
    return {row: kept[chosen, row] for row in figure.rows if (chosen, row) in kept}


def lines_of(figure: Figure, summary: Summary) -> list[Line]:
    """A line of answers for each row that has some; a dagger marks rows with runs of an earlier config."""
    lines: list[Line] = []
    for row, record in of_one_seed(figure, summary).items():
        found = answers(record)
        assert found is not None
        mark = "†" if summary.cells[row, figure.column].stale else ""
        label = FLOOR if summary.table.rows[row].floor else summary.table.rows[row].label
        lines.append((fill(label.replace("$", r"\$") + mark, LETTERS), *found))
    return lines


def paint(axes: "Axes", lines: Sequence[Line]) -> None:
    """Draw lines of pictures below each other, the name of each on the left, numbers below its pictures.

    The pictures fill the drawing; names stand outside it, and `plots.save` widens it by them.
    """
    for line, (_, pictures, numbers) in enumerate(lines):
        top = line * BELOW
        for place, picture in enumerate(pictures):
            left = place * BESIDE
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1, extent=(left, left + 1, top + 1, top))
            if numbers:
                axes.text(
                    left + 0.5, top + 1.03, f"{100 * numbers[place]:.0f}", ha="center", va="top", size=7
                )
    axes.set_yticks([line * BELOW + 0.5 for line in range(len(lines))], [name for name, _, _ in lines])
    most = max(len(pictures) for _, pictures, _ in lines)
    width, height = most * BESIDE, len(lines) * BELOW
    cast("Drawing", axes.figure).set_size_inches(INCH * width, INCH * height)
    axes.set(position=(0, 0, 1, 1), xticks=[], xlim=(0, width), ylim=(height, 0))
    axes.tick_params(length=0, labelsize=8)
    axes.set_frame_on(False)
