"""Whether the energy of a mask knows how good the mask is: its reading over perturbed true masks.

    python -m scripts.figures.mask_quality RUN_DIR [--out results/NAME]

Test pictures, their middle windows. Each true mask is shifted, mirrored, eroded, dilated, mixed with the mask
of another picture, or some of its pixels are flipped. mask_quality.png, .svg and .json (the numbers and the
run's id) are written into the run's folder, or as --out says. No picture is among the files.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from datamodules.errors import DataError
from datamodules.transforms import middle
from energies.masks import MaskEnergy
from experiments import store
from experiments.errors import UserError
from inference.interactions import rank_correlation
from losses.costs import soft_iou
from losses.objectives import Objective, Regression
from scripts.figures.axes import draw
from scripts.finished.run import finished, of, term
from scripts.options import refused

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0  # of the flipped pixels


def eroded(y: Tensor, pixels: int) -> Tensor:
    """Masks (B, H, W) without their pixels that are so near to the background."""
    return 1 - dilated(1 - y, pixels)


def dilated(y: Tensor, pixels: int) -> Tensor:
    """Masks (B, H, W) with the background's pixels that are so near to them."""
    return F.max_pool2d(y.unsqueeze(1), 2 * pixels + 1, stride=1, padding=pixels).squeeze(1)


def flipped(y: Tensor, share: float) -> Tensor:
    """Masks with a share of their pixels changed, drawn with a seed."""
    changed = torch.rand(y.shape, generator=torch.Generator().manual_seed(SEED)) < share
    return torch.where(changed, 1 - y, y)


PERTURBATIONS: dict[str, tuple[Callable[[Tensor, Any], Tensor], list[float]]] = {
    "shift, pixels": (lambda y, by: y.roll(int(by), -1), [1, 2, 3, 4, 6, 8]),
    "erosion, pixels": (lambda y, by: eroded(y, int(by)), [1, 2, 3]),
    "dilation, pixels": (lambda y, by: dilated(y, int(by)), [1, 2, 3]),
    "flipped pixels, share": (flipped, [0.02, 0.05, 0.1, 0.2, 0.4]),
    "mixed with another mask, share": (
        lambda y, by: (1 - by) * y + by * y.roll(1, 0),
        [0.25, 0.5, 0.75, 1.0],
    ),
    "mirror": (lambda y, by: y.flip(-1), [1]),
}


def main(arguments: list[str] | None = None) -> int:
    """Parse, read the run, perturb, draw, print the numbers."""
    parser = argparse.ArgumentParser(prog="python -m scripts.figures.mask_quality", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, help="the folder of a finished run with an energy of masks")
    parser.add_argument("--out", type=Path, help="where the files go, without their endings")
    given = parser.parse_args(arguments)
    console, place = Console(highlight=False, soft_wrap=True), given.out or given.run / "mask_quality"
    try:
        scheme, data = finished(given.run)
        energy = term(scheme, MaskEnergy, "an energy of masks, such as conf/scheme/seal_dynamic.yaml")
        split = data.splits["test"]
        x, y = (middle(part, energy.size) for part in (split.inputs, split.y.float()))
        assert isinstance(scheme.objective, Objective), "schemes with an energy of masks have an objective"
        found = quality(energy, scheme.objective, x, y)
        record = store.read_json(given.run / "record.json") or {}
        about = {name: record.get(name) for name in ("id", "table", "row", "seed", "finished")}
        files = paint(place, found, heading=f"{of(scheme, data)}: {len(y)} test pictures")
        store.write_json(place.with_suffix(".json"), about | {"pictures": len(y)} | found)
    except (UserError, DataError) as error:
        return refused(error)
    console.print(f"rank correlation over all masks: {found['rank_correlation']:.3f}")
    console.print(f"within a picture, mean: {found['within_a_picture']:.3f}")
    console.print(f"files: {', '.join(map(str, [*files, place.with_suffix('.json')]))}", style="dim")
    return 0


@torch.no_grad()
def quality(energy: MaskEnergy, objective: Objective, x: Tensor, y: Tensor) -> dict[str, Any]:
    """The energy's reading and the IoU of perturbed masks: means over pictures, and how their ranks agree.

    The reading is minus what inference minimises: for regression the predicted quality, otherwise -E.
    """
    masks, names = [y], [("truth", 0.0)]
    for kind, (perturb, strengths) in PERTURBATIONS.items():
        masks += [perturb(y, strength) for strength in strengths]
        names += [(kind, strength) for strength in strengths]
    several = torch.stack(masks)  # (K, B, H, W)
    read = -objective.inference_energy(energy.eval()(x, several))
    iou = soft_iou(several.flatten(2), y.flatten(1))
    everywhere = torch.ones_like(iou, dtype=torch.bool)
    within = [rank_correlation(read[:, i], iou[:, i], everywhere[:, i]) for i in range(len(y))]
    known = [value for value in within if math.isfinite(value)]
    points = [
        {"kind": kind, "strength": strength, "iou": round(float(a), 4), "reading": round(float(b), 4)}
        for (kind, strength), a, b in zip(names, iou.mean(1), read.mean(1), strict=True)
    ]
    return {
        "reading": "predicted IoU" if isinstance(objective, Regression) else "-E",
        "rank_correlation": round(rank_correlation(read, iou, everywhere), 4),
        "within_a_picture": round(sum(known) / len(known), 4),
        "points": points,
    }


def paint(place: Path, found: dict[str, Any], *, heading: str) -> list[Path]:
    """A line for each perturbation, from the truth to its strongest form."""
    points = found["points"]
    truth = points[0]

    def lines(canvas: "Figure") -> None:
        panel = canvas.subplots()
        for kind in PERTURBATIONS:
            path = [truth, *(point for point in points if point["kind"] == kind)]
            panel.plot(
                [p["iou"] for p in path], [p["reading"] for p in path], marker="o", markersize=4, label=kind
            )
        if found["reading"] == "predicted IoU":
            panel.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="IoU itself")
        panel.plot(truth["iou"], truth["reading"], "k*", markersize=11, label="truth")
        panel.set(xlabel="soft IoU with the truth, mean", ylabel=f"{found['reading']}, mean")
        panel.set_title(f"{heading}\nrank correlation {found['rank_correlation']:.2f}", fontsize="medium")
        panel.legend(fontsize="small")

    return draw(place, lines, size=(6.4, 4.8))


if __name__ == "__main__":
    sys.exit(main())
