"""The letters' network: its size, and that its short cuts change nothing."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from networks.inputs import Sequences
from networks.lenet import LeNet


def pictures(batch: int = 3, length: int = 4) -> Sequences:
    """Letters, of which those behind a word mean nothing, and one that is blank."""
    draw = torch.Generator().manual_seed(0)
    x = (torch.rand(batch, length, 16, 8, generator=draw) < 0.3).to(torch.uint8)
    x[1, 1] = 0
    mask = torch.arange(length) < torch.tensor([2, length, 1]).unsqueeze(1)
    return Sequences(x, mask)


def whole_picture(net: LeNet, x: Tensor) -> Tensor:
    """Every layer over the whole 32 x 32."""
    z = F.pad(x.flatten(0, 1).to(torch.float64), (12, 12, 8, 8)).unsqueeze(1)
    z = F.max_pool2d(net.first(z).relu(), 2)
    z = F.max_pool2d(net.second(z).relu(), 2)
    return net.output(net.last(net.hidden(z.flatten(1)))).unflatten(0, x.shape[:2])


def test_it_has_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in LeNet().parameters()) == 79_086


@pytest.mark.parametrize("last", ["relu", "sigmoid"])
def test_scores_and_gradients_are_those_of_the_whole_picture(last: str) -> None:
    torch.manual_seed(1)
    net, x = LeNet(last=last).double(), pictures()
    real = x.mask
    weight = torch.randn(*real.shape, 26, dtype=torch.float64) * real.unsqueeze(-1)
    ours, theirs = net(x), whole_picture(net, x.values) * real.unsqueeze(-1)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    found = torch.autograd.grad((ours * weight).sum(), list(net.parameters()))
    wanted = torch.autograd.grad((theirs * weight).sum(), list(net.parameters()))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_positions_without_a_picture_score_zero() -> None:
    scores = LeNet()(pictures())
    assert not scores[0, 2:].any() and not scores[2, 1:].any() and scores[1].any(-1).all()
