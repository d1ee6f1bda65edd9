"""Dropout while an energy makes its guesses: on as in the released code, or off; real configs."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.run.cli import TrainCLI
from inference.guesses import Guess, GuessContext
from losses.objectives import Guesses
from scheme_runs import QUICK, configs

ENERGY = configs("conf/data/generated.yaml", "conf/scheme/energy_net.yaml")
SEEN = tuple[Tensor | None, Tensor]  # logits of the guesser, guesses


class Spy(Guess):
    """Keeps what the first guesses of a run were made from."""

    def __init__(self, guess: Guess) -> None:
        self.guess = guess
        self.first: tuple[Tensor, SEEN] | None = None

    def __call__(self, context: GuessContext) -> Guesses:
        """Guess, and keep the first inputs, logits and guesses."""
        found = self.guess(context)
        self.first = self.first or (context.x, (context.logits, found.y))
        return found


@pytest.fixture(scope="module")
def guesser(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checkpoint of a short cross-entropy run with dropout."""
    folder = tmp_path_factory.mktemp("guesser")
    files = configs("conf/data/generated.yaml", "conf/scheme/cross_entropy.yaml")
    cli = TrainCLI([*files, *QUICK, "--net.init_args.dropout=0.5"], run_dir=str(folder))
    cli.trainer.fit(cli.model, cli.datamodule)
    return str(folder / "checkpoints" / "best.ckpt")


def first(folder: Path, objective: str, *options: str) -> tuple[SEEN, SEEN]:
    """The first guesses of a training run, and those of the same networks in evaluation."""
    few = [*QUICK, "--trainer.limit_train_batches=1", "--net.init_args.dropout=0.5"]
    cli = TrainCLI(
        [*ENERGY, *configs(f"conf/objective/{objective}.yaml"), *few, *options], run_dir=str(folder)
    )
    resting, spy = deepcopy(cli.model).eval(), Spy(cli.model.guess)
    cli.model.guess = spy
    cli.trainer.fit(cli.model, cli.datamodule)
    assert spy.first is not None
    x, seen = spy.first
    with torch.no_grad():
        logits = resting.guesser(x) if resting.guesser is not None else None
        blank = torch.zeros_like(seen[1][0])
        context = GuessContext(resting.energy, resting.objective, resting.space, x, blank, logits)
        return seen, (logits, resting.guess(context).y)


@pytest.mark.parametrize("off", [False, True])
def test_the_searches_of_training_have_dropout_unless_it_is_off(off: bool, tmp_path: Path) -> None:
    (_, found), (_, resting) = first(tmp_path, "dvn", *["--model.search_dropout=false"] * off)
    assert torch.equal(found[0], resting[0]) is off  # of dvn the first is the energy's minimum, from a blank


@pytest.mark.parametrize("off", [False, True])
def test_the_guesser_has_dropout_in_training_unless_it_is_off(
    off: bool, tmp_path: Path, guesser: str
) -> None:
    given = f"--model.guesser.init_args.checkpoint={guesser}"
    (found, _), (resting, _) = first(tmp_path, "nce", given, *["--model.guesser_dropout=false"] * off)
    assert torch.equal(found, resting) is off
