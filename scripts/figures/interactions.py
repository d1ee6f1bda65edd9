"""Pairwise interactions in the energy of a finished run, compared with the data; numbers and a figure.

    python -m scripts.figures.interactions labels RUN_DIR     # a global energy of sets    [Implicit Figure 1]
    python -m scripts.figures.interactions tags RUN_DIR       # a linear chain             [Implicit Figure 2]
    python -m scripts.figures.interactions gradient RUN_DIR   # labels with a taxonomy     [SEAL Figure 2]

interactions_<kind>.png, .svg and .json (the numbers and the run's id) are written to the run's folder or to
--out. Answers are the run's own relaxed ones on validation rows, counts are of its training rows.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from datamodules.base import DeviceData
from datamodules.errors import DataError
from datamodules.mlc import MultiLabelData
from datamodules.readers.arff import ROOT_LABEL, read_arff
from datamodules.sources.files import unpack
from datamodules.sources.registry import data_set
from energies.chain import ChainEnergy
from energies.mlc import LabelMixEnergy
from experiments import store
from experiments.errors import UserError
from inference import interactions
from lightning_modules.base import Scheme
from scripts.figures import axes as interaction_figures
from scripts.finished.run import finished, of, term
from scripts.options import refused

LEAST = {"labels": 5, "tags": 5, "gradient": 10}  # least count in the training rows
ROWS, POINTS = 128, 9  # answers to average gradients over; values of y_i and y_k to plot
SMALLEST = 0.05  # replaces 0 in the derivative of cross-entropy
Numbers = list[tuple[str, float | int]]


def main(arguments: list[str] | None = None) -> int:
    """Parse, read the run, draw, print the numbers."""
    parser = argparse.ArgumentParser(prog="python -m scripts.figures.interactions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("kind", choices=KINDS, help="what to draw")
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--least", type=int, help="leave out what is less frequent in the training rows")
    parser.add_argument("--out", type=Path, help="another folder than the run's")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    place = (given.out or given.run) / f"interactions_{given.kind}"
    try:
        least = LEAST[given.kind] if given.least is None else given.least
        numbers, files = KINDS[given.kind](*finished(given.run), least, place)
        files.append(place.with_suffix(".json"))
        record = store.read_json(given.run / "record.json") or {}
        run = {"run": record.get("id"), "finished": record.get("finished")}
        known = [(name, value if math.isfinite(value) else None) for name, value in numbers]
        store.write_json(files[-1], run | {"least": least, "numbers": known})
    except (UserError, DataError) as error:
        return refused(error)
    for name, value in numbers:
        console.print(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value:.3g}")
    console.print(f"files: {', '.join(map(str, files))}", style="dim")
    return 0


@torch.no_grad()
def answers(scheme: Scheme, data: DeviceData) -> Tensor:
    """The relaxed label sets that the scheme predicts for validation rows."""
    return torch.cat([scheme.predict(batch) for batch in data.val_dataloader()])


def draw_labels(scheme: Scheme, data: DeviceData, least: int, place: Path) -> tuple[Numbers, list[Path]]:
    """Learnt interactions and the correlation of labels, clustered by the latter."""
    mix = term(scheme, LabelMixEnergy, "a global energy of label sets, such as conf/scheme/implicit.yaml")
    truth = data.splits["train"].y
    learned = interactions.label_interactions(mix, answers(scheme, data)).double()
    counts, phi = interactions.cooccurrences(truth), interactions.correlation(truth)
    alone = counts.diagonal()
    lift = interactions.log_lift(counts, alone, alone, len(truth))
    pairs = torch.ones_like(counts, dtype=torch.bool).triu(1) & phi.isfinite()
    often, never = pairs & (counts >= least), pairs & (counts == 0)
    kept = phi.diagonal().isfinite().nonzero().squeeze(1)
    order = kept[interactions.cluster_order(phi[kept][:, kept])]
    shown = [table[order][:, order].numpy() for table in (learned, phi.clone().fill_diagonal_(0))]
    agreement = interactions.rank_correlation(learned, phi, often)
    files = interaction_figures.side_by_side(
        place,
        [
            ("learned interactions", "- mean d²E / dy dy'", shown[0]),
            ("co-occurrence in the training rows", "correlation (phi)", shown[1]),
        ],
        heading=f"{of(scheme, data)}: rank correlation {agreement:.2f} over {int(often.sum())} pairs",
        names=None,
        axes_names=("labels, clustered by their correlation", ""),
    )
    return [
        (f"pairs of labels that {least} training rows or more have", int(often.sum())),
        ("  rank correlation of learned interaction and phi", agreement),
        ("  and log lift", interactions.rank_correlation(learned, lift, often)),
        ("  and count", interactions.rank_correlation(learned, counts, often)),
        ("  share with a positive interaction", share(learned[often] > 0)),
        ("pairs that no training row has", int(never.sum())),
        ("  share with a positive interaction", share(learned[never] > 0)),
    ], files


def draw_tags(scheme: Scheme, data: DeviceData, least: int, place: Path) -> tuple[Numbers, list[Path]]:
    """The transition matrix of a chain and the log lift of the pairs of tags in its training data."""
    chain = term(scheme, ChainEnergy, "a linear chain, such as conf/scheme/crf_joint.yaml")
    learned = chain.pairwise.detach().double()
    counts = interactions.tag_pairs(data.splits["train"].y)
    lift = interactions.log_lift(counts, counts.sum(1), counts.sum(0), int(counts.sum()))
    often = counts >= least
    agreement = interactions.rank_correlation(learned, lift, often)
    names = [*data.names] or [str(tag) for tag in range(len(learned))]
    files = interaction_figures.side_by_side(
        place,
        [
            ("learned transition matrix W", "score of a pair", learned.numpy()),
            ("pairs of tags in the training rows", "log lift (grey: no such pair)", lift.numpy()),
        ],
        heading=f"{of(scheme, data)}: rank correlation {agreement:.2f} over {int(often.sum())} pairs",
        names=names,
        axes_names=("tag", "next tag"),
    )
    flat = interactions.doubly_centred(learned)
    return [
        (f"pairs of tags that occur {least} times or more", int(often.sum())),
        ("  rank correlation of W and log lift", agreement),
        ("  of W less the means of its rows and columns", interactions.rank_correlation(flat, lift, often)),
    ], files


def draw_gradient(scheme: Scheme, data: DeviceData, least: int, place: Path) -> tuple[Numbers, list[Path]]:
    """Gradients in y_k over y_i and y_k: classes k above i, and labels without association."""
    mix = term(scheme, LabelMixEnergy, "a global energy of label sets, such as conf/scheme/energy_net.yaml")
    truth, above = data.splits["train"].y, taxonomy(label_names(data))
    related = above | above.T | torch.eye(len(above), dtype=torch.bool)
    pairs = (above & (truth.sum(0) >= least).unsqueeze(1)).nonzero()
    others = interactions.unassociated_like(pairs, truth, related, least=least)
    if not len(others):
        raise UserError(f"no class above another has {least} training rows. Lower it with --least.")
    found = answers(scheme, data)
    found = found[:: max(1, len(found) // ROWS)][:ROWS]
    grid = torch.linspace(0, 1, POINTS)
    bound, free = (interactions.pair_gradients(mix, found, chosen, grid) for chosen in (pairs, others))
    changes = [(surfaces[:, -1] - surfaces[:, 0]).mean(1).numpy() for surfaces in (bound, free)]
    entropy = interactions.cross_entropy_gradient(grid.clamp_min(SMALLEST))
    files = interaction_figures.gradients(
        place,
        [
            ("(a) cross-entropy, true $y_k$ = 1", entropy.numpy()),
            ("(b) global energy, $l_k$ above $l_i$", bound.mean(0).numpy()),
            ("(c) global energy, no association", free.mean(0).numpy()),
        ],
        list(zip(("$l_k$ above $l_i$", "no association"), changes, strict=True)),
        heading=f"{of(scheme, data)}: gradients in $y_k$, means over {len(pairs)} and {len(others)} pairs",
        grid=grid.numpy(),
    )
    return [
        (f"pairs (i, k), k a class above i, i in {least} training rows or more", len(pairs)),
        ("  mean change of the gradient in y_k as y_i goes from 0 to 1", float(changes[0].mean())),
        ("  share of pairs whose gradient falls", float((changes[0] < 0).mean())),
        ("pairs without association, the same k and an i as frequent", len(others)),
        ("  mean change", float(changes[1].mean())),
        ("  share of them whose gradient falls", float((changes[1] < 0).mean())),
    ], files


def share(holds: Tensor) -> float:
    """The share of True; NaN if there are none."""
    return float(holds.double().mean())


def label_names(data: DeviceData) -> tuple[str, ...]:
    """The labels in the order of their numbers, as the training file has them.

    Raises:
        UserError: the data are not read from a set's ARFF file.
    """
    if not isinstance(data, MultiLabelData) or data.fold_folder or data.dataset is None:
        raise UserError(
            f"{type(data).__name__} has no names for its labels. Give the folder of a run on classes of a "
            "taxonomy, such as conf/data/expr_fun.yaml."
        )
    if data.own:
        content, where = unpack(Path(data.own["train"])), str(data.own["train"])
    else:
        known = data_set(data.dataset)
        content, where = data.sources.read(known, known.files["train"]), known.files["train"].name
    names = read_arff(content, where=where, num_labels=data.num_labels, repeats=not data.own).labels
    return names[int(names[0] == ROOT_LABEL and not data.keep_root) :]


def taxonomy(names: Sequence[str]) -> Tensor:
    """Whether class k stands above class i, (L, L) bool at [i, k]: 01 stands above 01/02 and 01/02/03.

    Raises:
        UserError: no name says so.
    """
    above = torch.tensor([[name.startswith(f"{other}/") for other in names] for name in names])
    if not above.any():
        raise UserError(
            "none of the labels stands above another. Give the folder of a run on classes of a taxonomy, "
            "named like 01/02/03, such as conf/data/expr_fun.yaml."
        )
    return above


KINDS: dict[str, Callable[[Scheme, DeviceData, int, Path], tuple[Numbers, list[Path]]]] = {
    "labels": draw_labels,
    "tags": draw_tags,
    "gradient": draw_gradient,
}


if __name__ == "__main__":
    sys.exit(main())
