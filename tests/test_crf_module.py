"""The CRF layer against counting, by the formula pytorch-crf publishes."""

import re
from pathlib import Path

import pytest
import torch
from jaxtyping import config
from torch import Tensor, nn

import chain_oracle
from energies.potentials import ChainPotentials
from inference import chain
from inference.chain import CRF

B, T, S = 3, 4, 3
RAGGED = torch.tensor([[True] * 4, [True, True, False, False], [True, False, False, False]])
HOLES = torch.tensor([[True, False, True, True], [False, True, True, False], [False, False, False, True]])
MASKS = {"none": None, "ragged": RAGGED, "holes": HOLES}


def example(batch_first: bool, mask: Tensor | None) -> tuple[CRF, Tensor, Tensor, Tensor | None]:
    """A layer in float64 with emissions, tags and a mask, in its order of dimensions."""
    torch.manual_seed(0)
    crf = CRF(S, batch_first).double()
    emissions, tags = torch.randn(B, T, S, dtype=torch.float64), torch.randint(S, (B, T))
    if mask is not None:
        tags = tags.masked_fill(~mask, -100)
    if batch_first:
        return crf, emissions, tags, mask
    return crf, emissions.transpose(0, 1), tags.T, None if mask is None else mask.T


def counted(crf: CRF, emissions: Tensor, tags: Tensor, mask: Tensor | None) -> tuple[Tensor, ChainPotentials]:
    """Minus log of exp(score of the tags) over the sum of exp(score) of all sequences; examples first."""
    p = ChainPotentials(emissions, crf.transitions, mask, crf.start_transitions, crf.end_transitions)
    real = p.real()
    gold = torch.stack(
        [
            scores[(answers == tags[row].masked_fill(~real[row], 0)).all(1)].squeeze()
            for row in range(B)
            for answers, scores in [chain_oracle.answers(p, row)]
        ]
    )
    return chain_oracle.log_partition(p) - gold, p


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_every_reduction_is_that_of_the_published_formula(batch_first: bool, mask: str) -> None:
    crf, emissions, tags, where = example(batch_first, MASKS[mask])
    first = example(True, MASKS[mask])
    losses, p = counted(crf, *first[1:])
    count = B * T if where is None else where.sum()
    expected = {
        "sum": losses.sum(),
        "mean": losses.mean(),
        "token_mean": losses.sum() / count,
        "none": losses,
    }
    for reduction, value in expected.items():
        torch.testing.assert_close(crf(emissions, tags, where, reduction=reduction), value)
    torch.testing.assert_close(crf(emissions, tags, where), expected["sum"])
    best = torch.stack([a[s.argmax()] for a, s in (chain_oracle.answers(p, row) for row in range(B))])
    found, probability = crf.decode(emissions, where), crf.marginals(emissions, where)
    assert found.shape == tags.shape and probability.shape == emissions.shape
    assert torch.equal(found if batch_first else found.T, best)
    swapped = probability if batch_first else probability.transpose(0, 1)
    torch.testing.assert_close(swapped, chain_oracle.marginals(p))


def test_gradients_reach_emissions_and_every_parameter() -> None:
    crf, emissions, tags, mask = example(True, RAGGED)
    leaf = emissions.clone().requires_grad_()
    crf(leaf, tags, mask).backward()
    losses, _ = counted(crf, other := emissions.clone().requires_grad_(), tags, mask)
    expected = torch.autograd.grad(losses.sum(), [other, *crf.parameters()])
    for found, value in zip([leaf, *crf.parameters()], expected, strict=True):
        torch.testing.assert_close(found.grad, value)


def test_a_checkpoint_of_pytorch_crf_fits_and_comes_back(tmp_path: Path) -> None:
    crf, emissions, tags, mask = example(True, RAGGED)
    names = {"start_transitions": (S,), "end_transitions": (S,), "transitions": (S, S)}  # as published
    assert {name: tuple(value.shape) for name, value in crf.state_dict().items()} == names
    assert all(bool((value.abs() <= 0.1).all()) for value in crf.parameters())
    torch.save(crf.state_dict(), tmp_path / "crf.pt")
    again = CRF(S, batch_first=True).double()
    again.load_state_dict(torch.load(tmp_path / "crf.pt", weights_only=True))
    assert torch.equal(again(emissions, tags, mask), crf(emissions, tags, mask))


def test_a_network_and_the_layer_learn_what_follows_what() -> None:
    torch.manual_seed(1)
    first = torch.randint(S, (32, 1))
    tags = (first + torch.arange(6)) % S  # each tag follows from the one before
    x = nn.functional.one_hot(first, S).float() @ torch.randn(S, 5)
    x = torch.cat([x, torch.zeros(32, 5, 5)], 1)  # only the first position shows its tag
    net, crf = nn.Linear(5, S), CRF(S, batch_first=True)
    optimizer = torch.optim.Adam([*net.parameters(), *crf.parameters()], lr=0.1)
    losses = []
    for _ in range(60):
        loss = crf(net(x), tags, reduction="token_mean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]
    assert torch.equal(crf.decode(net(x)), tags)


def test_wrong_types_are_named() -> None:
    config.update("jaxtyping_disable", True)  # which would name them too, in the tests alone
    with pytest.raises(ValueError, match=r"num_tags is 2\.5: a chain needs a whole number of tags"):
        CRF(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"1\.5 answers are requested; take a whole number"):
        chain.k_best(ChainPotentials(torch.zeros(1, 2, 3), torch.zeros(3, 3)), 1.5)  # type: ignore[arg-type]
    crf, emissions, tags, mask = example(False, RAGGED)
    with pytest.raises(TypeError, match="emissions are a ndarray: give a tensor"):
        crf(emissions.detach().numpy(), tags, mask)


def test_mistakes_are_named() -> None:
    crf, emissions, tags, mask = example(False, RAGGED)
    with pytest.raises(ValueError, match="num_tags is 0"):
        CRF(0)
    with pytest.raises(ValueError, match=r"last one of num_tags=3"):
        crf(emissions[..., :2], tags, mask)
    with pytest.raises(ValueError, match=r"tags of shape \(3, 4\) do not fit emissions of shape \(4, 3, 3\)"):
        crf(emissions, tags.T, mask)
    with pytest.raises(ValueError, match="there is no reduction 'average'; there are sum, mean, token_mean"):
        crf(emissions, tags, mask, reduction="average")
    with pytest.raises(ValueError, match=r"call \.bool\(\) on it"):
        crf(emissions, tags, mask.byte())
    with pytest.raises(ValueError, match=r"mask of shape \(3, 4\) does not fit emissions"):
        crf.decode(emissions, mask.T)


@pytest.mark.parametrize("block", [0, 1])
def test_the_examples_of_the_page_run(block: int) -> None:
    page = (Path(__file__).parents[1] / "docs" / "crf.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[block]
    names: dict = {}
    exec(compile(code, f"docs/crf.md, block {block}", "exec"), names)
    if block == 0:
        assert names["best"].shape == (8, 20) and names["emissions"].grad.isfinite().all()
        assert names["loss"] > 0
    else:  # the pairs of torch-struct are tag after, tag before
        tags, table, mask = names["best"].tags, names["log_potentials"], names["mask"]
        pairs = table[torch.arange(8).unsqueeze(1), torch.arange(19), tags[:, 1:], tags[:, :-1]]
        torch.testing.assert_close((pairs * mask[:, 1:]).sum(1), names["best"].score)
