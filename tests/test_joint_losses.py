"""What an energy and its inference networks minimise, against values worked by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, tensor

from losses.joint import Compound, JointObjective, MarginRescaled, Perceptron, RoleEnergies, Truncated

COST = {"augmented": tensor([1.0, 2.0]), "test": tensor([3.0, 4.0])}
GUESS = {"augmented": tensor([0.5, 5.0]), "test": tensor([-1.0, 2.0])}
TRUE = tensor([0.0, 1.0])
ENERGIES = RoleEnergies(GUESS, COST, TRUE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("objective", "energy", "network"),
    [
        (MarginRescaled(), 0.25, 1.25),  # [1 - 0.5 + 0]_+, [2 - 5 + 1]_+; minus 1 - 0.5 and 2 - 5
        (Truncated(), 0.25, -0.25),
        (Perceptron(), 0.5, 0.5),  # [0 + 1]_+, [1 - 2]_+; -1 and 2
        (Compound(perceptron_weight=4.0), 2.25, 3.25),
    ],
)
def test_losses_of_two_examples_are_as_worked_by_hand(
    objective: JointObjective, energy: float, network: float
) -> None:
    assert objective.energy_loss(ENERGIES).item() == pytest.approx(energy)
    assert objective.network_loss(ENERGIES).item() == pytest.approx(network)


def test_a_learns_from_all_examples_and_f_from_those_whose_answer_is_known() -> None:
    known = replace(ENERGIES, observed=tensor([True, False]))
    assert Perceptron().network_loss(known).item() == pytest.approx(0.5)  # both: -1 and 2
    assert MarginRescaled().network_loss(known).item() == pytest.approx(-0.5)  # the first: minus 1 - 0.5
    assert Perceptron().energy_loss(known).item() == pytest.approx(1.0)


def test_answers_that_are_the_truth_cost_nothing_and_move_no_energy() -> None:
    def loss_and_slope(more: float) -> tuple[float, float]:
        """By theta, the energies of the two true answers being `more` theta above those of the guesses."""
        theta = tensor(1.5, requires_grad=True)
        guesses = {"augmented": theta * TRUE, "test": theta * TRUE}
        nothing = dict.fromkeys(guesses, torch.zeros(2))
        energies = RoleEnergies(guesses, nothing, theta * (TRUE + more))  # type: ignore[arg-type]
        loss = Compound(2.0).energy_loss(energies)
        return loss.item(), torch.autograd.grad(loss, theta)[0].item()

    assert loss_and_slope(0.0) == (0, 0)
    assert loss_and_slope(1.0) == (4.5, 3)  # 1.5 for F and twice that for A


def test_a_margin_that_is_met_moves_the_network_only_without_truncation() -> None:
    def gradient(objective: JointObjective) -> Tensor:
        guess = tensor([9.0, 9.0], requires_grad=True)
        energies = RoleEnergies({"augmented": guess}, {"augmented": tensor([1.0, 2.0])}, TRUE)
        return torch.autograd.grad(objective.network_loss(energies), guess)[0]

    assert gradient(Truncated()).tolist() == [0, 0]
    assert gradient(MarginRescaled()).tolist() == [0.5, 0.5]


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"perceptron_weight is -3\.0: take a finite number"):
        Compound(-3.0)
