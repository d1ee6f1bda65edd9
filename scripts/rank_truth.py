"""Whether the energy of finished runs chooses better among samples of their network than the network does.

    python -m scripts.rank_truth RUN_DIR [RUN_DIR ...] [--energy RUN_DIR ...] [--samples 100] [--out FILE]

For runs with an energy and a feed-forward network: SEAL, InfNet+, bilevel training, and an energy that
learned from the samples of a finished run. For each validation example K answers are drawn from the network.
They and the truth are ranked by the energy, and by the network's own probability; the sample that each ranks
first is scored. Means over the runs, seeds of one cell, are printed. The numbers are written to
rank_truth.json in the folder of the first run, or as --out says.

The rank of the truth alone says little: samples lie where the network is confident, so its probability puts
the truth late. --energy takes the energies of other runs on the same data and seeds, such as those of a CRF,
and so says what a good energy reaches.
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
from experiments.plan.identity import difference
from lightning_modules.base import Scheme
from lightning_modules.crf import CRFScheme
from lightning_modules.engine.bookkeeping import judge, scores_of
from scripts.finished.run import built, finished, of
from scripts.options import count, refused

SEED = 0  # of the samples
RANKINGS = ("energy", "probability")
ANSWERS = ("the run's", "a sample", "most probable sample", "sample of lowest energy", "best sample")
Numbers = dict[str, float]


def main(arguments: list[str] | None = None) -> int:
    """Parse, check that the runs belong together, rank, print, keep the numbers."""
    parser = argparse.ArgumentParser(prog="python -m scripts.rank_truth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", type=Path, nargs="+", metavar="run", help="folders of finished runs")
    parser.add_argument(
        "--energy", type=Path, nargs="+", metavar="RUN", help="take the energies of these runs, one for each"
    )
    parser.add_argument("--samples", type=count, default=100, help="K, of each example (default: 100)")
    parser.add_argument("--out", type=Path, help="where the numbers go, without .json")
    given = parser.parse_args(arguments)
    console, energies = Console(highlight=False, soft_wrap=True), given.energy or given.runs
    place = Path(f"{given.out or given.runs[0] / 'rank_truth'}.json")
    found, rankings, answers = [], [], []
    try:
        records, of_energies = ([*map(store.record_in, part)] for part in (given.runs, energies))
        check(records, of_energies)
        runs = [*zip(given.runs, energies, records, of_energies, strict=True)]
        for folder, other, record, of_energy in track(
            runs, "runs", console=Console(stderr=True), transient=True
        ):
            scheme, data = finished(folder)
            reader = scheme if other == folder else built(other)[0]
            ranking, answer = compare(scheme, data, given.samples, energy_of(reader))
            about = {name: record.get(name) for name in ("id", "table", "row", "column", "seed", "finished")}
            found.append(
                about
                | {"energy": {name: of_energy.get(name) for name in ("id", "row", "seed")}}
                | {"rankings": ranking, "answers": answer}
            )
            rankings.append(ranking)
            answers.append(answer)
        means = {"rankings": mean(rankings), "answers": mean(answers)}
        store.write_json(place, {"samples": given.samples, "mean": means, "runs": found})
    except (UserError, DataError) as error:
        return refused(error)
    title = f"{of(scheme, data)}, validation, {given.samples} samples, mean of {len(found)}"
    console.print(_drawn(title, "ranked by", means["rankings"]), _drawn("answers", "", means["answers"]))
    console.print(f"file: {place}", style="dim")
    return 0


def check(records: list[store.Record], of_energies: list[store.Record]) -> None:
    """That runs are seeds of one cell, each once, and energies too, each of the data and seed of its run.

    Raises:
        UserError: they are not.
    """
    if len(records) != len(of_energies):
        raise UserError(f"{len(records)} runs and {len(of_energies)} of --energy: give one for each run.")
    for part in (records, of_energies):
        for record in part[1:]:
            if _cell(record) != _cell(part[0]):
                raise UserError(
                    f"run {record['id']} is of another cell than {part[0]['id']}: give seeds of one cell."
                )
        ids = [record["id"] for record in part]
        if len(set(ids)) < len(ids):
            raise UserError("A run is given twice: give each seed once.")
    for record, other in zip(records, of_energies, strict=True):
        changed = [] if record["seed"] == other["seed"] else [f"seed: {record['seed']} -> {other['seed']}"]
        changed += difference(record["config"]["data"], other["config"]["data"])
        if changed := [change for change in changed if "batch_size" not in change]:
            raise UserError(
                f"The energy of run {other['id']} is not of the data of {record['id']} ({changed[0]}): "
                "give a run on the same data and of the same seed."
            )


def _cell(record: store.Record) -> tuple[object, ...]:
    config = record["config"]
    classes = (config["model"]["class_path"], config["data"]["class_path"])
    return *(record.get(name) for name in ("table", "row", "column")), *classes


@torch.no_grad()
def compare(
    scheme: Scheme, data: DeviceData, samples: int, energy: Energy
) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """Where each of RANKINGS puts the truth among samples of the scheme's network, and scores of ANSWERS.

    `rank`: 1 plus the number of samples before the truth, a tie counting half; samples equal to the truth do
    not count. By chance it is 1 + K / 2. `reciprocal rank`: of the same ranks.

    Raises:
        UserError: the scheme has no network that answers can be drawn from.
    """
    logits_of = network_of(scheme)
    ranks: dict[str, list[Tensor]] = {name: [] for name in RANKINGS}
    metrics = {name: copy.deepcopy(scheme.metric) for name in ANSWERS}
    torch.manual_seed(SEED)
    for batch in data.val_dataloader():
        space, logits = scheme.space.over(batch.mask), logits_of(batch.inputs)
        drawn = space.sample(logits, samples)
        answers = space.put_first(batch.y, drawn)  # (1 + K, B, ...)
        read = energy.over(batch.mask)(batch.inputs, answers)
        before = {"energy": read, "probability": -space.log_prob(logits, answers.to(logits.dtype))}
        guesses = drawn.to(logits.dtype)
        quality, same = space.quality(guesses, batch.y), (drawn == answers[0]).flatten(2).all(-1)
        for name, order in before.items():
            ranks[name].append(rank_of_first(order, same))
        chosen = [before["probability"][1:].argmin(0), read[1:].argmin(0), quality.argmax(0)]
        picked = [guesses[one, torch.arange(len(one))] for one in chosen]
        for metric, answer in zip(
            metrics.values(), (scheme.predict(batch), guesses[0], *picked), strict=True
        ):
            judge(metric, batch, answer)
    rankings = {}
    for name, parts in ranks.items():
        rank = torch.cat(parts).double()
        rankings[name] = {"rank": float(rank.mean()), "reciprocal rank": float(rank.reciprocal().mean())}
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


def energy_of(scheme: Scheme) -> Energy:
    """The energy of a run.

    Raises:
        UserError: it has none; its answers are masks; it answers with other scores than those of its energy.
    """
    energy = scheme.model_energy()
    if isinstance(energy, MaskEnergy):
        raise UserError("the answers of this run are masks: python -m scripts.figures.mask_quality RUN_DIR")
    if not isinstance(energy, Energy):
        raise UserError(
            f"this {type(scheme).__name__} run has no energy. Give the folder of one that has, such as a run "
            "of conf/scheme/seal_dynamic.yaml."
        )
    if isinstance(scheme, CRFScheme) and type(scheme).predict is not CRFScheme.predict:
        raise UserError(
            f"this {type(scheme).__name__} run learns its scores in phases, and so may answer with others "
            "than those of its energy. Give a run of conf/scheme/crf_joint.yaml."
        )
    return energy


def network_of(scheme: Scheme) -> Callable[[Any], Tensor]:
    """The logits of the network whose answers are drawn.

    Raises:
        UserError: the scheme has none.
    """
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


def mean(runs: list[dict[str, Numbers]]) -> dict[str, Numbers]:
    """Of each number over the runs, to four digits."""
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
