"""How large the energy's gradient is beside that of supervision, for the task-nets of finished SEAL runs.

    python -m scripts.energy_share RUN_DIR [RUN_DIR ...] [--out FILE]

A small weight of the energy says little by itself: the energy's scale counts too. So with z the logits at
the best epoch, the two terms of SEAL's task loss (eqs. 1, 5) are compared by their gradients,
a = lambda_1 dE/dz and b = lambda_2 d(supervision)/dz, each over all examples of a part as one long vector:

    share    |a| / (|a| + |b|)
    cosine   of a and b; below 0 the energy disagrees with the truth

Both are measured on training and on validation examples, with dropout off: a network that fits its training
examples has little gradient of supervision left on them. Other epochs may differ. Of a picture that is larger
than the masks that its energy reads, the middle window counts. Means over the runs of each cell are printed.
The numbers are written to energy_share.json in the folder of the first run, or as --out says.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from datamodules.base import DeviceData
from datamodules.batches import Batch
from datamodules.errors import DataError
from datamodules.transforms import middle
from energies.masks import MaskEnergy
from experiments import store
from experiments.errors import UserError
from lightning_modules.base import Scheme
from lightning_modules.seal_dynamic import SealDynamic
from lightning_modules.seal_static import SealStatic
from losses.task import EnergyAndSupervision
from scripts.finished.run import finished
from scripts.options import refused

PARTS = ("train", "val")
MEASURES = ("share", "cosine")
Numbers = dict[str, dict[str, float]]


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure each run, print, keep the numbers."""
    parser = argparse.ArgumentParser(prog="python -m scripts.energy_share", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", type=Path, nargs="+", metavar="run", help="folders of finished runs")
    parser.add_argument("--out", type=Path, help="where the numbers go, without .json")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    place = Path(f"{given.out or given.runs[0] / 'energy_share'}.json")
    runs, cells = [], defaultdict(list)
    try:
        records = [store.record_in(folder) for folder in given.runs]
        if len({record["id"] for record in records}) < len(records):
            raise UserError("A run is given twice: give each once.")
        for folder, record in track(
            [*zip(given.runs, records, strict=True)], "runs", console=Console(stderr=True), transient=True
        ):
            numbers = share(*finished(folder))
            about = {name: record.get(name) for name in ("id", "table", "row", "column", "seed", "finished")}
            runs.append(about | numbers)
            cells[cell_of(record, folder)].append(numbers)
        means = {cell: mean(found) for cell, found in cells.items()}
        store.write_json(place, {"mean": means, "runs": runs})
    except (UserError, DataError) as error:
        return refused(error)
    table = Table(title="the energy's gradient beside supervision's")
    table.add_column("table / column / row", overflow="fold")
    for head in ("runs", *(f"{part}\n{measure}" for part in PARTS for measure in MEASURES)):
        table.add_column(head, justify="right", no_wrap=True)
    for cell, found in means.items():
        shown = (f"{found[part][measure]:.3g}" for part in PARTS for measure in MEASURES)
        table.add_row(cell, str(len(cells[cell])), *shown)
    console.print(table)
    console.print(f"file: {place}", style="dim")
    return 0


def cell_of(record: store.Record, folder: Path) -> str:
    """The cell of a run of a table; the folder of any other run."""
    place = [record.get(name) for name in ("table", "column", "row")]
    return " / ".join(map(str, place)) if all(place) else str(folder)


def share(scheme: Scheme, data: DeviceData) -> Numbers:
    """MEASURES of one run on each of PARTS.

    Raises:
        UserError: its task-net does not learn from an energy and from supervision.
    """
    if isinstance(scheme, SealStatic | SealDynamic):
        terms = scheme.task_terms
        if isinstance(terms, EnergyAndSupervision) and terms.energy_weight and terms.supervision_weight:
            loaders = (data.train_dataloader(), data.val_dataloader())
            return {
                part: compared(scheme, terms, batches) for part, batches in zip(PARTS, loaders, strict=True)
            }
    raise UserError(
        f"the task-net of this {type(scheme).__name__} run does not learn from an energy and from "
        "supervision. Give the folder of a run of conf/scheme/seal_static.yaml or seal_dynamic.yaml, "
        "with both weights above 0."
    )


def compared(
    scheme: SealStatic | SealDynamic, terms: EnergyAndSupervision, batches: Iterable[Batch]
) -> dict[str, float]:
    """MEASURES over the examples of all batches."""
    products = torch.zeros(3, dtype=torch.float64)
    for batch in batches:
        energy, inputs, y = scheme.energy.over(batch.mask), batch.inputs, batch.y
        if isinstance(scheme.energy, MaskEnergy):
            inputs, y = (middle(part, scheme.energy.size) for part in (inputs, y))
        with torch.no_grad():
            logits = scheme.task_net(inputs)
        both = terms.terms(
            lambda x, y, energy=energy: scheme.objective.inference_energy(energy(x, y)),  # type: ignore[misc]
            scheme.space.over(batch.mask),
            inputs,
            y,
            logits.requires_grad_(),
            batch.observed,
        )
        a, b = (torch.autograd.grad(term.sum(), logits)[0].double() for term in both)
        products += torch.stack([(a * a).sum(), (b * b).sum(), (a * b).sum()]).cpu()
    of_energy, of_supervision = products[:2].sqrt().tolist()
    return {
        "share": of_energy / ((of_energy + of_supervision) or 1.0),
        "cosine": float(products[2]) / ((of_energy * of_supervision) or 1.0),
    }


def mean(runs: list[Numbers]) -> Numbers:
    """Of each number over the runs, to four significant digits."""
    return {
        part: {name: float(f"{fmean(run[part][name] for run in runs):.4g}") for name in MEASURES}
        for part in PARTS
    }


if __name__ == "__main__":
    sys.exit(main())
