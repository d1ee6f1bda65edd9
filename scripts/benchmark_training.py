"""The overhead of the schemes over a bare loop, and the gain of label sets stored by their members.

    python -m scripts.benchmark_training

Parity first: the scheme and the bare loop end with the same weights, the two forms of a set with the same
gradients. CPU time, one thread, batch of 32. Last, the overhead of chains over their unary network: words as
long as the handwritten ones, a random picture for each letter. The online search of alpha uses the same share
of training words as on the real data. For joint training of taggers see scripts.benchmark_sequences.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from datamodules.batches import Batch, Batches
from energies.base import SumEnergy
from energies.chain import ChainEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.scaling import Online
from energies.spaces import LabelSets, TagSequences
from experiments.run.cli import quiet_lightning
from inference.chain import criteria
from inference.guesses import GuessContext, Sampled
from lightning_modules.bookkeeping import mix
from lightning_modules.crf_joint import CRFJoint
from lightning_modules.crf_scaled import CRFScaled
from lightning_modules.cross_entropy import CrossEntropy
from lightning_modules.metrics.multilabel import MultiLabelScores
from lightning_modules.metrics.sequence import SequenceScores
from lightning_modules.seal_dynamic import SealDynamic
from losses.objectives import Guesses, NCERanking
from losses.task import EnergyAndSupervision
from networks.inputs import Sequences
from networks.lenet import LeNet
from networks.mlp import LabelMLP
from scripts.peers.timing import show, side_by_side

NETS = {"bibtex 1836-400-400-159": (1836, 159, 2, 400), "tiny 8-8-8": (8, 8, 1, 8)}
SETS = {
    "bibtex K=20": (159, 200, 20, 2.4),
    "spo_fun K=40": (500, 300, 40, 8.7),
    "cal500 K=20": (174, 400, 20, 26),
}
ROWS, EPOCHS = 32 * 139, 3  # the rows of bibtex; enough epochs to hide the start of a run
WORDS, LENGTHS, LONGEST = 32 * 20, (7.6, 2.3), 14  # mean and deviation of the handwritten words
SEARCHED = 2000 / 5490  # of the words of eight folds
CRITERIA: dict[str, type[criteria.Criterion]] = {
    "likelihood": criteria.Likelihood,
    "SSVM": criteria.StructuredSVM,
    "CE": criteria.MarginalCrossEntropy,
    "CE (MF)": criteria.MeanFieldCrossEntropy,
}
adamw = partial(torch.optim.AdamW, lr=1e-3, fused=True)


def net_of(name: str) -> LabelMLP:
    """The same weights each time."""
    features, labels, layers, width = NETS[name]
    torch.manual_seed(0)
    return LabelMLP(features, labels, num_layers=layers, width=width)


def data_of(name: str) -> Batches:
    """Rows as dense tensors, cut into batches."""
    features, labels, *_ = NETS[name]
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(ROWS, features, generator=generator) < 0.04).float()
    return Batches(x, (torch.rand(ROWS, labels, generator=generator) < 0.1).float(), batch_size=32, seed=0)


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


def trainer(**options: object) -> pl.Trainer:
    """A trainer without extras, on the CPU, for one epoch by default."""
    defaults: dict[str, object] = {
        "max_epochs": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return pl.Trainer(accelerator="cpu", logger=False, **(defaults | options))  # type: ignore[arg-type]


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
    rows = torch.utils.data.TensorDataset(data.inputs, data.y)
    trainer(max_epochs=EPOCHS).fit(
        Usual(net, NETS[name][1]), torch.utils.data.DataLoader(rows, batch_size=32, shuffle=True)
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


class NCE:
    """SEAL-dynamic NCE of bibtex, as released: 12 energy steps and a task step, 5 times a batch."""

    features, labels, layers, width = NETS["bibtex 1836-400-400-159"]
    inner, outer, rows = 12, 5, 32 * 4
    space, objective, guess = LabelSets(labels), NCERanking(), Sampled(20)
    task_loss = EnergyAndSupervision(5.515)

    def __init__(self) -> None:
        torch.manual_seed(0)
        net = partial(LabelMLP, self.features, self.labels, num_layers=self.layers, width=self.width)
        self.task, self.energy = net(), SumEnergy(LocalEnergy(net()), LabelMixEnergy(self.labels, 200))
        self.task.labels.weight.data.sub_(0.0125)  # so that samples have few labels, as after an epoch

    def data(self) -> Batches:
        whole = data_of("bibtex 1836-400-400-159")
        return Batches(whole.inputs[: self.rows], whole.y[: self.rows], batch_size=32, seed=0)

    def scheme(self) -> None:
        """Under the Trainer."""
        module = SealDynamic(
            self.task,
            self.energy,
            self.objective,
            self.guess,
            self.task_loss,
            adamw,
            adamw,
            inner_steps=self.inner,
            outer_steps=self.outer,
            space=self.space,
            metric=MultiLabelScores(self.labels),
        )
        trainer().fit(module, self.data())

    def bare(self) -> None:
        """The same steps and random numbers in a bare loop, with the clipping of the task-net's gradient."""
        optimizers = {"task": adamw(self.task.parameters()), "energy": adamw(self.energy.parameters())}
        counts = {"task": 0, "energy": 0}
        for batch in self.data():
            for _ in range(self.outer):
                for part in ["energy"] * self.inner + ["task"]:
                    torch.default_generator.manual_seed(mix(0, 0, list(counts).index(part), counts[part]))
                    counts[part] += 1
                    optimizers[part].zero_grad()
                    self.loss(part, batch).backward()
                    if part == "task":
                        nn.utils.clip_grad_norm_(self.task.parameters(), 10.0)
                    optimizers[part].step()

    def loss(self, part: str, batch: Batch) -> Tensor:
        """The loss of a part, the other part frozen."""
        self.energy.requires_grad_(part == "energy")
        if part == "task":
            return self.task_loss(self.energy, self.space, batch.inputs, batch.y, self.task(batch.inputs))
        with torch.no_grad():
            logits = self.task(batch.inputs)
            drawn = self.guess(
                GuessContext(self.energy, self.objective, self.space, batch.inputs, batch.y, logits)
            )
        return self.objective(self.energy, self.space, batch.inputs, batch.y, drawn)


def dynamic() -> dict[str, dict[str, float]]:
    """Microseconds a step."""
    one, other = NCE(), NCE()
    one.bare()
    other.scheme()
    for mine, theirs in ((one.task, other.task), (one.energy, other.energy)):
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(p, q), "the scheme and the bare loop part ways"
    times = side_by_side({"bare loop": NCE().bare, "SEAL-dynamic NCE": NCE().scheme}, repeats=1)
    steps = NCE.rows / 32 * NCE.outer * (NCE.inner + 1)
    return {"bibtex, K = 20": {name: spent / steps for name, spent in times.items()}}


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
    pictures = torch.rand(26, 16, 8, generator=draw) < 0.3
    x = (pictures[y] ^ (torch.rand(WORDS, LONGEST, 16, 8, generator=draw) < 0.1)).to(torch.uint8)
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
    show("one step of SEAL-dynamic NCE", dynamic(), "bare loop")
    show("NCE samples, loss and gradient", sets(), "members")
    show("one epoch of chains", chains(), "unary network")


if __name__ == "__main__":
    main()
