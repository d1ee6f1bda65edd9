"""The answer of lowest energy, found exactly where the energy is a linear chain."""

import torch
from jaxtyping import Float
from torch import Tensor

from energies.base import ConditionedEnergy
from inference.chain.criteria import best


@torch.no_grad()
def lowest(energy: ConditionedEnergy, costs: Float[Tensor, "B T S"] | None = None) -> Float[Tensor, "B T S"]:
    """Argmin of E(y), or of E(y) - cost(y), by Viterbi: one-hot, 0 at masked positions.

    `costs` are those of each tag at each position, whose sum over an answer is its cost.   [Scaling eq. 7]

    Raises:
        ValueError: the energy is not a chain.
    """
    if energy.chain is None:
        raise ValueError(
            "the lowest answer of this energy cannot be found exactly: take energies.chain.ChainEnergy alone "
            "as model.init_args.energy, or leave out what asks for that answer (networks.ExactAugmented, "
            "metrics.energy.EnergyScores, metrics.known.AgainstTruth)."
        )
    return best(energy.chain if costs is None else energy.chain.plus(costs))
