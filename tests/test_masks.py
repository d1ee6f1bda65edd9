"""Which positions are real: every scheme tells its energy, each time, by the mask of the batch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from energies.base import ConditionedEnergy, Energy, MaskedEnergy
from lightning_modules.base import Scheme
from test_implicit import implicit
from test_infnet import infnet
from test_schemes import MASK, SCHEMES, Data, fit, scheme


class Told(MaskedEnergy):
    """An energy that notes the lengths it is told."""

    def __init__(self, energy: Energy) -> None:
        super().__init__()
        self.energy = energy
        self.lengths: set[int] = set()

    def given(self, x: Tensor, mask: Tensor | None = None) -> ConditionedEnergy:
        assert mask is not None, "nobody told the energy which positions are real"
        assert mask.shape == (len(x), MASK.shape[1])
        self.lengths.update(mask.sum(1).tolist())
        return self.energy.given(x)


BUILD: dict[str, Callable[[], Scheme]] = {
    **{name: lambda name=name: scheme(name, "tags") for name in SCHEMES if name != "cross_entropy"},
    "infnet": lambda: infnet("tags"),
    "infnet, F alone": lambda: infnet("tags", "single", "margin"),
    "implicit": lambda: implicit("tags"),
}


@pytest.mark.parametrize("name", BUILD)
def test_every_scheme_tells_its_energy_which_positions_are_real(name: str, tmp_path: Path) -> None:
    module = BUILD[name]()
    module.energy = Told(module.energy)
    fit(module, Data("tags"), 2, tmp_path)
    assert module.energy.lengths == {2, 3}
    batch = next(iter(Data("tags").val_dataloader()))
    assert torch.isfinite(module.predict(batch)).all()
