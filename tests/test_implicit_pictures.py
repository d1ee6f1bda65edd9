"""Implicit's horses: the inference network, its energy, the summed supervision, second derivatives."""

import math
from functools import partial
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import OptimizerCallable
from torch import nn

from datamodules.batches import Batch, Batches
from energies.base import SumEnergy
from energies.masks import MaskEnergy, PixelEnergy
from energies.spaces import PixelMasks
from inference.bilevel import Bilevel, Exact, FiniteDifference, Neumann, hypergradient
from inference.guesses import Combined, Guess, Point, Sampled, StraightThrough, Truth
from lightning_modules.implicit import Implicit
from lightning_modules.metrics.masks import MaskScores
from losses.objectives import Contrastive, Margin, Objective, Regression
from networks.encoder_decoder import EncoderDecoder
from networks.fcn import pixels

adam = partial(torch.optim.Adam, lr=1e-3)
PRIMARY: dict[str, tuple[Objective, Guess]] = {
    "ssvm": (Margin(), Point()),
    "dvn": (Regression(), Combined([Point(), Truth()])),
    "cd": (Contrastive(), Combined([Point(), Sampled(3)])),
    "cd_straight": (Contrastive(), StraightThrough(3)),
}


def some_pictures(count: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (count, 3, side, side), generator=draw, dtype=torch.uint8)
    return x, (torch.rand(count, side, side, generator=draw) < 0.3).float()


def test_supervision_of_masks_is_the_mean_over_pixels_or_their_sum() -> None:
    odds = torch.tensor([[[3.0, 1.0], [1 / 3, 1.0]], [[1.0, 1.0], [1.0, 7.0]]])
    y = torch.tensor([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]])
    # probabilities 3/4, 1/2, 1/4, 1/2 of the true pixels of the first; 1/2, 1/2, 1/2, 1/8 of the second
    by_hand = torch.tensor([math.log(4 / 3 * 2 * 4 * 2), math.log(2 * 2 * 2 * 8)])
    torch.testing.assert_close(PixelMasks(reduction="sum").supervise(odds.log(), y), by_hand)
    torch.testing.assert_close(PixelMasks().supervise(odds.log(), y), by_hand / 4)
    # the cost of a guess is 1 - soft IoU with either: 1 - 1.5/3 where half of each pixel is taken
    half = torch.full((2, 2, 2), 0.5)
    for space in (PixelMasks(), PixelMasks(reduction="sum")):
        torch.testing.assert_close(space.cost(half, y), torch.tensor([1 - 1.5 / 3.5, 1 - 0.5 / 2.5]))


def test_the_inference_network_answers_every_pixel_of_a_picture_of_any_size() -> None:
    torch.manual_seed(0)
    net, (x, _) = EncoderDecoder(width=4), some_pictures(2, 32)
    assert net(x).shape == (2, 32, 32) and net(x[..., :16, :24]).shape == (2, 16, 24)
    torch.testing.assert_close(net(x), net(pixels(x)))
    far = x.clone()
    far[0, :, 31, 31] = 255 - far[0, :, 31, 31]
    moved = (net(far) != net(x)).nonzero()
    assert set(moved[:, 0].tolist()) == {0} and moved[:, 1].min() < 24  # the coarse scales reach far
    with pytest.raises(ValueError, match=r"20 x 32 pixels: this network takes.*multiples of 8"):
        net(x[:, :, :20])
    # the widths of the last block: the map below, and the picture itself
    assert sum(p.numel() for p in net.parameters()) == sum(
        9 * before * 4 + 4 for before in (3, 4, 4, 8, 8, 7)
    ) + (4 + 1)


def test_the_local_energy_is_minus_the_sum_of_the_potentials_of_a_mask() -> None:
    torch.manual_seed(0)
    net, (x, y) = EncoderDecoder(width=4), some_pictures(3, 8)
    energy, several = PixelEnergy(net), torch.stack([y, torch.rand_like(y)])
    torch.testing.assert_close(energy(x, several), -(net(x) * several).sum((-2, -1)))
    values, gradient = energy.value_and_gradient(x)(several)
    torch.testing.assert_close(values, energy(x, several).detach())
    torch.testing.assert_close(gradient, -net(x).detach().expand_as(several))
    both = SumEnergy(energy, joint := MaskEnergy(8, width=4).eval())
    torch.testing.assert_close(both(x, several), energy(x, several) + joint(x, several))


def small(primary: str, optimizer: OptimizerCallable = adam) -> Implicit:
    """Bilevel training of small networks without dropout."""
    torch.manual_seed(3)
    energy = SumEnergy(PixelEnergy(EncoderDecoder(width=4)), MaskEnergy(8, width=4, dropout=0.0))
    nn.init.zeros_(energy.local.net.last.bias)  # a sum over pixels of a constant would end every hinge
    objective, guess = PRIMARY[primary]
    space, net = PixelMasks(reduction="sum"), EncoderDecoder(width=4)
    common = {"space": space, "metric": MaskScores(), "seed": 1, "warm_up": 0}
    return Implicit(net, energy, objective, guess, optimizer, optimizer, Neumann(3), Exact(), **common)


@pytest.mark.parametrize("primary", PRIMARY)
def test_finite_differences_agree_with_double_backward_on_convolutions(primary: str) -> None:
    module, (x, y) = small(primary).double(), some_pictures(4, 8)
    energy, batch = module.energy, Batch(pixels(x).double(), y.double())
    phi = [*energy.parameters()]
    found = []
    for products in (Exact(), FiniteDifference(1e-4)):
        torch.manual_seed(0)
        inner = partial(module.inner_loss, energy, batch)
        outer = partial(module.outer_loss, energy, batch, lesson=module.taught(batch))
        problem = Bilevel(module.task_net, batch.inputs, inner, outer, phi)
        found.append(hypergradient(problem, Neumann(2), products, divisor=1e3))
    exact, near = found
    scale = max(float(t.abs().max()) for t in exact.implicit)
    assert scale > 0  # a gradient reaches the energy through the task-net's answers
    for one, other in zip(exact.implicit, near.implicit, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * scale)
    for one, other in zip(exact.explicit, near.explicit, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("primary", PRIMARY)
def test_a_fused_optimizer_moves_convolutions_with_channels_last_as_a_plain_one(
    primary: str, tmp_path: Path
) -> None:
    x, y = some_pictures(4, 8)
    after = []
    for fused in (False, True):
        module = small(primary, partial(torch.optim.Adam, lr=0.1, eps=1e-3, fused=fused))
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, Batches(x, y, batch_size=4, seed=0))
        after.append({name: p.detach() for name, p in module.named_parameters()})
    weight = module.energy.joint.first.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    for name, value in after[0].items():
        torch.testing.assert_close(after[1][name], value, rtol=1e-3, atol=1e-3, msg=name)
