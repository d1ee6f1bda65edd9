"""An energy that cannot be trained as it is: one sentence, by hand and in a loop of one's own."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from energies.base import ConditionedEnergy, Energy
from energies.check import check_energy
from energies.mlc import LocalEnergy
from energies.spaces import LabelSets, TagSequences
from energies.tag_lm import TagLMEnergy
from scripts import train

ROOT = Path(__file__).resolve().parent.parent


class Summed(Energy):
    """An energy whose author summed over the batch too."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y.sum()


class Rounded(Energy):
    """An energy that takes answers of type float alone."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y.round().sum(-1).float()


class Detached(Energy):
    """An energy that its parameters cannot change."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(14))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (y * self.weight.detach()).sum(-1)


class Mixed(Energy):
    """An energy of the softmax over examples, not over labels."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y.float().softmax(-2)[..., 0]


class Shared(Energy):
    """An energy of an answer less the mean of all answers to its example."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        total = y.float().sum(-1)
        return total - total.mean(0) if y.dim() > 2 else total


class Zero(Energy):
    """An energy that mixes examples, though not while its parameters are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(14))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        score = y.to(self.weight.dtype) @ self.weight
        return score - score.mean()


class Undefined(Energy):
    """An energy that is NaN."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y.sum(-1) * torch.nan


class Cosine(Energy):
    """An energy that is 0 / 0 while its parameters are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(14))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (y.to(self.weight.dtype) @ self.weight) / self.weight.norm()


class Logarithm(Energy):
    """An energy that is finite while its parameters are 0, and NaN where all are 0.1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(14))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (y.to(self.weight.dtype) @ self.weight) + (1 - self.weight.sum()).log()


class Unchecked(ConditionedEnergy):
    """Without the check of types that tests have: what users run."""

    def __call__(self, y: Tensor) -> Tensor:
        return self._energy(y)


class Pair(Energy):
    """An energy that gives two things."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y.sum(-1), y  # type: ignore[return-value]

    def given(self, x: Tensor) -> ConditionedEnergy:
        return Unchecked(lambda y: self(x, y))


class Nothing(Pair):
    """An energy whose author forgot to return it."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[empty-body]
        y.sum(-1)


class Step(Energy):
    """An energy of answers that are cut first, as a count is: no gradient leads back to them."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (y > 0.5).float().sum(-1)


class Scaling(Energy):
    """An energy that changes its inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.mul_(0.5)
        return y.float().sum(-1)


class Halving(Energy):
    """An energy that changes the answers that it is given."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y.data.mul_(0.5)
        return y.float().sum(-1)


class Boundless(Energy):
    """An energy that is infinite."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y.float().sum(-1) + torch.inf


class Listed(Energy):
    """An energy whose layers stand in a list that no module knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.bias = [torch.nn.Linear(14, 1)], torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layers[0](y.float()).squeeze(-1) + self.bias


class Bare(Energy):
    """An energy whose `given` is a function alone."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y.float().sum(-1)

    def given(self, x: Tensor) -> ConditionedEnergy:
        return lambda y: self(x, y)  # type: ignore[return-value]


class Misfit(Energy):
    """An energy for five labels."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (y * torch.ones(5)).sum(-1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Summed", "the energy Summed has shape () for answers of shape (32, 14): it has to be (32,)"),
        ("Mixed", "the energy Mixed of an answer depends on other answers in its batch: sum, average and"),
        ("Shared", "the energy Shared of an answer depends on other answers in its batch: sum, average and"),
        ("Zero", "the energy Zero of an answer depends on other answers in its batch: sum, average and"),
        (
            "Undefined",
            "the energy Undefined is NaN for true answers before anything has been learnt. Look for",
        ),
        ("Cosine", "the energy Cosine is NaN for true answers before anything has been learnt. Look for"),
        ("Pair", "the energy Pair gives a tuple: its forward has to return a tensor, a number for each"),
        ("Nothing", "the energy Nothing gives a NoneType: its forward has to return a tensor, a number for"),
        ("Misfit", "the energy Misfit cannot be computed for answers of shape (32, 14): "),
        ("Rounded", "the energy Rounded cannot be computed for answers of shape (2, 32, 14) and type bool: "),
        ("Step", "the energy Step has no gradient in the answers: searches and task-nets follow it. Compute"),
        ("Scaling", "the energy Scaling changes the inputs that it is given: leave them as they are"),
        ("Halving", "the energy Halving changes the answers that it is given: leave them as they are"),
        ("Boundless", "the energy Boundless is infinite for true answers before anything has been learnt."),
        (
            "Listed",
            "the energy Listed learns with tensors that are not among its parameters: they would stay",
        ),
        (
            "Bare",
            "the energy Bare has a `given` that returns a function: it has to return a ConditionedEnergy",
        ),
        ("Detached", "the energy Detached has parameters, and its value has no gradient in them: it cannot"),
    ],
)
@pytest.mark.parametrize(
    "layers", [("scheme/implicit", "objective/cd"), ("scheme/energy_net", "objective/dvn")]
)
def test_an_energy_that_cannot_be_trained_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    layers: tuple[str, ...],
    name: str,
    message: str,
) -> None:
    monkeypatch.chdir(ROOT)
    files = [f"--config=conf/{layer}.yaml" for layer in ("data/generated", *layers)]
    joint = f"--model.energy.joint={__name__}.{name}"
    assert train.main([*files, joint, f"--run_dir={tmp_path}/run"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


class Counted(Energy):
    """A count of labels, with the gradient that a search takes written out."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (y > 0.5).float().sum(-1)

    def given(self, x: Tensor) -> ConditionedEnergy:
        return ConditionedEnergy(lambda y: self(x, y), lambda y: (self(x, y), torch.ones_like(y)))


class OfInputs(Energy):
    """A part of an energy that depends on the inputs alone, and with a layer of another module."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layers = [layer]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layers[0](x).squeeze(-1).expand(y.shape[:-1])


def test_what_no_search_descends_needs_no_gradient_in_answers() -> None:
    space, x, y, layer = LabelSets(5), torch.ones(3, 2), torch.ones(3, 5), torch.nn.Linear(2, 1)
    check_energy(Counted(), space, x, y)
    check_energy(OfInputs(layer), space, x, y, followed=False, trained=layer)
    with pytest.raises(ValueError, match="the energy OfInputs has no gradient in the answers: searches and"):
        check_energy(OfInputs(layer), space, x, y, trained=layer)
    with pytest.raises(ValueError, match="the energy OfInputs learns with tensors that are not among its"):
        check_energy(OfInputs(layer), space, x, y, followed=False)


@pytest.mark.parametrize("x", [torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()])
def test_inputs_of_any_layout_may_be_tried(x: Tensor) -> None:
    check_energy(OfAnswers(), LabelSets(5), x, torch.ones(3, 5))


class OfAnswers(Energy):
    """An energy of answers alone."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y.float().square().sum(-1)


def test_an_operation_without_a_derivative_is_named() -> None:
    class Jump(Energy):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.heaviside(y.float() - 0.5, torch.tensor(0.0)).sum(-1)

    with pytest.raises(
        ValueError, match="the energy Jump cannot be differentiated in the answers: derivative"
    ):
        check_energy(Jump(), LabelSets(5), torch.ones(3, 2), torch.ones(3, 5))


def test_an_energy_is_left_as_it_was() -> None:
    energy = Zero()
    with pytest.raises(ValueError, match="the energy Zero of an answer depends on other answers"):
        check_energy(energy, LabelSets(14), torch.zeros(3, 2), torch.ones(3, 14))
    assert not energy.weight.any() and energy.weight.grad is None


def test_only_the_parameters_that_training_starts_from_may_not_give_nan() -> None:
    energy, x, y = Logarithm(), torch.zeros(3, 2), torch.ones(3, 14)
    torch.nn.init.constant_(energy.weight, 0.1)
    assert energy(x, y).isnan().all()
    torch.nn.init.zeros_(energy.weight)
    check_energy(energy, LabelSets(14), x, y)


def test_a_batch_without_examples_is_no_trial() -> None:
    with pytest.raises(
        ValueError, match="an energy is tried on true answers, and there are none: give a bat"
    ):
        check_energy(Zero(), LabelSets(14), torch.zeros(0, 2), torch.ones(0, 14))


def test_a_graph_made_before_survives_the_check() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 5))
    torch.nn.init.zeros_(net[2].weight)
    energy, x, y = LocalEnergy(net), torch.randn(2, 3), torch.ones(2, 5)
    given = energy.given(x)
    check_energy(energy, LabelSets(5), x, y)
    given(y).sum().backward()
    assert net[2].weight.grad is not None and not net[2].weight.any()


def test_answers_and_masks_that_do_not_fit_are_named() -> None:
    energy, space, x = TagLMEnergy(4, width=8), TagSequences(4), torch.randn(5, 7, 6)
    y, mask = torch.nn.functional.one_hot(torch.randint(4, (5, 7)), 4).float(), torch.ones(5, 7).bool()
    check_energy(energy, space, x, y, mask)
    with pytest.raises(ValueError, match=r"true answers have type torch.int64: give 0 and 1 as floats"):
        check_energy(energy, space, x, y.long(), mask)
    with pytest.raises(ValueError, match="num_tags is 5, and answers in the data have 4: set it to 4"):
        check_energy(energy, TagSequences(5), x, y, mask)
    with pytest.raises(
        ValueError, match=r"type torch.float32 and shape \(5, 7\): it has to be bool, True where"
    ):
        check_energy(energy, space, x, y, mask.float())
    with pytest.raises(ValueError, match=r"shape \(1, 7\): it has to be bool, True where"):
        check_energy(energy, space, x, y, mask[:1])
    with pytest.raises(ValueError, match="TagSequences has no mask: bind it to a batch"):
        space.over(None).relax(y)
