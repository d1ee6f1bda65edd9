"""Batches in which some answers are not known: what is known teaches, and what is not changes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from datamodules.base import Split, drawn_rows
from datamodules.batches import Batch, Batches
from energies.spaces import AnswerSpace
from inference.guesses import CostAugmented, GuessContext
from lightning_modules.base import Scheme
from losses.objectives import Contrastive, Guesses, Margin, NCERanking, Objective, Ranking, Regression
from losses.released import CostAugmentedTask, ReleasedMargin
from losses.task import EnergyAndSupervision, TaskLoss
from test_crf_schemes import Data as ChainData
from test_crf_schemes import scheme as crf_scheme
from test_implicit import implicit
from test_infnet import infnet
from test_schemes import SCHEMES, SEARCH, SPACES, Data, Net, ToyEnergy, fit, scheme

OBSERVED = torch.tensor([True, False, True, True, False, False, True, False])
OBJECTIVES = [Margin(), Regression(), Contrastive(), NCERanking(), Ranking(), ReleasedMargin(0.3)]


class Head(nn.Module):
    """A second answer made of the first and the truth, entry by entry."""

    def forward(self, prediction: Tensor, y: Tensor) -> Tensor:
        return prediction - 0.5 * y


TASK_LOSSES = [EnergyAndSupervision(0.3, 0.7), CostAugmentedTask(Head(), energy_weight=0.2)]


class Case:
    """A batch of a kind of answer of which half is hidden, as garbage; a net, an energy and guesses."""

    def __init__(self, space: str, observed: Tensor = OBSERVED, garbage: float = torch.nan) -> None:
        torch.manual_seed(0)
        kind, shape = SPACES[space]
        data = Data(space)
        y, hidden = data.y.double(), ~observed.view(-1, *[1] * (data.y.dim() - 1))
        self.batch = Batch(data.inputs.double(), y.masked_fill(hidden, garbage), data.mask, observed)
        self.net, self.energy = Net(shape).double(), ToyEnergy(shape).double()
        self.kind, self.index = kind, observed.nonzero().squeeze(1)
        self.logits = self.net(self.batch.inputs)
        drawn = self.space().sample(self.logits, 3).double()
        self.guesses = Guesses(drawn, self.logits.detach())

    def space(self, rows: Tensor | slice = slice(None)) -> AnswerSpace:
        return self.kind.over(None if self.batch.mask is None else self.batch.mask[rows])

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        learned = [*self.net.parameters(), *self.energy.parameters()]
        return torch.autograd.grad(
            loss, learned, retain_graph=True, allow_unused=True, materialize_grads=True
        )


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: type(objective).__name__)
def test_an_objective_of_some_answers_is_that_of_the_examples_that_have_them(
    objective: Objective, space: str
) -> None:
    of = Case(space)
    batch, rows = of.batch, of.index
    loss = objective(of.energy, of.space(), batch.inputs, batch.y, of.guesses, batch.observed)
    known = Guesses(of.guesses.y[:, rows], of.logits.detach()[rows])
    want = objective(of.energy, of.space(rows), batch.inputs[rows], batch.y[rows], known)
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(of.gradients(loss), of.gradients(want))
    none = Case(space, torch.zeros(8, dtype=torch.bool))
    batch = none.batch
    nothing = objective(none.energy, none.space(), batch.inputs, batch.y, none.guesses, batch.observed)
    assert nothing == 0 and not any(gradient.any() for gradient in none.gradients(nothing))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("task_loss", TASK_LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_task_loss_takes_the_energy_of_all_and_the_truth_of_those_that_have_one(
    task_loss: TaskLoss, space: str
) -> None:
    of = Case(space)
    batch, rows = of.batch, of.index
    loss = task_loss(of.energy, of.space(), batch.inputs, batch.y, of.logits, batch.observed)
    assert isinstance(task_loss, EnergyAndSupervision | CostAugmentedTask)
    weighted = task_loss.energy_weight * of.energy(batch.inputs, of.space().relax(of.logits))
    known = task_loss(of.energy, of.space(rows), batch.inputs[rows], batch.y[rows], of.logits[rows])
    want = known - weighted[rows].mean() + weighted.mean()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(of.gradients(loss), of.gradients(want))
    none = Case(space, torch.zeros(8, dtype=torch.bool))
    alone = task_loss(
        none.energy, none.space(), none.batch.inputs, none.batch.y, none.logits, none.batch.observed
    )
    torch.testing.assert_close(alone, weighted.mean())


@pytest.mark.parametrize("space", SPACES)
def test_a_search_that_looks_at_the_truth_meets_no_garbage(space: str) -> None:
    found = []
    for garbage in (torch.nan, 7.0):
        of = Case(space, garbage=garbage)
        inputs, y = of.batch.inputs.float(), of.batch.y.float()
        case = GuessContext(of.energy.float(), Margin(), of.space(), inputs, y)
        found.append(CostAugmented(SEARCH)(case).y)
    assert torch.equal(*found) and found[0].isfinite().all()


class Hidden(Data):
    """Every second training answer is hidden; what stands in its place is garbage."""

    def __init__(self, space: str, garbage: float) -> None:
        super().__init__(space)
        self.y[~OBSERVED] = garbage

    def train_dataloader(self) -> Batches:
        return Batches(self.inputs, self.y, batch_size=4, seed=0, mask=self.mask, observed=OBSERVED)

    def val_dataloader(self) -> Batches:
        return Data.val_dataloader(Data("sets" if self.mask is None else "tags"))


class HiddenChain(ChainData):
    """The same for chains."""

    def __init__(self, garbage: float) -> None:
        super().__init__()
        self.taught = self.y.float()
        self.taught[~OBSERVED] = garbage

    def train_dataloader(self) -> Batches:
        whole = super().train_dataloader()
        return Batches(whole.inputs, self.taught, batch_size=4, seed=0, observed=OBSERVED)


ALL: dict[str, Callable[[], Scheme]] = {
    **{name: lambda name=name: scheme(name, "tags") for name in SCHEMES},
    "infnet": lambda: infnet("tags"),
    "implicit": lambda: implicit("tags"),
    **{name: lambda name=name: crf_scheme(name) for name in ("joint", "online", "regularised")},
}


@pytest.mark.parametrize("name", ALL)
def test_what_stands_in_the_place_of_hidden_answers_changes_no_training(name: str, tmp_path: Path) -> None:
    ends = []
    for place, garbage in enumerate((torch.nan, 5.0)):
        module = ALL[name]()
        chain = name in ("joint", "online", "regularised")
        before = {key: value.clone() for key, value in module.state_dict().items()}
        fit(module, HiddenChain(garbage) if chain else Hidden("tags", garbage), 2, tmp_path / str(place))
        ends.append(module.state_dict())
        assert any(not torch.equal(value, before[key]) for key, value in ends[-1].items())
    for key, value in ends[0].items():
        assert torch.equal(value, ends[1][key]) and value.isfinite().all(), key


def test_drawn_examples_stay_in_their_order() -> None:
    rows = drawn_rows(Split(torch.arange(50.0), torch.arange(50)), 9, 0).y.tolist()
    assert rows == sorted(rows) and len(rows) == 9
