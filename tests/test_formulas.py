"""What schemes compute, against formulas written out here: lines that no run's falling loss would check."""

from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from datamodules.batches import Batch, Batches
from energies.chain import ChainEnergy
from energies.spaces import LabelSets, TagSequences
from inference.guesses import Point
from inference.teachers import OwnAnswer
from lightning_modules.base import Scheme
from lightning_modules.crf_scaled import CRFScaled
from lightning_modules.cross_entropy import CrossEntropy
from lightning_modules.metrics.following import Following
from lightning_modules.metrics.multilabel import MultiLabelScores
from lightning_modules.seal_dynamic import SealDynamic
from lightning_modules.seal_static import SealStatic
from losses.objectives import NCERanking, Objective, Regression
from losses.task import EnergyAndSupervision
from test_schemes import D, N, Net, ToyEnergy, adam


def seal(kind: type[Scheme], objective: Objective) -> Any:  # noqa: ANN401  (either scheme)
    torch.manual_seed(0)
    options: dict[str, Any] = {"space": LabelSets(5), "metric": MultiLabelScores(5)}
    terms = EnergyAndSupervision(0.3, 2.0)
    net, energy = Net((5,)), ToyEnergy((5,))
    if kind is SealStatic:
        return SealStatic(net, energy, objective, terms, adam, **options).double()
    return SealDynamic(net, energy, objective, Point(), terms, adam, adam, **options).double()


@pytest.mark.parametrize("kind", [SealStatic, SealDynamic])
@pytest.mark.parametrize("objective", [Regression(), NCERanking()])
def test_the_task_net_minimises_the_energy_as_its_objective_reads_it(
    kind: type[Scheme], objective: Objective
) -> None:
    """lambda_1 E(x, s(A)) + lambda_2 BCE, summed over labels; regression reads -s(-E).   [SEAL eq. 1]"""
    module = seal(kind, objective)
    x, y = torch.randn(N, D).double(), (torch.rand(N, 5) < 0.4).double()
    answers = torch.sigmoid(module.task_net(x))
    read = module.energy(x, answers)
    read = -torch.sigmoid(-read) if isinstance(objective, Regression) else read
    truth = -(y * answers.log() + (1 - y) * (1 - answers).log()).sum(-1)
    want = (0.3 * read + 2.0 * truth).mean()
    found = module.task_loss(Batch(x, y))
    torch.testing.assert_close(found, want)
    parameters = [*module.task_net.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(found, parameters), torch.autograd.grad(want, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("weight", [None, 0.0, 0.1])
def test_taught_answers_count_as_much_as_they_are_asked_to(weight: float | None) -> None:
    """A mean over observed answers plus the weight times one over answers taught with confidence."""
    y = torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]])
    logits = torch.tensor([[1.0, 2, 3], [-1, 0, 1], [4, -4, 4], [0.1, 0.1, 0.1]])  # the last is not sure
    observed = torch.tensor([True, True, False, False])
    options = {"space": LabelSets(3), "metric": MultiLabelScores(3)}
    module = CrossEntropy(nn.Identity(), adam, teacher=OwnAnswer(0.9), taught_weight=weight, **options)
    own = torch.where(observed.unsqueeze(1), y, (logits > 0).float())
    each = -(own * logits.sigmoid().log() + (1 - own) * (-logits).sigmoid().log()).sum(1)
    want = each[:3].mean() if weight is None else each[:2].mean() + weight * each[2]
    found = module.task_loss(Batch(logits, torch.where(observed.unsqueeze(1), y, torch.nan), None, observed))
    torch.testing.assert_close(found, want)


def test_a_weight_of_taught_answers_below_zero_or_without_a_teacher_is_refused() -> None:
    options = {"space": LabelSets(3), "metric": MultiLabelScores(3)}
    with pytest.raises(ValueError, match=r"taught_weight is -0\.1: take a finite number, 0 or more"):
        CrossEntropy(nn.Identity(), adam, taught_weight=-0.1, **options)
    with pytest.raises(ValueError, match="taught_weight is given and no teacher: nothing is taught"):
        CrossEntropy(nn.Identity(), adam, taught_weight=0.1, **options)


class Fixed(pl.LightningDataModule):
    """Validation is best at a threshold of 0.2, the test at 0.5; an input is the logits of its answer."""

    def rows(self, probability: list[float], answer: list[float]) -> Batches:
        p, y = torch.tensor([probability]), torch.tensor([answer])
        return Batches(torch.logit(p), y, batch_size=1)

    def val_dataloader(self) -> Batches:
        return self.rows([0.9, 0.3, 0.1], [1, 1, 0])

    def test_dataloader(self) -> Batches:
        return self.rows([0.9, 0.3, 0.1], [1, 0, 0])


def test_the_threshold_is_chosen_on_validation_and_kept_for_the_test() -> None:
    options = {"space": LabelSets(3), "metric": MultiLabelScores(3, thresholds=(0.5, 0.2))}
    module = CrossEntropy(nn.Identity(), adam, **options)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", **quiet)
    (chosen,) = trainer.validate(module, Fixed(), verbose=False)
    (tested,) = trainer.test(module, Fixed(), verbose=False)
    assert chosen["val/example_f1"] == 1 and module.metric.threshold == torch.tensor(0.2)
    assert tested["test/example_f1"] == pytest.approx(2 / 3) and tested["test/example_f1_at_half"] == 1


def test_an_energy_that_falls_as_cross_entropy_does_is_aligned_with_it() -> None:
    """E = -<q, y> pulls q towards y, its negative away from it."""
    y = torch.nn.functional.one_hot(torch.tensor([[0, 2, 1], [1, 1, 0]]), 3).float()
    mask, space = torch.ones(2, 3, dtype=torch.bool), TagSequences(3)
    energy = ChainEnergy(nn.Identity(), 3)
    nn.init.zeros_(energy.pairwise)
    for sign in (1.0, -1.0):
        batch = Batch(sign * y, y, mask)
        scheme = SimpleNamespace(
            model_energy=lambda: energy,
            space=space,
            device="cpu",
            predict=lambda batch: torch.full_like(y, 1 / 3),
        )
        follow = Following()
        follow.begin(scheme)
        follow.add(scheme, batch)
        assert follow.found("val")["val/follow_alignment"] == pytest.approx(sign)


def test_the_subset_of_online_scaling_is_another_in_each_epoch() -> None:
    y = torch.nn.functional.one_hot(torch.arange(40) % 3, 3).float().unsqueeze(1)
    data = Batches(
        torch.arange(40.0).view(40, 1, 1), y, batch_size=4, mask=torch.ones(40, 1, dtype=torch.bool)
    )

    def drawn(epoch: int) -> Tensor:
        scheme: Any = SimpleNamespace(seed=0, current_epoch=epoch, scaling=SimpleNamespace(subset=10))
        return torch.cat([batch.inputs.flatten() for batch in CRFScaled.subset(scheme, data)]).sort().values

    assert len(drawn(0)) == 10 and torch.equal(drawn(0), drawn(0)) and not torch.equal(drawn(0), drawn(1))


def test_the_energy_of_seal_is_clipped_by_its_own_norm() -> None:
    options: dict[str, Any] = {"space": LabelSets(5), "metric": MultiLabelScores(5), "energy_clip_norm": 0.7}
    terms = EnergyAndSupervision(0.3)
    module = SealDynamic(Net((5,)), ToyEnergy((5,)), NCERanking(), Point(), terms, adam, adam, **options)
    parts = module.parts()
    assert parts["energy"].clip_norm == 0.7 and parts["task"].clip_norm == 10.0
