"""Schemes beside bare loops that take the same steps with the same random numbers."""

from abc import ABC, abstractmethod
from functools import cache, partial

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.batches import Batch, Batches
from datamodules.transforms import RandomCrop
from energies.base import SumEnergy
from energies.mlc import LabelMixEnergy, LocalEnergy
from energies.spaces import LabelSets, PixelMasks
from inference.bilevel import Bilevel, Dual, Neumann, OuterStep
from inference.guesses import Combined, GuessContext, Point, Sampled
from lightning_modules.base import Scheme
from lightning_modules.cross_entropy import CrossEntropy
from lightning_modules.engine.bookkeeping import mix
from lightning_modules.implicit import Implicit
from lightning_modules.metrics.masks import MaskScores
from lightning_modules.metrics.multilabel import MultiLabelScores
from lightning_modules.seal_dynamic import SealDynamic
from losses.objectives import Contrastive, EnergyFn, NCERanking
from losses.task import EnergyAndSupervision
from networks.fcn import FCN
from networks.mlp import LabelMLP

FEATURES, LABELS, ROWS = 1836, 159, 32 * 139  # those of bibtex
adamw = partial(torch.optim.AdamW, lr=1e-3, fused=True)


def rows(features: int, labels: int, count: int = ROWS) -> Batches:
    """Rows as dense tensors, cut into batches of 32."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(ROWS, features, generator=generator) < 0.04).float()
    y = (torch.rand(ROWS, labels, generator=generator) < 0.1).float()
    return Batches(x[:count], y[:count], batch_size=32, seed=0)


def trainer(**options: object) -> pl.Trainer:
    """A trainer without extras, on the CPU, for one epoch by default."""
    defaults: dict[str, object] = {
        "max_epochs": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return pl.Trainer(accelerator="cpu", logger=False, **(defaults | options))  # type: ignore[arg-type]


class Loop(ABC):
    """Networks trained by a scheme or by a bare loop."""

    epochs = 1
    steps: int  # of any optimizer, in all

    @abstractmethod
    def networks(self) -> list[nn.Module]:
        """All that is trained."""

    @abstractmethod
    def module(self) -> Scheme:
        """The scheme."""

    @abstractmethod
    def bare(self) -> None:
        """The bare loop."""

    def scheme(self) -> None:
        """The scheme under the Trainer."""
        trainer(max_epochs=self.epochs).fit(self.module(), self.data())

    @abstractmethod
    def data(self) -> Batches:
        """The batches of an epoch."""

    @classmethod
    def check(cls) -> None:
        """Both end with the same weights."""
        one, other = cls(), cls()
        one.bare()
        other.scheme()
        for mine, theirs in zip(one.networks(), other.networks(), strict=True):
            for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
                assert torch.equal(p, q), f"{cls.__name__}: the scheme and the bare loop part ways"


class LabelLoop(Loop):
    """A task-net and an energy of bibtex, trained for one epoch."""

    space = LabelSets(LABELS)
    layers: int
    width: int
    patterns: int
    dropout = 0.0
    count: int  # of rows in an epoch

    def __init__(self) -> None:
        torch.manual_seed(0)
        sizes = {"num_layers": self.layers, "width": self.width}
        net = partial(LabelMLP, FEATURES, LABELS, dropout=self.dropout, **sizes)
        self.task = net()
        self.energy = SumEnergy(LocalEnergy(net()), LabelMixEnergy(LABELS, self.patterns))

    def networks(self) -> list[nn.Module]:
        """Both."""
        return [self.task, self.energy]

    def data(self) -> Batches:
        """The batches of an epoch."""
        return rows(FEATURES, LABELS, self.count)

    def common(self) -> dict:
        """Arguments of every scheme."""
        return {"space": self.space, "metric": MultiLabelScores(LABELS)}


class FCNCrossEntropy(Loop):
    """FCN-CE as on the horses: batches of 8 random windows, Adam, clipping; random pictures."""

    pictures, epochs = 160, 5
    steps = epochs * pictures // 8

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.task, self.space = FCN(), PixelMasks()
        self.optimizer = partial(torch.optim.Adam, lr=2e-3, weight_decay=5.9e-5, fused=True)

    def networks(self) -> list[nn.Module]:
        """The task-net."""
        return [self.task]

    def data(self) -> Batches:
        """The same pictures each time."""
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(256, (self.pictures, 3, 32, 32), generator=draw, dtype=torch.uint8)
        y = (torch.rand(self.pictures, 32, 32, generator=draw) < 0.3).to(torch.uint8)
        return Batches(x, y, batch_size=8, seed=0, transform=RandomCrop(24, 24))

    def module(self) -> CrossEntropy:
        return CrossEntropy(self.task, self.optimizer, space=self.space, metric=MaskScores(), clip_norm=8.0)

    def bare(self) -> None:
        """With PyTorch alone but for the batches."""
        optimizer, data = self.optimizer(self.task.parameters()), self.data()
        for epoch in range(self.epochs):
            data.set_epoch(epoch)
            for batch in data:
                logits = self.task(batch.inputs)
                loss = F.binary_cross_entropy_with_logits(logits, batch.y, reduction="none")
                optimizer.zero_grad()
                loss.mean((-2, -1)).mean().backward()
                nn.utils.clip_grad_norm_(self.task.parameters(), 8.0)
                optimizer.step()


class NCE(LabelLoop):
    """SEAL-dynamic NCE as released: 12 energy steps and a task step, 5 times a batch."""

    layers, width, patterns, count = 2, 400, 200, 32 * 4
    inner, outer = 12, 5
    steps = 4 * outer * (inner + 1)
    objective, guess, task_loss = NCERanking(), Sampled(20), EnergyAndSupervision(5.515)

    def __init__(self) -> None:
        super().__init__()
        self.task.labels.weight.data.sub_(0.0125)  # so that samples have few labels, as after an epoch

    def module(self) -> SealDynamic:
        return SealDynamic(
            self.task,
            self.energy,
            self.objective,
            self.guess,
            self.task_loss,
            adamw,
            adamw,
            inner_steps=self.inner,
            outer_steps=self.outer,
            **self.common(),
        )

    def bare(self) -> None:
        """With the clipping of the task-net's gradient."""
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


class CD(LabelLoop):
    """Implicit with contrastive divergence: 5 steps of the task-net, one of the energy, K = 5."""

    layers, width, patterns, dropout, count = 2, 150, 16, 0.5, ROWS
    inner, damping, refresh = 5, 1.0, 50
    steps = 139 * (inner + 1)
    objective, guess = Contrastive(), Combined([Point(), Sampled(9)])
    solver, products = Neumann(5), Dual()

    def module(self) -> Implicit:
        return Implicit(
            self.task,
            self.energy,
            self.objective,
            self.guess,
            adamw,
            adamw,
            self.solver,
            self.products,
            inner_steps=self.inner,
            warm_up=0,
            damping=self.damping,
            refresh=self.refresh,
            **self.common(),
        )

    def bare(self) -> None:
        """With this project's hypergradient: the loop around it is what is timed."""
        theta, phi = list(self.task.parameters()), list(self.energy.parameters())
        task, energy = adamw(theta), adamw(phi)
        outer = OuterStep(self.solver, self.products, damping=self.damping, refresh=self.refresh)
        for step, batch in enumerate(self.data()):
            self.energy.requires_grad_(False)
            given = self.given_once()
            for turn in range(self.inner):
                torch.default_generator.manual_seed(mix(0, 0, 0, self.inner * step + turn))
                task.zero_grad()
                self.inner_loss(given, batch, self.task(batch.inputs)).backward()
                nn.utils.clip_grad_norm_(theta, 10.0)
                task.step()
            self.energy.requires_grad_(True)
            torch.default_generator.manual_seed(mix(0, 0, 1, step))
            found = outer(partial(self.problem, batch), step)
            for p, gradient in zip(phi, found.gradient, strict=True):
                p.grad = gradient
            nn.utils.clip_grad_norm_(phi, 1.0)
            energy.step()

    def given_once(self) -> EnergyFn:
        """The energy; what depends on the input is computed at the first answer."""
        given = cache(self.energy.given)
        return lambda x, y: given(x)(y)

    def problem(self, batch: Batch) -> Bilevel:
        """Both losses of a batch."""
        given = self.given_once()
        inner, outer = partial(self.inner_loss, given, batch), partial(self.outer_loss, given, batch)
        return Bilevel(self.task, batch.inputs, inner, outer, list(self.energy.parameters()))

    def inner_loss(self, energy: EnergyFn, batch: Batch, logits: Tensor) -> Tensor:
        """The cross-entropy of A(x) plus E(x, A(x))."""
        return (energy(batch.inputs, logits.sigmoid()) + self.space.supervise(logits, batch.y)).mean()

    def outer_loss(self, energy: EnergyFn, batch: Batch, logits: Tensor) -> Tensor:
        """Contrastive divergence."""
        guesses = self.guess(
            GuessContext(self.energy, self.objective, self.space, batch.inputs, batch.y, logits)
        )
        return self.objective(energy, self.space, batch.inputs, batch.y, guesses)
