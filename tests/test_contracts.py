"""What parts of a user's own have to keep to, and callbacks that a run cannot have: one sentence each."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback
from torch import Tensor

import toy_world
from datamodules.batches import Batch
from energies.base import ValueAndGradient
from energies.spaces import AnswerSpace
from inference.base import Inference, Prediction, Status
from lightning_modules.base import TaskNetScheme
from losses.objectives import Answers, EnergyFn, Guesses, Objective
from networks.inputs import Inputs
from scripts import train
from toy_world import World

world = toy_world.world  # the fixture
CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parent.parent


class Square(Objective):
    """A loss of every example against every other: the author forgot a dimension."""

    def rows(self, energy: EnergyFn, space: Answers, x: Inputs, y: Tensor, guesses: Guesses) -> Tensor:
        guess, true = energy(x, guesses.y)[0], energy(x, y)
        return (guess - true.unsqueeze(1)).relu()


class Bare(Inference):
    """A search that returns its answer alone."""

    def __call__(
        self,
        value_and_gradient: ValueAndGradient,
        space: AnswerSpace,
        like: Tensor,
        logits: Tensor | None = None,
    ) -> Prediction:
        return self.found(like)

    def found(self, like: Tensor) -> Any:  # noqa: ANN401  (a mistake)
        """What it returns."""
        return like


class Short(Bare):
    """A search that answers for one example."""

    def found(self, like: Tensor) -> Any:  # noqa: ANN401  (a mistake)
        return Prediction(like[:1], like[:1, 0], Status.CONVERGED, 0)


class Placed(Callback):
    """A callback with a default that YAML cannot hold."""

    def __init__(self, device: torch.device | str | None = CPU) -> None:
        self.device = device


class Forgetful(TaskNetScheme):
    """A scheme that names its parent in place of super(), so the parser cannot follow."""

    def __init__(self, task_net: torch.nn.Module, **scheme: Any) -> None:
        TaskNetScheme.__init__(self, **scheme)
        self.task_net = task_net

    def training_step(self, batch: Batch, index: int) -> None: ...

    def parts(self) -> dict[str, Any]:
        return {}


def said(capsys: pytest.CaptureFixture[str], layers: list[str], *options: str) -> str:
    """What a run that is refused says; layers are files of conf/."""
    files = [f"--config=conf/{layer}.yaml" for layer in ("data/generated", *layers)]
    assert train.main([*files, "--trainer.max_epochs=1", *options]) == 2
    return " ".join(capsys.readouterr().err.split())


OBJECTIVE = ["scheme/seal_dynamic", "objective/regression"]
SEARCH = ["scheme/energy_net", "objective/dvn"]
PLAIN = ["scheme/cross_entropy"]


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        (
            OBJECTIVE,
            [f"--model.objective={__name__}.Square"],
            "Square.rows gives shape (32, 32): it has to be (32,), a loss for each example, or (1, 32), one",
        ),
        (
            SEARCH,
            [f"--search={__name__}.Bare"],
            "the search Bare gives a Tensor: it has to return an inference.base.Prediction.",
        ),
        (
            SEARCH,
            [f"--search={__name__}.Short"],
            "the search Short gives answers of shape (1, 14): they have to be (32, 14), as `like` is.",
        ),
        (
            SEARCH,
            [f"--model.inference={__name__}.Bare"],
            "Is a --config missing, or misspelt, or is --model.inference of another class?",
        ),
        (
            PLAIN,
            ["--trainer.callbacks=RichProgressBar"],
            "--trainer.callbacks has no ModelCheckpoint, and a run tests its best checkpoint. To add to the",
        ),
        (
            PLAIN,
            ["--trainer.callbacks=ModelCheckpoint", "--trainer.callbacks.monitor=val/nothing"],
            "val/nothing",
        ),
        (
            PLAIN,
            ["--trainer.callbacks+=EMAWeightAveraging"],
            "--trainer.callbacks has EMAWeightAveraging: averaged weights would choose the epoch, and a run",
        ),
        (
            PLAIN,
            ["--trainer.callbacks+=StochasticWeightAveraging", "--trainer.callbacks.swa_lrs=0.1"],
            "StochasticWeightAveraging: averaged weights would choose the epoch, and a run keeps and tests",
        ),
        (
            PLAIN,
            [f"--trainer.callbacks+={__name__}.Placed"],
            "Placed (at trainer.callbacks.2) has a default that no file can hold: set device.",
        ),
        (
            PLAIN,
            [f"--model={__name__}.Forgetful", "--model.space=energies.spaces.LabelSets"],
            "its __init__ sets it, or does not hand its keyword arguments on, as super().__init__(**scheme)",
        ),
    ],
)
def test_what_no_run_can_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    layers: list[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(ROOT)
    assert message in said(capsys, layers, *options, f"--run_dir={tmp_path}/run")


def test_a_row_of_settings_in_a_tables_config_is_told_of_tuned(world: World) -> None:
    def declare(tree: dict[str, Any]) -> None:
        tree["rows"]["plain"]["config"] = ["conf/tuned/mine.yaml:best"]

    world.change("tables/toy.yaml", declare)
    code, text = world.reproduce()
    assert code == 2 and "A row of a file of settings is named with `tuned`" in " ".join(text.split())
