"""The overhead of joint training of taggers over a bare loop, and the speed of each form of the networks.

    python -m scripts.benchmarks.sequences

Tweets of random words: a chain with start and end scores over a BiLSTM, the compound objective, one step of
the networks, then one of the energy. Parity first: the scheme and the bare loop end with the same weights.
CPU time, one thread. Last, the speed of each form of A and F.   [InfNet+ Table 2]
"""

import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from datamodules.batches import Batches
from energies.chain import ChainEnergy
from energies.spaces import TagSequences
from experiments.run.cli import quiet_lightning
from inference.networks import InferenceNetworks, Separated, Shared, Stacked
from lightning_modules.infnet import InfNet
from lightning_modules.metrics.sequence import SequenceScores
from losses.joint import Compound
from networks.bilstm import BiLSTM, Tagger
from networks.inputs import Sequences
from networks.mlp import StackedHead
from networks.words import WordFeatures
from scripts.options import alone
from scripts.peers.bare import trainer
from scripts.peers.timing import show, side_by_side

TWEETS, BATCH = 1000, 10
EPOCHS, ROUNDS = 4, 15  # short ones, side by side: a shared machine changes its speed within a minute
LENGTHS, LONGEST = (14.7, 8.0), 38  # mean, deviation and longest of the tweets to train on
WORDS, DIMS, WIDTH, TAGS = 10_550, 125, 100, 25
PAPER = {"separated": 66, "shared": 78, "stacked": 92}  # examples a second, hardware not named
sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9, fused=True)
adam = partial(torch.optim.Adam, lr=1e-3, fused=True)


def tweets() -> Batches:
    """Words and tags drawn at random, in sentences as long as tweets."""
    draw = torch.Generator().manual_seed(0)
    lengths = (LENGTHS[0] + LENGTHS[1] * torch.randn(TWEETS, generator=draw)).round().clamp(1, LONGEST)
    mask = torch.arange(LONGEST) < lengths.unsqueeze(1)
    x = torch.randint(2, WORDS, (TWEETS, LONGEST, 1), generator=draw) * mask.unsqueeze(-1)
    y = nn.functional.one_hot(torch.randint(TAGS, mask.shape, generator=draw), TAGS) * mask.unsqueeze(-1)
    return Batches(Sequences(x, mask), y, batch_size=BATCH, seed=0, pool=20)


def features() -> BiLSTM:
    """The feature network of each."""
    words = WordFeatures(WORDS, WORDS, num_dims=DIMS, tuned=False)
    words.rows.copy_(torch.arange(WORDS))
    return BiLSTM(words, WIDTH)


def module_of(networks: InferenceNetworks) -> InfNet:
    """The scheme, with the settings of the table."""
    energy = ChainEnergy(Tagger(features(), TAGS, bias=False), TAGS, ends=True, pairwise_range=0.02)
    space, metric = TagSequences(TAGS, reduction="sum"), SequenceScores()
    return InfNet(networks, energy, Compound(), adam, sgd, space=space, metric=metric, clip_norm=None)


def ways() -> dict[str, InfNet]:
    """A scheme for each form of the networks."""
    torch.manual_seed(0)
    return {
        "separated": module_of(Separated(Tagger(features(), TAGS), Tagger(features(), TAGS))),
        "shared": module_of(Shared(features(), TAGS)),
        "stacked": module_of(Stacked(Tagger(features(), TAGS), StackedHead(TAGS))),
    }


def scheme(module: InfNet, data: Batches, epochs: int = EPOCHS) -> None:
    """The epochs under the Trainer."""
    trainer(max_epochs=epochs).fit(module, data)


class BareLoop:
    """The stacked networks and their energy, with each loss written out."""

    def __init__(self, module: InfNet) -> None:
        networks, energy = module.networks, module.energy
        assert isinstance(networks, Stacked) and isinstance(energy, ChainEnergy)
        assert energy.start is not None and energy.end is not None
        self.tagger, self.head, self.energy = networks.test, networks.head, energy
        self.tables = energy.pairwise, energy.start, energy.end

    def train(self, data: Batches, epochs: int = EPOCHS) -> None:
        """The epochs."""
        moved = sgd([*self.tagger.parameters(), *self.head.parameters()])
        taught = adam(self.energy.parameters())
        for epoch in range(epochs):
            data.set_epoch(epoch)
            for batch in data:
                assert batch.mask is not None
                unary = self.energy.net(batch.inputs)
                self.move(moved, self.networks_loss(batch.inputs, batch.y, batch.mask, unary.detach()))
                self.move(taught, self.energy_loss(batch.inputs, batch.y, batch.mask, unary))

    def move(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        """One step."""
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def networks_loss(self, x: Tensor, y: Tensor, mask: Tensor, unary: Tensor) -> Tensor:
        """E(F) - cost(F) + E(A) + the cross-entropy of A."""
        logits, a, f = self.answers(x, y, mask)
        pairwise, start, end = (table.detach() for table in self.tables)
        energies = -score(torch.stack([f, a]), unary, pairwise, start, end, mask)
        supervision = -(logits.log_softmax(-1) * mask.unsqueeze(-1) * y).sum((1, 2))
        return (energies.sum(0) - cost(f, y, mask) + supervision).mean()

    def energy_loss(self, x: Tensor, y: Tensor, mask: Tensor, unary: Tensor) -> Tensor:
        """[cost(F) - E(F) + E(y)]_+ + [E(y) - E(A)]_+."""
        with torch.no_grad():
            _, a, f = self.answers(x, y, mask)
        of_f, of_a, of_y = score(torch.stack([f, a, y]), unary, *self.tables, mask)
        return ((cost(f, y, mask) + of_f - of_y).relu() + (of_a - of_y).relu()).mean()

    def answers(self, x: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of A, the answers of A and of F."""
        real = mask.unsqueeze(-1)
        logits = self.tagger(x)
        a = logits.softmax(-1) * real
        return logits, a, self.head(a.detach(), y).softmax(-1) * real


def score(y: Tensor, unary: Tensor, pairwise: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Minus the energy of each answer, (K, B)."""
    last = y[:, torch.arange(len(mask)), mask.sum(1) - 1]
    steps = ((y[:, :, :-1] @ pairwise) * y[:, :, 1:]).sum((2, 3))
    return (unary * y).sum((2, 3)) + steps + y[:, :, 0] @ start + last @ end


def cost(guess: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """The L1 distance of two answers, (B,)."""
    return 2 * (mask.sum(1) - (guess * y).sum((1, 2)))


def check() -> None:
    """After two epochs of float64 both have the same weights; over ten a rounding grows until they part."""
    module, data = ways()["stacked"].double(), tweets()
    bare = deepcopy(module)
    scheme(module, data, epochs=2)
    BareLoop(bare).train(data, epochs=2)
    for (name, p), q in zip(module.named_parameters(), bare.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-9, atol=1e-12), f"{name}: the scheme and the bare loop part ways"


def contenders() -> dict[str, Callable[[], object]]:
    """The epochs of each."""
    data, modules = tweets(), ways()
    loop = BareLoop(deepcopy(modules["stacked"]))
    return {
        "bare loop, stacked": partial(loop.train, data),
        **{name: partial(scheme, module, data) for name, module in modules.items()},
    }


def main() -> None:
    """Check, time, print."""
    quiet_lightning()
    warnings.filterwarnings("ignore")
    check()
    tweet = {
        name: time / EPOCHS / TWEETS
        for name, time in side_by_side(contenders(), repeats=1, rounds=ROUNDS).items()
    }
    steps = {name: time * BATCH for name, time in tweet.items()}
    show("one step of the networks and one of the energy", {"POS": steps}, "bare loop, stacked")
    speeds = Table("", "examples a second", "the paper's", title="training speed")
    for name, paper in PAPER.items():
        speeds.add_row(name, f"{1e6 / tweet[name]:.0f}", str(paper))
    Console().print(speeds)


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
