"""Compare a finished run's answers with the exact minimum of its energy, on validation.

    python -m scripts.exact_minimum RUN_DIR

For runs whose energy is a linear chain. Inference networks, gradient-based inference and bilevel training
approximate its minimum; the Viterbi algorithm finds it. Energies are means over sentences.
"""

import argparse
import copy
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from datamodules.base import DeviceData
from datamodules.errors import DataError
from energies.chain import ChainEnergy
from energies.scaling import ScaledEnergy
from experiments.errors import UserError
from inference.exact import lowest
from lightning_modules.base import Scheme
from lightning_modules.engine.bookkeeping import judge, scores_of
from scripts.finished.run import finished, of
from scripts.options import refused

Row = dict[str, float]  # the energy, then scores
ANSWERS = ("the truth", "the run's", "the lowest")


def main(arguments: list[str] | None = None) -> int:
    """Parse, read the run, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m scripts.exact_minimum", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    given = parser.parse_args(arguments)
    try:
        scheme, data = finished(given.run)
        rows, below = compare(scheme, data)
    except (UserError, DataError) as error:
        return refused(error)
    scores = list(rows["the run's"])
    table = Table("answers", *scores, title=f"{of(scheme, data)}, validation")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[score]:.4f}" if score in row else "" for score in scores))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(f"sentences whose truth has less energy than the run's answer: {below:.1%}")
    return 0


@torch.no_grad()
def compare(scheme: Scheme, data: DeviceData) -> tuple[dict[str, Row], float]:
    """Mean energy and scores of each of ANSWERS, and how often the truth lies below the run's answer.

    Raises:
        UserError: the scheme's energy is no chain.
    """
    chain = scheme.model_energy()
    learnt = chain.energy if isinstance(chain, ScaledEnergy) else chain
    if chain is None or not isinstance(learnt, ChainEnergy):
        what = f"the energy of this run is a {type(learnt).__name__}" if chain else "this run has no energy"
        raise UserError(
            f"{what}; its minimum cannot be found exactly. Give the folder of a run whose energy is a "
            "ChainEnergy, such as one of conf/scheme/infnet.yaml on tags."
        )
    found: list[Tensor] = []
    metrics = {name: copy.deepcopy(scheme.metric) for name in ANSWERS[1:]}
    for batch in data.val_dataloader():
        of_answer = chain.over(batch.mask).given(batch.inputs)
        own = scheme.predict(batch)
        best = lowest(of_answer)
        found.append(of_answer(torch.stack([batch.y.to(own.dtype), own, best])))
        for metric, answer in zip(metrics.values(), (own, best), strict=True):
            judge(metric, batch, answer)
    energies = torch.cat(found, -1)
    rows = {name: {"energy": float(mean)} for name, mean in zip(ANSWERS, energies.mean(-1), strict=True)}
    for name, metric in metrics.items():
        rows[name] |= {score: float(value) for score, value in scores_of(metric, choose=False).items()}
    return rows, float((energies[0] < energies[1]).double().mean())


if __name__ == "__main__":
    sys.exit(main())
