"""How near a run comes to the energy that its data are drawn from."""

from typing import Any

from pytorch_lightning import Callback, Trainer
from torch import Tensor

from datamodules.batches import Batch
from inference.known import KnownEnergy


class AgainstTruth(Callback):
    """Compares the answers to the test, and the learnt energy if there is one, with the data's `truth`.

    Logs, under `test/`:
    - regret: the expected share of wrong entries under the truth, above that of the best answer.
    - energy_gap: the true energy of the answers above the lowest one.
    - recovery and recovery_error: see `KnownEnergy.recovery`.
    - energy_regret: the regret of the answers of lowest learnt energy, found exactly.

    Training curves on validation, a value an epoch: `regret` and `recovery`. They choose nothing.
    """

    def on_validation_epoch_end(self, trainer: Trainer, scheme: Any) -> None:  # noqa: ANN401  (a scheme)
        """Append to the curves."""
        for name, value in self.compare(trainer, scheme, "validation").items():
            if name in ("regret", "recovery"):
                scheme.append_to_curve(name, float(value))

    def on_test_epoch_end(self, trainer: Trainer, scheme: Any) -> None:  # noqa: ANN401
        """Log all comparisons."""
        found = self.compare(trainer, scheme, "test")
        scheme.log_dict({f"test/{name}": value for name, value in found.items()})

    def compare(self, trainer: Trainer, scheme: Any, part: str) -> dict[str, Tensor]:  # noqa: ANN401
        """All comparisons, on all examples of a part at once."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        truth: KnownEnergy = data.truth
        split = data.splits[part]
        truth.energy.to(split.y.device)
        batch, x = Batch(split.inputs, split.y.to(split.inputs.dtype), split.mask), split.inputs
        answers = scheme.space.over(batch.mask).decode(scheme.predict(batch))
        found = {"regret": truth.regret(x, answers), "energy_gap": truth.gap(x, answers)}
        if (energy := scheme.model_energy()) is not None:
            found["energy_regret"] = truth.regret(x, truth.lowest(energy, x))
            found["recovery"], found["recovery_error"] = truth.recovery(energy, x)
        return {name: value.mean() for name, value in found.items()}
