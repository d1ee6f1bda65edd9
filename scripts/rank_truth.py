"""Where the energy of finished runs ranks the truth among samples of their network, on validation.

    python -m scripts.rank_truth RUN_DIR [RUN_DIR ...] [--samples 100] [--out results/NAME]

For runs with an energy and a feed-forward network: SEAL, InfNet+, bilevel training, and an energy that
learned from the samples of a finished run. Each example has K samples of the network. Two rankings of them
and of the truth are compared: by the energy, and by the network's own probability. Means over the runs,
seeds of one cell, are printed. The numbers are written to rank_truth.json in the folder of the first run, or
as --out says.

An energy of the whole answer may rank the truth high and yet order samples no better than the network: a
share of correct tags is ordered best by the probability of each tag. --energy takes the energies of other
runs on the same data, such as those of a CRF, and so says what a good energy reaches.
"""

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from datamodules.base import DeviceData
from datamodules.errors import DataError
from energies.base import Energy
from energies.masks import MaskEnergy
from experiments import store
from experiments.errors import UserError
from lightning_modules.base import Scheme
from lightning_modules.engine.bookkeeping import judge, scores_of
from losses.objectives import Objective
from scripts.finished_run import built, finished, of
from scripts.options import count, refused

SEED = 0  # of the samples
RANKINGS = ("energy", "probability")
ANSWERS = ("the run's", "a sample", "most probable sample", "sample of lowest energy", "best sample")
Numbers = dict[str, float]


def main(arguments: list[str] | None = None) -> int:
    """Parse, read the run, rank, print, keep the numbers."""
    parser = argparse.ArgumentParser(prog="python -m scripts.rank_truth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", type=Path, nargs="+", metavar="run", help="folders of finished runs")
    parser.add_argument(
        "--energy", type=Path, nargs="+", metavar="RUN", help="take the energies of these runs, one for each"
    )
    parser.add_argument("--samples", type=count, default=100, help="K, of each example (default: 100)")
    parser.add_argument("--out", type=Path, help="where the numbers go, without .json")
    given = parser.parse_args(arguments)
    console, place = Console(highlight=False, soft_wrap=True), given.out or given.runs[0] / "rank_truth"
    compared, found, titles = [], [], set()
    others = given.energy or [None] * len(given.runs)
    try:
        if len(others) != len(given.runs):
            raise UserError(f"{len(given.runs)} runs and {len(others)} of --energy: give one for each run.")
        pairs = [*zip(given.runs, others, strict=True)]
        for folder, other in track(pairs, "runs", console=Console(stderr=True), transient=True):
            scheme, data, rankings, answers = read(folder, other, given.samples)
            record = store.read_json(folder / "record.json") or {}
            compared.append((rankings, answers))
            titles.add((of(scheme, data), record.get("row")))
            if len(titles) > 1:
                raise UserError(f"{folder} is a run of another cell than {given.runs[0]}: give seeds of one.")
            if other is not None:
                record["energy"] = (store.read_json(other / "record.json") or {}).get("row")
            about = {
                name: record.get(name)
                for name in ("id", "table", "row", "column", "seed", "energy", "finished")
            }
            found.append(about | {"rankings": rankings, "answers": answers})
        parts = {"rankings": [one for one, _ in compared], "answers": [one for _, one in compared]}
        means = {part: _mean(rows) for part, rows in parts.items()}
        numbers = {"samples": given.samples, "mean": means, "runs": found}
        store.write_json(place.with_suffix(".json"), numbers)
    except (UserError, DataError) as error:
        return refused(error)
    (title, _) = titles.pop()
    title = f"{title}, validation, {given.samples} samples, mean of {len(found)}"
    console.print(_drawn(title, "ranked by", means["rankings"]), _drawn("answers", "", means["answers"]))
    console.print(f"file: {place.with_suffix('.json')}", style="dim")
    return 0


def read(
    folder: Path, other: Path | None, samples: int
) -> tuple[Scheme, DeviceData, dict[str, Numbers], dict[str, Numbers]]:
    """A finished run, and what `compare` finds with its energy or with that of another run."""
    scheme, data = finished(folder)
    if other is None:
        return scheme, data, *compare(scheme, data, samples, scheme)
    reader, _ = built(other)
    try:
        return scheme, data, *compare(scheme, data, samples, reader)
    except RuntimeError as error:
        raise UserError(
            f"the energy of {other} cannot read the answers of {folder}: give a run on the same data. "
            f"({error})"
        ) from error


@torch.no_grad()
def compare(
    scheme: Scheme, data: DeviceData, samples: int, reader: Scheme
) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """What each of RANKINGS says of the truth and of pairs of samples, and the scores of each of ANSWERS.

    `rank`: 1 plus the number of samples before the truth, a tie counting half; samples equal to the truth do
    not count. `reciprocal rank`: of the same ranks. `first`: the share of examples where it is 1. `ordered
    pairs`: of all pairs of samples of unequal quality, the share with the better one first; 0.5 is chance, or
    says that there is no such pair. The energy is that of `reader`, the samples are those of `scheme`.

    Raises:
        UserError: the scheme has no energy, or no network that answers can be drawn from; its answers are
            masks.
    """
    energy, logits_of = _energy(reader), _network(scheme)
    objective = getattr(reader, "objective", None)
    bounded = objective.inference_energy if isinstance(objective, Objective) else torch.clone
    ranks: dict[str, list[Tensor]] = {name: [] for name in RANKINGS}
    pairs = {name: torch.zeros(2, dtype=torch.double) for name in RANKINGS}
    metrics = {name: copy.deepcopy(scheme.metric) for name in ANSWERS}
    torch.manual_seed(SEED)
    for batch in data.val_dataloader():
        space, logits = scheme.space.over(batch.mask), logits_of(batch.inputs)
        drawn = space.sample(logits, samples)
        answers = space.put_first(batch.y, drawn)  # (1 + K, B, ...)
        read = bounded(energy.over(batch.mask)(batch.inputs, answers))
        before = {"energy": read, "probability": -space.log_prob(logits, answers.to(logits.dtype))}
        guesses = drawn.to(logits.dtype)
        quality, same = space.quality(guesses, batch.y), (drawn == answers[0]).flatten(2).all(-1)
        for name, order in before.items():
            ranks[name].append(rank_of_first(order, same))
            pairs[name] += ordered_pairs(order[1:], quality)
        chosen = [before["probability"][1:].argmin(0), read[1:].argmin(0), quality.argmax(0)]
        picked = [guesses[one, torch.arange(len(one))] for one in chosen]
        for metric, answer in zip(
            metrics.values(), (scheme.predict(batch), guesses[0], *picked), strict=True
        ):
            judge(metric, batch, answer)
    rankings = {}
    for name, found in ranks.items():
        rank = torch.cat(found).double()
        right, of_all = pairs[name].tolist()
        rankings[name] = {
            "rank": float(rank.mean()),
            "reciprocal rank": float(rank.reciprocal().mean()),
            "first": float((rank == 1).double().mean()),
            "ordered pairs": right / of_all if of_all else 0.5,
        }
    scores = {name: scores_of(metric, choose=False).items() for name, metric in metrics.items()}
    return rankings, {
        name: {key: float(value) for key, value in found if value.numel() == 1}
        for name, found in scores.items()
    }


def rank_of_first(order: Tensor, same: Tensor) -> Tensor:
    """The rank (B,) of the first of the answers (1 + K, B) among all others; the lowest has rank 1.

    `same` (K, B): which of the others equal the first, and do not count.
    """
    first, others = order[0], order[1:]
    before = (others < first).to(order.dtype) + (others == first).to(order.dtype) / 2
    return 1 + before.masked_fill(same, 0).sum(0)


def ordered_pairs(order: Tensor, quality: Tensor) -> Tensor:
    """Of all pairs of samples (K, B) of unequal quality: how many have the better first, and their number.

    A tie of the order counts half.
    """
    better = quality.unsqueeze(0) > quality.unsqueeze(1)  # (K, K, B), the second index before the first
    right = (order.unsqueeze(0) < order.unsqueeze(1)).double()
    right += (order.unsqueeze(0) == order.unsqueeze(1)).double() / 2
    return torch.stack([(right * better).sum(), better.sum().double()])


def _energy(scheme: Scheme) -> Energy:
    energy = getattr(scheme, "energy", None)
    if isinstance(energy, MaskEnergy):
        raise UserError("the answers of this run are masks: python -m scripts.figures.mask_quality RUN_DIR")
    if not isinstance(energy, Energy):
        raise UserError(
            f"this {type(scheme).__name__} run has no energy. Give the folder of one that has, such as a run "
            "of conf/scheme/seal_dynamic.yaml."
        )
    return energy


def _network(scheme: Scheme) -> Callable[[Any], Tensor]:
    """The logits of the network whose answers are drawn."""
    networks = getattr(scheme, "networks", None)
    found = networks.predict if networks is not None else None
    for name in ("task_net", "guesser"):
        found = found or getattr(scheme, name, None)
    if found is None:
        raise UserError(
            f"this {type(scheme).__name__} run has no network to draw answers from: its energy learned from "
            "searches alone. Give the folder of a run with a task-net or a guesser."
        )
    return found


def _mean(runs: list[dict[str, Numbers]]) -> dict[str, Numbers]:
    first = runs[0]
    return {row: {key: round(fmean(run[row][key] for run in runs), 4) for key in first[row]} for row in first}


def _drawn(title: str, of_what: str, rows: dict[str, Numbers]) -> Table:
    names = list(next(iter(rows.values())))
    table = Table(of_what, *names, title=title)
    for name, row in rows.items():
        table.add_row(name, *(f"{row[key]:.4f}" for key in names))
    return table


if __name__ == "__main__":
    sys.exit(main())
