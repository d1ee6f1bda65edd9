"""The overhead of the schemes over a bare loop, and the gain of label sets stored by their members.

    python -m scripts.benchmarks.training

Parity first: the scheme and the bare loop end with the same weights, the two forms of a set with the same
gradients. CPU time, one thread, batch of 32. Last, the overhead of chains over their unary network: words as
long as the handwritten ones, a random picture for each letter. The online search of alpha uses the same share
of training words as on the real data. For joint training of taggers see scripts.benchmarks.sequences. At the
end come the tables of scripts.benchmarks.pictures (K masks a picture, gradient-based inference) and
scripts.benchmarks.gaussian_training (an epoch of a Gaussian field).
"""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from datamodules.batches import Batches
from energies.base import SumEnergy
from energies.chain import ChainEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.scaling import Online
from energies.spaces import LabelSets, TagSequences
from experiments.run.cli import quiet_lightning
from inference.chain import criteria
from lightning_modules.crf_joint import CRFJoint
from lightning_modules.crf_scaled import CRFScaled
from lightning_modules.cross_entropy import CrossEntropy
from lightning_modules.metrics.multilabel import MultiLabelScores
from lightning_modules.metrics.sequence import SequenceScores
from losses.objectives import Guesses, NCERanking
from networks.inputs import Sequences
from networks.lenet import LeNet
from networks.mlp import LabelMLP
from scripts.benchmarks import gaussian_training, pictures
from scripts.options import alone
from scripts.peers.bare import CD, FEATURES, LABELS, NCE, ROWS, FCNCrossEntropy, Loop, adamw, rows, trainer
from scripts.peers.timing import show, side_by_side

NETS = {"bibtex 1836-400-400-159": (FEATURES, LABELS, 2, 400), "tiny 8-8-8": (8, 8, 1, 8)}
SETS = {
    "bibtex K=20": (159, 200, 20, 2.4),
    "spo_fun K=40": (500, 300, 40, 8.7),
    "cal500 K=20": (174, 400, 20, 26),
}
EPOCHS = 3  # enough to hide the start of a run
WORDS, LENGTHS, LONGEST = 32 * 20, (7.6, 2.3), 14  # mean and deviation of the handwritten words
SEARCHED = 2000 / 5490  # of the words of eight folds
CRITERIA: dict[str, type[criteria.Criterion]] = {
    "likelihood": criteria.Likelihood,
    "SSVM": criteria.StructuredSVM,
    "CE": criteria.MarginalCrossEntropy,
    "CE (MF)": criteria.MeanFieldCrossEntropy,
}


def net_of(name: str) -> LabelMLP:
    """The same weights each time."""
    features, labels, layers, width = NETS[name]
    torch.manual_seed(0)
    return LabelMLP(features, labels, num_layers=layers, width=width)


def data_of(name: str) -> Batches:
    """Rows of the net's size."""
    features, labels, *_ = NETS[name]
    return rows(features, labels)


def bare(name: str, net: nn.Module) -> None:
    """A bare training loop."""
    optimizer, space, data = adamw(net.parameters()), LabelSets(NETS[name][1]), data_of(name)
    for epoch in range(EPOCHS):
        data.set_epoch(epoch)
        for batch in data:
            loss = space.supervise(net(batch.inputs), batch.y).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def scheme(name: str, net: nn.Module) -> None:
    """CrossEntropy under the Trainer."""
    labels = NETS[name][1]
    module = CrossEntropy(
        net, adamw, space=LabelSets(labels), metric=MultiLabelScores(labels), clip_norm=None
    )
    trainer(max_epochs=EPOCHS).fit(module, data_of(name))


class Usual(pl.LightningModule):
    """The same step as most projects write it: automatic optimization, a log each step."""

    def __init__(self, net: nn.Module, labels: int) -> None:
        super().__init__()
        self.net, self.space = net, LabelSets(labels)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        loss = self.space.supervise(self.net(x), y).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.net.parameters(), lr=1e-3)


def usual(name: str, net: nn.Module) -> None:
    """That, with a DataLoader over rows."""
    data = data_of(name)
    dataset = torch.utils.data.TensorDataset(data.inputs, data.y)
    trainer(max_epochs=EPOCHS).fit(
        Usual(net, NETS[name][1]), torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
    )


def loops() -> dict[str, dict[str, float]]:
    """Microseconds a step of each loop."""
    found = {}
    for name in NETS:
        one, other = net_of(name), net_of(name)
        bare(name, one)
        scheme(name, other)
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q), "the scheme and the bare loop part ways"
        calls = {"bare loop": bare, "CrossEntropy": scheme, "usual Lightning module": usual}
        times = side_by_side({k: partial(f, name, net_of(name)) for k, f in calls.items()}, repeats=2)
        found[name] = {k: t / (EPOCHS * ROWS / 32) for k, t in times.items()}
    return found


def beside(kind: type[Loop]) -> dict[str, float]:
    """Microseconds a step of a scheme and of its bare loop."""
    kind.check()
    times = side_by_side({"bare loop": kind().bare, "scheme": kind().scheme}, repeats=1)
    return {name: spent / kind.steps for name, spent in times.items()}


def sets() -> dict[str, dict[str, float]]:
    """Microseconds of drawing samples, their NCE loss and its gradient: by members, or label by label."""
    found = {}
    for name, (labels, patterns, samples, cardinality) in SETS.items():
        torch.manual_seed(0)
        local = LocalEnergy(LabelMLP(86, labels, num_layers=1, width=300))
        energy, space = SumEnergy(local, LabelMixEnergy(labels, patterns)), LabelSets(labels)
        x, y = torch.rand(32, 86), torch.zeros(32, labels)
        y[:, 0] = 1
        logits = torch.full((32, labels), cardinality / labels).logit()

        def step(
            draw: Callable[[], Tensor],
            e: SumEnergy = energy,
            p: LabelSets = space,
            o: tuple = (x, y, logits),
        ) -> list:
            e.zero_grad()
            NCERanking()(e, p, o[0], o[1], Guesses(draw(), o[2])).backward()
            return [q.grad.clone() for q in e.parameters() if q.grad is not None]

        members = partial(space.sample, logits, samples)
        coins = partial(toss, logits, samples)
        drawn = members()
        torch.testing.assert_close(step(drawn.clone), step(drawn.float), rtol=1e-3, atol=1e-4)
        calls = {"members": partial(step, members), "coins": partial(step, coins)}
        found[name] = side_by_side(calls, repeats=20)
    return found


def toss(logits: Tensor, num_samples: int) -> Tensor:
    """Samples drawn label by label, as dense tensors."""
    return (torch.rand(num_samples, *logits.shape) < logits.sigmoid()).to(logits.dtype)


def words() -> Batches:
    """Words as long as the real ones; a letter is a random picture with a tenth of its pixels flipped."""
    draw = torch.Generator().manual_seed(0)
    lengths = (LENGTHS[0] + LENGTHS[1] * torch.randn(WORDS, generator=draw)).round().clamp(3, LONGEST)
    mask = torch.arange(LONGEST) < lengths.unsqueeze(1)
    y = torch.randint(26, (WORDS, LONGEST), generator=draw)
    letters = torch.rand(26, 16, 8, generator=draw) < 0.3
    x = (letters[y] ^ (torch.rand(WORDS, LONGEST, 16, 8, generator=draw) < 0.1)).to(torch.uint8)
    y = nn.functional.one_hot(y, 26) * mask.unsqueeze(-1)
    return Batches(Sequences(x, mask), y, batch_size=32, seed=0)


def chains() -> dict[str, dict[str, float]]:
    """Microseconds an epoch of the letters' network alone, and of chains over it."""
    adam, data = partial(torch.optim.Adam, lr=1e-3, fused=True), words()

    def common() -> dict[str, Any]:
        return {"space": TagSequences(26), "metric": SequenceScores(), "clip_norm": None}

    def unary() -> None:
        trainer().fit(CrossEntropy(LeNet(), adam, **common()), data)

    def joint(criterion: criteria.Criterion) -> None:
        trainer().fit(CRFJoint(ChainEnergy(LeNet(), 26), criterion, adam, **common()), data)

    online = Online(subset=round(SEARCHED * WORDS))
    scaled = CRFScaled(ChainEnergy(LeNet(), 26), criteria.MarginalCrossEntropy(), online, adam, **common())
    trainer(max_epochs=10).fit(scaled, data)  # time a trained model, as in most of a run
    calls: dict[str, Callable[[], object]] = {
        "unary network": unary,
        **{f"joint, {name}": partial(joint, kind()) for name, kind in CRITERIA.items()},
        "search of alpha, CE": partial(scaled.choose_alpha, data),
    }
    return {"OCR": side_by_side(calls, repeats=1)}


def main() -> None:
    """Check, time, print."""
    quiet_lightning()
    warnings.filterwarnings("ignore")
    show("one training step", loops(), "bare loop")
    show("one step of FCN-CE, 8 windows of 24 x 24", {"horses": beside(FCNCrossEntropy)}, "bare loop")
    show(
        "one step of a scheme with an energy",
        {kind.__name__: beside(kind) for kind in (NCE, CD)},
        "bare loop",
    )
    show("NCE samples, loss and gradient", sets(), "members")
    show("one epoch of chains", chains(), "unary network")
    pictures.main()
    gaussian_training.main()


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
