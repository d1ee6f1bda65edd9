"""What examples without an answer teach, by value; random numbers that are the same in every evaluation."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from datamodules.batches import Batch
from inference.teachers import OwnAnswer
from lightning_modules.implicit import Implicit
from losses.observed import mean, over_observed
from test_implicit import implicit
from test_schemes import Data, fit

SEEN = torch.tensor([True, False, True, False])


def half_seen(space: str) -> Batch:
    """Four examples, two of them observed."""
    batch = next(iter(Data(space).val_dataloader()))
    few = Batch(batch.inputs[:4], batch.y[:4], None if batch.mask is None else batch.mask[:4], SEEN)
    hidden = SEEN.view(-1, *[1] * (few.y.dim() - 1))
    return replace(few, y=torch.where(hidden, few.y, 0))


def test_the_mean_is_over_what_is_observed_by_hand() -> None:
    rows = torch.tensor([1.0, 100.0, 3.0, torch.nan])
    assert over_observed(rows, SEEN).tolist() == [2.0, 0.0, 6.0, 0.0]
    assert mean(rows, SEEN) == 2.0
    assert mean(rows, torch.zeros(4, dtype=torch.bool)) == 0.0
    assert mean(rows[:3], None) == pytest.approx(104 / 3)


@pytest.mark.parametrize("space", ["sets", "tags"])
def test_the_inner_loss_has_the_energy_of_all_and_the_truth_of_the_observed(space: str) -> None:
    module, batch = implicit(space), half_seen(space)
    logits = module.task_net(batch.inputs)
    answers = module.space.over(batch.mask)
    energy = module.energy.over(batch.mask)(batch.inputs, answers.relax(logits))
    truth = answers.supervise(logits, batch.y)
    expected = 0.5 * energy.mean() + (truth[0] + truth[2]) / 2
    torch.testing.assert_close(module.inner_loss(module.energy_of(batch), batch, logits), expected)


@pytest.mark.parametrize("space", ["sets", "tags"])
def test_the_outer_loss_has_the_teachers_answers_where_the_truth_is_hidden(space: str) -> None:
    module, batch = implicit(space, "ssvm", teacher=OwnAnswer()), half_seen(space)
    logits, answers = module.task_net(batch.inputs), module.space.over(batch.mask)
    own = answers.decode(answers.relax(logits))
    taught = torch.where(SEEN.view(-1, *[1] * (own.dim() - 1)), batch.y, own)
    lesson = module.taught(batch)
    assert torch.equal(lesson.y, taught) and lesson.observed is not None and lesson.observed.all()
    energy, guess = module.energy.over(batch.mask), answers.relax(logits)
    gap = answers.cost(guess, taught) - energy(batch.inputs, guess) + energy(batch.inputs, taught)
    found = module.outer_loss(energy, batch, logits, lesson)
    torch.testing.assert_close(found, gap.clamp_min(0).mean())
    alone = implicit(space, "ssvm").taught(batch)
    assert torch.equal(alone.y, batch.y) and alone.observed is SEEN


class Drawn(Implicit):
    """A scheme whose answers are noise."""

    def predict(self, batch: Batch) -> Tensor:
        return torch.rand_like(batch.y)


def test_every_evaluation_draws_the_same_numbers_whatever_was_trained(tmp_path: Path) -> None:
    module, batch = implicit("sets"), next(iter(Data("sets").val_dataloader()))
    module.__class__ = Drawn
    first = module.answer_to(batch)
    fit(module, Data("sets"), 2, tmp_path)
    assert torch.equal(first, module.answer_to(batch))
    other = implicit("sets")
    other.__class__, other.seed = Drawn, 2
    assert not torch.equal(first, other.answer_to(batch))
