"""Bilevel training that solves its inner problem: when its steps end, and the norm that is watched."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from datamodules.batches import Batch
from lightning_modules.implicit import Implicit
from test_implicit import implicit
from test_schemes import SPACES, Data, fit, weights


@pytest.mark.parametrize("space", SPACES)
def test_the_inner_problem_is_solved_to_a_tolerance_or_to_the_cap(space: str, tmp_path: Path) -> None:
    def run(folder: str, **options: Any) -> Implicit:
        module = implicit(space, **options)
        fit(module, Data(space), 6, tmp_path / folder)
        return module

    loose, capped = (run(f"{t}", inner_tolerance=t, inner_steps=40) for t in (0.3, 0.0))
    plain = run("plain", inner_steps=40)
    assert 0 < max(loose.curves["inner_steps"]) and loose.steps["task"] < capped.steps["task"]
    assert capped.curves["inner_steps"] == [40.0] * 6
    assert min(loose.curves["inner"]) <= 0.3 and "inner" not in plain.curves
    before, after = weights(plain), weights(capped)
    assert all(torch.equal(before[name], after[name]) for name in before)  # measuring changes nothing


def test_the_watched_norm_is_that_of_the_inner_gradient(tmp_path: Path) -> None:
    module = implicit("sets", inner_tolerance=0.0, inner_steps=2, energy_clip_norm=None)
    seen: list[Tensor] = []
    right: list[Tensor] = []
    original, watch = module.hypergradient, module.watch

    def checked(batch: Batch) -> Tensor:
        loss = module.inner_loss(module.energy_of(batch), batch, module.task_net(batch.inputs))
        right.append(nn.utils.get_total_norm(torch.autograd.grad(loss, list(module.task_net.parameters()))))
        return original(batch)

    def keep(curve: str, value: Tensor, *, points: int = 1) -> None:
        seen.extend([value] if curve == "inner" else [])
        watch(curve, value, points=points)

    module.watch, module.hypergradient = keep, checked  # type: ignore[method-assign]
    fit(module, Data("sets"), 2, tmp_path)
    assert len(seen) > 1 and all(map(torch.equal, seen, right))


@pytest.mark.parametrize("tolerance", [-1.0, math.inf, 10.0])
def test_a_tolerance_that_says_nothing_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="inner_tolerance"):
        implicit("sets", inner_tolerance=tolerance)
