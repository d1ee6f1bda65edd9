"""Whether each energy of a scheme gives one number for each answer, of that answer alone, and can learn."""

import torch
from torch import Tensor, nn

from datamodules.batches import Batch
from energies.base import ConditionedEnergy, Energy
from energies.spaces import LabelSets
from networks.layers import at_rest, batch_norms


@torch.enable_grad()
def check_energies(scheme: nn.Module, batch: Batch) -> None:
    """Try each energy, the terms of a sum too, on the true answers of a batch: one for each input, and two.

    Sets of labels are bool in one of the trials, as sampled sets are. A number for the whole batch would be
    added to every energy, and training would go on.

    Raises:
        ValueError: an energy cannot be computed, its shape is not that of the answers' leading dimensions, or
            it has parameters to learn and no gradient in any, or the energy of an answer depends on another
            answer.
    """
    two = torch.stack([batch.y, batch.y])
    trials = (batch.y, two, two.bool()) if isinstance(scheme.space, LabelSets) else (batch.y, two)
    for energy in reversed([module for module in scheme.modules() if isinstance(module, Energy)]):
        name = type(energy).__name__
        with at_rest(batch_norms(energy)):
            given = energy.over(batch.mask).given(batch.inputs)
            for y in trials:
                answers = tuple(y.shape)
                wanted = answers[: y.dim() - batch.y.dim() + 1]
                try:
                    value = given(y)
                except RuntimeError as error:
                    kind = " and type bool" if y.dtype == torch.bool else ""
                    raise ValueError(
                        f"the energy {name} cannot be computed for answers of shape {answers}{kind}: {error}"
                    ) from error
                if (found := tuple(value.shape)) != wanted:
                    raise ValueError(
                        f"the energy {name} has shape {found} for answers of shape {answers}: it has to be "
                        f"{wanted}, a number for each answer. Sum over the last dimensions alone."
                    )
            answers_alone(name, given, two)
        learns = any(parameter.requires_grad for parameter in energy.parameters())
        if learns and not value.requires_grad:
            raise ValueError(
                f"the energy {name} has parameters, and its value has no gradient in them: it cannot learn. "
                "Compute it without detach, no_grad and NumPy."
            )


def answers_alone(name: str, given: ConditionedEnergy, y: Tensor) -> None:
    """Raise ValueError if the energy of the first answer to the first example has a gradient in others."""
    y = y.clone().requires_grad_()
    with torch.backends.cudnn.flags(enabled=False):  # its LSTM has no backward pass in evaluation mode
        value = given(y)
        if not value.requires_grad:
            return
        (gradient,) = torch.autograd.grad(value[0, 0], y, allow_unused=True)
    if gradient is not None and gradient.nan_to_num().flatten(0, 1)[1:].any():
        raise ValueError(
            f"the energy {name} of an answer depends on other answers in its batch: sum, average and "
            "normalise over the dimensions of an answer alone."
        )
