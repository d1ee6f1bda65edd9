"""Energies loaded from a finished run.   [SEAL §2.1]"""

from torch import Tensor, nn

from energies.base import ConditionedEnergy, Energy, MaskedEnergy, StructuredEnergy
from energies.mlc import LabelMixEnergy
from energies.scaling import ScaledEnergy, Scaling
from networks.inputs import Inputs
from networks.mlp import MLP, reset_linear
from networks.pretrained import CheckpointUnusable, load_parts


class PretrainedEnergy(MaskedEnergy):
    """The energy of a finished run, frozen, with its architecture, all its weights and its scaling.

    Dropout follows the mode of the module around it. `checkpoint` is that run's best checkpoint.
    """

    def __init__(self, checkpoint: str) -> None:
        super().__init__()
        parts = load_parts(checkpoint, "energy", if_there=("scaling",))
        energy = parts["energy"]
        if not isinstance(energy, Energy):
            raise CheckpointUnusable(f"checkpoint is {checkpoint}, whose part `energy` is not an energy.")
        if (scaling := parts.get("scaling")) is not None:
            if not isinstance(energy, StructuredEnergy) or not isinstance(scaling, Scaling):
                raise CheckpointUnusable(f"checkpoint is {checkpoint}, whose `scaling` scales no CRF.")
            energy = ScaledEnergy(energy, scaling)
        self.energy = energy.requires_grad_(False)

    def given(self, x: Inputs, mask: Tensor | None = None) -> ConditionedEnergy:
        """The loaded energy with its input fixed."""
        return self.energy.over(mask).given(x)


class PartlyPretrainedEnergy(PretrainedEnergy):
    """A finished run's energy as the released static runs loaded it: label matrix and v only.

    Its list of initialisers reinitialised every other linear layer before the rule that loads the checkpoint
    applied. So the feature network, M and m are random and frozen.   [SEAL code, static runs]
    """

    def __init__(self, checkpoint: str) -> None:
        super().__init__(checkpoint)
        for module in self.energy.modules():
            if isinstance(module, LabelMixEnergy):
                module.reset_patterns()
            elif isinstance(module, MLP):
                for layer in module.layers:
                    if isinstance(layer, nn.Linear):
                        reset_linear(layer)
